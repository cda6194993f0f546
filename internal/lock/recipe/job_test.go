package recipe_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// leadership is one call of the work of a leader.
type leadership struct {
	token uint64
	ctx   context.Context
}

// lead makes the locker a candidate until the test or ctx ends. The channel receives its
// leaderships. The work lasts as long as the leadership.
func lead(t *testing.T, ctx context.Context, l lock.Locker, name string) (leaderships <-chan leadership, ended <-chan error) {
	led, done := make(chan leadership, 16), make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		done <- recipe.Lead(ctx, l, name, func(ctx context.Context, token uint64) error {
			led <- leadership{token, ctx}
			<-ctx.Done()
			return ctx.Err()
		})
		close(done)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return led, done
}

func awaitLeader(t *testing.T, leaderships <-chan leadership) leadership {
	t.Helper()
	return testenv.Receive(t, "there is a leader", leaderships)
}

// leaderChanges checks that a candidate leads when the leader gives up.
func leaderChanges(t *testing.T, r *rig) {
	name := newName()
	ctx, resign := context.WithCancel(bounded(t))
	one, resigned := lead(t, ctx, r.open(t), name)
	first := awaitLeader(t, one)
	two, _ := lead(t, bounded(t), r.open(t), name)
	testenv.Quiet(t, "there are two leaders", two)
	resign()
	if err := <-resigned; !errors.Is(err, context.Canceled) {
		t.Errorf("Lead returned %v", err)
	}
	if second := awaitLeader(t, two); r.backend.Fences && second.token <= first.token {
		t.Errorf("token %d was followed by token %d", first.token, second.token)
	}
}

// leaderIsReplaced checks what happens when the leader's network drops all packets. The leader's
// work must be told to end, and another candidate must lead.
func leaderIsReplaced(t *testing.T, r *rig) {
	name := newName()
	broken, wires := r.openOverWires(t)
	one, _ := lead(t, bounded(t), broken, name)
	first := awaitLeader(t, one)
	two, _ := lead(t, bounded(t), r.open(t), name)
	for _, w := range wires {
		w.Freeze()
		defer w.Thaw()
	}
	awaitLeader(t, two)
	testenv.Receive(t, "the work of the last leader is told to end", first.ctx.Done())
}

// TestLeaderPanics checks that the lock of a leader whose work panics is free.
func TestLeaderPanics(t *testing.T) {
	t.Parallel()
	l := lock.NewLocal()
	func() {
		defer func() {
			if v := recover(); v != "the work failed" {
				t.Errorf("recovered %v", v)
			}
		}()
		err := recipe.Lead(t.Context(), l, "a", func(context.Context, uint64) error { panic("the work failed") })
		t.Errorf("Lead returned %v", err)
	}()
	lease, err := l.TryLock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	mustUnlock(t, lease)
}

// TestInvalidNames checks that Lead and Keep do not try an invalid name again.
func TestInvalidNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		job := recipe.Job{
			Name: "a//b", Locker: lock.NewLocal(), Ticks: &memory{last: make(map[string]int64)},
			Every: time.Minute, Log: slog.New(slog.DiscardHandler),
			Run: func(context.Context, time.Time, uint64) error { return nil },
		}
		for what, err := range map[string]error{
			"Lead": recipe.Lead(bounded(t), lock.NewLocal(), "", func(context.Context, uint64) error { return nil }),
			"Keep": job.Keep(bounded(t)),
		} {
			if !errors.Is(err, lock.ErrName) {
				t.Errorf("%s returned %v, want %v", what, err, lock.ErrName)
			}
		}
	})
}

// ticks returns the Ticks of a backend that has them.
func ticks(t *testing.T, l lock.Locker) recipe.Ticks {
	t.Helper()
	s, ok := l.(recipe.Ticks)
	if !ok {
		t.Fatalf("%T records no ticks", l)
	}
	return s
}

// ticksRise checks that a tick is recorded once, and no earlier one after it.
func ticksRise(t *testing.T, r *rig) {
	job := uuid.NewString()
	one, two := ticks(t, r.open(t)), ticks(t, r.open(t))
	if _, err := one.RecordTick(bounded(t), job+"/nested", 9); err != nil { // another job
		t.Fatal(err)
	}
	for _, step := range []struct {
		tick     int64
		recorded bool
		last     int64
	}{{5, true, 5}, {5, false, 5}, {4, false, 5}, {7, true, 7}} {
		recorded, err := one.RecordTick(bounded(t), job, step.tick)
		if err != nil || recorded != step.recorded {
			t.Errorf("recording %d: %v, %v; want %v", step.tick, recorded, err, step.recorded)
		}
		if last, err := two.LastTick(bounded(t), job); err != nil || last != step.last {
			t.Errorf("after %d the last tick is %d, %v; want %d", step.tick, last, err, step.last)
		}
	}
	var (
		all   sync.WaitGroup
		first atomic.Int64
	)
	for _, s := range []recipe.Ticks{one, two, one, two} {
		all.Go(func() {
			if recorded, err := s.RecordTick(bounded(t), job, 8); err != nil {
				t.Error(err)
			} else if recorded {
				first.Add(1)
			}
		})
	}
	all.Wait()
	if first.Load() != 1 {
		t.Errorf("%d processes have recorded the same tick", first.Load())
	}
}

// jobIsTakenOver checks what happens when the network of a process drops all packets in the middle
// of a run. Another process must run the job again, and the first process must not repeat it later.
func jobIsTakenOver(t *testing.T, r *rig) {
	name := uuid.NewString()
	broken, wires := r.openOverWires(t)
	sound := r.open(t)
	started, done, told := make(chan struct{}, 16), make(chan struct{}, 16), make(chan struct{}, 1)
	keep := func(l lock.Locker, ticks recipe.Ticks, run func(ctx context.Context) error) {
		ctx, cancel := context.WithCancel(bounded(t))
		job := recipe.Job{
			Name: name, Locker: l, Ticks: ticks, Every: 24 * time.Hour, Log: slog.New(slog.DiscardHandler),
			Run: func(ctx context.Context, _ time.Time, _ uint64) error { return run(ctx) },
		}
		kept := make(chan struct{})
		go func() {
			defer close(kept)
			_ = job.Keep(ctx)
		}()
		t.Cleanup(func() {
			cancel()
			<-kept
		})
	}
	keep(broken, answered{ticks(t, broken), told}, func(ctx context.Context) error {
		started <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	<-started
	for _, w := range wires {
		w.Freeze()
	}
	keep(sound, ticks(t, sound), func(context.Context) error {
		done <- struct{}{}
		return nil
	})
	testenv.Receive(t, "the job is taken over", done)
	<-told // wait for the signal before the run
	for _, w := range wires {
		w.Thaw()
	}
	testenv.Receive(t, "the first process reads the last tick", told)
	testenv.Quiet(t, "the first process runs the job again, afterwards", started)
	testenv.Quiet(t, "the second process runs the job twice", done)
}

// answered sends to told when the last tick is known.
type answered struct {
	recipe.Ticks
	told chan<- struct{}
}

func (a answered) LastTick(ctx context.Context, job string) (int64, error) {
	last, err := a.Ticks.LastTick(ctx, job)
	if err == nil {
		select {
		case a.told <- struct{}{}:
		default:
		}
	}
	return last, err
}

// memory is a Ticks of one process.
type memory struct {
	mu   sync.Mutex
	last map[string]int64
}

func (m *memory) LastTick(_ context.Context, job string) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.last[job], nil
}

func (m *memory) RecordTick(ctx context.Context, job string, tick int64) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.last[job] >= tick || ctx.Err() != nil {
		return false, ctx.Err()
	}
	m.last[job] = tick
	return true, nil
}

// TestJobRunsOncePerTick runs a job with two processes for an hour. A run takes longer than the
// clocks differ, and every third run fails at first.
func TestJobRunsOncePerTick(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			locker = lock.NewLocal()
			stored = &memory{last: make(map[string]int64)}
			all    sync.WaitGroup
			mu     sync.Mutex
			runs   = make(map[time.Time]int)
			failed = make(map[time.Time]bool)
		)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour+30*time.Second)
		defer cancel()
		for range 2 {
			job := recipe.Job{
				Name: "a", Locker: locker, Ticks: stored, Every: time.Minute, Log: slog.New(slog.DiscardHandler),
				Run: func(ctx context.Context, tick time.Time, token uint64) error {
					time.Sleep(time.Second)
					mu.Lock()
					defer mu.Unlock()
					if tick.Minute()%3 == 0 && !failed[tick] {
						failed[tick] = true
						return errors.New("the run failed")
					}
					runs[tick]++
					return nil
				},
			}
			all.Go(func() { _ = job.Keep(ctx) })
		}
		all.Wait()
		if len(runs) != 61 || len(failed) < 20 {
			t.Errorf("%d ticks were run and %d failed first, want 61 and 20", len(runs), len(failed))
		}
		for tick, n := range runs {
			if n != 1 {
				t.Errorf("the tick %v was run %d times", tick, n)
			}
		}
	})
}

// TestTickOfAProcessThatStops lets a run succeed although its process is told to stop meanwhile.
// Its tick must be recorded, because otherwise another process would run the job again.
func TestTickOfAProcessThatStops(t *testing.T) {
	t.Parallel()
	const every = 24 * time.Hour
	ctx, stop := context.WithCancel(t.Context())
	stored := &memory{last: make(map[string]int64)}
	var ran time.Time
	err := recipe.Job{
		Name: "a", Locker: lock.NewLocal(), Ticks: stored, Every: every, Log: slog.New(slog.DiscardHandler),
		Run: func(_ context.Context, tick time.Time, _ uint64) error {
			ran = tick
			stop()
			return nil
		},
	}.Keep(ctx)
	if want := ran.UnixNano() / int64(every); !errors.Is(err, context.Canceled) || stored.last["a"] != want {
		t.Errorf("Keep returned %v, and the last tick is %d, want %d", err, stored.last["a"], want)
	}
}

// TestRunDoesNotDelayTicks runs a job whose runs take 20 s, and then one whose runs take longer
// than its interval.
func TestRunDoesNotDelayTicks(t *testing.T) {
	t.Parallel()
	for _, run := range []time.Duration{20 * time.Second, 90 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			var begun []time.Time
			_ = recipe.Job{
				Name: "a", Locker: lock.NewLocal(), Ticks: &memory{last: make(map[string]int64)},
				Every: time.Minute, Log: slog.New(slog.DiscardHandler),
				Run: func(_ context.Context, tick time.Time, _ uint64) error {
					now := time.Now()
					if due := now.Truncate(time.Minute); !tick.Equal(due) {
						t.Errorf("at %v the tick %v is run, want %v", now, tick, due)
					}
					begun = append(begun, now)
					time.Sleep(run)
					return nil
				},
			}.Keep(ctx)
			for i, at := range begun[1:] {
				want := begun[i].Add(max(run, time.Minute)) // the run begins at the next tick, or at once if that has passed
				if late := at.Sub(want); late < 0 || late > time.Second {
					t.Errorf("runs of %v: one begins at %v, want %v", run, at, want)
				}
			}
		})
	}
}
