-- Lists the takes in flight of at least a given age, one step of a scan at a time,
-- and removes void records: those of an earlier generation, and those whose count
-- was filled since.
--
-- KEYS  count, flight
-- ARGV  cursor, about how many records the step reads, age in microseconds (0: all
--       takes; otherwise without those of queued orders, which never grow old)
-- Returns the next cursor (0: the scan is complete), then the field and the text
-- of each record.

local call, match = redis.call, string.match
local QUEUED = ' %d+$' -- the end of a queued order's record
local all = tonumber(ARGV[3]) == 0
local time = call('TIME')
local newest = time[1] * 1000000 + time[2] - tonumber(ARGV[3])
local step = call('HSCAN', KEYS[2], ARGV[1], 'COUNT', ARGV[2])
local reply, found = { step[1] }, step[2]

local epochs = {} -- by SKU; false if the SKU has no count
for i = 1, #found, 2 do
  local sku = match(found[i], '^(.*) ') or found[i]
  if epochs[sku] == nil then
    epochs[sku] = match(call('HGET', KEYS[1], sku) or '', '^%d+') or false
  end
  local epoch, taken_at = match(found[i + 1], '^%S+ %d+ (%d+) (%d+)')
  local earlier = epoch and tonumber(epoch) < FIRST_EPOCH
  if earlier or epochs[sku] and epochs[sku] ~= epoch then
    call('HDEL', KEYS[2], found[i])
  elseif taken_at and tonumber(taken_at) <= newest and (all or not match(found[i + 1], QUEUED)) then
    reply[#reply + 1] = found[i]
    reply[#reply + 1] = found[i + 1]
  end
end
return reply
