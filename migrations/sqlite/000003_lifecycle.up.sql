-- What happens to an order after its units are cut: payment, cancellation, expiry, refund. And what limits it: units per buyer, opening hours.

ALTER TABLE stock ADD COLUMN opens_at DATETIME NULL;
ALTER TABLE stock ADD COLUMN closes_at DATETIME NULL;

-- version counts the changes of an order. payment_id is the payment that paid it. restocked says whether a refund returned the units.
-- queued_until is when an order was recorded that was queued since created_at; it is null for orders that were not queued.
ALTER TABLE orders ADD COLUMN version INTEGER NOT NULL DEFAULT 0;
ALTER TABLE orders ADD COLUMN payment_id TEXT NULL;
ALTER TABLE orders ADD COLUMN restocked BOOLEAN NOT NULL DEFAULT FALSE;
ALTER TABLE orders ADD COLUMN queued_until DATETIME NULL;

-- orders_due finds the pending orders whose time has passed, orders_buyer the orders of a buyer. SQLite adds the primary key to both.
CREATE INDEX orders_due ON orders (expires_at) WHERE status = 'pending';
CREATE INDEX orders_buyer ON orders (buyer_id);

-- Every change of status after the first. The first is the order's own created_at.
CREATE TABLE order_history (
    order_id BLOB     NOT NULL,
    version  INTEGER  NOT NULL,
    status   TEXT     NOT NULL,
    at       DATETIME NOT NULL,
    PRIMARY KEY (order_id, version)
) WITHOUT ROWID;

-- Every payment that was ever reported. status is paid, refund-due or refunded.
CREATE TABLE payments (
    id         TEXT     NOT NULL PRIMARY KEY,
    order_id   BLOB     NOT NULL,
    status     TEXT     NOT NULL,
    created_at DATETIME NOT NULL,
    changed_at DATETIME NOT NULL
) WITHOUT ROWID;

CREATE INDEX payments_status ON payments (status);

-- The units that each buyer holds of a SKU with a buyer limit. A row changes only under the lock of its stock row.
CREATE TABLE claims (
    sku      TEXT    NOT NULL,
    buyer_id TEXT    NOT NULL,
    units    INTEGER NOT NULL,
    PRIMARY KEY (sku, buyer_id)
) WITHOUT ROWID;

-- Work that one instance of the cluster does at a time. token rises with every new holder.
CREATE TABLE jobs (
    name       TEXT     NOT NULL PRIMARY KEY,
    holder     TEXT     NOT NULL,
    token      INTEGER  NOT NULL,
    held_until DATETIME NOT NULL
) WITHOUT ROWID;
