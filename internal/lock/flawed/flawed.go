// Package flawed contains common but incorrect Redis locks. Each function or type has one flaw,
// which its comment names. The laboratory runs them to show the damage: go run ./loadtest pitfalls.
// No other code may use them.
//
// A pause is called between two steps of a lock, where a real process can be delayed or killed.
package flawed

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
)

// SetNX takes the lock without an expiry. If its holder dies, the lock stays taken forever.
func SetNX(ctx context.Context, client redis.UniversalClient, key string) (bool, error) {
	return client.Do(ctx, "SETNX", key, 1).Bool()
}

// SetNXThenExpire takes the lock, and sets its expiry in a second call. A holder that is killed in
// the pause leaves a lock without an expiry. An error of pause simulates that.
func SetNXThenExpire(ctx context.Context, client redis.UniversalClient, key string, lease time.Duration, pause func() error) (bool, error) {
	locked, err := SetNX(ctx, client, key)
	if err != nil || !locked {
		return false, err
	}
	if err := pause(); err != nil {
		return true, err
	}
	return true, client.PExpire(ctx, key, lease).Err()
}

// SetEnd takes the lock by storing its end, by the client's own clock, which is now. A client that
// finds an end in the past replaces it, and has the lock if no other client was faster. So a client
// whose clock is ahead takes a lock that another client holds.
func SetEnd(ctx context.Context, client redis.UniversalClient, key string, now time.Time, lease time.Duration) (bool, error) {
	end := now.Add(lease).UnixMilli()
	locked, err := client.Do(ctx, "SETNX", key, end).Bool()
	if err != nil || locked {
		return locked, err
	}
	held, err := client.Get(ctx, key).Int64()
	if err != nil || held > now.UnixMilli() {
		return false, err
	}
	before, err := client.GetSet(ctx, key, end).Int64()
	return before == held, err
}

// SetOwner takes the lock for owner, with an expiry, in one call. SetOwner itself has no flaw. The
// ways to unlock below have.
func SetOwner(ctx context.Context, client redis.UniversalClient, key, owner string, lease time.Duration) (bool, error) {
	return client.SetNX(ctx, key, owner, lease).Result()
}

// Delete frees the lock. It does not check who holds it.
func Delete(ctx context.Context, client redis.UniversalClient, key string) error {
	return client.Del(ctx, key).Err()
}

// GetThenDelete frees the lock if owner holds it. In the pause, the lease can end and
// another client can be granted the lock, which Delete then frees.
func GetThenDelete(ctx context.Context, client redis.UniversalClient, key, owner string, pause func()) error {
	holder, err := client.Get(ctx, key).Result()
	if errors.Is(err, redis.Nil) || err == nil && holder != owner {
		return nil
	}
	if err != nil {
		return err
	}
	pause()
	return Delete(ctx, client, key)
}

// compareAndDelete frees a lock in one step if the owner holds it.
var compareAndDelete = redis.NewScript(`-- delete if equal
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0`)

// SharedOwner is a lock whose owner is stored in an object that all threads of the process share. A
// thread that takes the lock replaces the stored owner. The previous holder then unlocks under its
// successor's name.
type SharedOwner struct {
	Client redis.UniversalClient
	owner  string
}

// Lock takes the lock.
func (l *SharedOwner) Lock(ctx context.Context, key string, lease time.Duration) (bool, error) {
	l.owner = uuid.NewString()[:8]
	return SetOwner(ctx, l.Client, key, l.owner, lease)
}

// Unlock frees the lock if the shared owner holds it.
func (l *SharedOwner) Unlock(ctx context.Context, key string) error {
	return compareAndDelete.Eval(ctx, l.Client, []string{key}, l.owner).Err()
}

// Uncounted is a lock that its owner can take again. It does not count these calls, so the first
// unlock frees the lock.
type Uncounted struct {
	Client redis.UniversalClient
	Owner  string
}

// Lock takes the lock, unless another owner holds it.
func (l Uncounted) Lock(ctx context.Context, key string, lease time.Duration) (bool, error) {
	locked, err := SetOwner(ctx, l.Client, key, l.Owner, lease)
	if err != nil || locked {
		return locked, err
	}
	holder, err := l.Client.Get(ctx, key).Result()
	return holder == l.Owner, err
}

// Unlock frees the lock if the owner holds it.
func (l Uncounted) Unlock(ctx context.Context, key string) error {
	return compareAndDelete.Eval(ctx, l.Client, []string{key}, l.Owner).Err()
}

// Renew extends the lease after each third of it, until ctx ends or the lock is lost. It blocks its
// caller, which can do no work meanwhile.
func Renew(ctx context.Context, client redis.UniversalClient, key string, lease time.Duration) error {
	ticker := time.NewTicker(lease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		if held, err := client.PExpire(ctx, key, lease).Result(); err != nil || !held {
			return err
		}
	}
}

// writeUnlessOlder stores a count, unless a greater token has written before.
var writeUnlessOlder = redis.NewScript(`-- write unless the token is older
if tonumber(ARGV[1]) < tonumber(redis.call('GET', KEYS[2]) or 0) then
  return 0
end
redis.call('SET', KEYS[2], ARGV[1])
redis.call('SET', KEYS[1], ARGV[2])
return 1`)

// WriteUnlessOlder stores a count unless its token is older than the last one that has written. It
// is a fence with a flaw: the read and the write are separate steps, so an old holder can write
// after a new one.
func WriteUnlessOlder(ctx context.Context, client redis.UniversalClient, key string, token uint64, count int) (bool, error) {
	return writeUnlessOlder.Eval(ctx, client, []string{key, key + ":fence"}, token, count).Bool()
}
