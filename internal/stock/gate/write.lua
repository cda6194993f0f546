-- Writes what ReadWrite decided for one order or several: each count as it was
-- read, less the units, and the record. It adds to the units in flight instead of
-- replacing them, so that they agree with the records: settle and give subtract a
-- record's units. If another take of the order was recorded after the read, its
-- record is replaced, and its units are no longer in flight.
--
-- KEYS  count, flight
-- ARGV  for each line its SKU, the fencing token (0: do not check), units
--       available, units taken, the record, the order ID
-- Returns 1. If it wrote nothing, returns 0 if another token has read since, and 2
-- if a count was filled or lost since.

local COUNT = '^(%d+) (%-?%d+) (%-?%d+) (%d+) (%d+)$' -- epoch, available, in flight, change, fence
local FENCED, DONE, MOVED = 0, 1, 2

local call, match, format = redis.call, string.match, string.format
for a = 1, #ARGV, 6 do
  local count = call('HGET', KEYS[1], ARGV[a]) or ''
  if ARGV[a + 1] ~= '0' and match(count, '%d+$') ~= ARGV[a + 1] then
    return { FENCED }
  end
  if match(count, '^%d+') ~= match(ARGV[a + 4], '^%S+ %d+ (%d+)') then
    return { MOVED }
  end
end
for a = 1, #ARGV, 6 do
  local sku = ARGV[a]
  local field = sku .. ' ' .. ARGV[a + 5]
  local epoch, _, in_flight, change, fence = match(call('HGET', KEYS[1], sku), COUNT)
  local replaced, taken_under = match(call('HGET', KEYS[2], field) or '', '^%S+ (%d+) (%d+)')
  if taken_under == epoch then
    in_flight = in_flight - replaced
  end
  call('HSET', KEYS[1], sku, format('%s %s %d %s %s', epoch, ARGV[a + 2], in_flight + ARGV[a + 3], change, fence))
  call('HSET', KEYS[2], field, ARGV[a + 4])
end
return { DONE }
