package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestLostRaise checks two instances that saw the same row of the ledger. One raises the
// generation, and the other must neither use its own nor load it.
func TestLostRaise(t *testing.T) {
	t.Parallel()
	row, store := &ownerRow{}, newRedis()
	gate, ledger1 := newGate(store), newLedger(row)
	loser := newReconciler(gate, ledger1)
	defer loser.Close()
	winnerGate, winnerLedger := newGate(store), newLedger(row)
	winner := newReconciler(winnerGate, winnerLedger)
	defer winner.Close()
	for _, r := range []*Reconciler{loser, winner} {
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	seen, err := ledger1.Owner(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	generation, loads := ledger1.Generation(), slices.Clone(gate.loads)
	if err := winner.generations.raise(t.Context(), seen, generation+1); err != nil {
		t.Fatal(err)
	}
	for _, next := range []stock.Generation{generation + 1, generation + 2} {
		if err := loser.generations.raise(t.Context(), seen, next); !errors.Is(err, stock.ErrRowChanged) {
			t.Errorf("raising to %d: %v", next, err)
		}
	}
	if now := ledger1.Generation(); now != generation || gate.using != generation {
		t.Errorf("uses generation %d, and %d at the gate, though it did not raise it", now, gate.using)
	}
	if !slices.Equal(gate.loads, loads) {
		t.Errorf("loaded generations %v, though it raised %v", gate.loads, loads)
	}
	if winnerLedger.Generation() != generation+1 || winnerGate.using != generation+1 || !slices.Equal(winnerGate.loads, []stock.Generation{generation + 1}) {
		t.Errorf("the winner uses %d, and %d at the gate, and loaded %v", winnerLedger.Generation(), winnerGate.using, winnerGate.loads)
	}
	if row, err := ledger1.Owner(t.Context()); err != nil || row.Generation != generation+1 {
		t.Errorf("the ledger's row is %+v, %v", row, err)
	}
}

// hookedLedger calls back once after a beat.
type hookedLedger struct {
	*fakeLedger
	afterBeat func()
}

func (l *hookedLedger) Beat(ctx context.Context) (ledger.Owner, error) {
	owner, err := l.fakeLedger.Beat(ctx)
	if after := l.afterBeat; after != nil {
		l.afterBeat = nil
		after()
	}
	return owner, err
}

// TestRaiseDuringACheck checks that a generation that is raised during a check does not make the
// ledger look restored from a backup.
func TestRaiseDuringACheck(t *testing.T) {
	t.Parallel()
	for _, gate := range []*fakeGate{newGate(newRedis()), nil} {
		l := &hookedLedger{fakeLedger: newLedger(&ownerRow{})}
		r := newReconciler(gate, l)
		defer r.Close()
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		generation := l.Generation()
		l.afterBeat = func() {
			r.StoreChanged()
			if err := r.Usable(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := r.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		if now := l.Generation(); now != generation+1 {
			t.Errorf("with gate %v: generation %d became %d", gate != nil, generation, now)
		}
	}
}

// TestStoreChangesDuringARaise checks that another generation is raised if the store changes during
// a raise or a load, because it is unknown which came first. Others may wait for the raise, so it does
// not end with the request that began it.
func TestStoreChangesDuringARaise(t *testing.T) {
	t.Parallel()
	for _, during := range []string{"raise", "load"} {
		t.Run(during, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, gate, l := started(t, &ownerRow{})
				generation := l.Generation()
				r.StoreChanged()
				if during == "raise" {
					l.on = func(_ context.Context, call string) error {
						if call == "RaiseGeneration" {
							l.on = nil
							r.StoreChanged()
						}
						return nil
					}
				} else {
					gate.onLoad = func() error {
						gate.onLoad = nil
						r.StoreChanged()
						return nil
					}
				}
				ended, end := context.WithCancel(t.Context())
				end()
				for _, raises := range []stock.Generation{1, 2, 2} {
					if err := r.Usable(ended); err != nil {
						t.Fatal(err)
					}
					if now := l.Generation(); now != generation+raises {
						t.Errorf("generation %d, want %d", now, generation+raises)
					}
				}
			})
		})
	}
}

// TestRestoredBelowTheMark restores a ledger to an earlier generation than the mark's. The instance
// must log that, and raise the generation above the mark's, because the gate may have counts of all
// generations up to that one.
func TestRestoredBelowTheMark(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(r *Reconciler) error{
		"Ready": func(r *Reconciler) error { return r.Ready(t.Context()) },
		"Start": func(r *Reconciler) error { return r.Start(t.Context()) },
	} {
		r, gate, l := started(t, &ownerRow{})
		log := r.logged()
		mark := l.Generation() + 3 // of an instance that raised the generation before the restore
		gate.redis.mark.Generation = mark
		if err := take(r); err != nil || l.Generation() != mark+1 || gate.redis.mark.Generation != mark+1 {
			t.Errorf("%s: generation %d, mark %+v, %v; want generation %d", name, l.Generation(), gate.redis.mark, err, mark+1)
		}
		if name == "Ready" && !strings.Contains(log.String(), "was restored from a backup") {
			t.Errorf("logged %q", log.String())
		}
	}
}

// fleet has the generations of several instances that share a ledger's row and a Redis.
type fleet struct {
	row   *ownerRow
	redis *redis
	all   []*generations
	gates []*fakeGate
}

// newFleet returns instances that have not started. answer is how long their Redis needs to say
// whether scripts are loaded, and load how long it needs to load them, by the bubble's clock.
func newFleet(n int, answer, load time.Duration) *fleet {
	f := &fleet{row: &ownerRow{}, redis: newRedis()}
	for range n {
		gate := newGate(f.redis)
		gate.onLoaded = func() error { time.Sleep(answer); return nil }
		gate.onLoad = func() error { time.Sleep(load); return nil }
		f.gates = append(f.gates, gate)
		f.all = append(f.all, &generations{
			ledger: newLedger(f.row), counter: gate, layout: "fake", log: slog.New(slog.DiscardHandler), metrics: newMetrics(prometheus.NewRegistry(), true),
		})
	}
	return f
}

// generation returns the ledger's generation.
func (f *fleet) generation() stock.Generation {
	f.row.mu.Lock()
	defer f.row.mu.Unlock()
	return f.row.owner.Generation
}

// flush makes Redis lose its scripts.
func (f *fleet) flush() {
	f.redis.mu.Lock()
	defer f.redis.mu.Unlock()
	clear(f.redis.loaded)
}

// together calls do for all instances at once, each a little later than the previous one.
func (f *fleet) together(do func(g *generations)) {
	var calls sync.WaitGroup
	for n, g := range f.all {
		calls.Go(func() {
			time.Sleep(time.Duration(n) * 10 * time.Millisecond)
			do(g)
		})
	}
	calls.Wait()
}

// startAll starts all instances at once.
func (f *fleet) startAll(t *testing.T) {
	t.Helper()
	f.together(func(g *generations) {
		if err := g.start(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// sell does what orders do, until the instance uses the ledger's generation and its scripts are
// loaded.
func (f *fleet) sell(t *testing.T, g *generations) {
	for n := 0; ; n++ {
		if n == 1000 {
			t.Errorf("no order is placed at generation %d", f.generation())
			return
		}
		f.redis.mu.Lock()
		loaded := f.redis.loaded[g.current()]
		f.redis.mu.Unlock()
		if loaded && g.current() == f.generation() {
			return
		}
		_ = g.follow(t.Context(), g.current()) // refused, the client tries again
		time.Sleep(10 * time.Millisecond)      // in a bubble
	}
}

// TestSlowLoad starts several instances at once, on a near Redis and on a far one. They must raise
// the generation once, and once more after Redis has lost the scripts.
func TestSlowLoad(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name         string
		answer, load time.Duration
	}{
		{"near", time.Millisecond, 5 * time.Millisecond},
		{"far", 300 * time.Millisecond, 1500 * time.Millisecond},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(12, test.answer, test.load)
				f.startAll(t)
				if n := f.generation(); n != 1 {
					t.Errorf("the starts raised the generation %d times, want once", n)
				}
				before := f.generation()
				f.together(func(g *generations) { f.sell(t, g) })
				f.flush()
				f.together(func(g *generations) { f.sell(t, g) })
				if n := f.generation() - before; n != 1 {
					t.Errorf("after the flush, it was raised %d times, want once", n)
				}
			})
		})
	}
}

// TestLostAgain loses the scripts of a generation soon after they were loaded. An instance must
// wait for them no longer than for a load.
func TestLostAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(2, 0, 0)
		f.startAll(t)
		f.flush()
		generation, start := f.generation(), time.Now()
		if err := f.all[1].follow(t.Context(), generation); err != nil { // the first instance has raised the generation
			t.Fatal(err)
		}
		if n, took := f.generation()-generation, time.Since(start); n != 1 || took > loadGrace+loadPause {
			t.Errorf("raised %d times after %v", n, took)
		}
	})
}

// TestUnansweredLook checks that no generation is raised while Redis does not say
// whether it has the scripts.
func TestUnansweredLook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, 0, 0)
		g, gate := f.all[0], f.gates[0]
		f.startAll(t)
		f.flush()
		gate.onLoaded = func() error { return errUnreachable }
		for range 10 {
			if err := g.follow(t.Context(), g.current()); !errors.Is(err, errUnreachable) {
				t.Errorf("followed: %v", err)
			}
		}
		if n := f.generation(); n != 1 {
			t.Errorf("generation %d", n)
		}
		gate.onLoaded = nil
		if err := g.follow(t.Context(), g.current()); err != nil || f.generation() != 2 {
			t.Errorf("generation %d, %v", f.generation(), err)
		}
	})
}

// TestLoadsFail checks that an instance whose loads fail waits between two raises as long as it
// would wait for another instance's load.
func TestLoadsFail(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, 0, 0)
		g, gate := f.all[0], f.gates[0]
		f.startAll(t)
		f.flush()
		gate.onLoad = func() error { return errUnreachable }
		start := time.Now()
		for tries := 0; time.Since(start) < time.Minute; tries++ {
			if err := g.follow(t.Context(), g.current()); !errors.Is(err, errUnreachable) || tries > 1000 {
				t.Fatalf("followed %d times: %v", tries, err)
			}
		}
		if n := f.generation() - 1; n < 28 || n > 31 {
			t.Errorf("raised %d times within a minute", n)
		}
		gate.onLoad = nil
		if err := g.follow(t.Context(), g.current()); err != nil {
			t.Error(err)
		}
	})
}

// TestLostLater checks that an instance whose generation is no longer new raises another one at once
// when the scripts are lost, although it has checked its stores meanwhile.
func TestLostLater(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		row := &ownerRow{}
		r, gate, _ := started(t, row)
		for range 2 {
			time.Sleep(2 * loadGrace)
			start := time.Now()
			if err := r.Ready(t.Context()); err != nil || time.Since(start) > 0 {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
			clear(gate.redis.loaded)
		}
		if row.owner.Generation != 2 {
			t.Errorf("the generation is %d", row.owner.Generation)
		}
	})
}

// TestBeatOfAnotherInstance checks that an instance does not take the ledger for a restored one because
// another instance raises the beat, and marks it, between its reads of mark and beat.
func TestBeatOfAnotherInstance(t *testing.T) {
	t.Parallel()
	row := &ownerRow{}
	_, gate, _ := started(t, row)
	other := newGate(gate.redis)
	other.onMark = func(context.Context) error {
		row.mu.Lock()
		defer row.mu.Unlock()
		row.owner.Beat++
		return gate.SetMark(t.Context(), stock.Mark{Generation: row.owner.Generation, Beat: row.owner.Beat})
	}
	r := newReconciler(other, newLedger(row))
	defer r.Close()
	for name, call := range map[string]func(context.Context) error{"Start": r.Start, "Ready": r.Ready} {
		if err := call(t.Context()); err != nil || row.owner.Generation != 1 {
			t.Errorf("%s: generation %d, %v", name, row.owner.Generation, err)
		}
	}
}

// TestRestoredBelowTheInstance checks that an instance whose ledger has an earlier generation than its
// own raises a generation above both, even without a gate, which would remember the ledger.
func TestRestoredBelowTheInstance(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *Reconciler) error{
		"check":                      func(ctx context.Context, r *Reconciler) error { return r.Ready(ctx) },
		"follow from its generation": func(ctx context.Context, r *Reconciler) error { return r.generations.follow(ctx, 7) },
		"follow from an earlier one": func(ctx context.Context, r *Reconciler) error { return r.generations.follow(ctx, 4) },
	} {
		row := &ownerRow{owner: ledger.Owner{Generation: 7, Layout: "fake"}}
		l := newLedger(row)
		r := newReconciler(nil, l)
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		row.owner.Generation = 5
		if err := call(t.Context(), r); err != nil || row.owner.Generation != 8 || l.Generation() != 8 {
			t.Errorf("%s: the ledger has generation %d, the instance %d, %v", name, row.owner.Generation, l.Generation(), err)
		}
	}
}

// TestOwnership checks that a process that does not serve asks whether the owner's generation is
// loaded. It takes the ledger for a restored one only if the mark is of a later state.
func TestOwnership(t *testing.T) {
	t.Parallel()
	owner := ledger.Owner{Generation: 2, Layout: "other", Beat: 5}
	for mark, restored := range map[stock.Mark]bool{
		{Generation: 2, Beat: 4}: false, {Generation: 2, Beat: 5}: false, {Generation: 2, Beat: 6}: true, {Generation: 3}: true,
	} {
		redis := newRedis()
		redis.mark, redis.loaded[owner.Generation] = mark, true
		r := newReconciler(newGate(redis), newLedger(&ownerRow{owner: owner}))
		found, err := r.Ownership(t.Context())
		if want := (Ownership{Layout: "fake", Owner: owner, Mark: mark, Loaded: true, Restored: restored}); found != want || err != nil {
			t.Errorf("found %+v, %v; want %+v", found, err, want)
		}
		r.Close()
	}
}
