-- Lists the takes in flight of at least a given age, one step of a scan at a time,
-- and removes void records: those of an earlier generation, and those whose count
-- was filled since. A take whose time is still to come counts as old: the clock was set
-- back since, so its age is unknown.
--
-- KEYS  count, flight; also queued, to leave out the takes of orders in the queue
-- ARGV  cursor, about how many records the step reads, age in microseconds
-- Returns the next cursor (0: the scan is complete), then the field and the text
-- of each record.

local call, match = redis.call, string.match
local QUEUED = ' %d+$' -- the end of a queued order's record
local time = call('TIME')
local now = time[1] * 1000000 + time[2]
local newest = now - tonumber(ARGV[3])
local step = call('HSCAN', KEYS[2], ARGV[1], 'COUNT', ARGV[2])
local reply, found = { step[1] }, step[2]

-- If the queue lost an order, no consumer ends its take, so recovery must.
local waiting = {} -- by field: true if the order of the record is in the queue
if KEYS[3] then
  local fields, orders = {}, {}
  for i = 1, #found, 2 do
    if match(found[i + 1], QUEUED) then
      fields[#fields + 1] = found[i]
      orders[#orders + 1] = match(found[i], '%S+$') or ''
    end
  end
  if #orders > 0 then
    for n, entry in ipairs(call('HMGET', KEYS[3], unpack(orders))) do
      waiting[fields[n]] = entry and true
    end
  end
end

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
  elseif taken_at and (tonumber(taken_at) <= newest or tonumber(taken_at) > now) and not waiting[found[i]] then
    reply[#reply + 1] = found[i]
    reply[#reply + 1] = found[i + 1]
  end
end
return reply
