-- Takes: cuts every take that fits whole, in order, and records it as in flight.
--
-- KEYS  of each SKU: count, flight, burned
-- ARGV  of each take: ORDERID TAKEID LINES REST, without spaces between. LINES
--       are the lines to cut here: their number in one byte, then for each the
--       SKU's number (from 1) in two and the units in four, the high byte
--       first. REST ` BUYER SKU=QTY[,…]` goes into the records as it is.
-- Returns the epoch of each SKU (0: not filled), then for each take 0 if it was
-- cut, 1 if it came before and was cut then, or why it was refused: REASON + 8 ×
-- the SKU's number.
--
-- This is the gate's hot path: bytes cost less to read than text, and flat
-- arrays less than a table for each take.

-- A take that is refused for several reasons hears the greatest.
local SOLD_OUT, NOT_FILLED, IN_FLIGHT, BURNED = 1, 2, 3, 4
local ID = 36 -- the length of an ID

local call, byte, sub, find = redis.call, string.byte, string.sub, string.find
local skus = #KEYS / 3
local reply = {}
local left, flying = {}, {}
local asked = {} -- by SKU: the order IDs of the takes
local first = {} -- by take: its first line
local numbers, units = {}, {} -- by line: its SKU's number, its units

for i = 1, skus do
  local count = call('HMGET', KEYS[3 * i - 2], 'epoch', 'left', 'flying')
  reply[i] = tonumber(count[1] or 0)
  left[i] = tonumber(count[2] or 0)
  flying[i] = tonumber(count[3] or 0)
  asked[i] = {}
end

local orders, lines = {}, 0
for t = 1, #ARGV do
  local text = ARGV[t]
  local order = sub(text, 1, ID)
  orders[t] = order
  first[t] = lines + 1
  for at = 2 * ID + 2, 2 * ID + 2 + 6 * (byte(text, 2 * ID + 1) - 1), 6 do
    local n1, n0, u3, u2, u1, u0 = byte(text, at, at + 5)
    local i = n1 * 256 + n0
    lines = lines + 1
    numbers[lines] = i
    units[lines] = ((u3 * 256 + u2) * 256 + u1) * 256 + u0
    asked[i][#asked[i] + 1] = order
  end
end
first[#ARGV + 1] = lines + 1

local burns = {}
for i = 1, skus do
  burns[i] = KEYS[3 * i]
end
local burned = call('EXISTS', unpack(burns)) > 0 -- whether any SKU has burned takes
local flight = {} -- by SKU: the take in flight for each order
for i = 1, skus do
  local records = call('HMGET', KEYS[3 * i - 1], unpack(asked[i]))
  local takes = {}
  for o, order in ipairs(asked[i]) do
    local record = records[o]
    if record then
      local space = find(record, ' ', 1, true)
      takes[order] = sub(record, space + 1, space + ID)
    end
  end
  flight[i] = takes
end

-- Decide first, in tables, so that a later take of the call sees what the
-- earlier ones left.
local writes = {} -- by SKU: order ID, record, order ID, record…
local now
for t = 1, #ARGV do
  local order, take = orders[t], sub(ARGV[t], ID + 1, 2 * ID)
  local refusal, at, before = 0, 0, 1
  for l = first[t], first[t + 1] - 1 do
    local i = numbers[l]
    local holder = flight[i][order]
    local reason = 0
    if burned and call('ZSCORE', KEYS[3 * i], take) then
      reason = BURNED
    elseif holder and holder ~= take then
      reason = IN_FLIGHT
    elseif reply[i] == 0 then
      reason = NOT_FILLED
    elseif not holder and left[i] < units[l] then
      reason = SOLD_OUT
    end
    if reason > refusal then
      refusal, at = reason, i
    end
  end
  if refusal == 0 then
    local from, to = first[t], first[t + 1] - 1
    local rest
    for l = from, to do
      local i = numbers[l]
      if not flight[i][order] then -- else this very take came before
        if not now then
          local time = call('TIME')
          now = ' ' .. time[1] .. string.format('%06d', time[2]) -- microseconds; too long for a number's text
        end
        rest = rest or ' ' .. take .. now .. sub(ARGV[t], 2 * ID + 2 + 6 * (to - from + 1))
        before = 0
        left[i] = left[i] - units[l]
        flying[i] = flying[i] + units[l]
        flight[i][order] = take
        local w = writes[i]
        if not w then
          w = {}
          writes[i] = w
        end
        local n = #w
        w[n + 1] = order
        w[n + 2] = units[l] .. rest
      end
    end
  end
  reply[skus + t] = refusal == 0 and before or refusal + 8 * at
end

-- Counts before records: if the writes broke off between them, units would be
-- lost until the next refill, but none would be invented.
for i = 1, skus do
  if writes[i] then
    call('HSET', KEYS[3 * i - 2], 'left', left[i], 'flying', flying[i])
  end
end
for i = 1, skus do
  if writes[i] then
    call('HSET', KEYS[3 * i - 1], unpack(writes[i]))
  end
end
return reply
