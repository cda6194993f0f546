-- While the claims on a SKU are counted, claims_counted_to is the last order, by ID, whose units are in them, and the limit does not hold yet. Otherwise it is null.
-- In buyer_limit, a number below 0 said that they were being counted. An older program would take every limit above 0 for one that holds. So the column has a new name: a program that knows only the old one can lock no stock row any more.
ALTER TABLE stock
    RENAME COLUMN buyer_limit TO limit_per_buyer,
    ADD COLUMN claims_counted_to BINARY(16) NULL;

-- A count that is under way begins again: it deletes the claims that there are.
UPDATE stock SET claims_counted_to = UNHEX('00000000000000000000000000000000'), limit_per_buyer = -limit_per_buyer WHERE limit_per_buyer < 0;
