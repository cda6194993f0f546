-- Units that a stock row has lent to parts, so that sales lock a part and not the stock row. A SKU has available what its stock row and its parts have together. Parts are added, and taken back, only under the lock of the stock row.
-- A sale checks epoch and hours of the part. They are those of the stock row: whatever changes them takes the parts back.
CREATE TABLE stock_parts (
    available bigint NOT NULL CHECK (available >= 0),
    epoch     bigint NOT NULL,
    opens_at  timestamptz,
    closes_at timestamptz,
    part      integer NOT NULL,
    sku       text COLLATE "C" NOT NULL,
    PRIMARY KEY (sku, part)
) WITH (
    fillfactor = 25,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 10000,
    autovacuum_analyze_scale_factor = 0
);
