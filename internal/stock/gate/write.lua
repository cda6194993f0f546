-- Writes what the read-check-write gate decided: each count as it was read, less
-- the units, and the record. The units in flight are added to, so that the
-- record's end takes them off again.
--
-- KEYS  of each SKU: count, flight
-- ARGV  order ID, then of each SKU: fencing token (0: none), units left, units
--       taken, record
-- Returns 1, or 0 if another token has read since: then nothing was written.

for i = 1, #KEYS / 2 do
  local token = ARGV[4 * i - 2]
  if token ~= '0' and redis.call('HGET', KEYS[2 * i - 1], 'fence') ~= token then
    return { 0 }
  end
end
for i = 1, #KEYS / 2 do
  redis.call('HSET', KEYS[2 * i - 1], 'left', ARGV[4 * i - 1])
  redis.call('HINCRBY', KEYS[2 * i - 1], 'flying', ARGV[4 * i])
  redis.call('HSET', KEYS[2 * i], ARGV[1], ARGV[4 * i + 1])
end
return { 1 }
