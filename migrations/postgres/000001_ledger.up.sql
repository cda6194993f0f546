-- The complete ledger. Text is compared by bytes (COLLATE "C"). So rows sort as they do in the service, and row locks are taken in the same order.

-- available may be negative: with the guard off, the ledger counts everything that the gate has admitted.
-- For hot rows, three quarters of each page stay free: an update puts the new version on the same page and needs no new index entry (a HOT update). Vacuum runs after 1,000 dead versions, however large the table is.
CREATE TABLE stock (
    sku         text COLLATE "C" PRIMARY KEY,
    kind        text COLLATE "C" NOT NULL,
    total       bigint NOT NULL CHECK (total >= 0),
    available   bigint NOT NULL,
    buyer_limit bigint NOT NULL DEFAULT 0,
    epoch       bigint NOT NULL DEFAULT 1,
    version     bigint NOT NULL DEFAULT 0,
    changes     bigint NOT NULL DEFAULT 0,
    layout      text COLLATE "C" NOT NULL
) WITH (
    fillfactor = 25,
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 10000,
    autovacuum_analyze_scale_factor = 0
);

CREATE TABLE orders (
    id         uuid PRIMARY KEY,
    take_id    uuid NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    buyer_id   text COLLATE "C" NOT NULL,
    status     text COLLATE "C" NOT NULL,
    strategy   text COLLATE "C" NOT NULL
);

CREATE TABLE order_lines (
    order_id uuid NOT NULL,
    quantity integer NOT NULL,
    sku      text COLLATE "C" NOT NULL,
    PRIMARY KEY (order_id, sku)
);

CREATE INDEX order_lines_sku ON order_lines (sku);

CREATE TABLE outbox (
    epoch      bigint NOT NULL,
    number     bigint NOT NULL,
    delta      bigint NOT NULL,
    created_at timestamptz NOT NULL,
    sku        text COLLATE "C" NOT NULL,
    PRIMARY KEY (sku, epoch, number)
) WITH (
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0
);

CREATE TABLE ledger (
    id uuid PRIMARY KEY
);

INSERT INTO ledger (id) SELECT gen_random_uuid() WHERE NOT EXISTS (SELECT 1 FROM ledger);
