-- Stock belongs to the ledger's generation by its epoch, not by a layout in every row. beat rises all the time, so that a ledger restored from a backup shows.
ALTER TABLE ledger ADD COLUMN generation INTEGER NOT NULL DEFAULT 1;
ALTER TABLE ledger ADD COLUMN layout TEXT NOT NULL DEFAULT '';
ALTER TABLE ledger ADD COLUMN beat INTEGER NOT NULL DEFAULT 0;
ALTER TABLE stock DROP COLUMN layout;
