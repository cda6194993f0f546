-- Redis may have orders that this database does not have yet. Only the strategy that owns the stock commits them, so no other may take it over until they are drained.
ALTER TABLE ledger ADD COLUMN queues BOOLEAN NOT NULL DEFAULT FALSE;
