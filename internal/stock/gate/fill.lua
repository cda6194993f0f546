-- Fills a count under a new epoch. It drops what was in flight: the records of an
-- earlier epoch become void.
--
-- KEYS  count; also flight if all records under it are this SKU's
-- ARGV  SKU, epoch, units, fencing token (0: none)
-- Returns 1, or 0 if the count was filled under this epoch or a later one.

local count = redis.call('HGET', KEYS[1], ARGV[1]) or '0'
if tonumber(ARGV[2]) <= tonumber(string.match(count, '^%d+') or 0) then
  return { 0 }
end
if KEYS[2] then
  redis.call('DEL', KEYS[2])
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3] .. ' 0 0 ' .. ARGV[4])
return { 1 }
