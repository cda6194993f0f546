-- Takes: cuts every take that fits whole, in order, and records it as in flight.
--
-- KEYS  count, flight, burned
-- ARGV  how many SKUs; each SKU; then of each take: ORDERID TAKEID LINES REST,
--       without spaces between. LINES are the lines to cut here: their number in
--       one byte, then for each the SKU's number (from 1) in two and the units in
--       four, the high byte first. REST ` BUYER SKU=QTY[,…]` goes into the
--       records as it is.
-- Returns the epoch of each SKU (0: not filled), then for each take 0 if it was
-- cut, 1 if it came before and was cut then, or why it was refused: REASON + 8 ×
-- the SKU's number. A count of an earlier generation is not filled.
--
-- This is the gate's hot path: few commands, however many SKUs there are; bytes
-- cost less to read than text, and flat arrays less than a table for each take.

-- A take that is refused for several reasons hears the greatest.
local SOLD_OUT, NOT_FILLED, IN_FLIGHT, BURNED, LATER = 1, 2, 3, 4, 5
local ID = 36 -- the length of an ID

local call, byte, sub, match, format = redis.call, string.byte, string.sub, string.match, string.format
local skus = tonumber(ARGV[1])
local names, prefixes = {}, {} -- of the SKU, and of its records' fields
for i = 1, skus do
  names[i] = ARGV[1 + i]
  prefixes[i] = names[i] .. ' '
end

local reply = {}
local epochs, left, flying, rest = {}, {}, {}, {}
local counts = call('HMGET', KEYS[1], unpack(names))
for i = 1, skus do
  local epoch, units, away, more = match(counts[i] or '', '^(%d+) (%-?%d+) (%-?%d+)(.*)$')
  local number = tonumber(epoch or 0)
  if number < FIRST or number == 0 then
    number, epoch, units, away = 0, '0', '0', '0'
  end
  epochs[i], reply[i], left[i], flying[i], rest[i] = epoch, number, tonumber(units), tonumber(away), more
end

local takes, first = #ARGV - 1 - skus, {} -- by take: its first line
local lines, numbers, units, fields = 0, {}, {}, {} -- by line: its SKU's number, its units, its record's field
for t = 1, takes do
  local text = ARGV[1 + skus + t]
  local order = sub(text, 1, ID)
  first[t] = lines + 1
  for at = 2 * ID + 2, 2 * ID + 2 + 6 * (byte(text, 2 * ID + 1) - 1), 6 do
    local n1, n0, u3, u2, u1, u0 = byte(text, at, at + 5)
    local i = n1 * 256 + n0
    lines = lines + 1
    numbers[lines] = i
    units[lines] = ((u3 * 256 + u2) * 256 + u1) * 256 + u0
    fields[lines] = prefixes[i] .. order
  end
end
first[takes + 1] = lines + 1

local flight = {} -- by field: the take in flight
local records = call('HMGET', KEYS[2], unpack(fields))
for l = 1, lines do
  local record = records[l]
  -- A record of another epoch is of what the last fill forgot.
  if record and match(record, '^%S+ %d+ (%d+)') == epochs[numbers[l]] then
    flight[fields[l]] = sub(record, 1, ID)
  end
end
local burned = call('EXISTS', KEYS[3]) == 1

-- Decide first, in tables, so that a later take of the call sees what the
-- earlier ones left.
local changed, order = {}, {} -- whether a SKU's count changed, and those that did
local writes, w = {}, 0 -- field, record, field, record…
local now
for t = 1, takes do
  local text = ARGV[1 + skus + t]
  local take = sub(text, ID + 1, 2 * ID)
  local from, to = first[t], first[t + 1] - 1
  local refusal, at, before = 0, 0, 1
  for l = from, to do
    local i = numbers[l]
    local holder = flight[fields[l]]
    local reason = 0
    if reply[i] > LAST then
      reason = LATER
    elseif burned and call('ZSCORE', KEYS[3], names[i] .. ' ' .. take) then
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
    for l = from, to do
      local i = numbers[l]
      if not flight[fields[l]] then -- else this very take came before
        if not now then
          local time = call('TIME')
          now = time[1] .. format('%06d', time[2]) -- microseconds; too long for a number's text
        end
        before = 0
        left[i] = left[i] - units[l]
        flying[i] = flying[i] + units[l]
        flight[fields[l]] = take
        if not changed[i] then
          changed[i] = true
          order[#order + 1] = i
        end
        writes[w + 1] = fields[l]
        writes[w + 2] = take .. ' ' .. units[l] .. ' ' .. epochs[i] .. ' ' .. now .. sub(text, 2 * ID + 2 + 6 * (to - from + 1))
        w = w + 2
      end
    end
  end
  reply[skus + t] = refusal == 0 and before or refusal + 8 * at
end

if w > 0 then
  local new = {}
  for c, i in ipairs(order) do
    new[2 * c - 1] = names[i]
    new[2 * c] = epochs[i] .. ' ' .. left[i] .. ' ' .. flying[i] .. rest[i]
  end
  -- Counts before records: if the writes broke off between them, units would be
  -- lost until the next refill, but none would be invented.
  call('HSET', KEYS[1], unpack(new))
  call('HSET', KEYS[2], unpack(writes))
end
return reply
