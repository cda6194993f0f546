-- Grants a lock that is free. The same request sent again gets its first answer.
--
-- KEYS  lock, token
-- ARGV  owner field, lease in milliseconds, how long the token is remembered
-- Returns { 1, token } if granted, else { 0, the lock's remaining milliseconds
-- (-1: it does not end) }.

local mine = redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1
if not mine and redis.call('EXISTS', KEYS[1]) == 1 then
  return { 0, redis.call('PTTL', KEYS[1]) }
end
local token = redis.call('GET', KEYS[2])
if not mine or not token then
  local time = redis.call('TIME')
  local now = time[1] * 1000000 + time[2]
  token = string.format('%.0f', math.max(now, tonumber(token or 0) + 1))
  redis.call('SET', KEYS[2], token, 'PX', ARGV[3])
  redis.call('HSET', KEYS[1], ARGV[1], 1)
end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return { 1, tonumber(token) }
