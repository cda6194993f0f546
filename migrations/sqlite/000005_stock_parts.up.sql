-- Units that a stock row has lent to parts, so that sales lock a part and not the stock row. A SKU has available what its stock row and its parts have together. Parts are added, and taken back, only under the lock of the stock row.
-- A sale checks epoch and hours of the part. They are those of the stock row: whatever changes them takes the parts back.
CREATE TABLE stock_parts (
    sku       TEXT     NOT NULL,
    part      INTEGER  NOT NULL,
    available INTEGER  NOT NULL CHECK (available >= 0),
    epoch     INTEGER  NOT NULL,
    opens_at  DATETIME NULL,
    closes_at DATETIME NULL,
    PRIMARY KEY (sku, part)
) WITHOUT ROWID;
