-- Removes orders that have ended from the journal.
--
-- KEYS  journal, queued
-- ARGV  for each order ORDERID TAKEID, without a space in between
-- Returns the number of orders removed. It leaves an order whose take is another one:
-- the order was taken again since.

local ID = 36 -- the length of an ID
local GROUP = 'instances' -- the consumer group of the journal

local ids, orders = {}, {}
for a = 1, #ARGV do
  local order, take = string.sub(ARGV[a], 1, ID), string.sub(ARGV[a], ID + 1)
  local id, current = string.match(redis.call('HGET', KEYS[2], order) or '', '^(%S+) (%S+)')
  if current == take then
    ids[#ids + 1] = id
    orders[#orders + 1] = order
  end
end
if #ids > 0 then
  redis.call('XACK', KEYS[1], GROUP, unpack(ids))
  redis.call('XDEL', KEYS[1], unpack(ids))
  redis.call('HDEL', KEYS[2], unpack(orders))
end
return #ids
