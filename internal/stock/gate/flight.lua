-- Lists one step of what is in flight for at least so long, and forgets records
-- that a fill has put out of date.
--
-- KEYS  count, flight
-- ARGV  cursor, how many records the step looks at (about), age in microseconds
-- Returns the next cursor (0: that was all), then each record's field and the
-- record in turn.

local call, match = redis.call, string.match
local time = call('TIME')
local newest = time[1] * 1000000 + time[2] - tonumber(ARGV[3])
local step = call('HSCAN', KEYS[2], ARGV[1], 'COUNT', ARGV[2])
local reply, found = { step[1] }, step[2]

local epochs = {} -- by SKU; false: it has no count
for i = 1, #found, 2 do
  local sku = match(found[i], '^(.*) ') or found[i]
  if epochs[sku] == nil then
    epochs[sku] = match(call('HGET', KEYS[1], sku) or '', '^%d+') or false
  end
  local epoch, taken = match(found[i + 1], '^%S+ %d+ (%d+) (%d+)')
  if epochs[sku] and epochs[sku] ~= epoch then
    call('HDEL', KEYS[2], found[i])
  elseif taken and tonumber(taken) <= newest then
    reply[#reply + 1] = found[i]
    reply[#reply + 1] = found[i + 1]
  end
end
return reply
