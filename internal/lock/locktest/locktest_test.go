package locktest_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
)

// TestBrokenLockersAreConvicted breaks a sound locker in one way at a time and
// names the promises that must not hold any more.
func TestBrokenLockersAreConvicted(t *testing.T) {
	t.Parallel()
	sound := lock.NewLocal()
	for _, broken := range []struct {
		name      string
		lockers   []lock.Locker
		convicted []string
	}{
		{"grants everything", []lock.Locker{careless{}}, []string{"OneHolder", "TryLockHeld", "UnlockTwice", "LeaseOutlivesItsAsking", "GivingUpLeavesNothing", "EndedContext", "TokensRise"}},
		{"a mutex in each process", []lock.Locker{lock.NewLocal(), lock.NewLocal()}, []string{"OneHolder", "TryLockHeld", "LeaseOutlivesItsAsking", "GivingUpLeavesNothing"}},
		{"one name for all", []lock.Locker{renamed{sound, "all"}}, []string{"NamesApart"}},
		{"unlocks whatever is held", []lock.Locker{newForgetful()}, []string{"UnlockTwice"}},
		{"dies with the asking", []lock.Locker{shortLived{lock.NewLocal()}}, []string{"LeaseOutlivesItsAsking"}},
		{"the same token for all", []lock.Locker{tokenless{lock.NewLocal()}}, []string{"TokensRise"}},
		{"asks past an ended context", []lock.Locker{deaf{lock.NewLocal()}}, []string{"EndedContext"}},
	} {
		t.Run(broken.name, func(t *testing.T) {
			t.Parallel()
			for _, p := range locktest.Promises() {
				if !slices.Contains(broken.convicted, p.Name) {
					continue
				}
				err := p.Check(t.Context(), locktest.Backend{Lockers: broken.lockers, Tokens: true, Waits: 20 * time.Millisecond})
				if err == nil {
					t.Errorf("%s acquits it", p.Name)
				}
			}
		})
	}
}

// careless grants every lock to everyone.
type careless struct{}

func (careless) Lock(context.Context, string) (lock.Lease, error)    { return grant{}, nil }
func (careless) TryLock(context.Context, string) (lock.Lease, error) { return grant{}, nil }

type grant struct{}

func (grant) Context() context.Context     { return context.Background() }
func (grant) Token() uint64                { return 0 }
func (grant) Unlock(context.Context) error { return nil }

type renamed struct {
	lock.Locker
	name string
}

func (l renamed) Lock(ctx context.Context, _ string) (lock.Lease, error) {
	return l.Locker.Lock(ctx, l.name)
}

func (l renamed) TryLock(ctx context.Context, _ string) (lock.Lease, error) {
	return l.Locker.TryLock(ctx, l.name)
}

// forgetful frees a name by whoever unlocks it, as a DEL without a check does.
type forgetful struct {
	mu   sync.Mutex
	held map[string]bool
}

func newForgetful() *forgetful { return &forgetful{held: make(map[string]bool)} }

func (l *forgetful) TryLock(_ context.Context, name string) (lock.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[name] {
		return nil, lock.ErrHeld
	}
	l.held[name] = true
	return &deletion{grant{}, l, name}, nil
}

func (l *forgetful) Lock(ctx context.Context, name string) (lock.Lease, error) {
	for {
		lease, err := l.TryLock(ctx, name)
		if !errors.Is(err, lock.ErrHeld) {
			return lease, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
}

type deletion struct {
	grant
	locker *forgetful
	name   string
}

func (l *deletion) Unlock(context.Context) error {
	l.locker.mu.Lock()
	defer l.locker.mu.Unlock()
	delete(l.locker.held, l.name)
	return nil
}

type shortLived struct{ lock.Locker }

func (l shortLived) Lock(ctx context.Context, name string) (lock.Lease, error) {
	lease, err := l.Locker.Lock(ctx, name)
	return dying{lease, ctx}, err
}

type dying struct {
	lock.Lease
	ctx context.Context
}

func (l dying) Context() context.Context { return l.ctx }

type tokenless struct{ lock.Locker }

func (l tokenless) Lock(ctx context.Context, name string) (lock.Lease, error) {
	lease, err := l.Locker.Lock(ctx, name)
	return sameToken{lease}, err
}

type sameToken struct{ lock.Lease }

func (sameToken) Token() uint64 { return 7 }

type deaf struct{ lock.Locker }

func (l deaf) Lock(ctx context.Context, name string) (lock.Lease, error) {
	return l.Locker.Lock(context.WithoutCancel(ctx), name)
}
