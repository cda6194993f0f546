-- The complete ledger. Text is ASCII and compared by bytes. So rows sort as they do in the service, and row locks are taken in the same order.

-- available may be negative: with the guard off, the ledger counts everything that the gate has admitted.
CREATE TABLE stock (
    sku         VARCHAR(64)  NOT NULL PRIMARY KEY,
    kind        VARCHAR(16)  NOT NULL,
    total       BIGINT       NOT NULL CHECK (total >= 0),
    available   BIGINT       NOT NULL,
    buyer_limit BIGINT       NOT NULL DEFAULT 0,
    epoch       BIGINT       NOT NULL DEFAULT 1,
    version     BIGINT       NOT NULL DEFAULT 0,
    changes     BIGINT       NOT NULL DEFAULT 0,
    layout      VARCHAR(191) NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin;

CREATE TABLE orders (
    id         BINARY(16)  NOT NULL PRIMARY KEY,
    take_id    BINARY(16)  NOT NULL,
    buyer_id   VARCHAR(64) NOT NULL,
    status     VARCHAR(16) NOT NULL,
    strategy   VARCHAR(32) NOT NULL,
    created_at DATETIME(6) NOT NULL,
    expires_at DATETIME(6) NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin;

CREATE TABLE order_lines (
    order_id BINARY(16)  NOT NULL,
    sku      VARCHAR(64) NOT NULL,
    quantity INT         NOT NULL,
    PRIMARY KEY (order_id, sku),
    KEY order_lines_sku (sku)
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin;

CREATE TABLE outbox (
    sku        VARCHAR(64) NOT NULL,
    epoch      BIGINT      NOT NULL,
    number     BIGINT      NOT NULL,
    delta      BIGINT      NOT NULL,
    created_at DATETIME(6) NOT NULL,
    PRIMARY KEY (sku, epoch, number)
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin;

CREATE TABLE ledger (
    id BINARY(16) NOT NULL PRIMARY KEY
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin;

INSERT INTO ledger (id) SELECT UNHEX(REPLACE(UUID(), '-', '')) FROM DUAL WHERE NOT EXISTS (SELECT 1 FROM ledger);
