-- Reads what the read-check-write gate must know of one SKU. Under a fencing
-- token it is also the token's first word here: from now on no older one may
-- read, and none but this one write.
--
-- KEYS  count, flight, burned
-- ARGV  order ID, take ID, fencing token (0: none)
-- Returns 0 if a greater token was seen; else 1, epoch, units left, units in
-- flight, 1 if this take is in flight for the order and 2 if another is, 1 if
-- the take is burned, and Redis TIME.

local token = tonumber(ARGV[3])
local count = redis.call('HMGET', KEYS[1], 'epoch', 'left', 'flying', 'fence')
if token > 0 and count[1] then
  if token < tonumber(count[4] or 0) then
    return { 0 }
  end
  redis.call('HSET', KEYS[1], 'fence', ARGV[3])
end
local holder = 0
local record = redis.call('HGET', KEYS[2], ARGV[1])
if record then
  local space = string.find(record, ' ', 1, true)
  holder = string.sub(record, space + 1, space + 36) == ARGV[2] and 1 or 2
end
local burned = redis.call('ZSCORE', KEYS[3], ARGV[2]) and 1 or 0
local time = redis.call('TIME')
return { 1, tonumber(count[1] or 0), tonumber(count[2] or 0), tonumber(count[3] or 0), holder, burned,
  tonumber(time[1]), tonumber(time[2]) }
