-- Passes the lock on from one holder to the next, with no moment in between in
-- which it is free. The same request sent again gets its first answer.
--
-- KEYS  lock, token
-- ARGV  next owner field, lease in milliseconds, how long the token is
--       remembered, owner field
-- Returns the next holder's token, or 0 if the lock was not the owner's any more.

local call = redis.call
if call('HDEL', KEYS[1], ARGV[4]) == 0 then
  if call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
    return 0
  end
  return tonumber(call('GET', KEYS[2]) or 0)
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
return token
