-- KEYS  lock
-- ARGV  owner field, lease in milliseconds
-- Returns 1, or 0 if the lock is not the owner's any more.

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
