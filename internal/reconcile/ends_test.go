package reconcile

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestSuperseded checks that an instance whose stock another layout has taken over reports that,
// logs it once, and neither sweeps nor takes a step. It serves again once an instance of its layout
// has taken the stock back.
func TestSuperseded(t *testing.T) {
	t.Parallel()
	row := &ownerRow{}
	r, _, l := started(t, row)
	log := r.logged()
	work := 0
	l.onDeliver, l.onPage = func() { work++ }, func() { work++ }
	row.owner.Layout = "other"
	row.owner.Generation++
	for name, call := range map[string]func(context.Context) error{"Ready": r.Ready, "PrepareRetry": func(ctx context.Context) error {
		return r.PrepareRetry(ctx, stock.ErrNoGeneration)
	}} {
		r.generations.superseded.Store(false)
		log.Take()
		for range 2 {
			if err := call(t.Context()); !errors.Is(err, stock.ErrSuperseded) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n := strings.Count(log.String(), "has taken over the stock"); n != 1 {
			t.Errorf("%s: %d lines of %s", name, n, log.String())
		}
		if err := r.Usable(t.Context()); !errors.Is(err, stock.ErrSuperseded) {
			t.Errorf("usable after %s: %v", name, err)
		}
	}
	pause, err := r.try(t.Context(), r.deliverAll)
	if err != nil || pause < sweepPause {
		t.Errorf("a step: pause %v, %v", pause, err)
	}
	if err := r.Sweep(t.Context()); err != nil || work > 0 {
		t.Errorf("swept: %v; %d reads", err, work)
	}
	row.owner.Layout = r.generations.layout
	row.owner.Generation++
	if err := cmp.Or(r.Ready(t.Context()), r.Usable(t.Context())); err != nil {
		t.Errorf("after the stock was taken back: %v", err)
	}
}

// TestRestoredToAThirdLayout restores the ledger from a backup in which a third layout owns the
// stock. An instance that was superseded before must not take the stock over.
func TestRestoredToAThirdLayout(t *testing.T) {
	t.Parallel()
	restored := ledger.Owner{Generation: 5, Layout: "earlier"}
	row := &ownerRow{owner: restored}
	r, _, l := started(t, row)
	for _, owner := range []ledger.Owner{{Generation: l.Generation() + 1, Layout: "later"}, restored} {
		row.owner = owner
		if err := r.Ready(t.Context()); !errors.Is(err, stock.ErrSuperseded) || row.owner.Layout != owner.Layout {
			t.Errorf("owner %q: %v, then owner %q", owner.Layout, err, row.owner.Layout)
		}
	}
}

// TestAgreed checks that two reads of a SKU under two epochs agree on nothing: each may have met
// a refill that was under way.
func TestAgreed(t *testing.T) {
	t.Parallel()
	notFilled := func(epoch int64) (f Finding) {
		f.Count.Epoch = epoch
		f.add(NotFilled, 0, 0)
		return f
	}
	for earlier, want := range map[int64]int{6: 0, 7: 1} {
		if got := notFilled(7).agreed(notFilled(earlier)); len(got) != want {
			t.Errorf("epochs %d and 7: %v", earlier, got)
		}
	}
}

// soldGate is a gate that sells a unit of SKU a while the records are listed. The list lacks its
// record.
type soldGate struct{ *fakeGate }

func (g soldGate) InFlight(ctx context.Context, limit int, skus ...stock.SKU) ([]stock.Take, error) {
	takes, err := g.fakeGate.InFlight(ctx, limit, skus...)
	g.redis.mu.Lock()
	defer g.redis.mu.Unlock()
	sold := g.redis.counts["a"]
	sold.Available, sold.InFlight = sold.Available-1, sold.InFlight+1
	g.redis.counts["a"] = sold
	return takes, err
}

// TestFlightsDuringASale checks that the units in flight of a SKU that is being sold are not
// compared with its records. Two readings in a row can show the same wrong difference.
func TestFlightsDuringASale(t *testing.T) {
	t.Parallel()
	gate := newGate(newRedis())
	r := newReconcilerOf(soldGate{gate}, newLedger(&ownerRow{}))
	defer r.Close()
	for sku, inFlight := range map[stock.SKU]int64{"a": 3, "b": -2} {
		gate.redis.counts[sku] = stock.Level{SKU: sku, Filled: true, Available: 8, InFlight: inFlight}
		gate.redis.inFlight = append(gate.redis.inFlight, takeOf(sku, 0))
	}
	levels, err := r.counter.Level(t.Context(), "a", "b")
	if err != nil {
		t.Fatal(err)
	}
	found, err := r.flights(t.Context(), levels)
	if want := map[stock.SKU]flight{"b": {counted: -2, recorded: 1}}; err != nil || !maps.Equal(found, want) {
		t.Errorf("%v, %v; want %v", found, err, want)
	}
}

// TestStepFails checks that a step's error is reported, whether the step was taken or not.
func TestStepFails(t *testing.T) {
	t.Parallel()
	r, gate, _ := started(t, &ownerRow{})
	taken := 0
	step := func(context.Context) (pace, error) {
		taken++
		return afterRound, errUnreachable
	}
	if _, err := r.try(t.Context(), step); !errors.Is(err, errUnreachable) || taken != 1 {
		t.Errorf("%d steps, %v", taken, err)
	}
	r.StoreChanged()
	gate.onLoad = func() error { return errUnreachable }
	if _, err := r.try(t.Context(), step); !errors.Is(err, errUnreachable) || taken != 1 {
		t.Errorf("without a generation: %d steps, %v", taken, err)
	}
}

// hungGate and hungLedger answer these calls when their contexts end.
type (
	hungGate   struct{ *fakeGate }
	hungLedger struct{ *fakeLedger }
)

func (hungGate) Settle(ctx context.Context, _ ...stock.Take) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hungGate) Give(ctx context.Context, _ stock.Take) error {
	<-ctx.Done()
	return ctx.Err()
}

func (hungLedger) Expire(ctx context.Context, _ ledger.Job, _ *ledger.ExpiryRound, _ int) (ledger.Expiry, error) {
	<-ctx.Done()
	return ledger.Expiry{}, ctx.Err()
}

func (hungLedger) Changes(ctx context.Context, _ stock.SKU, _ stock.Change) ([]stock.Change, bool, error) {
	<-ctx.Done()
	return nil, false, ctx.Err()
}

// TestHungCalls checks that background work ends if a store does not answer. Otherwise it would
// keep its job from other instances, or delay the ends of other takes.
func TestHungCalls(t *testing.T) {
	t.Parallel()
	for name, do := range map[string]func(ctx context.Context, r *Reconciler){
		"a settle":       func(_ context.Context, r *Reconciler) { r.settleNow(takeOf("a", 1)) },
		"an open take":   func(ctx context.Context, r *Reconciler) { _ = r.endOpenTake(ctx, &openTake{takeOf("a", 1), false}) },
		"an expiry":      func(ctx context.Context, r *Reconciler) { _, _ = (&expiry{Reconciler: r}).step(ctx, ledger.Job{}) },
		"a step of jobs": func(ctx context.Context, r *Reconciler) { _, _ = r.try(ctx, r.deliverAll) },
	} {
		synctest.Test(t, func(t *testing.T) {
			r := newReconcilerOf(hungGate{newGate(newRedis())}, hungLedger{newLedger(&ownerRow{})})
			defer r.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 2*sweepTimeout)
			defer cancel()
			if do(ctx, r); ctx.Err() != nil {
				t.Errorf("%s has no end", name)
			}
		})
	}
}

// TestCheckEnds checks that a caller of a check waits no longer than its context allows, and that
// the check continues for other callers. Stopped checks must log no failure.
func TestCheckEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, gate, _ := started(t, &ownerRow{})
		gate.onMark = answering(time.Second, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		first := make(chan error, 1)
		go func() { first <- r.Ready(ctx) }()
		synctest.Wait() // the check is under way
		if err := r.Ready(t.Context()); err != nil {
			t.Errorf("ready by the check of another caller: %v", err)
		}
		if err := <-first; !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("ready: %v", err)
		}
		log := r.logged()
		ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if r.keepChecking(ctx); log.String() != "" {
			t.Errorf("logged %s", log.String())
		}
		time.Sleep(time.Minute) // until the check has ended
	})
}

// TestAttach checks that an auditing process attaches only to stock that instances of its layout
// sell. It must wait for them to load a generation, and never raise one.
func TestAttach(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		owner  ledger.Owner
		loaded bool
		within time.Duration
		took   time.Duration
		fails  bool
		err    error
	}{
		{"unused", ledger.Owner{Generation: 1}, true, time.Hour, 0, true, nil},
		{"another layout", ledger.Owner{Generation: 1, Layout: "other"}, true, time.Hour, 0, true, nil},
		{"loaded", ledger.Owner{Generation: 1, Layout: "fake"}, true, time.Hour, 0, false, nil},
		{"lost", ledger.Owner{Generation: 1, Layout: "fake"}, false, time.Hour, (maxJoins - 1) * joinPause, true, nil},
		{"ended", ledger.Owner{Generation: 1, Layout: "fake"}, false, 100 * time.Millisecond, 100 * time.Millisecond, true, context.DeadlineExceeded},
	} {
		synctest.Test(t, func(t *testing.T) {
			row, redis := &ownerRow{owner: test.owner}, newRedis()
			redis.loaded[1] = test.loaded
			r := newReconciler(newGate(redis), newLedger(row))
			defer r.Close()
			ctx, cancel := context.WithTimeout(t.Context(), test.within)
			defer cancel()
			start := time.Now()
			err := r.Attach(ctx)
			if took := time.Since(start); took != test.took || (err != nil) != test.fails || !errors.Is(err, test.err) && test.err != nil {
				t.Errorf("%s: after %v: %v", test.name, took, err)
			}
			if test.fails {
				return
			}
			clear(redis.loaded)
			if err := r.PrepareRetry(t.Context(), stock.ErrNoGeneration); err == nil || row.owner != test.owner {
				t.Errorf("raised to %+v, %v", row.owner, err)
			}
		})
	}
}

// TestRelease checks that an instance gives up only stock that it owns. It must not give up that of
// another layout, or that of an instance with its own layout which has taken over since and may
// have queued orders.
func TestRelease(t *testing.T) {
	t.Parallel()
	row := &ownerRow{}
	r, _, _ := started(t, row)
	own := row.owner
	for _, other := range []ledger.Owner{
		{Generation: own.Generation + 1, Layout: "other"},
		{Generation: own.Generation + 1, Layout: own.Layout},
	} {
		row.owner = other
		if err := r.Release(t.Context()); !errors.Is(err, stock.ErrRowChanged) || row.owner != other {
			t.Errorf("the stock of %+v: %v; it is %+v's", other, err, row.owner)
		}
	}
	row.owner = own
	for range 2 {
		if err := r.Release(t.Context()); err != nil || !row.owner.Unowned() || row.owner.Generation != own.Generation+1 {
			t.Errorf("released: %v, %+v", err, row.owner)
		}
	}
}

// TestLastGeneration checks that no generation is raised beyond the last one.
func TestLastGeneration(t *testing.T) {
	t.Parallel()
	row := &ownerRow{owner: ledger.Owner{Generation: stock.MaxGeneration, Layout: "other"}}
	r := newReconciler(newGate(newRedis()), newLedger(row))
	defer r.Close()
	if err := r.Start(t.Context()); err == nil || row.owner.Generation != stock.MaxGeneration || row.owner.Layout != "other" {
		t.Errorf("started with %+v, %v", row.owner, err)
	}
}

// TestStartIsOvertaken lets another instance raise the generation during a start. The start must
// read the owner again, a bounded number of times. If the other instance has the same layout, the
// start must use its generation.
func TestStartIsOvertaken(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		times  int
		layout string
		owner  error
		want   error
		raised stock.Generation // last generation raised by any instance
	}{
		{maxRaises - 1, "other", nil, nil, maxRaises},
		{maxRaises, "other", nil, stock.ErrRowChanged, maxRaises},
		{1, "other", errUnreachable, errUnreachable, 1},
		{1, "fake", nil, nil, 1},
		{0, "", errUnreachable, nil, 1}, // no second read is needed
	} {
		redis := newRedis()
		redis.mark.Beat = 100 // the ledger was restored
		l, times := newLedger(&ownerRow{owner: ledger.Owner{Layout: "other"}}), 0
		l.on = func(_ context.Context, call string) error {
			switch {
			case call == "Owner":
				return test.owner
			case call == "RaiseGeneration" && times < test.times: // another instance raises and loads a generation first
				times++
				owner := &l.shared.owner
				owner.Generation, owner.Layout = owner.Generation+1, test.layout
				redis.loaded[owner.Generation] = true
			}
			return nil
		}
		r := newReconciler(newGate(redis), l)
		if err := r.Start(t.Context()); !errors.Is(err, test.want) {
			t.Errorf("overtaken %d times: %v, want %v", test.times, err, test.want)
		}
		if owner := l.shared.owner; owner.Generation != test.raised || test.want == nil && (owner.Layout != "fake" || redis.mark.Generation != owner.Generation) {
			t.Errorf("overtaken %d times: the owner is %+v, the mark %+v", test.times, owner, redis.mark)
		}
		r.Close()
	}
}

// TestWaitForALoadEnds checks that a start stops waiting for another instance's load when its
// context ends, and that the next start waits again.
func TestWaitForALoadEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(1, 0, 0)
		f.row.owner = ledger.Owner{Generation: 1, Layout: "fake"}
		ctx, cancel := context.WithTimeout(t.Context(), loadGrace/2)
		defer cancel()
		err := f.all[0].start(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "waiting until generation 1 is loaded") || f.generation() != 1 {
			t.Errorf("generation %d, %v", f.generation(), err)
		}
		time.AfterFunc(loadGrace/4, func() {
			f.redis.mu.Lock()
			defer f.redis.mu.Unlock()
			f.redis.loaded[1] = true
		})
		if err := f.all[0].start(t.Context()); err != nil || f.generation() != 1 {
			t.Errorf("generation %d, %v", f.generation(), err)
		}
	})
}

// TestRecoveryEnds checks that a recovery ends with its context. Takes that it has not reached must
// not count as failed.
func TestRecoveryEnds(t *testing.T) {
	t.Parallel()
	gate, l, steps := newGate(newRedis()), newLedger(&ownerRow{}), 0
	gate.scan = func(ctx context.Context, _ string) ([]stock.Take, string, error) { // without an end
		steps++
		return []stock.Take{takeOf("a", 1), takeOf("a", 1)}, "more", ctx.Err()
	}
	ctx, cancel := context.WithCancel(t.Context())
	resolved := 0
	l.outcome = func() order.Outcome {
		resolved++
		cancel()
		return order.Committed()
	}
	r := newReconcilerOf(gate, l)
	defer r.Close()
	err := r.recoverAll(ctx)
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "recovering take") || resolved != 1 || steps != 1 {
		t.Errorf("%d takes in %d steps, %v", resolved, steps, err)
	}
}

// TestRecoveryGoesOn checks that a take that cannot be listed, resolved or given back does not keep the
// later ones from recovery, and does not count as recovered.
func TestRecoveryGoesOn(t *testing.T) {
	t.Parallel()
	unknown, stuck, other := takeOf("a", 1), takeOf("a", 1), takeOf("a", 1)
	gate, l := newGate(newRedis()), newLedger(&ownerRow{})
	unreadable := errors.New("a record cannot be read")
	gate.scan = func(context.Context, string) ([]stock.Take, string, error) {
		return []stock.Take{unknown, stuck, other}, "", unreadable
	}
	gate.fail = func(t stock.Take) error {
		if t.TakeID == stuck.TakeID {
			return errUnreachable
		}
		return nil
	}
	outcomes := []order.Outcome{order.Unknown(errUnreachable), order.Refused(errUnreachable), order.Refused(errUnreachable)}
	l.outcome = func() (next order.Outcome) {
		next, outcomes = outcomes[0], outcomes[1:]
		return next
	}
	r := newReconcilerOf(gate, l)
	defer r.Close()
	if err := r.recoverAll(t.Context()); !errors.Is(err, errUnreachable) || !errors.Is(err, unreadable) || !slices.Equal(gate.given, []uuid.UUID{other.TakeID}) {
		t.Errorf("gave back %v, want %v; %v", gate.given, other.TakeID, err)
	}
	if n := value(t, r.metrics.recoveries.WithLabelValues(given)); n != 1 {
		t.Errorf("%v takes are counted as given back, want 1", n)
	}
}

// TestRecoveryLogs checks that a round of recovery logs one line with its counts, and none if
// it has found nothing: after a crash, there may be thousands of takes.
func TestRecoveryLogs(t *testing.T) {
	t.Parallel()
	gate, l := newGate(newRedis()), newLedger(&ownerRow{})
	r := newReconcilerOf(gate, l)
	defer r.Close()
	var log bytes.Buffer
	r.log = slog.New(slog.NewTextHandler(&log, nil))
	outcomes := []order.Outcome{order.Refused(errUnreachable), order.Committed(), order.Refused(errUnreachable)}
	l.outcome = func() (next order.Outcome) {
		next, outcomes = outcomes[0], outcomes[1:]
		return next
	}
	gate.lists(takeOf("a", 1), takeOf("a", 1), takeOf("a", 1))
	for want := 1; want >= 0; want-- {
		log.Reset()
		if err := r.recoverAll(t.Context()); err != nil || strings.Count(log.String(), "\n") != want || strings.Count(log.String(), "settled=1 given=2") != want {
			t.Errorf("%v; logged %s", err, &log)
		}
		gate.lists()
	}
}

// TestRechecksRemain checks that a SKU whose second check or refill fails is refilled at the next
// check.
func TestRechecksRemain(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(s *shop, broken bool){
		"unreadable": func(s *shop, broken bool) { s.calls.start(map[bool]int{true: 2}[broken], faults.Refused) }, // the call of Level fails
		"no refill":  func(s *shop, broken bool) { s.calls.start(map[bool]int{true: 3}[broken], faults.Refused) }, // the call of Row fails
	} {
		inShop(t, func(t *testing.T, s *shop) {
			s.add(t, "a", 20)
			damages["high"](t, s, "a")
			epoch := s.row(t, "a").Epoch
			for step, broken := range []bool{false, true, false} {
				set(s, broken)
				if _, err := s.compareNext(t.Context()); err != nil {
					t.Errorf("%s, step %d: %v", name, step, err)
				}
				if refilled := s.row(t, "a").Epoch > epoch; refilled != (step == 2) {
					t.Errorf("%s: refilled %v in step %d", name, refilled, step)
				}
				time.Sleep(sweepPause)
			}
			s.check(t, "a")
		})
	}
}

// logTo makes the instance log its warnings.
func (r *Reconciler) logTo(to *testenv.Buffer) {
	log := slog.New(slog.NewTextHandler(to, &slog.HandlerOptions{Level: slog.LevelWarn}))
	r.log, r.jobs.log, r.generations.log = log, log, log
}

// logged makes the instance log its warnings to a new buffer.
func (r *Reconciler) logged() *testenv.Buffer {
	log := new(testenv.Buffer)
	r.logTo(log)
	return log
}

// TestQuiet checks that two working instances log no warning, even while they stop. An instance
// whose stores cannot be reached must log warnings.
func TestQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		row, store, jobs := &ownerRow{}, newRedis(), &fakeJobs{}
		var (
			log  testenv.Buffer
			runs sync.WaitGroup
		)
		ctx, cancel := context.WithCancel(t.Context())
		for range 2 {
			l := newLedger(row)
			l.fakeJobs = jobs
			r := newReconciler(newGate(store), l)
			defer r.Close()
			r.logTo(&log)
			if err := r.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			runs.Go(func() { r.Run(ctx) })
		}
		time.Sleep(20 * time.Second)
		cancel()
		runs.Wait()
		if w := log.String(); w != "" {
			t.Errorf("logged %s", w)
		}
	})
}

// TestQuietStop checks that a job that is stopped during a call or a step logs no
// failure.
func TestQuietStop(t *testing.T) {
	t.Parallel()
	for _, silent := range []string{"claim", "renew", "the step"} {
		synctest.Test(t, func(t *testing.T) {
			r := newReconciler(nil, newLedger(&ownerRow{}))
			log := r.logged()
			r.jobs.ledger = silentJobs{&fakeJobs{}, func(call string) bool { return call == silent }}
			ctx, cancel := context.WithTimeout(t.Context(), renewPause+jobCallTimeout/4)
			defer cancel()
			r.jobs.run(ctx, "job", func(ctx context.Context, _ ledger.Job) (time.Duration, error) {
				<-ctx.Done()
				return 0, ctx.Err()
			}, func() {})
			if w := log.String(); w != "" {
				t.Errorf("stopped during %s: %s", silent, w)
			}
		})
	}
}

// TestAuditEnds checks that an audit returns an error if its context ends while it waits before
// another read, with and without a repair before that. It must also return one if a row is deleted
// meanwhile. It must make no calls to the stores after the end.
func TestAuditEnds(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		call string // call at which the event happens
		do   func(t *testing.T, s *shop, cancel func())
		want error // nil: any
	}{
		"before a repair": {"Recount", func(_ *testing.T, _ *shop, cancel func()) { time.AfterFunc(auditPause/2, cancel) }, context.Canceled},
		"after a repair": {"Correct", func(t *testing.T, s *shop, cancel func()) {
			before := s.calls.before
			s.calls.before = func(call string) {
				if call == "Counts" {
					s.calls.before = before
					damages["wrong"](t, s, "wrong")
					time.AfterFunc(auditPause/2, cancel)
				}
			}
		}, context.Canceled},
		"deleted": {"Recount", func(t *testing.T, s *shop, _ func()) { s.exec(t, "DELETE FROM stock") }, nil},
	} {
		inShop(t, func(t *testing.T, s *shop) {
			s.add(t, "wrong", 20)
			damages["wrong"](t, s, "wrong")
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			happened := false
			s.calls.before = func(call string) {
				if ctx.Err() != nil {
					t.Errorf("%s: %s was called after the end", name, call)
				}
				if call == test.call && !happened {
					happened = true
					test.do(t, s, cancel)
				}
			}
			reported := 0
			_, err := s.AuditAll(ctx, AuditOptions{Repair: true, Progress: func(int) {}, Report: func(Finding) error {
				reported++
				return nil
			}})
			if err == nil || test.want != nil && !errors.Is(err, test.want) || reported > 0 {
				t.Errorf("%s: %d findings, %v", name, reported, err)
			}
		})
	}
}

// TestUncounted checks that the metrics of the backlog and of refunds keep their values while
// counting fails, and are updated soon afterwards. The failures must be logged.
func TestUncounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := newLedger(&ownerRow{})
		r := newReconciler(nil, l)
		e := &expiry{Reconciler: r}
		n := 777
		l.due = func() int { return n }
		l.refunds = func() (int, time.Duration) { return n, time.Minute }
		l.expire = func(ledger.Job, int) (ledger.Expiry, error) { return ledger.Expiry{More: true}, nil }
		for _, step := range []struct {
			broken       string
			due, refunds float64
			log          string
		}{
			{"", 777, 777, ""},
			{"Due", 777, 777, "counting the orders that are due failed"},
			{"RefundsDue", 5, 777, "counting the payments that are due back to their buyers failed"},
			{"", 5, 5, ""},
		} {
			log := r.logged()
			l.on = failing(step.broken)
			if _, err := e.step(t.Context(), ledger.Job{}); err != nil {
				t.Error(err)
			}
			if due, refunds := value(t, r.metrics.backlog), value(t, r.metrics.refundsDue); due != step.due || refunds != step.refunds {
				t.Errorf("%q: %v due, %v refunds, want %v and %v", step.broken, due, refunds, step.due, step.refunds)
			}
			if w := log.String(); !strings.Contains(w, step.log) || (w == "") != (step.log == "") {
				t.Errorf("%q: logged %q, want %q", step.broken, w, step.log)
			}
			if n = 5; step.broken == "" {
				time.Sleep(countPause)
			}
		}
	})
}

// TestJobLost checks that an instance stops a step at the next renewal once another
// instance has its job, and says so.
func TestJobLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		table := &fakeJobs{}
		r := newReconciler(nil, newLedger(&ownerRow{}))
		log := r.logged()
		r.jobs.ledger = table
		ctx, cancel := context.WithTimeout(t.Context(), renewPause+renewPause/2)
		defer cancel()
		start, ended := time.Now(), time.Duration(0)
		r.jobs.run(ctx, "job", func(ctx context.Context, held ledger.Job) (time.Duration, error) {
			held.Token++
			table.leases["job"] = jobLease{held, time.Now().Add(time.Hour)}
			<-ctx.Done()
			ended = time.Since(start)
			return 0, ctx.Err()
		}, func() {})
		if w := log.String(); ended != renewPause || !strings.Contains(w, "another instance has claimed") || strings.Contains(w, "failed") {
			t.Errorf("stopped after %v, logged %s", ended, w)
		}
	})
}

// TestFailuresAreLogged checks that failures that are not returned to a caller are logged.
func TestFailuresAreLogged(t *testing.T) {
	t.Parallel()
	recovering := func(ctx context.Context, r *Reconciler, _ *fakeGate, _ *fakeLedger) { r.keepRecovering(ctx) }
	for want, do := range map[string]func(ctx context.Context, r *Reconciler, gate *fakeGate, l *fakeLedger){
		`recovering takes failed and will be retried" error="first step"`: recovering,
		`recovering takes failed and will be retried" error="last step"`:  recovering,
		"checking the stores failed": func(ctx context.Context, r *Reconciler, gate *fakeGate, _ *fakeLedger) {
			gate.onLoaded = func() error { return errUnreachable }
			r.keepChecking(ctx)
		},
		"settling takes failed": func(_ context.Context, r *Reconciler, gate *fakeGate, _ *fakeLedger) {
			gate.fail = func(stock.Take) error { return errUnreachable }
			r.settleNow(takeOf("a", 1))
		},
		"giving a take back failed": func(ctx context.Context, r *Reconciler, gate *fakeGate, _ *fakeLedger) {
			gate.fail = func(stock.Take) error { return errUnreachable }
			r.GiveBack(ctx, takeOf("a", 1))
		},
		"refilling the gate after a guard refusal failed": func(ctx context.Context, r *Reconciler, _ *fakeGate, _ *fakeLedger) {
			r.FinishTake(ctx, takeOf("unknown", 1), order.Refused(stock.Refuse("unknown", stock.ErrSoldOut)))
		},
		"claiming a job failed": func(ctx context.Context, r *Reconciler, _ *fakeGate, l *fakeLedger) {
			l.setUnreachable(true)
			r.keepDelivering(ctx)
		},
		"a job failed and is released": func(ctx context.Context, r *Reconciler, _ *fakeGate, _ *fakeLedger) {
			r.jobs.run(ctx, "job", func(context.Context, ledger.Job) (time.Duration, error) { return 0, errUnreachable }, func() {})
		},
		"releasing a job failed": func(ctx context.Context, r *Reconciler, _ *fakeGate, l *fakeLedger) {
			r.jobs.run(ctx, "job", func(context.Context, ledger.Job) (time.Duration, error) {
				l.setUnreachable(true)
				return 0, errUnreachable
			}, func() {})
		},
		"gate and ledger differ at rest": func(ctx context.Context, r *Reconciler, _ *fakeGate, _ *fakeLedger) {
			_ = r.refillDrifted(ctx, "unknown", difference{})
		},
		"renewing a job failed": func(ctx context.Context, r *Reconciler, _ *fakeGate, l *fakeLedger) {
			r.jobs.run(ctx, "job", func(ctx context.Context, _ ledger.Job) (time.Duration, error) {
				l.setUnreachable(true)
				<-ctx.Done()
				return 0, ctx.Err()
			}, func() {})
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, gate, l := started(t, &ownerRow{})
			gate.scan = func(_ context.Context, cursor string) ([]stock.Take, string, error) {
				if cursor == "" {
					return nil, "more", errors.New("first step")
				}
				return nil, "", errors.New("last step")
			}
			log := r.logged()
			ctx, cancel := context.WithTimeout(t.Context(), renewPause+renewPause/2)
			defer cancel()
			do(ctx, r, gate, l)
			if w := log.String(); !strings.Contains(w, want) {
				t.Errorf("logged %q, want %q", w, want)
			}
		})
	}
}
