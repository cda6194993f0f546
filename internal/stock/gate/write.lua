-- Writes what ReadWrite decided for one order or several: each count as it was
-- read, less the units, and the record. It adds to the units in flight instead of
-- replacing them, so that they agree with the records: settle and give subtract a
-- record's units.
--
-- KEYS  count, flight
-- ARGV  for each line its SKU, the fencing token (0: do not check), units
--       available, units taken, the record, the order ID
-- Returns 1. If it wrote nothing, returns 0 if another token has read since, and 2
-- if a count was filled or lost since.

local COUNT = '^(%d+) (%-?%d+) (%-?%d+) (%d+) (%d+)$' -- epoch, available, in flight, change, fence

local call, match, format = redis.call, string.match, string.format
for a = 1, #ARGV, 6 do
  local count = call('HGET', KEYS[1], ARGV[a]) or ''
  if ARGV[a + 1] ~= '0' and match(count, '%d+$') ~= ARGV[a + 1] then
    return { 0 }
  end
  if match(count, '^%d+') ~= match(ARGV[a + 4], '^%S+ %d+ (%d+)') then
    return { 2 }
  end
end
for a = 1, #ARGV, 6 do
  local sku = ARGV[a]
  local epoch, _, in_flight, change, fence = match(call('HGET', KEYS[1], sku), COUNT)
  call('HSET', KEYS[1], sku, format('%s %s %d %s %s', epoch, ARGV[a + 2], in_flight + ARGV[a + 3], change, fence))
  call('HSET', KEYS[2], sku .. ' ' .. ARGV[a + 5], ARGV[a + 4])
end
return { 1 }
