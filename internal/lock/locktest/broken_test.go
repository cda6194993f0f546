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
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// brokenLocker is a Locker that changes the requests or the answers of another Locker. A nil
// function changes nothing.
type brokenLocker struct {
	sound   lock.Locker
	request func(ctx context.Context, name string) (context.Context, string)
	answer  func(ctx context.Context, name string, lease lock.Lease, err error) (lock.Lease, error)
}

func (l brokenLocker) Lock(ctx context.Context, name string) (lock.Lease, error) {
	return l.call(ctx, name, l.sound.Lock)
}

func (l brokenLocker) TryLock(ctx context.Context, name string) (lock.Lease, error) {
	return l.call(ctx, name, l.sound.TryLock)
}

func (l brokenLocker) call(ctx context.Context, name string, method func(context.Context, string) (lock.Lease, error)) (lock.Lease, error) {
	if l.request != nil {
		ctx, name = l.request(ctx, name)
	}
	lease, err := method(ctx, name)
	if l.answer != nil {
		return l.answer(ctx, name, lease, err)
	}
	return lease, err
}

// brokenLease is a lease with another context or token.
type brokenLease struct {
	sound lock.Lease
	ctx   context.Context
	token uint64
}

func (l brokenLease) Context() context.Context         { return l.ctx }
func (l brokenLease) Token() uint64                    { return l.token }
func (l brokenLease) Unlock(ctx context.Context) error { return l.sound.Unlock(ctx) }

// breakLeases returns an answer function that applies change to every lease.
func breakLeases(change func(ctx context.Context, l *brokenLease)) func(context.Context, string, lock.Lease, error) (lock.Lease, error) {
	return func(ctx context.Context, _ string, lease lock.Lease, err error) (lock.Lease, error) {
		if err != nil {
			return nil, err
		}
		broken := brokenLease{lease, lease.Context(), lease.Token()}
		change(ctx, &broken)
		return broken, nil
	}
}

// TestBrokenLockersFail breaks a correct Locker in one way at a time. The named promises must then
// fail.
func TestBrokenLockersFail(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		lockers []lock.Locker
		breaks  []string // names of promises
	}{
		{
			"grants every request",
			[]lock.Locker{grantsEverything{}},
			[]string{"OneHolder", "TryLockHeld", "UnlockTwice", "LeaseOutlivesRequest", "AbandonedWaitLeavesNothing", "CancelledContext", "TokensRise", "InvalidNames"},
		},
		{
			"one mutex per process",
			[]lock.Locker{lock.NewLocal(), lock.NewLocal()},
			[]string{"OneHolder", "TryLockHeld", "LeaseOutlivesRequest", "AbandonedWaitLeavesNothing"},
		},
		{
			"one lock for all names",
			[]lock.Locker{brokenLocker{sound: lock.NewLocal(), request: func(ctx context.Context, _ string) (context.Context, string) { return ctx, "all" }}},
			[]string{"NamesApart"},
		},
		{
			"Unlock frees any holder's lock",
			[]lock.Locker{newUncheckedDelete()},
			[]string{"UnlockTwice"},
		},
		{
			"lease ends with its request",
			[]lock.Locker{brokenLocker{sound: lock.NewLocal(), answer: breakLeases(func(ctx context.Context, l *brokenLease) { l.ctx = ctx })}},
			[]string{"LeaseOutlivesRequest"},
		},
		{
			"same token for all leases",
			[]lock.Locker{brokenLocker{sound: lock.NewLocal(), answer: breakLeases(func(_ context.Context, l *brokenLease) { l.token = 7 })}},
			[]string{"TokensRise"},
		},
		{
			"ignores the end of the context",
			[]lock.Locker{brokenLocker{sound: lock.NewLocal(), request: func(ctx context.Context, name string) (context.Context, string) {
				return context.WithoutCancel(ctx), name
			}}},
			[]string{"CancelledContext"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			mustBreak(t, locktest.Subject{Lockers: test.lockers, Tokens: true, Patience: 20 * time.Millisecond}, test.breaks)
		})
	}
}

// mustBreak checks that the subject breaks the named promises.
func mustBreak(t *testing.T, s locktest.Subject, promises []string) {
	t.Helper()
	checked := 0
	for _, p := range locktest.Promises() {
		if !slices.Contains(promises, p.Name) {
			continue
		}
		checked++
		if err := p.Check(t.Context(), s); err == nil {
			t.Errorf("%s passes for a broken Locker", p.Name)
		} else {
			t.Logf("%s: %v", p.Name, err)
		}
	}
	if checked != len(promises) {
		t.Errorf("%d of the promises %v exist", checked, promises)
	}
}

// grantsEverything grants every request at once.
type grantsEverything struct{}

func (grantsEverything) Lock(context.Context, string) (lock.Lease, error)    { return noLease{}, nil }
func (grantsEverything) TryLock(context.Context, string) (lock.Lease, error) { return noLease{}, nil }

type noLease struct{}

func (noLease) Context() context.Context     { return context.Background() }
func (noLease) Token() uint64                { return 0 }
func (noLease) Unlock(context.Context) error { return nil }

// uncheckedDelete is a Locker whose Unlock frees the name even if another holder has it, like an
// unchecked DEL.
type uncheckedDelete struct {
	mu   sync.Mutex
	held map[string]bool
}

func newUncheckedDelete() *uncheckedDelete { return &uncheckedDelete{held: make(map[string]bool)} }

func (l *uncheckedDelete) TryLock(_ context.Context, name string) (lock.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.held[name] {
		return nil, lock.ErrHeld
	}
	l.held[name] = true
	return &uncheckedLease{l, name}, nil
}

func (l *uncheckedDelete) Lock(ctx context.Context, name string) (lock.Lease, error) {
	for {
		lease, err := l.TryLock(ctx, name)
		if !errors.Is(err, lock.ErrHeld) {
			return lease, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		default:
			testenv.Dither()
		}
	}
}

type uncheckedLease struct {
	locker *uncheckedDelete
	name   string
}

func (*uncheckedLease) Context() context.Context { return context.Background() }
func (*uncheckedLease) Token() uint64            { return 0 }

func (l *uncheckedLease) Unlock(context.Context) error {
	l.locker.mu.Lock()
	defer l.locker.mu.Unlock()
	delete(l.locker.held, l.name)
	return nil
}
