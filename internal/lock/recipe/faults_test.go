package recipe_test

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
)

var errFault = errors.New("the backend has failed")

// faulty is a Locker, a Board and a Ticks of one process. One of their calls fails.
type faulty struct {
	local lock.Locker
	memory
	err error // error of the call that fails

	calls sync.Mutex
	nth   int // number of the call that fails, from 1
	seen  int
	texts []string

	listed atomic.Int64 // number of listed holders
}

func newFaulty(nth int, err error) *faulty {
	return &faulty{local: lock.NewLocal(), memory: memory{last: make(map[string]int64)}, nth: nth, err: err}
}

func (f *faulty) next() error {
	f.calls.Lock()
	defer f.calls.Unlock()
	if f.seen++; f.seen == f.nth {
		return f.err
	}
	return nil
}

// failed reports whether a call has failed.
func (f *faulty) failed() bool {
	f.calls.Lock()
	defer f.calls.Unlock()
	return f.seen >= f.nth
}

// fail makes the nth call from now on fail.
func (f *faulty) fail(nth int, err error) {
	f.calls.Lock()
	defer f.calls.Unlock()
	f.nth, f.seen, f.err = nth, 0, err
}

type faultyLease struct {
	lock.Lease
	faulty *faulty
}

// Unlock frees the lock even if it fails, as the end of a lease does.
func (l faultyLease) Unlock(ctx context.Context) error {
	return errors.Join(l.Lease.Unlock(ctx), l.faulty.next())
}

func (f *faulty) Lock(ctx context.Context, name string) (lock.Lease, error) {
	return f.request(ctx, name, f.local.Lock)
}

func (f *faulty) TryLock(ctx context.Context, name string) (lock.Lease, error) {
	return f.request(ctx, name, f.local.TryLock)
}

func (f *faulty) request(ctx context.Context, name string, request func(context.Context, string) (lock.Lease, error)) (lock.Lease, error) {
	if err := f.next(); err != nil {
		return nil, err
	}
	lease, err := request(ctx, name)
	if err != nil {
		return nil, err
	}
	return faultyLease{lease, f}, nil
}

func (f *faulty) Show(context.Context, string, string) (func(context.Context), error) {
	if err := f.next(); err != nil {
		return nil, err
	}
	f.listed.Add(1)
	return func(context.Context) { f.listed.Add(-1) }, nil
}

func (f *faulty) Shown(context.Context, string) ([]string, error) { return f.texts, f.next() }

func (f *faulty) LastTick(ctx context.Context, job string) (int64, error) {
	if err := f.next(); err != nil {
		return 0, err
	}
	return f.memory.LastTick(ctx, job)
}

func (f *faulty) RecordTick(ctx context.Context, job string, tick int64) (bool, error) {
	if err := f.next(); err != nil {
		return false, err
	}
	return f.memory.RecordTick(ctx, job, tick)
}

// mustBeFree checks that none of the locks is held.
func (f *faulty) mustBeFree(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		lease, err := f.local.TryLock(t.Context(), name)
		if err != nil {
			t.Errorf("%s is still held: %v", name, err)
			continue
		}
		mustUnlock(t, lease)
	}
}

// TestFailingCalls makes each request of a recipe fail. The recipe must fail with that error, or
// succeed, and no lock may be held afterwards.
func TestFailingCalls(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		take  func(t *testing.T, l *faulty) (interface{ Unlock(context.Context) error }, error)
		fails int // number of first calls that fail
	}{
		"LockAll": {func(t *testing.T, l *faulty) (interface{ Unlock(context.Context) error }, error) {
			return recipe.LockAll(t.Context(), l, "a#1", "a#2", "a#3")
		}, 3},
		"Acquire of one": {func(t *testing.T, l *faulty) (interface{ Unlock(context.Context) error }, error) {
			return semaphore(t, l, "a", 1).Acquire(t.Context())
		}, 1},
		"Acquire": {func(t *testing.T, l *faulty) (interface{ Unlock(context.Context) error }, error) {
			return semaphore(t, l, "a", 2).Acquire(t.Context())
		}, 2},
		"TryAcquire": {func(t *testing.T, l *faulty) (interface{ Unlock(context.Context) error }, error) {
			return semaphore(t, l, "a", 2).TryAcquire(t.Context())
		}, 1},
		"RLock": {func(t *testing.T, l *faulty) (interface{ Unlock(context.Context) error }, error) {
			return readWrite(t, l, "a", 2).RLock(t.Context())
		}, 2},
		"Lock": {func(t *testing.T, l *faulty) (interface{ Unlock(context.Context) error }, error) {
			return readWrite(t, l, "a", 2).Lock(t.Context())
		}, 3},
	} {
		for n, more := 1, true; more; n++ {
			l := newFaulty(n, errFault)
			held, err := test.take(t, l)
			more = l.failed()
			switch {
			case n <= test.fails && !errors.Is(err, errFault):
				t.Errorf("%s, call %d: %v, want %v", what, n, err, errFault)
			case n > test.fails && err != nil:
				t.Errorf("%s, call %d: %v", what, n, err)
			}
			if err == nil {
				l.fail(1, errFault)
				if err := held.Unlock(t.Context()); !errors.Is(err, errFault) {
					t.Errorf("%s: Unlock returns %v, want %v", what, err, errFault)
				}
				_ = held.Unlock(t.Context()) // has no effect
			}
			l.mustBeFree(t, "a", "a#queue", "a#1", "a#2", "a#3")
			if n := l.listed.Load(); n != 0 {
				t.Errorf("%s: %d holders are still listed", what, n)
			}
		}
	}
}

// TestDowngradeWhoseUnlockFails makes each Unlock of a downgrade fail. The downgrade must fail only
// if a lock was lost.
func TestDowngradeWhoseUnlockFails(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{errFault, lock.ErrLost} {
		for n := 1; n <= 2; n++ {
			l := newFaulty(0, nil)
			writer := wlock(t, readWrite(t, l, "a", 3))
			l.fail(n, fault)
			reader, err := writer.Downgrade(t.Context())
			l.fail(0, nil)
			if errors.Is(fault, lock.ErrLost) {
				if !errors.Is(err, lock.ErrLost) || reader != nil {
					t.Errorf("call %d: %v, %v", n, reader, err)
				}
			} else if err != nil {
				t.Errorf("call %d: %v", n, err)
			} else {
				mustUnlock(t, reader)
			}
			l.mustBeFree(t, "a#1", "a#2", "a#3")
		}
	}
}

// TestAbandonedAcquire ends the context of a waiter while it must request a slot again. The next
// waiter gets a slot, and is listed.
func TestAbandonedAcquire(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newFaulty(4, errFault)
		s := semaphore(t, l, "a", 1+1)
		held := []*recipe.Slot{acquire(t, semaphore(t, l.local, "a", 2)), acquire(t, semaphore(t, l.local, "a", 2))}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := s.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) || !l.failed() {
			t.Errorf("Acquire: %v", err)
		}
		go func() {
			synctest.Wait()
			mustUnlock(t, held[0])
		}()
		slot := acquire(t, s)
		if n := l.listed.Load(); n != 1 {
			t.Errorf("%d holders are listed after a wait, want 1", n)
		}
		mustUnlock(t, slot)
		mustUnlock(t, held[1])
		l.mustBeFree(t, "a#queue", "a#1", "a#2")
	})
}

// TestFailingList makes the list of holders fail, and contain an unreadable entry.
func TestFailingList(t *testing.T) {
	t.Parallel()
	l := newFaulty(1, errFault)
	s := semaphore(t, l, "a", 2)
	if holders, err := s.Holders(t.Context()); !errors.Is(err, errFault) {
		t.Errorf("the holders are %v, %v, want %v", holders, err, errFault)
	}
	l.texts = []string{`{"Slot": 1}`, `{"Slot": 2`}
	if holders, err := s.Holders(t.Context()); err == nil {
		t.Errorf("the holders are %v", holders)
	}
	// The slot of a holder that has died was granted again.
	for _, texts := range [][]string{{`{"Slot": 1, "Token": 7}`, `{"Slot": 1, "Token": 8}`}, {`{"Slot": 1, "Token": 8}`, `{"Slot": 1, "Token": 7}`}} {
		l.texts = texts
		if holders, err := s.Holders(t.Context()); err != nil || len(holders) != 1 || holders[0].Token != 8 {
			t.Errorf("the holders are %v, %v, want the later one", holders, err)
		}
	}
}

// silentBoard is a Board that does not answer.
type silentBoard struct{ lock.Locker }

func (silentBoard) Show(ctx context.Context, _, _ string) (func(context.Context), error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func (silentBoard) Shown(ctx context.Context, _ string) ([]string, error) { return nil, ctx.Err() }

// TestSilentBoard checks that a holder that cannot be listed gets its slot, within bounded time.
func TestSilentBoard(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		mustUnlock(t, acquire(t, semaphore(t, silentBoard{lock.NewLocal()}, "a", 1)))
	})
}

// silentTicks are Ticks that record nothing and do not answer.
type silentTicks struct{}

func (silentTicks) LastTick(context.Context, string) (int64, error) { return 0, nil }

func (silentTicks) RecordTick(ctx context.Context, _ string, _ int64) (bool, error) {
	<-ctx.Done()
	return false, ctx.Err()
}

// TestSilentTicks checks that a job ends within bounded time although its tick cannot be recorded.
func TestSilentTicks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		err := recipe.Job{
			Name: "a", Locker: lock.NewLocal(), Ticks: silentTicks{}, Every: time.Hour, Log: slog.New(slog.DiscardHandler),
			Run: func(context.Context, time.Time, uint64) error { stop(); return nil },
		}.Keep(ctx)
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Keep returns %v", err)
		}
	})
}

// TestLeaderWhoseRequestsFail makes the first request for the leadership, or its Unlock, fail. Lead
// must try again, and return the result of the work.
func TestLeaderWhoseRequestsFail(t *testing.T) {
	t.Parallel()
	errWork := errors.New("the work has failed")
	for n, fault := range map[int]error{1: errFault, 2: errFault} {
		synctest.Test(t, func(t *testing.T) {
			l := newFaulty(n, fault)
			runs, began := 0, time.Now()
			err := recipe.Lead(t.Context(), l, "a", func(context.Context, uint64) error {
				runs++
				return errWork
			})
			if !errors.Is(err, errWork) || runs != 1 || !l.failed() {
				t.Errorf("call %d: Lead returns %v after %d runs", n, err, runs)
			}
			if paused := time.Since(began) > 0; paused != (n == 1) {
				t.Errorf("call %d: Lead takes %v", n, time.Since(began))
			}
			l.mustBeFree(t, "a")
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l := newFaulty(2, lock.ErrLost) // the leadership is lost when its work ends and ctx has ended
		err := recipe.Lead(ctx, l, "a", func(context.Context, uint64) error {
			cancel()
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Lead returns %v, want %v", err, context.Canceled)
		}
		if err := recipe.Lead(ctx, l, "a", nil); !errors.Is(err, context.Canceled) {
			t.Errorf("Lead on a context that has ended: %v", err)
		}
	})
}

// TestLeadershipLostAtUnlock lets the leader's work return when the servers no longer have the
// lock, which the leader learns at Unlock. Another process may have led meanwhile, so Lead must try
// again.
func TestLeadershipLostAtUnlock(t *testing.T) {
	t.Parallel()
	done, terms := errors.New("done"), 0
	err := recipe.Lead(t.Context(), newFaulty(2, lock.ErrLost), "a", func(context.Context, uint64) error {
		if terms++; terms == 1 {
			return nil
		}
		return done
	})
	if !errors.Is(err, done) || terms != 2 {
		t.Errorf("after %d terms Lead returned %v, want %v after 2", terms, err, done)
	}
}

// TestUnsupportedSlots calls methods of a slot that its lease does not support.
func TestUnsupportedSlots(t *testing.T) {
	t.Parallel()
	slot := acquire(t, semaphore(t, newFaulty(0, nil), "a", 1))
	if _, err := slot.Confirm(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Confirm: %v", err)
	}
	if _, err := slot.Connection(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Connection: %v", err)
	}
	mustUnlock(t, slot)
}

// warnings is a log that keeps the errors of its records.
type warnings struct {
	slog.Handler
	errs []error
}

func (w *warnings) Enabled(context.Context, slog.Level) bool { return true }

func (w *warnings) Handle(_ context.Context, r slog.Record) error {
	r.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok {
			w.errs = append(w.errs, err)
		}
		return true
	})
	return nil
}

// keepHourly calls Keep of an hourly job for 30 seconds between two ticks, and returns the logged
// errors.
func keepHourly(t *testing.T, l *faulty, run func() error) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var log warnings
	err := recipe.Job{
		Name: "a", Locker: l, Ticks: l, Every: time.Hour, Log: slog.New(&log),
		Run: func(context.Context, time.Time, uint64) error { return run() },
	}.Keep(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Keep returns %v", err)
	}
	return log.errs
}

// TestJobWhoseCallsFail makes the run of a job fail once, or one of its calls. The job must be
// tried again within its tick, and then recorded. A tick may run once more only if it was not
// recorded.
func TestJobWhoseCallsFail(t *testing.T) {
	t.Parallel()
	const running, lastTick, locking, lastTickAgain, recording, unlocking, none = 0, 1, 2, 3, 4, 5, 6
	for n := running; n <= none; n++ {
		synctest.Test(t, func(t *testing.T) {
			l := newFaulty(n, errFault)
			var began []time.Duration
			start := time.Now()
			logged := keepHourly(t, l, func() error {
				began = append(began, time.Since(start))
				if n == running && len(began) == 1 {
					return errFault
				}
				return nil
			})
			want := []time.Duration{0}
			switch n {
			case lastTick, locking, lastTickAgain:
				want = []time.Duration{time.Second}
			case running, recording:
				want = []time.Duration{0, time.Second}
			}
			if !slices.Equal(began, want) || l.last["a"] == 0 {
				t.Errorf("call %d: runs after %v, recorded %d; want runs after %v", n, began, l.last["a"], want)
			}
			if failed := n <= recording; failed != (len(logged) == 1 && errors.Is(logged[0], errFault)) || !failed && logged != nil {
				t.Errorf("call %d: logged %v", n, logged)
			}
			l.mustBeFree(t, "job:a")
			l.fail(0, nil)
			keepHourly(t, l, func() error { t.Error("another process runs the tick again"); return nil })
			if l.seen != 1 {
				t.Errorf("%d calls for a tick that is recorded, want 1", l.seen)
			}
		})
	}
}

// TestJobOfAnother checks a job that another process runs all the time, and a job whose tick
// another process records during a run.
func TestJobOfAnother(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newFaulty(0, nil)
		runs := 0
		held := locktest.MustLock(t, l.local, "job:a")
		if logged := keepHourly(t, l, func() error { runs++; return nil }); runs != 0 || logged != nil {
			t.Errorf("%d runs beside another process, logged %v", runs, logged)
		}
		mustUnlock(t, held)
		logged := keepHourly(t, l, func() error {
			runs++
			l.last["a"] = math.MaxInt64
			return nil
		})
		if runs != 1 || len(logged) != 1 || !errors.Is(logged[0], lock.ErrLost) {
			t.Errorf("%d runs, logged %v; want %v", runs, logged, lock.ErrLost)
		}
	})
}
