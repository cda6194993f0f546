-- Reads what the read-check-write gate must know of one SKU. Under a fencing
-- token it is also the token's first word here: from now on no older one may
-- read, and none but this one write.
--
-- KEYS  count, flight, burned
-- ARGV  SKU, order ID, take ID, fencing token (0: none)
-- Returns 0 if a greater token was seen, 2 if the count is of a later generation;
-- else 1, epoch (0: not filled), units left, units in
-- flight, 1 if this take is in flight for the order and 2 if another is, 1 if
-- the take is burned, and Redis TIME.

local COUNT = '^(%d+) (%-?%d+) (%-?%d+) (%d+) (%d+)$' -- epoch, left, flying, change, fence
local RECORD = '^(%S+) %d+ (%d+)' -- take ID, epoch

local call, match = redis.call, string.match
local sku, token = ARGV[1], tonumber(ARGV[4])
local count = call('HGET', KEYS[1], sku)
if count and (not match(count, COUNT) or tonumber(match(count, '^%d+')) < FIRST) then
  count = nil -- of an earlier generation, or no count at all
end
local epoch, left, flying, change, fence = match(count or '0 0 0 0 0', COUNT)
if tonumber(epoch) > LAST then
  return { 2 }
end
if token > 0 and count then
  if token < tonumber(fence) then
    return { 0 }
  end
  call('HSET', KEYS[1], sku, epoch .. ' ' .. left .. ' ' .. flying .. ' ' .. change .. ' ' .. ARGV[4])
end
local holder = 0
local take, under = match(call('HGET', KEYS[2], sku .. ' ' .. ARGV[2]) or '', RECORD)
if take and under == epoch then -- else it is of what the last fill forgot
  holder = take == ARGV[3] and 1 or 2
end
local burned = call('ZSCORE', KEYS[3], sku .. ' ' .. ARGV[3]) and 1 or 0
local time = call('TIME')
return { 1, tonumber(epoch), tonumber(left), tonumber(flying), holder, burned, tonumber(time[1]), tonumber(time[2]) }
