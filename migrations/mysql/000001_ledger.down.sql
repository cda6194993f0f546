-- Back to an empty database: the orders are lost, and the ledger that comes next has another ID.
DROP TABLE ledger;
DROP TABLE outbox;
DROP TABLE order_lines;
DROP TABLE orders;
DROP TABLE stock;
