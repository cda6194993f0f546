-- Fills counts, each under a new epoch. It drops what was in flight: the records of
-- an earlier epoch become void.
--
-- KEYS  count
-- ARGV  for each count: SKU, epoch, units, fencing token (0: none)
-- Returns for each count 1, or 0 if it was filled under this epoch or a later one.

local call, match = redis.call, string.match
local names = {}
for a = 1, #ARGV, 4 do
  names[#names + 1] = ARGV[a]
end
local counts = call('HMGET', KEYS[1], unpack(names))
local reply, new = {}, {}
for i, sku in ipairs(names) do
  local epoch, units, token = unpack(ARGV, 4 * i - 2, 4 * i)
  reply[i] = 0
  if tonumber(epoch) > tonumber(match(counts[i] or '', '^%d+') or 0) then
    reply[i] = 1
    new[#new + 1] = sku
    new[#new + 1] = epoch .. ' ' .. units .. ' 0 0 ' .. token
  end
end
if #new > 0 then
  call('HSET', KEYS[1], unpack(new))
end
return reply
