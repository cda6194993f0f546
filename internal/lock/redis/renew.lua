-- Extends the lease.
--
-- KEYS  lock
-- ARGV  field of the grant, lease in milliseconds
-- Returns 1, or 0 if the grant no longer holds the lock.

if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
