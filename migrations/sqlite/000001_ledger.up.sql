-- The complete ledger. WITHOUT ROWID stores each row in the tree of its primary key, so an order is one insert instead of two.

-- available may be negative: with the guard off, the ledger counts everything that the gate has admitted.
CREATE TABLE stock (
    sku         TEXT    NOT NULL PRIMARY KEY,
    kind        TEXT    NOT NULL,
    total       INTEGER NOT NULL CHECK (total >= 0),
    available   INTEGER NOT NULL,
    buyer_limit INTEGER NOT NULL DEFAULT 0,
    epoch       INTEGER NOT NULL DEFAULT 1,
    version     INTEGER NOT NULL DEFAULT 0,
    changes     INTEGER NOT NULL DEFAULT 0,
    layout      TEXT    NOT NULL
) WITHOUT ROWID;

CREATE TABLE orders (
    id         BLOB     NOT NULL PRIMARY KEY,
    take_id    BLOB     NOT NULL,
    buyer_id   TEXT     NOT NULL,
    status     TEXT     NOT NULL,
    strategy   TEXT     NOT NULL,
    created_at DATETIME NOT NULL,
    expires_at DATETIME NULL
) WITHOUT ROWID;

CREATE TABLE order_lines (
    order_id BLOB    NOT NULL,
    sku      TEXT    NOT NULL,
    quantity INTEGER NOT NULL,
    PRIMARY KEY (order_id, sku)
) WITHOUT ROWID;

CREATE INDEX order_lines_sku ON order_lines (sku);

CREATE TABLE outbox (
    sku        TEXT     NOT NULL,
    epoch      INTEGER  NOT NULL,
    number     INTEGER  NOT NULL,
    delta      INTEGER  NOT NULL,
    created_at DATETIME NOT NULL,
    PRIMARY KEY (sku, epoch, number)
) WITHOUT ROWID;

CREATE TABLE ledger (
    id BLOB NOT NULL PRIMARY KEY
) WITHOUT ROWID;

INSERT INTO ledger (id) SELECT randomblob(16) WHERE NOT EXISTS (SELECT 1 FROM ledger);
