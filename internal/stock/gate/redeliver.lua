-- Gives a new message to queued orders that have none in the stream, one step of a scan
-- at a time. Their takes stay as they are.
--
-- KEYS  journal, queued
-- ARGV  cursor, about how many orders the step reads
-- Returns the next cursor (0: the scan is complete) and the number of new messages, as
-- text.

local call, match = redis.call, string.match
local step = call('HSCAN', KEYS[2], ARGV[1], 'COUNT', ARGV[2])
local found, lost = step[2], 0
for i = 1, #found, 2 do
  local order = found[i]
  local id, rest = match(found[i + 1], '^(%d+%-%d+)( .*)$')
  if id then
    local message = call('XRANGE', KEYS[1], id, id)[1]
    if not message or message[2][2] ~= order then -- a new stream may use an ID again
      id = call('XADD', KEYS[1], '*', 'order', order)
      call('HSET', KEYS[2], order, id .. rest)
      lost = lost + 1
    end
  end
end
return { step[1], tostring(lost) }
