DROP TABLE lock_tokens;
DROP TABLE jobs;
DROP TABLE claims;
DROP TABLE payments;
DROP TABLE order_history;

ALTER TABLE orders
    DROP KEY orders_due,
    DROP KEY orders_buyer,
    DROP COLUMN version,
    DROP COLUMN payment_id,
    DROP COLUMN restocked,
    DROP COLUMN queued_until;

ALTER TABLE stock
    DROP COLUMN opens_at,
    DROP COLUMN closes_at;
