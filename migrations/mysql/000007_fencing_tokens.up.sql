-- The fencing tokens of locks that are taken with GET_LOCK. MariaDB has sequences. MySQL has none, and keeps the last token of each lock_key, which locks share.
-- An earlier program would mint smaller tokens beside these. So its table goes: it grants no lock any more.
-- Increment 0 stands for auto_increment_increment. A Galera cluster accepts no other sequence with a cache.
DROP TABLE lock_tokens;

CREATE /*M! SEQUENCE fencing_tokens INCREMENT BY 0 CACHE 1000 ENGINE = InnoDB */ /*!50701 TABLE fencing_tokens (
    lock_key CHAR(2) NOT NULL PRIMARY KEY,
    token    BIGINT  NOT NULL
) ENGINE = InnoDB DEFAULT CHARACTER SET ascii COLLATE ascii_bin */;
