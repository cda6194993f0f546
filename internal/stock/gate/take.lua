-- Takes: cuts every take that fits whole, in order, and records it as in flight.
--
-- KEYS  of each SKU: count, flight, burned
-- ARGV  of each take: ORDERID TAKEID INDEX:QTY[,INDEX:QTY…] BUYER SKU=QTY[,…]
--       INDEX numbers the SKUs to cut here, from 1; all after the third space
--       goes into the records as it is
-- Returns the epoch of each SKU (0: not filled), then for each take 0, or why
-- it was refused: REASON + 8 × INDEX.

-- A take that is refused for several reasons hears the greatest.
local SOLD_OUT, NOT_FILLED, IN_FLIGHT, BURNED = 1, 2, 3, 4

local skus = {}
local reply = {}
for i = 1, #KEYS / 3 do
  local count = redis.call('HMGET', KEYS[3 * i - 2], 'epoch', 'left', 'flying')
  reply[i] = tonumber(count[1] or 0)
  skus[i] = {
    left = tonumber(count[2] or 0),
    flying = tonumber(count[3] or 0),
    burned = redis.call('EXISTS', KEYS[3 * i]) == 1,
    orders = {}, -- asked for
    flight = {}, -- take ID by order ID
    writes = {}, -- order ID, record, order ID, record…
  }
end

local takes = {}
for t = 1, #ARGV do
  local text = ARGV[t]
  local space = string.find(text, ' ', 75, true)
  local take = {
    order = string.sub(text, 1, 36),
    id = string.sub(text, 38, 73),
    rest = string.sub(text, space),
    lines = {},
  }
  for index, units in string.gmatch(string.sub(text, 75, space - 1), '(%d+):(%d+)') do
    index = tonumber(index)
    local orders = skus[index].orders
    orders[#orders + 1] = take.order
    take.lines[#take.lines + 1] = { index = index, units = tonumber(units) }
  end
  takes[t] = take
end

for i, sku in ipairs(skus) do
  local records = redis.call('HMGET', KEYS[3 * i - 1], unpack(sku.orders))
  for o, order in ipairs(sku.orders) do
    local record = records[o]
    if record then
      local space = string.find(record, ' ', 1, true)
      sku.flight[order] = string.sub(record, space + 1, space + 36)
    end
  end
end

-- Decide first, in tables, so that a later take of the call sees what the
-- earlier ones left.
local now
for t, take in ipairs(takes) do
  local refusal, at = 0, 0
  for _, line in ipairs(take.lines) do
    local sku = skus[line.index]
    local holder = sku.flight[take.order]
    local reason = 0
    if sku.burned and redis.call('ZSCORE', KEYS[3 * line.index], take.id) then
      reason = BURNED
    elseif holder and holder ~= take.id then
      reason = IN_FLIGHT
    elseif reply[line.index] == 0 then
      reason = NOT_FILLED
    elseif not holder and sku.left < line.units then
      reason = SOLD_OUT
    end
    if reason > refusal then
      refusal, at = reason, line.index
    end
  end
  if refusal == 0 then
    for _, line in ipairs(take.lines) do
      local sku = skus[line.index]
      if not sku.flight[take.order] then -- else this very take came before
        if not now then
          local time = redis.call('TIME')
          now = time[1] .. string.format('%06d', time[2]) -- microseconds; too long for a number's text
        end
        sku.left = sku.left - line.units
        sku.flying = sku.flying + line.units
        sku.flight[take.order] = take.id
        local writes = sku.writes
        writes[#writes + 1] = take.order
        writes[#writes + 1] = line.units .. ' ' .. take.id .. ' ' .. now .. take.rest
      end
    end
  end
  reply[#skus + t] = refusal + 8 * at
end

-- Counts before records: if the writes broke off between them, units would be
-- lost until the next refill, but none would be invented.
for i, sku in ipairs(skus) do
  if #sku.writes > 0 then
    redis.call('HSET', KEYS[3 * i - 2], 'left', sku.left, 'flying', sku.flying)
  end
end
for i, sku in ipairs(skus) do
  if #sku.writes > 0 then
    redis.call('HSET', KEYS[3 * i - 1], unpack(sku.writes))
  end
end
return reply
