-- It drops a sequence, too.
DROP TABLE fencing_tokens;

CREATE TABLE lock_tokens (
    lock_key VARCHAR(64) NOT NULL PRIMARY KEY,
    token    BIGINT      NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin;
