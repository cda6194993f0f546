package gate

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// recorder records what is locked and unlocked, and can end its leases.
type recorder struct {
	lock.Locker
	mu     sync.Mutex
	events []string
	lost   context.CancelCauseFunc // of the last lease
}

func newRecorder() *recorder { return &recorder{Locker: lock.NewLocal()} }

func (l *recorder) note(event string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, event)
}

func (l *recorder) Lock(ctx context.Context, name string) (lock.Lease, error) {
	lease, err := l.Locker.Lock(ctx, name)
	if err != nil {
		l.note("no " + name)
		return nil, err
	}
	l.note("lock " + name)
	held, lost := context.WithCancelCause(lease.Context())
	l.mu.Lock()
	l.lost = lost
	l.mu.Unlock()
	return &recordedLease{lease, l, name, held}, nil
}

type recordedLease struct {
	lock.Lease
	locker *recorder
	name   string
	held   context.Context
}

func (l *recordedLease) Context() context.Context { return l.held }

func (l *recordedLease) Unlock(ctx context.Context) error {
	if ctx.Err() != nil {
		l.locker.note("unlock on an ended context")
	}
	l.locker.note("unlock " + l.name)
	return l.Lease.Unlock(ctx)
}

// inner is a gate whose methods call do and return its error.
type inner struct {
	Fenced
	do func(ctx context.Context) error
}

func (g inner) take(ctx context.Context, _ tokenSet, d stock.Deduction) (stock.Take, error) {
	return stock.Take{Deduction: d}, g.do(ctx)
}
func (g inner) give(ctx context.Context, _ tokenSet, _ stock.Take) error { return g.do(ctx) }
func (g inner) fill(ctx context.Context, _ tokenSet, _ stock.Fill) error {
	return g.do(ctx)
}
func (g inner) adjust(ctx context.Context, _ tokenSet, _ stock.Change) error { return g.do(ctx) }
func (g inner) Settle(ctx context.Context, _ ...stock.Take) error            { return g.do(ctx) }
func (g inner) Level(ctx context.Context, _ ...stock.SKU) ([]stock.Level, error) {
	return nil, g.do(ctx)
}
func (g inner) InFlight(ctx context.Context, _ time.Duration, _ int, _ ...stock.SKU) ([]stock.Take, error) {
	return nil, g.do(ctx)
}

var errInner = errors.New("error of the inner gate")

// calls has all calls of a gate, with the locks that they take, for SKUs b and a.
var calls = []struct {
	name   string
	locks  []string
	invoke func(ctx context.Context, g stock.Gate) error
}{
	{"Take", []string{"stock:a", "stock:b"}, func(ctx context.Context, g stock.Gate) error { _, err := g.Take(ctx, basket()); return err }},
	{"Give", []string{"stock:a", "stock:b"}, func(ctx context.Context, g stock.Gate) error { return g.Give(ctx, takenBasket()) }},
	{"Fill", []string{"stock:a"}, func(ctx context.Context, g stock.Gate) error { return g.Fill(ctx, "a", 1, 1) }},
	{"Adjust", []string{"stock:a"}, func(ctx context.Context, g stock.Gate) error { return g.Adjust(ctx, stock.Change{SKU: "a"}) }},
	{"Settle", nil, func(ctx context.Context, g stock.Gate) error { return g.Settle(ctx, takenBasket()) }},
	{"InFlight", nil, func(ctx context.Context, g stock.Gate) error { _, err := g.InFlight(ctx, 0, 1, "a"); return err }},
	{"Level", nil, func(ctx context.Context, g stock.Gate) error { _, err := g.Level(ctx, "a"); return err }},
}

func basket() stock.Deduction {
	return stock.Deduction{
		OrderID: uuid.New(), TakeID: uuid.New(),
		Lines: []stock.Line{{SKU: "b", Quantity: 1}, {SKU: "a", Quantity: 1}},
	}
}

func takenBasket() stock.Take { return stock.Take{Deduction: basket()} }

func TestChangesAreUnderTheirLocks(t *testing.T) {
	t.Parallel()
	for _, call := range calls {
		t.Run(call.name, func(t *testing.T) {
			t.Parallel()
			locker := newRecorder()
			g := NewLocked(inner{do: func(context.Context) error { locker.note("work"); return errInner }}, locker, time.Minute, false)
			if err := call.invoke(t.Context(), g); !errors.Is(err, errInner) {
				t.Errorf("got %v", err)
			}
			var want []string
			for _, name := range call.locks {
				want = append(want, "lock "+name)
			}
			want = append(want, "work")
			for _, name := range call.locks {
				want = append(want, "unlock "+name)
			}
			if after := len(call.locks) + 1; len(locker.events) > after {
				slices.Sort(locker.events[after:]) // the locks are freed at the same time
			}
			if !slices.Equal(locker.events, want) {
				t.Errorf("%v, want %v", locker.events, want)
			}
		})
	}
}

// TestLockTimeoutIsBusy checks that a call that cannot get its locks starts nothing
// and keeps no lock.
func TestLockTimeoutIsBusy(t *testing.T) {
	t.Parallel()
	for _, call := range calls {
		if call.locks == nil {
			continue
		}
		t.Run(call.name, func(t *testing.T) {
			t.Parallel()
			locker := newRecorder()
			g := NewLocked(inner{do: func(context.Context) error { t.Error("the work has started"); return nil }}, locker, 20*time.Millisecond, false)
			last := call.locks[len(call.locks)-1]
			lease, err := locker.Locker.Lock(t.Context(), last)
			if err != nil {
				t.Fatal(err)
			}
			if err := call.invoke(t.Context(), g); !errors.Is(err, stock.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			for _, name := range call.locks {
				if _, err := locker.TryLock(t.Context(), name); err != nil {
					t.Errorf("lock %s: %v", name, err)
				}
			}
		})
	}
}

// TestOneDeadlineForAllLocks checks that the time spent on one lock leaves less for
// the next.
func TestOneDeadlineForAllLocks(t *testing.T) {
	t.Parallel()
	var deadlines []time.Time
	g := NewLocked(inner{do: func(context.Context) error { return nil }}, deadlineLocker{newRecorder(), &deadlines}, time.Minute, false)
	if err := g.Give(t.Context(), takenBasket()); err != nil {
		t.Fatal(err)
	}
	if len(deadlines) != 2 || !deadlines[0].Equal(deadlines[1]) {
		t.Errorf("deadlines %v", deadlines)
	}
}

type deadlineLocker struct {
	*recorder
	deadlines *[]time.Time
}

func (l deadlineLocker) Lock(ctx context.Context, name string) (lock.Lease, error) {
	deadline, _ := ctx.Deadline()
	*l.deadlines = append(*l.deadlines, deadline)
	return l.recorder.Lock(ctx, name)
}

// TestLostLeaseEndsTheWork checks that the context of the work ends when a lease is
// lost, with lock.ErrLost as its cause.
func TestLostLeaseEndsTheWork(t *testing.T) {
	t.Parallel()
	locker := newRecorder()
	g := NewLocked(inner{do: func(ctx context.Context) error {
		locker.lost(lock.ErrLost)
		<-ctx.Done()
		return context.Cause(ctx)
	}}, locker, time.Minute, false)
	if _, err := g.Take(t.Context(), basket()); !errors.Is(err, lock.ErrLost) || stock.NothingTaken(err) {
		t.Errorf("got %v", err)
	}
}

// TestWaitBoundsOnlyTheLocks checks that the work may take longer than the wait for
// the locks.
func TestWaitBoundsOnlyTheLocks(t *testing.T) {
	t.Parallel()
	g := NewLocked(inner{do: func(ctx context.Context) error {
		if _, bounded := ctx.Deadline(); bounded {
			t.Error("the work has the deadline of the wait for the locks")
		}
		return nil
	}}, lock.NewLocal(), time.Minute, false)
	if err := g.Give(t.Context(), takenBasket()); err != nil {
		t.Error(err)
	}
}

func TestCancelledCallUnlocks(t *testing.T) {
	t.Parallel()
	locker := newRecorder()
	ctx, cancel := context.WithCancel(t.Context())
	g := NewLocked(inner{do: func(ctx context.Context) error { cancel(); return ctx.Err() }}, locker, time.Minute, false)
	if err := g.Give(ctx, takenBasket()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	want := []string{"lock stock:a", "lock stock:b", "unlock stock:a", "unlock stock:b"}
	slices.Sort(locker.events) // the locks are freed at the same time
	if !slices.Equal(locker.events, want) {
		t.Errorf("%v, want %v", locker.events, want)
	}
}

// closing records that it was closed.
type closing struct {
	Fenced
	closed *bool
}

func (g closing) Close() { *g.closed = true }

func TestCloseClosesTheInnerGate(t *testing.T) {
	t.Parallel()
	var closed bool
	NewLocked(closing{closed: &closed}, lock.NewLocal(), time.Minute, false).Close()
	if !closed {
		t.Error("the inner gate is not closed")
	}
}
