package gate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// recorder records the names that are locked and unlocked, and can end its leases.
type recorder struct {
	lock.Locker
	mu        sync.Mutex
	events    []string
	deadlines []time.Time             // deadline of each call of Lock
	lost      context.CancelCauseFunc // ends the last lease
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
	deadline, _ := ctx.Deadline()
	l.mu.Lock()
	l.deadlines, l.lost = append(l.deadlines, deadline), lost
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
	l.locker.note("unlock " + l.name)
	return l.Lease.Unlock(ctx)
}

// under returns a gate under the locks of locker, which calls work instead of its Redis.
func under(t *testing.T, locker waitingLocker, wait time.Duration, work func(context.Context) error) counted {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: "nowhere:1"})
	t.Cleanup(func() { _ = client.Close() })
	client.AddHook(faults.Around(func(ctx context.Context, _ []redis.Cmder, _ func(context.Context) error) error { return work(ctx) }))
	c := NewCounter(client, uuid.New(), Layout{Locks: NewLocks(locker, wait, false)})
	return counted{c, NewReadWrite(c)}
}

var errInner = errors.New("error of the work")

// calls lists all calls of a gate and its counter, and the events during each, for SKUs b and a.
var calls = []struct {
	name   string
	events []string
	invoke func(ctx context.Context, g counted) error
}{
	{"Take", []string{"lock stock:a", "lock stock:b", "work", "unlock stock:a", "unlock stock:b"}, func(ctx context.Context, g counted) error { _, err := g.Take(ctx, basket()); return err }},
	{"Give", []string{"lock stock:b", "work", "unlock stock:b", "lock stock:a", "work", "unlock stock:a"}, func(ctx context.Context, g counted) error { return g.Give(ctx, takenBasket()) }},
	{"Fill", []string{"lock stock:a", "work", "unlock stock:a"}, func(ctx context.Context, g counted) error { return g.Fill(ctx, "a", 1, 1) }},
	{"Adjust", []string{"lock stock:a", "work", "unlock stock:a"}, func(ctx context.Context, g counted) error { return g.Adjust(ctx, stock.Change{SKU: "a"}) }},
	{"Settle", []string{"work"}, func(ctx context.Context, g counted) error { return g.Settle(ctx, takenBasket()) }},
	{"InFlight", []string{"work"}, func(ctx context.Context, g counted) error { _, err := g.InFlight(ctx, 1, "a"); return err }},
	{"ScanInFlight", []string{"work"}, func(ctx context.Context, g counted) error { _, _, err := g.ScanInFlight(ctx, 0, ""); return err }},
	{"Level", []string{"work"}, func(ctx context.Context, g counted) error { _, err := g.Level(ctx, "a"); return err }},
}

func basket() stock.Deduction {
	return stock.Deduction{
		OrderID: uuid.New(), TakeID: uuid.New(),
		Lines: []stock.Line{{SKU: "b", Quantity: 1}, {SKU: "a", Quantity: 1}},
	}
}

func takenBasket() stock.Take { return stock.Take{Deduction: basket()} }

// TestChangesAreUnderTheirLocks checks which locks each call has while it works. The time spent on one
// lock leaves less for the next, and bounds only the locks: the work may take longer.
func TestChangesAreUnderTheirLocks(t *testing.T) {
	t.Parallel()
	for _, call := range calls {
		t.Run(call.name, func(t *testing.T) {
			t.Parallel()
			locker := newRecorder()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			g := under(t, locker, time.Minute, func(ctx context.Context) error {
				if _, bounded := ctx.Deadline(); bounded && len(locker.deadlines) > 0 {
					t.Error("the work has the deadline of the wait for the locks")
				}
				locker.note("work")
				if call.name == "Take" { // which must free its locks although its context has ended
					cancel()
				}
				return errInner
			})
			if err := call.invoke(ctx, g); !errors.Is(err, errInner) {
				t.Errorf("got %v", err)
			}
			if after := slices.Index(locker.events, "work") + 1; call.name == "Take" {
				slices.Sort(locker.events[after:]) // the locks are freed at the same time
			}
			if !slices.Equal(locker.events, call.events) {
				t.Errorf("%v, want %v", locker.events, call.events)
			}
			if d := slices.Compact(locker.deadlines); call.name == "Take" && (len(d) != 1 || d[0].IsZero()) {
				t.Errorf("the deadlines of the locks are %v", d)
			}
		})
	}
}

// TestLockTimeoutIsBusy checks that a call that cannot get its locks starts no work under them, and
// keeps no lock. Give must give back the lines whose locks it has.
func TestLockTimeoutIsBusy(t *testing.T) {
	t.Parallel()
	for _, call := range calls {
		if call.events[0] == "work" {
			continue
		}
		t.Run(call.name, func(t *testing.T) {
			t.Parallel()
			locker := newRecorder()
			g := under(t, locker, 20*time.Millisecond, func(context.Context) error { locker.note("work"); return errInner })
			var names []string
			for _, event := range call.events {
				if name, ok := strings.CutPrefix(event, "lock "); ok {
					names = append(names, name)
				}
			}
			slices.Sort(names)
			lease, err := locker.Locker.Lock(t.Context(), names[len(names)-1])
			if err != nil {
				t.Fatal(err)
			}
			if err := call.invoke(t.Context(), g); !errors.Is(err, stock.ErrBusy) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			var want []string
			switch call.name {
			case "Take":
				want = []string{"lock stock:a", "no stock:b", "unlock stock:a"}
			case "Give":
				want = []string{"no stock:b", "lock stock:a", "work", "unlock stock:a"}
			default:
				want = []string{"no stock:a"}
			}
			if !slices.Equal(locker.events, want) {
				t.Errorf("%v, want %v", locker.events, want)
			}
			if err := lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
			for _, name := range names {
				if _, err := locker.TryLock(t.Context(), name); err != nil {
					t.Errorf("lock %s: %v", name, err)
				}
			}
		})
	}
}

// TestLostLeaseEndsTheWork checks that the context of the work ends when a lease is
// lost, with lock.ErrLost as its cause.
func TestLostLeaseEndsTheWork(t *testing.T) {
	t.Parallel()
	locker := newRecorder()
	g := under(t, locker, time.Minute, func(ctx context.Context) error {
		locker.lost(lock.ErrLost)
		<-ctx.Done()
		return context.Cause(ctx)
	})
	if _, err := g.Take(t.Context(), basket()); !errors.Is(err, lock.ErrLost) || stock.NothingTaken(err) {
		t.Errorf("got %v", err)
	}
}
