-- Replaces the mark, unless that is of a later generation: an instance that was paused
-- may still write the mark of a generation that has ended.
--
-- KEYS  mark
-- ARGV  generation, the rest of the mark, the greatest generation (a mark of a later one
--       is unreadable)
-- Returns 1, or 0 if the mark is of a later generation.

local mark = redis.pcall('GET', KEYS[1])
local written = type(mark) == 'string' and tonumber(string.match(mark, '^(%d+) %d+ %d+$') or 0) or 0
if written > tonumber(ARGV[1]) and written <= tonumber(ARGV[3]) then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. ARGV[2])
return 1
