-- Frees the lock and publishes the release. If the same request is sent again, it
-- gets its first answer.
--
-- KEYS  lock, channel, latch
-- ARGV  field of the grant, expiry of the latch in milliseconds
-- Returns { 1, how many subscribers received the message }, or { 0, 0 } if the
-- grant no longer held the lock. A repeated request counts no subscribers.

local call = redis.call
if call('HDEL', KEYS[1], ARGV[1]) == 0 then -- Redis deletes the hash with its last field
  return { call('GET', KEYS[3]) == ARGV[1] and 1 or 0, 0 }
end
local receivers = call('PUBLISH', KEYS[2], '0')
call('SET', KEYS[3], ARGV[1], 'PX', ARGV[2])
return { 1, receivers }
