-- Records the tick of a job, unless it or a later one is recorded.
--
-- KEYS  last tick
-- ARGV  tick
-- Returns 1 if it was recorded, else 0.

if tonumber(redis.call('GET', KEYS[1]) or 0) >= tonumber(ARGV[1]) then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1])
return 1
