-- Ends a request: frees the lock if the request holds it, and gives up its place in
-- the queue. If the same request is sent again, it gets its first answer.
--
-- It wakes the first waiter in the queue if the lock was freed. It also does so if
-- the request had the first place, or none: it may have been woken for a release,
-- and no other waiter knows of that release. A waiter that is woken loses its place
-- until it asks again.
--
-- KEYS  lock, Redisson's channel, latch, queue
-- ARGV  field of the request, expiry of the latch in milliseconds, prefix of the
--       instances' channels, 1 in a cluster
-- Returns { 1 if the request held the lock, 1 if a waiter was woken, how many
-- subscribers of Redisson's channel received the message }. A repeated request
-- counts no subscribers.

local call = redis.call
local field, cluster = ARGV[1], ARGV[4] == '1'

-- In a cluster, PUBLISH counts only the subscribers on its own node. The first
-- waiter then counts as woken. A message that an ACL refuses has no receivers.
local function wakeFirst()
  repeat
    local first = call('ZPOPMIN', KEYS[4])[1]
    if not first then
      return 0
    end
    local instance = string.match(first, '^[^:]*')
    local receivers = redis.pcall('PUBLISH', ARGV[3] .. instance, KEYS[1])
  until cluster or type(receivers) == 'number' and receivers > 0
  return 1
end

-- leaveQueue reports whether the request had the first place or none.
local function leaveQueue()
  local place = call('ZRANK', KEYS[4], field)
  return call('ZREM', KEYS[4], field) == 0 or place == 0
end

local freed = call('HDEL', KEYS[1], field) == 1 -- Redis deletes the hash with its last field
local receivers = 0
if freed then
  call('SET', KEYS[3], field, 'PX', ARGV[2])
  receivers = call('PUBLISH', KEYS[2], '0')
  if cluster then
    redis.pcall('SPUBLISH', KEYS[2], '0') -- Redis has it since version 7
  end
end
local woken = 0
if freed or leaveQueue() then
  woken = wakeFirst()
end
local held = freed or call('GET', KEYS[3]) == field
return { held and 1 or 0, woken, receivers }
