-- Reverts to an empty database: all orders are lost. The next migration up creates a ledger with a new ID.
DROP TABLE ledger;
DROP TABLE outbox;
DROP TABLE order_lines;
DROP TABLE orders;
DROP TABLE stock;
