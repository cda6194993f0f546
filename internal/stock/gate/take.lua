-- Takes: cuts every take that fits whole, in order, and records it as in flight.
--
-- KEYS  count, flight, burned; to queue the orders also journal, queued, mark
-- ARGV  the number of SKUs; each SKU; then for each take ORDERID TAKEID LINES REST,
--       without spaces in between. LINES are the lines to cut in this call: their
--       number in one byte, then for each line the number of its SKU, from 1, in
--       two bytes and its units in four, the high byte first. REST is ` BUYER
--       SKU=UNITS[,…]`, which goes into the records as it is.
--       A call that queues orders has PREVIOUS between TAKEID and LINES: the take
--       that this one replaces in the queue, or zeros for a new order. REST ends
--       with ` MICROSECONDS`, the time at which the order was queued. The last
--       argument is the number of orders that may be queued.
-- Returns the epoch of each SKU (0: not filled), then for each take 0 if it was
-- cut, 1 if the same take was cut by an earlier call, or why it was refused: the
-- reason + 8 × the number of the SKU. A count of an earlier generation is treated
-- as not filled.
--
-- This is the gate's hot path. It uses few commands, however many SKUs there are.
-- Reading bytes is faster than parsing text, and flat arrays are faster than a
-- table for each take.

-- Of several reasons to refuse a take, the greatest is the answer.
local SOLD_OUT, NOT_FILLED, IN_FLIGHT, BURNED, LATER_GENERATION = 1, 2, 3, 4, 5
local QUEUE_FULL, QUEUE_CLOSED = 6, 7 -- only if there is no other reason
local NO_TAKE = '00000000-0000-0000-0000-000000000000'
local ID = 36 -- the length of an ID
local journal, queued, mark = KEYS[4], KEYS[5], KEYS[6]
local HEADER = journal and 3 * ID or 2 * ID -- the length of a take's IDs

local call, byte, sub, match, format = redis.call, string.byte, string.sub, string.match, string.format
local skus = tonumber(ARGV[1])
local names, prefixes = {}, {} -- of each SKU: its name, and the prefix of its records' fields
for i = 1, skus do
  names[i] = ARGV[1 + i]
  prefixes[i] = names[i] .. ' '
end

local reply = {}
local epochs, available, in_flight, rest = {}, {}, {}, {} -- of each SKU: the parts of its count
local counts = call('HMGET', KEYS[1], unpack(names))
for i = 1, skus do
  local epoch, left, taken, more = match(counts[i] or '', '^(%d+) (%-?%d+) (%-?%d+)(.*)$')
  local number = tonumber(epoch or 0)
  if number < FIRST_EPOCH or number == 0 then
    number, epoch, left, taken = 0, '0', '0', '0'
  end
  epochs[i], reply[i], available[i], in_flight[i], rest[i] = epoch, number, tonumber(left), tonumber(taken), more
end

local takes, first = #ARGV - 1 - skus - (journal and 1 or 0), {} -- of each take: its first line
local lines, numbers, units, fields = 0, {}, {}, {} -- of each line: its SKU's number, its units, its record's field
for t = 1, takes do
  local text = ARGV[1 + skus + t]
  local order = sub(text, 1, ID)
  first[t] = lines + 1
  for at = HEADER + 2, HEADER + 2 + 6 * (byte(text, HEADER + 1) - 1), 6 do
    local n1, n0, u3, u2, u1, u0 = byte(text, at, at + 5)
    local i = n1 * 256 + n0
    lines = lines + 1
    numbers[lines] = i
    units[lines] = ((u3 * 256 + u2) * 256 + u1) * 256 + u0
    fields[lines] = prefixes[i] .. order
  end
end
first[takes + 1] = lines + 1

local holders = {} -- by field: the take in flight
local records = call('HMGET', KEYS[2], unpack(fields))
for l = 1, lines do
  local record = records[l]
  -- A record of another epoch is void.
  if record and match(record, '^%S+ %d+ (%d+)') == epochs[numbers[l]] then
    holders[fields[l]] = sub(record, 1, ID)
  end
end
local any_burned = call('EXISTS', KEYS[3]) == 1

local waiting, ids, room = {}, {}, 0 -- by order: its take in the queue, its ID in the journal; orders that may still be queued
local closed = false -- another owner has the stock, and may have found the journal empty
if journal then
  local generation = FIRST_EPOCH / (LAST_EPOCH - FIRST_EPOCH + 1)
  closed = tonumber(match(call('GET', mark) or '', '^%d+') or -1) ~= generation
  local orders = {}
  for t = 1, takes do
    orders[t] = sub(ARGV[1 + skus + t], 1, ID)
  end
  for t, entry in ipairs(call('HMGET', queued, unpack(orders))) do
    ids[orders[t]], waiting[orders[t]] = match(entry or '', '^(%S+) (%S+)')
  end
  room = ARGV[#ARGV] - math.max(call('XLEN', journal), call('HLEN', queued)) -- they differ if one was lost
end

-- Decide first and keep the results in tables, so that each take sees what the
-- earlier ones of the call left.
local changed, order = {}, {} -- of each SKU: whether its count changed; the SKUs whose count changed
local writes, w = {}, 0 -- field, record, field, record…
local queue = {} -- the takes whose orders are queued
local now
for t = 1, takes do
  local text = ARGV[1 + skus + t]
  local take = sub(text, ID + 1, 2 * ID)
  local from, to = first[t], first[t + 1] - 1
  local refusal, at, already = 0, 0, 1
  for l = from, to do
    local i = numbers[l]
    local holder = holders[fields[l]]
    local reason = 0
    if reply[i] > LAST_EPOCH then
      reason = LATER_GENERATION
    elseif any_burned and call('ZSCORE', KEYS[3], names[i] .. ' ' .. take) then
      reason = BURNED
    elseif holder and holder ~= take then
      reason = IN_FLIGHT
    elseif reply[i] == 0 then
      reason = NOT_FILLED
    elseif not holder and available[i] < units[l] then
      reason = SOLD_OUT
    end
    if reason > refusal then
      refusal, at = reason, i
    end
  end
  if journal then
    local current, previous = waiting[sub(text, 1, ID)], sub(text, 2 * ID + 1, 3 * ID)
    if current ~= take and (current or NO_TAKE) ~= previous and refusal < IN_FLIGHT then
      refusal, at = IN_FLIGHT, numbers[from]
    elseif not current and refusal == 0 and (closed or room <= 0) then
      refusal, at = closed and QUEUE_CLOSED or QUEUE_FULL, numbers[from]
    end
  end
  if refusal == 0 then
    for l = from, to do
      local i = numbers[l]
      if not holders[fields[l]] then -- otherwise this take was cut earlier
        if not now then
          local time = call('TIME')
          now = time[1] .. format('%06d', time[2]) -- in microseconds, as text: Lua would print so long a number with an exponent
        end
        already = 0
        available[i] = available[i] - units[l]
        in_flight[i] = in_flight[i] + units[l]
        holders[fields[l]] = take
        if not changed[i] then
          changed[i] = true
          order[#order + 1] = i
        end
        writes[w + 1] = fields[l]
        writes[w + 2] = take .. ' ' .. units[l] .. ' ' .. epochs[i] .. ' ' .. now .. sub(text, HEADER + 2 + 6 * (to - from + 1))
        w = w + 2
      end
    end
    if journal and already == 0 then
      local order = sub(text, 1, ID)
      queue[#queue + 1] = t
      waiting[order] = take
      if not ids[order] then
        room = room - 1
      end
    end
  end
  reply[skus + t] = refusal == 0 and already or refusal + 8 * at
end

if w > 0 then
  local new = {}
  for c, i in ipairs(order) do
    new[2 * c - 1] = names[i]
    new[2 * c] = epochs[i] .. ' ' .. available[i] .. ' ' .. in_flight[i] .. rest[i]
  end
  -- Counts before records: if only the first write took place, units would be
  -- missing until the next refill, but none would be invented.
  call('HSET', KEYS[1], unpack(new))
  call('HSET', KEYS[2], unpack(writes))
end
if #queue > 0 then
  local new = {}
  for q, t in ipairs(queue) do
    local text, from, to = ARGV[1 + skus + t], first[t], first[t + 1] - 1
    local order, under = sub(text, 1, ID), {}
    for l = from, to do
      under[#under + 1] = epochs[numbers[l]]
    end
    local id = ids[order] or call('XADD', journal, '*', 'order', order)
    new[2 * q - 1] = order
    new[2 * q] = id .. ' ' .. sub(text, ID + 1, 2 * ID) .. ' ' .. table.concat(under, ',')
      .. sub(text, HEADER + 2 + 6 * (to - from + 1))
  end
  call('HSET', queued, unpack(new))
end
return reply
