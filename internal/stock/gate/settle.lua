-- Settles takes: removes the records of takes that the ledger has.
--
-- KEYS  count, flight; also journal and queued if the takes' orders leave the queue
-- ARGV  the number of SKUs; each SKU; then for each record ORDERID TAKEID NUMBER,
--       without spaces in between. NUMBER is the number of its SKU, from 1, in two
--       bytes, the high byte first.
-- Returns an empty list. It ignores a record that is missing or is another take's.

local ID = 36 -- the length of an ID
local GROUP = 'instances' -- the consumer group of the journal

local call, byte, sub, match = redis.call, string.byte, string.sub, string.match
local skus = tonumber(ARGV[1])
local names, prefixes = {}, {} -- of each SKU: its name, and the prefix of its records' fields
for i = 1, skus do
  names[i] = ARGV[1 + i]
  prefixes[i] = names[i] .. ' '
end
local asked, numbers, fields = #ARGV - 1 - skus, {}, {}
for a = 1, asked do
  local text = ARGV[1 + skus + a]
  local n1, n0 = byte(text, 2 * ID + 1, 2 * ID + 2)
  numbers[a] = n1 * 256 + n0
  fields[a] = prefixes[numbers[a]] .. sub(text, 1, ID)
end

local counts = call('HMGET', KEYS[1], unpack(names))
local records = call('HMGET', KEYS[2], unpack(fields))
local epochs = {}
for i = 1, skus do
  epochs[i] = counts[i] and match(counts[i], '^%d+')
end
local settled, units, changed = {}, {}, {} -- fields; units by SKU; the SKUs with units
local seen = {}
for a = 1, asked do
  local record, field = records[a], fields[a]
  if record and not seen[field] and sub(record, 1, ID) == sub(ARGV[1 + skus + a], ID + 1, 2 * ID) then
    seen[field] = true
    settled[#settled + 1] = field
    local i = numbers[a]
    local n, epoch = match(record, '^(%d+) (%d+)', ID + 2)
    if epoch == epochs[i] then -- a void record's units are not in flight in this count
      if not units[i] then
        changed[#changed + 1] = i
      end
      units[i] = (units[i] or 0) + tonumber(n)
    end
  end
end
if #settled > 0 then
  call('HDEL', KEYS[2], unpack(settled))
end
local new = {}
for c, i in ipairs(changed) do
  local before, in_flight, rest = match(counts[i], '^(%d+ %-?%d+ )(%-?%d+)(.*)$')
  new[2 * c - 1] = names[i]
  new[2 * c] = before .. (in_flight - units[i]) .. rest
end
if #new > 0 then
  call('HSET', KEYS[1], unpack(new))
end

local journal, queued = KEYS[3], KEYS[4]
if journal then
  local orders, takes = {}, {}
  for a = 1, asked do
    local text = ARGV[1 + skus + a]
    local order, take = sub(text, 1, ID), sub(text, ID + 1, 2 * ID)
    if takes[#takes] ~= take then -- the lines of a take follow one another
      orders[#orders + 1] = order
      takes[#takes + 1] = take
    end
  end
  local ids, left = {}, {} -- of the orders that leave the queue
  for o, entry in ipairs(call('HMGET', queued, unpack(orders))) do
    local id, take = match(entry or '', '^(%S+) (%S+)')
    if take == takes[o] then -- otherwise the order was taken again
      ids[#ids + 1] = id
      left[#left + 1] = orders[o]
    end
  end
  if #ids > 0 then
    call('XACK', journal, GROUP, unpack(ids))
    call('XDEL', journal, unpack(ids))
    call('HDEL', queued, unpack(left))
  end
end
return {}
