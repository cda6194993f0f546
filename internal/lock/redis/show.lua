-- Lists a text, or lists it again, and removes those that have expired.
--
-- KEYS  hash of the texts: ID → end in milliseconds by the server's clock, space, text
-- ARGV  ID, text, expiry in milliseconds

local call = redis.call
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local texts = call('HGETALL', KEYS[1])
for i = 1, #texts, 2 do
  if tonumber(string.match(texts[i + 1], '^%d+')) <= now then
    call('HDEL', KEYS[1], texts[i])
  end
end
call('HSET', KEYS[1], ARGV[1], string.format('%d %s', now + ARGV[3], ARGV[2]))
if call('PTTL', KEYS[1]) < tonumber(ARGV[3]) then -- never earlier than another text's expiry
  call('PEXPIRE', KEYS[1], ARGV[3])
end
return 1
