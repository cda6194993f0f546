-- Grants the lock if it is free, or hands it over from another grant of the same
-- process. If the same request is sent again, it gets its first answer.
--
-- KEYS  lock, token
-- ARGV  field of the new grant, lease in milliseconds, expiry of the token in
--       milliseconds; for a handover, also the field of the grant that ends
-- Returns { 1, token } if granted, else { 0, remaining milliseconds of the lock }
-- (-1: the lock has no expiry).

local call = redis.call
if ARGV[4] and call('HDEL', KEYS[1], ARGV[4]) == 0 and call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return { 0, 0 } -- the grant that ends no longer held the lock
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
