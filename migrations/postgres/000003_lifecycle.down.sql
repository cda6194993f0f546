DROP TABLE lock_tokens;
DROP TABLE jobs;
DROP TABLE claims;
DROP TABLE payments;
DROP TABLE order_history;

DROP INDEX orders_due;
DROP INDEX orders_buyer;

ALTER TABLE orders
    DROP COLUMN version,
    DROP COLUMN restocked,
    DROP COLUMN queued_until,
    DROP COLUMN payment_id;

ALTER TABLE stock
    DROP COLUMN opens_at,
    DROP COLUMN closes_at;
