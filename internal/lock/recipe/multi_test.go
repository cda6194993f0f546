package recipe_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// allOrNone checks that a call that cannot get one of the locks keeps none of them.
func allOrNone(t *testing.T, r *rig) {
	one, two := r.open(t), r.open(t)
	name := newName()
	first, middle, last := name+"-1", name+"-2", name+"-3"
	held := locktest.MustLock(t, one, middle)
	mustTimeOut(t, func(ctx context.Context) error {
		_, err := recipe.LockAll(ctx, two, last, middle, first)
		return err
	})
	// The deadline may pass while the first lock is being taken. Then the lock is free as soon as
	// the server has ended the connection.
	soon, cancel := context.WithTimeout(t.Context(), lock.DefaultLease/2)
	defer cancel()
	for _, free := range []string{first, last} {
		lease, err := one.Lock(soon, free)
		if err != nil {
			t.Fatalf("after the call: %v", err)
		}
		mustUnlock(t, lease)
	}
	mustUnlock(t, held)
	all, err := recipe.LockAll(bounded(t), two, last, middle, first, middle)
	if err != nil {
		t.Fatal(err)
	}
	for _, taken := range []string{first, middle, last} {
		if _, err := one.TryLock(bounded(t), taken); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("%s: %v, want %v", taken, err, lock.ErrHeld)
		}
	}
	mustUnlock(t, all)
	if cause := context.Cause(all.Context()); cause == nil || errors.Is(cause, lock.ErrLost) {
		t.Errorf("after Unlock the context has the cause %v", cause)
	}
}

// noDeadlock checks that callers that name the locks in opposite orders do not deadlock.
func noDeadlock(t *testing.T, r *rig) {
	const callers, rounds = 4, 5
	lockers := []lock.Locker{r.open(t), r.open(t)}
	name := newName()
	var (
		all sync.WaitGroup
		ctx = bounded(t)
	)
	for i := range callers {
		all.Go(func() {
			names := []string{name + "-1", name + "-2"}
			if i%2 == 1 {
				names[0], names[1] = names[1], names[0]
			}
			for range rounds {
				held, err := recipe.LockAll(ctx, lockers[i/2], names...)
				if err != nil {
					t.Error(err)
					return
				}
				mustUnlock(t, held)
			}
		})
	}
	all.Wait()
}

// tokenPerName checks that each lock has its own token, which rises.
func tokenPerName(t *testing.T, r *rig) {
	l, name := r.open(t), newName()
	alone := locktest.MustLock(t, l, name+"-2")
	mustUnlock(t, alone)
	held, err := recipe.LockAll(bounded(t), l, name+"-1", name+"-2")
	if err != nil {
		t.Fatal(err)
	}
	defer mustUnlock(t, held)
	if !r.backend.Fences {
		if held.Token(name+"-1") != 0 || held.Token(name+"-2") != 0 {
			t.Error("tokens from a backend without tokens")
		}
		return
	}
	if one, two := held.Token(name+"-1"), held.Token(name+"-2"); one == 0 || one == two || two <= alone.Token() {
		t.Errorf("tokens %d and %d; the second name had token %d before", one, two, alone.Token())
	}
}

// losable is a Locker whose leases the test can lose.
type losable struct {
	lock.Locker
	lose map[string]context.CancelCauseFunc
}

type losableLease struct {
	lock.Lease
	ctx context.Context
}

func (l losableLease) Context() context.Context { return l.ctx }

func (l losable) Lock(ctx context.Context, name string) (lock.Lease, error) {
	lease, err := l.Locker.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	held, lose := context.WithCancelCause(lease.Context())
	l.lose[name] = lose
	return losableLease{lease, held}, nil
}

// TestLostWhileWaiting checks that a lock that is lost ends the wait for the others.
func TestLostWhileWaiting(t *testing.T) {
	t.Parallel()
	l := losable{lock.NewLocal(), make(map[string]context.CancelCauseFunc)}
	defer mustUnlock(t, locktest.MustLock(t, l.Locker, "b"))
	waiting := waitingFor{l, "b", make(chan struct{})}
	answer := make(chan error, 1)
	go func() {
		_, err := recipe.LockAll(t.Context(), waiting, "a", "b")
		answer <- err
	}()
	<-waiting.reached
	l.lose["a"](lock.ErrLost)
	if err := testenv.Receive(t, "LockAll returns", answer); !errors.Is(err, lock.ErrLost) {
		t.Errorf("got %v, want %v", err, lock.ErrLost)
	}
	if lease, err := l.TryLock(t.Context(), "a"); err != nil {
		t.Errorf("the lock that was lost is still held in the process: %v", err)
	} else {
		mustUnlock(t, lease)
	}
}

// TestLeaderIsTold checks that the loss of the leadership ends the context of its work.
func TestLeaderIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := losable{lock.NewLocal(), make(map[string]context.CancelCauseFunc)}
		err := recipe.Lead(t.Context(), l, "a", func(ctx context.Context, _ uint64) error {
			l.lose["a"](lock.ErrLost)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		if !errors.Is(err, lock.ErrLost) {
			t.Errorf("the work has ended with %v, want %v", err, lock.ErrLost)
		}
	})
}

// waitingFor is a Locker that closes reached when the name is requested.
type waitingFor struct {
	lock.Locker
	name    string
	reached chan struct{}
}

func (l waitingFor) Lock(ctx context.Context, name string) (lock.Lease, error) {
	if name == l.name {
		close(l.reached)
	}
	return l.Locker.Lock(ctx, name)
}

// TestLossEndsAll checks that the loss of one lock ends the context of all of them.
func TestLossEndsAll(t *testing.T) {
	t.Parallel()
	l := losable{lock.NewLocal(), make(map[string]context.CancelCauseFunc)}
	held, err := recipe.LockAll(t.Context(), l, "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	l.lose["b"](lock.ErrLost)
	testenv.Receive(t, "the context ends", held.Context().Done())
	if cause := context.Cause(held.Context()); !errors.Is(cause, lock.ErrLost) {
		t.Errorf("cause %v", cause)
	}
	mustUnlock(t, held)
}

// unlocking is a Locker that calls a function instead of a lease's Unlock.
type unlocking struct {
	lock.Locker
	unlock func(ctx context.Context, name string, lease lock.Lease) error
}

type unlockingLease struct {
	lock.Lease
	unlock func(context.Context) error
}

func (l unlockingLease) Unlock(ctx context.Context) error { return l.unlock(ctx) }

func (l unlocking) Lock(ctx context.Context, name string) (lock.Lease, error) {
	lease, err := l.Locker.Lock(ctx, name)
	if err != nil {
		return nil, err
	}
	return &unlockingLease{lease, func(ctx context.Context) error { return l.unlock(ctx, name, lease) }}, nil
}

// TestUnlockAtTheSameTime checks that several slow unlocks take as long as one, and that
// their errors are returned in the order of the names.
func TestUnlockAtTheSameTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := unlocking{lock.NewLocal(), func(ctx context.Context, name string, lease lock.Lease) error {
			time.Sleep(3 * time.Second)
			return errors.Join(errors.New(name), lease.Unlock(ctx))
		}}
		held, err := recipe.LockAll(t.Context(), l, "c", "a", "b")
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if err := held.Unlock(t.Context()); err == nil || err.Error() != "a\nb\nc" {
			t.Errorf("Unlock returned %q", err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("Unlock took %v, want 3s", took)
		}
	})
}
