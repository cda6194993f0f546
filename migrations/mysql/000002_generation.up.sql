-- Stock belongs to the ledger's generation by its epoch, not by a layout in every row. beat rises all the time, so that a ledger restored from a backup shows.
ALTER TABLE ledger
    ADD COLUMN generation BIGINT       NOT NULL DEFAULT 1,
    ADD COLUMN layout     VARCHAR(191) NOT NULL DEFAULT '',
    ADD COLUMN beat       BIGINT       NOT NULL DEFAULT 0;

ALTER TABLE stock DROP COLUMN layout;
