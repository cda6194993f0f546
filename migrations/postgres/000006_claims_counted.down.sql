ALTER TABLE stock DROP COLUMN claims_counted_to;
ALTER TABLE stock RENAME COLUMN limit_per_buyer TO buyer_limit;
