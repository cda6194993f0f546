DROP TABLE jobs;
DROP TABLE claims;
DROP TABLE payments;
DROP TABLE order_history;

DROP INDEX orders_due;
DROP INDEX orders_buyer;

ALTER TABLE orders DROP COLUMN version;
ALTER TABLE orders DROP COLUMN payment_id;
ALTER TABLE orders DROP COLUMN restocked;
ALTER TABLE orders DROP COLUMN queued_until;

ALTER TABLE stock DROP COLUMN opens_at;
ALTER TABLE stock DROP COLUMN closes_at;
