-- Fills a count under a new epoch and forgets what was in flight.
--
-- KEYS  count, flight
-- ARGV  epoch, units, fencing token (0: none)
-- Returns 1, or 0 if the count was filled under this epoch or a later one.

local stored = tonumber(redis.call('HGET', KEYS[1], 'epoch') or 0)
if tonumber(ARGV[1]) <= stored then
  return { 0 }
end
redis.call('DEL', KEYS[2])
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'left', ARGV[2], 'flying', 0, 'change', 0, 'fence', ARGV[3])
return { 1 }
