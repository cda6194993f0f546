-- Applies an addition that the ledger has committed, once.
--
-- KEYS  count
-- ARGV  SKU, epoch, number, units, fencing token (0: none)
-- Returns 0 if nothing is left to do: it was applied now or before, or the
-- count was filled under a later epoch and includes it; 1 if an earlier
-- addition is missing; 2 if the count was not filled under the epoch yet; 3 if
-- a greater token was seen.

local COUNT = '^(%d+) (%-?%d+) (%-?%d+) (%d+) (%d+)$' -- epoch, left, flying, change, fence
local APPLIED, GAP, NOT_FILLED, FENCED = 0, 1, 2, 3

local count = redis.call('HGET', KEYS[1], ARGV[1]) or '0 0 0 0 0'
local stored, left, flying, last, fence = string.match(count, COUNT)
local epoch, number = tonumber(ARGV[2]), tonumber(ARGV[3])
stored, last = tonumber(stored), tonumber(last)
if stored < epoch or epoch > LAST then -- of a later generation: for its instances
  return { NOT_FILLED }
elseif stored > epoch or number <= last then
  return { APPLIED }
elseif number > last + 1 then
  return { GAP }
end
local token = tonumber(ARGV[5])
if token > 0 then
  if token < tonumber(fence) then
    return { FENCED }
  end
  fence = ARGV[5]
end
redis.call('HSET', KEYS[1], ARGV[1],
  string.format('%s %d %s %d %s', ARGV[2], left + ARGV[4], flying, number, fence))
return { APPLIED }
