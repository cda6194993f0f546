-- Grants the lock if it is free, or hands it over from another grant of the same
-- process. A refused request that waits gets a place in the queue. If the same
-- request is sent again, it gets its first answer.
--
-- KEYS  lock, token, queue
-- ARGV  field of the new grant, lease in milliseconds, expiry of the token in
--       milliseconds, field of the grant that is handed over (empty: none), expiry
--       of a place in milliseconds (0: the request does not wait), place of the
--       request (0: none yet), token of a grant after which others go first (0:
--       none)
-- Returns { 1, token } if granted, else { 0, remaining milliseconds of the lock
-- (-1: the lock has no expiry, -2: it is free, but others go first), place, 1 if the
-- request must listen to Redisson's channel }.

local call = redis.call
local field, from, expiry = ARGV[1], ARGV[4], tonumber(ARGV[5])

local function now()
  local time = call('TIME')
  return time[1] * 1000000 + time[2]
end

-- A place is the time of the first refusal in microseconds. The holder is foreign
-- if its field has no number that begins with 0.
local function refuse()
  local remaining = call('PTTL', KEYS[1])
  if expiry == 0 then
    return { 0, remaining, 0, 0 }
  end
  local place, expired = tonumber(ARGV[6]), now() - expiry * 1000
  if place <= expired then
    place = now()
  end
  call('ZREMRANGEBYSCORE', KEYS[3], '-inf', expired)
  call('ZADD', KEYS[3], place, field)
  call('PEXPIRE', KEYS[3], expiry)
  local holder = call('HKEYS', KEYS[1])[1]
  local foreign = holder and not string.find(holder, ':0%d+$')
  if foreign or call('ZRANK', KEYS[3], field) == 0 then
    return { 0, remaining, place, 1 }
  end
  return { 0, remaining, place, 0 }
end

if from ~= '' and call('HDEL', KEYS[1], from) == 0 and call('HEXISTS', KEYS[1], field) == 0 then
  return { 0, 0, 0, 0 } -- the grant that ends no longer held the lock
end
if call('EXISTS', KEYS[1]) == 1 then
  if call('HEXISTS', KEYS[1], field) == 0 then
    return refuse()
  end
  local token = call('GET', KEYS[2])
  if token then
    call('PEXPIRE', KEYS[1], ARGV[2])
    return { 1, tonumber(token) }
  end
elseif ARGV[7] ~= '0' and call('GET', KEYS[2]) == ARGV[7] then
  return refuse()
end
local token = now()
local last = tonumber(call('SET', KEYS[2], token, 'PX', ARGV[3], 'GET') or 0)
if last >= token then
  token = last + 1
  call('SET', KEYS[2], token, 'PX', ARGV[3])
end
call('HSET', KEYS[1], field, 1)
call('PEXPIRE', KEYS[1], ARGV[2])
if expiry > 0 then
  call('ZREM', KEYS[3], field)
end
return { 1, token }
