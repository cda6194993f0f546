DROP TABLE stock_parts;
