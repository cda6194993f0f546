-- The fencing tokens of locks that are taken as advisory locks.
-- An earlier program would mint smaller tokens beside these. So its table goes: it grants no lock any more.
DROP TABLE lock_tokens;

CREATE SEQUENCE fencing_tokens;
