-- Writes what the read-check-write gate decided: each count as it was read, less
-- the units, and the record. The units in flight are added to, so that the
-- record's end takes them off again.
--
-- KEYS  count, flight
-- ARGV  order ID, then of each line: SKU, fencing token (0: none), units left,
--       units taken, record
-- Returns 1; or, and then nothing was written, 0 if another token has read since,
-- and 2 if the count was filled anew or lost since.

local COUNT = '^(%d+) (%-?%d+) (%-?%d+) (%d+) (%d+)$' -- epoch, left, flying, change, fence

local call, match, format = redis.call, string.match, string.format
for a = 2, #ARGV, 5 do
  if ARGV[a + 1] ~= '0' and match(call('HGET', KEYS[1], ARGV[a]) or '', '%d+$') ~= ARGV[a + 1] then
    return { 0 }
  end
  if match(call('HGET', KEYS[1], ARGV[a]) or '', '^%d+') ~= match(ARGV[a + 4], '^%S+ %d+ (%d+)') then
    return { 2 }
  end
end
for a = 2, #ARGV, 5 do
  local sku = ARGV[a]
  local epoch, _, flying, change, fence = match(call('HGET', KEYS[1], sku), COUNT)
  call('HSET', KEYS[1], sku, format('%s %s %d %s %s', epoch, ARGV[a + 2], flying + ARGV[a + 3], change, fence))
  call('HSET', KEYS[2], sku .. ' ' .. ARGV[1], ARGV[a + 4])
end
return { 1 }
