ALTER TABLE stock ADD COLUMN layout text COLLATE "C" NOT NULL DEFAULT '';

ALTER TABLE ledger
    DROP COLUMN generation,
    DROP COLUMN layout,
    DROP COLUMN beat;
