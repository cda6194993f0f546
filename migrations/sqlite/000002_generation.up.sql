-- The epoch of a stock row says which generation of the ledger it belongs to, so the rows need no layout. Instances keep raising beat and note it in Redis: a new beat that is not above the noted one reveals that the ledger was restored from a backup.
ALTER TABLE ledger ADD COLUMN generation INTEGER NOT NULL DEFAULT 1;
ALTER TABLE ledger ADD COLUMN layout TEXT NOT NULL DEFAULT '';
ALTER TABLE ledger ADD COLUMN beat INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stock DROP COLUMN layout;
