-- What happens to an order after its units are cut: payment, cancellation, expiry, refund. And what limits it: units per buyer, opening hours.

ALTER TABLE stock
    ADD COLUMN opens_at  timestamptz,
    ADD COLUMN closes_at timestamptz;

-- version counts the changes of an order. payment_id is the payment that paid it. restocked says whether a refund returned the units.
-- queued_until is when an order was recorded that was queued since created_at; it is null for orders that were not queued.
ALTER TABLE orders
    ADD COLUMN version    bigint NOT NULL DEFAULT 0,
    ADD COLUMN restocked  boolean NOT NULL DEFAULT false,
    ADD COLUMN queued_until timestamptz,
    ADD COLUMN payment_id text COLLATE "C";

-- orders_due finds the pending orders whose time has passed, orders_buyer the orders of a buyer.
CREATE INDEX orders_due ON orders (expires_at) WHERE status = 'pending';
CREATE INDEX orders_buyer ON orders (buyer_id, id);

-- Every change of status after the first. The first is the order's own created_at.
CREATE TABLE order_history (
    order_id uuid NOT NULL,
    version  bigint NOT NULL,
    at       timestamptz NOT NULL,
    status   text COLLATE "C" NOT NULL,
    PRIMARY KEY (order_id, version)
);

-- Every payment that was ever reported. status is paid, refund-due or refunded.
CREATE TABLE payments (
    id         text COLLATE "C" PRIMARY KEY,
    order_id   uuid NOT NULL,
    created_at timestamptz NOT NULL,
    changed_at timestamptz NOT NULL,
    status     text COLLATE "C" NOT NULL
);

CREATE INDEX payments_status ON payments (status, id);

-- The units that each buyer holds of a SKU with a buyer limit. A row changes only under the lock of its stock row.
CREATE TABLE claims (
    units    bigint NOT NULL,
    sku      text COLLATE "C" NOT NULL,
    buyer_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (sku, buyer_id)
);

-- Work that one instance of the cluster does at a time. token rises with every new holder.
CREATE TABLE jobs (
    token      bigint NOT NULL,
    held_until timestamptz NOT NULL,
    name       text COLLATE "C" PRIMARY KEY,
    holder     text COLLATE "C" NOT NULL
) WITH (
    fillfactor = 25,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0
);

-- The last fencing token of each lock that was taken as an advisory lock.
CREATE TABLE lock_tokens (
    lock_key bigint PRIMARY KEY,
    token    bigint NOT NULL
) WITH (
    fillfactor = 50
);
