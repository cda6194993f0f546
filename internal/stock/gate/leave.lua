-- Removes from the journal's consumer group a consumer that leaves, and all that
-- have been idle for long. It keeps consumers that have orders pending: those
-- orders would never be delivered again.
--
-- KEYS  journal
-- ARGV  the consumer that leaves, how long the others may be idle in milliseconds
-- Returns the number of consumers removed.

local GROUP = 'instances'

local found = redis.pcall('XINFO', 'CONSUMERS', KEYS[1], GROUP)
if found.err then
  return { 0 } -- there is no such group
end
local removed = 0
for _, consumer in ipairs(found) do
  local of = {}
  for i = 1, #consumer, 2 do
    of[consumer[i]] = consumer[i + 1]
  end
  if of.pending == 0 and (of.name == ARGV[1] or of.idle > tonumber(ARGV[2])) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], GROUP, of.name)
    removed = removed + 1
  end
end
return { removed }
