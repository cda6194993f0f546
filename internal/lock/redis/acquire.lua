-- Grants a lock that is free, or that another of the same process passes on. The
-- same request sent again gets its first answer.
--
-- KEYS  lock, token
-- ARGV  owner field, lease in milliseconds, how long the token is remembered, and
--       the owner field of who passes it on, if anybody
-- Returns { 1, token } if granted, else { 0, the lock's remaining milliseconds
-- (-1: it does not end) }.

local call = redis.call
if ARGV[4] and call('HDEL', KEYS[1], ARGV[4]) == 0 and call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return { 0, 0 } -- it was not his any more
end
if call('EXISTS', KEYS[1]) == 1 then
  if call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return { 0, call('PTTL', KEYS[1]) }
  end
  local token = call('GET', KEYS[2])
  if token then
    call('PEXPIRE', KEYS[1], ARGV[2])
    return { 1, tonumber(token) }
  end
end
local time = call('TIME')
local token = time[1] * 1000000 + time[2]
local last = tonumber(call('SET', KEYS[2], token, 'PX', ARGV[3], 'GET') or 0)
if last >= token then
  token = last + 1
  call('SET', KEYS[2], token, 'PX', ARGV[3])
end
call('HSET', KEYS[1], ARGV[1], 1)
call('PEXPIRE', KEYS[1], ARGV[2])
return { 1, token }
