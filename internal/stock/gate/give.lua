-- Gives a take back: its units once, as its records say. Where there is no
-- record of it, the take is burned, so that it cannot arrive later.
--
-- KEYS  of each SKU: count, flight, burned
-- ARGV  order ID, take ID, how long the take stays burned in milliseconds, how
--       many takes of one SKU stay burned, then of each SKU the fencing token
--       (0: none)
-- Returns 1, or 0 if for one SKU a greater token was seen: then nothing was given.

local order, take, burn, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])

for i = 1, #KEYS / 3 do
  local token, count = tonumber(ARGV[4 + i]), KEYS[3 * i - 2]
  if token > 0 and token < tonumber(redis.call('HGET', count, 'fence') or 0) then
    return { 0 }
  end
end

for i = 1, #KEYS / 3 do
  local count, flight, burned = KEYS[3 * i - 2], KEYS[3 * i - 1], KEYS[3 * i]
  local given = false
  local record = redis.call('HGET', flight, order)
  if record then
    local space = string.find(record, ' ', 1, true)
    if string.sub(record, space + 1, space + 36) == take then
      redis.call('HDEL', flight, order)
      -- Adding to a count that is gone would invent stock.
      if redis.call('HEXISTS', count, 'epoch') == 1 then
        local units = string.sub(record, 1, space - 1)
        redis.call('HINCRBY', count, 'flying', '-' .. units)
        redis.call('HINCRBY', count, 'left', units)
        if ARGV[4 + i] ~= '0' then
          redis.call('HSET', count, 'fence', ARGV[4 + i])
        end
        given = true
      end
    end
  end
  if not given then
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    redis.call('ZREMRANGEBYSCORE', burned, '-inf', now - burn)
    redis.call('ZADD', burned, now, take)
    redis.call('ZREMRANGEBYRANK', burned, 0, -most - 1)
    redis.call('PEXPIRE', burned, burn)
  end
end
return { 1 }
