-- Frees the lock and tells who waits for it. The same request sent again gets
-- its first answer.
--
-- KEYS  lock, channel, latch
-- ARGV  owner field, how long the latch keeps the answer
-- Returns 1, or 0 if the lock was not the owner's any more.

local answer = redis.call('GET', KEYS[3])
if answer then
  return tonumber(answer)
end
answer = redis.call('HEXISTS', KEYS[1], ARGV[1])
if answer == 1 then
  redis.call('DEL', KEYS[1])
  redis.call('PUBLISH', KEYS[2], '0')
end
redis.call('SET', KEYS[3], answer, 'PX', ARGV[2])
return answer
