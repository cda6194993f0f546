-- Reads what ReadWrite needs to know of one SKU. With a fencing token it also
-- raises the count's fence: from now on no older token may read, and only this
-- token may write.
--
-- KEYS  count, flight, burned
-- ARGV  SKU, order ID, take ID, fencing token (0: do not check)
-- Returns 0 if the count has seen a greater token, and 2 if the count is of a
-- later generation. Otherwise returns eight numbers: 1; the epoch (0: not filled);
-- units available; units in flight; 1 if this take is in flight for the order, 2
-- if another one is, 0 if none is; 1 if this take is burned; and the two of Redis
-- TIME.

local COUNT = '^(%d+) (%-?%d+) (%-?%d+) (%d+) (%d+)$' -- epoch, available, in flight, change, fence
local RECORD = '^(%S+) %d+ (%d+)' -- take ID, epoch
local FENCED, DONE, MOVED = 0, 1, 2
local NOBODY, THIS_TAKE, ANOTHER_TAKE = 0, 1, 2 -- who holds the order's record

local call, match = redis.call, string.match
local sku, token = ARGV[1], tonumber(ARGV[4])
local count = call('HGET', KEYS[1], sku)
if count and (not match(count, COUNT) or tonumber(match(count, '^%d+')) < FIRST_EPOCH) then
  count = nil -- unreadable, or of an earlier generation
end
local epoch, available, in_flight, change, fence = match(count or '0 0 0 0 0', COUNT)
if tonumber(epoch) > LAST_EPOCH then
  return { MOVED }
end
if token > 0 and count then
  if token < tonumber(fence) then
    return { FENCED }
  end
  call('HSET', KEYS[1], sku, epoch .. ' ' .. available .. ' ' .. in_flight .. ' ' .. change .. ' ' .. ARGV[4])
end
local holder = NOBODY
local take, taken_under = match(call('HGET', KEYS[2], sku .. ' ' .. ARGV[2]) or '', RECORD)
if take and taken_under == epoch then -- a record of another epoch is void
  holder = take == ARGV[3] and THIS_TAKE or ANOTHER_TAKE
end
local burned = call('ZSCORE', KEYS[3], sku .. ' ' .. ARGV[3]) and 1 or 0
local time = call('TIME')
return {
  DONE, tonumber(epoch), tonumber(available), tonumber(in_flight), holder, burned,
  tonumber(time[1]), tonumber(time[2]),
}
