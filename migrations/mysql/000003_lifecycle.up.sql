-- What happens to an order after its units are cut: payment, cancellation, expiry, refund. And what limits it: units per buyer, opening hours.

ALTER TABLE stock
    ADD COLUMN opens_at  DATETIME(6) NULL,
    ADD COLUMN closes_at DATETIME(6) NULL;

-- version counts the changes of an order. payment_id is the payment that paid it. restocked says whether a refund returned the units.
-- queued_until is when an order was recorded that was queued since created_at; it is null for orders that were not queued.
-- orders_due finds the pending orders whose time has passed, orders_buyer the orders of a buyer. InnoDB adds the primary key to both.
ALTER TABLE orders
    ADD COLUMN version    BIGINT      NOT NULL DEFAULT 0,
    ADD COLUMN payment_id VARCHAR(64) NULL,
    ADD COLUMN restocked  BOOLEAN     NOT NULL DEFAULT FALSE,
    ADD COLUMN queued_until DATETIME(6) NULL,
    ADD KEY orders_due (status, expires_at),
    ADD KEY orders_buyer (buyer_id);

-- Every change of status after the first. The first is the order's own created_at.
CREATE TABLE order_history (
    order_id BINARY(16)  NOT NULL,
    version  BIGINT      NOT NULL,
    status   VARCHAR(16) NOT NULL,
    at       DATETIME(6) NOT NULL,
    PRIMARY KEY (order_id, version)
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin;

-- Every payment that was ever reported. status is paid, refund-due or refunded.
CREATE TABLE payments (
    id         VARCHAR(64) NOT NULL PRIMARY KEY,
    order_id   BINARY(16)  NOT NULL,
    status     VARCHAR(16) NOT NULL,
    created_at DATETIME(6) NOT NULL,
    changed_at DATETIME(6) NOT NULL,
    KEY payments_status (status)
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin;

-- The units that each buyer holds of a SKU with a buyer limit. A row changes only under the lock of its stock row.
CREATE TABLE claims (
    sku      VARCHAR(64) NOT NULL,
    buyer_id VARCHAR(64) NOT NULL,
    units    BIGINT      NOT NULL,
    PRIMARY KEY (sku, buyer_id)
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin;

-- Work that one instance of the cluster does at a time. token rises with every new holder.
CREATE TABLE jobs (
    name       VARCHAR(100) NOT NULL PRIMARY KEY,
    holder     VARCHAR(100) NOT NULL,
    token      BIGINT       NOT NULL,
    held_until DATETIME(6)  NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin;

-- The last fencing token of each lock that was taken with GET_LOCK.
CREATE TABLE lock_tokens (
    lock_key VARCHAR(64) NOT NULL PRIMARY KEY,
    token    BIGINT      NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin;
