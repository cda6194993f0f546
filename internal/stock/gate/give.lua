-- Gives a take back: returns the units that its records name, once. For a SKU
-- without a record of the take, it burns the take, so that it cannot arrive later.
--
-- KEYS  count, flight, burned
-- ARGV  order ID, take ID, how long the take stays burned in milliseconds, how
--       many takes stay burned at most, then for each line its SKU and the fencing
--       token (0: do not check)
-- Returns 1, or 0 if a count has seen a greater token: then it gave nothing back.

local COUNT = '^(%d+) (%-?%d+) (%-?%d+) (%d+) (%d+)$' -- epoch, available, in flight, change, fence
local RECORD = '^(%S+) (%d+) (%d+)' -- take ID, units, epoch
local FENCED, DONE = 0, 1

local call, match, format = redis.call, string.match, string.format
local order, take, burn_time, max_burned = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

for a = 5, #ARGV, 2 do
  local token, count = tonumber(ARGV[a + 1]), call('HGET', KEYS[1], ARGV[a])
  if count and token > 0 and token < tonumber(match(count, '%d+$')) then
    return { FENCED }
  end
end

for a = 5, #ARGV, 2 do
  local sku, token = ARGV[a], ARGV[a + 1]
  local field = sku .. ' ' .. order
  local given = false
  local epoch, available, in_flight, change, fence = match(call('HGET', KEYS[1], sku) or '', COUNT)
  local holder, units, taken_under = match(call('HGET', KEYS[2], field) or '', RECORD)
  if holder == take then
    call('HDEL', KEYS[2], field)
    -- Adding to a count that is missing, or was filled since, would invent stock.
    if epoch == taken_under then
      available, in_flight, given = available + units, in_flight - units, true
    end
  end
  -- The fence rises even if nothing is given back: ReadWrite may have read the count for
  -- this take, and its write must not arrive after the take is burned. A count of a later
  -- generation may be under other locks.
  if given or epoch and token ~= '0' and tonumber(epoch) <= LAST_EPOCH then
    if token ~= '0' then
      fence = token
    end
    call('HSET', KEYS[1], sku, format('%s %d %d %s %s', epoch, available, in_flight, change, fence))
  end
  if not given then
    local time = call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - burn_time)
    call('ZADD', KEYS[3], now, sku .. ' ' .. take)
    call('ZREMRANGEBYRANK', KEYS[3], 0, -max_burned - 1)
    call('PEXPIRE', KEYS[3], burn_time)
  end
end
return { DONE }
