-- Stock belongs to the ledger's generation by its epoch, not by a layout in every row. beat rises all the time, so that a ledger restored from a backup shows.
ALTER TABLE ledger
    ADD COLUMN generation bigint NOT NULL DEFAULT 1,
    ADD COLUMN layout     text COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN beat       bigint NOT NULL DEFAULT 0;

ALTER TABLE stock DROP COLUMN layout;
