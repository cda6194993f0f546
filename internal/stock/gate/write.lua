-- Writes what the read-check-write gate decided: each count as it was read, less
-- the units, and the record. The units in flight are added to, so that the
-- record's end takes them off again.
--
-- KEYS  count, flight
-- ARGV  order ID, then of each line: SKU, fencing token (0: none), units left,
--       units taken, record
-- Returns 1, or 0 if another token has read since: then nothing was written.

local COUNT = '^(%d+) (%-?%d+) (%-?%d+) (%d+) (%d+)$' -- epoch, left, flying, change, fence

local call, match, format = redis.call, string.match, string.format
for a = 2, #ARGV, 5 do
  if ARGV[a + 1] ~= '0' and match(call('HGET', KEYS[1], ARGV[a]) or '', '%d+$') ~= ARGV[a + 1] then
    return { 0 }
  end
end
for a = 2, #ARGV, 5 do
  local sku = ARGV[a]
  local epoch, _, flying, change, fence = match(call('HGET', KEYS[1], sku) or '', COUNT)
  if epoch then -- else it was lost since, and stays so
    call('HSET', KEYS[1], sku, format('%s %s %d %s %s', epoch, ARGV[a + 2], flying + ARGV[a + 3], change, fence))
  end
  call('HSET', KEYS[2], sku .. ' ' .. ARGV[1], ARGV[a + 4])
end
return { 1 }
