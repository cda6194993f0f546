-- Applies an addition that the ledger has committed, once.
--
-- KEYS  count
-- ARGV  epoch, number, units, fencing token (0: none)
-- Returns 0 if nothing is left to do: it was applied now or before, or the
-- count was filled under a later epoch and includes it; 1 if an earlier
-- addition is missing; 2 if the count was not filled under the epoch yet; 3 if
-- a greater token was seen.

local APPLIED, GAP, NOT_FILLED, FENCED = 0, 1, 2, 3

local count = redis.call('HMGET', KEYS[1], 'epoch', 'change', 'fence')
local epoch, number = tonumber(ARGV[1]), tonumber(ARGV[2])
local stored, last = tonumber(count[1] or 0), tonumber(count[2] or 0)
if stored < epoch then
  return { NOT_FILLED }
elseif stored > epoch or number <= last then
  return { APPLIED }
elseif number > last + 1 then
  return { GAP }
end
local token = tonumber(ARGV[4])
if token > 0 then
  if token < tonumber(count[3] or 0) then
    return { FENCED }
  end
  redis.call('HSET', KEYS[1], 'fence', ARGV[4])
end
redis.call('HSET', KEYS[1], 'change', number)
redis.call('HINCRBY', KEYS[1], 'left', ARGV[3])
return { APPLIED }
