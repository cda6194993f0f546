-- Frees the lock and tells who waits for it. The same request sent again gets
-- its first answer.
--
-- KEYS  lock, channel, latch
-- ARGV  owner field, how long the latch remembers it
-- Returns 1, or 0 if the lock was not the owner's any more; and how many heard of
-- its release.

local call = redis.call
if call('HDEL', KEYS[1], ARGV[1]) == 0 then -- and with its last field the hash is gone
  return { call('GET', KEYS[3]) == ARGV[1] and 1 or 0, 0 }
end
local heard = call('PUBLISH', KEYS[2], '0')
call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
return { 1, heard }
