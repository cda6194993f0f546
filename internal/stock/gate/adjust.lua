-- Applies an addition that the ledger has committed, once.
--
-- KEYS  count
-- ARGV  SKU, epoch, number, units, fencing token (0: do not check)
-- Returns 0 if nothing is left to do: the addition was applied now or earlier, or
-- the count was filled under a later epoch and includes it. Returns 1 if an
-- earlier addition is missing, 2 if the count is not filled under the epoch yet,
-- and 3 if the count has seen a greater token.

local COUNT = '^(%d+) (%-?%d+) (%-?%d+) (%d+) (%d+)$' -- epoch, available, in flight, change, fence
local APPLIED, GAP, NOT_FILLED, FENCED = 0, 1, 2, 3

local count = redis.call('HGET', KEYS[1], ARGV[1]) or '0 0 0 0 0'
local stored, available, in_flight, last, fence = string.match(count, COUNT)
local epoch, number = tonumber(ARGV[2]), tonumber(ARGV[3])
stored, last = tonumber(stored), tonumber(last)
if stored < epoch or epoch > LAST_EPOCH then -- an instance of the later generation applies it
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
  string.format('%s %d %s %d %s', ARGV[2], available + ARGV[4], in_flight, number, fence))
return { APPLIED }
