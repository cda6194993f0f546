-- Settles: forgets the records of takes that the ledger has.
--
-- KEYS  of each SKU: count, flight
-- ARGV  of each record: ORDERID TAKEID INDEX, where INDEX numbers the SKUs from 1
-- Returns nothing of interest. A record that is not there, or another take's,
-- is passed over.

local skus = {}
for i = 1, #KEYS / 2 do
  skus[i] = { orders = {}, takes = {} }
end
for _, text in ipairs(ARGV) do
  local sku = skus[tonumber(string.sub(text, 75))]
  local order = string.sub(text, 1, 36)
  if not sku.takes[order] then -- each order once
    sku.orders[#sku.orders + 1] = order
    sku.takes[order] = {}
  end
  sku.takes[order][string.sub(text, 38, 73)] = true
end

for i, sku in ipairs(skus) do
  local records = redis.call('HMGET', KEYS[2 * i], unpack(sku.orders))
  local settled, units = {}, 0
  for o, order in ipairs(sku.orders) do
    local record = records[o]
    if record then
      local space = string.find(record, ' ', 1, true)
      if sku.takes[order][string.sub(record, space + 1, space + 36)] then
        settled[#settled + 1] = order
        units = units + tonumber(string.sub(record, 1, space - 1))
      end
    end
  end
  if #settled > 0 then
    redis.call('HDEL', KEYS[2 * i], unpack(settled))
    if redis.call('HEXISTS', KEYS[2 * i - 1], 'epoch') == 1 then
      redis.call('HINCRBY', KEYS[2 * i - 1], 'flying', -units)
    end
  end
end
return {}
