DROP SEQUENCE fencing_tokens;

CREATE TABLE lock_tokens (
    lock_key bigint PRIMARY KEY,
    token    bigint NOT NULL
) WITH (
    fillfactor = 50
);
