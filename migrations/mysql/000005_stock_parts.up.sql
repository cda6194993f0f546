-- Units that a stock row has lent to parts, so that sales lock a part and not the stock row. A SKU has available what its stock row and its parts have together. Parts are added, and taken back, only under the lock of the stock row.
-- A sale checks epoch and hours of the part. They are those of the stock row: whatever changes them takes the parts back.
CREATE TABLE stock_parts (
    sku       VARCHAR(64) NOT NULL,
    part      INT         NOT NULL,
    available BIGINT      NOT NULL CHECK (available >= 0),
    epoch     BIGINT      NOT NULL,
    opens_at  DATETIME(6) NULL,
    closes_at DATETIME(6) NULL,
    PRIMARY KEY (sku, part)
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin;
