-- Settles: forgets the records of takes that the ledger has.
--
-- KEYS  of each SKU: count, flight
-- ARGV  of each record: ORDERID TAKEID INDEX, where INDEX numbers the SKUs from 1
-- Returns nothing of interest. A record that is not there, or another take's,
-- is passed over.

local call, sub, find = redis.call, string.sub, string.find
local asked = {} -- by SKU: the order IDs, each once
local seen = {} -- by SKU: order IDs, and order IDs with their take IDs
for i = 1, #KEYS / 2 do
  asked[i], seen[i] = {}, {}
end
for _, text in ipairs(ARGV) do
  local i = tonumber(sub(text, 75))
  local order = sub(text, 1, 36)
  if not seen[i][order] then
    seen[i][order] = true
    asked[i][#asked[i] + 1] = order
  end
  seen[i][sub(text, 1, 73)] = true
end

local counts = {}
for i = 1, #asked do
  counts[i] = KEYS[2 * i - 1]
end
local filled = call('EXISTS', unpack(counts)) == #asked

for i, orders in ipairs(asked) do
  local records = call('HMGET', KEYS[2 * i], unpack(orders))
  local settled, units = {}, 0
  for o, order in ipairs(orders) do
    local record = records[o]
    if record then
      local space = find(record, ' ', 1, true)
      if seen[i][order .. sub(record, space, space + 36)] then
        settled[#settled + 1] = order
        units = units + tonumber(sub(record, 1, space - 1))
      end
    end
  end
  if #settled > 0 then
    call('HDEL', KEYS[2 * i], unpack(settled))
    if filled or call('EXISTS', counts[i]) == 1 then
      call('HINCRBY', KEYS[2 * i - 1], 'flying', -units)
    end
  end
end
return {}
