-- Lists one step of what is in flight for at least so long.
--
-- KEYS  flight
-- ARGV  cursor, how many records the step looks at (about), age in microseconds
-- Returns the next cursor (0: that was all), then order ID and record in turn.

local time = redis.call('TIME')
local newest = time[1] * 1000000 + time[2] - tonumber(ARGV[3])
local step = redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local reply = { step[1] }
local found = step[2]
for i = 1, #found, 2 do
  local taken = string.match(found[i + 1], '^%d+ %S+ (%d+)')
  if tonumber(taken) <= newest then
    reply[#reply + 1] = found[i]
    reply[#reply + 1] = found[i + 1]
  end
end
return reply
