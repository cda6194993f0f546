package protocol

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"iter"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/async"
	"github.com/holdfast-stock/holdfast/internal/ledger"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/reconcile"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

var (
	stormFor    = flag.Duration("storm.for", 0, "run TestStorm with new storms for this long, instead of its own few")
	stormSeed   = flag.Uint64("storm.seed", 0, "the first seed of -storm.for (0: taken from the clock), or without -storm.for the only one")
	stormSilent = flag.Uint64("storm.silent", 6, "one in this many storms may have servers that do not answer")
)

// stormSeeds are the storms of each run of the tests. Each takes about a second. Those of SQLite
// have detected deliberately removed rules of queued orders and their keys.
var stormSeeds = map[string][]uint64{
	"SQLite":     {89, 5133, 5160, 5237},
	"MariaDB":    {2},
	"PostgreSQL": {2},
}

// TestStorm lets up to eight instances of several strategies sell from one ledger and one Redis to
// buyers who retry. Meanwhile it injects faults into both, deletes counts and empties Redis. After
// the storm, all answers must be true.
//
// With -storm.for it draws new storms for that long. -storm.seed draws the storm of a failure
// again. The instances, the requests and the faults are then the same, but the goroutines
// interleave differently, so the failure may need many runs:
//
//	go test ./internal/protocol -run TestStorm/SQLite -count=50 -storm.seed=7
func TestStorm(t *testing.T) {
	t.Parallel()
	for _, d := range databases {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			runAll(t, d, stormRigs, storms(d.Name), func(r *rig, seed uint64) error {
				start := time.Now()
				err := r.runStorm(t.Context(), newStorm(d.Name, seed, faultRuns.Add(1)))
				if testing.Verbose() {
					t.Logf("%v: seed %d", time.Since(start).Round(time.Millisecond), seed)
				}
				return err
			})
		})
	}
}

// storms returns the seeds of the storms to run.
func storms(database string) iter.Seq[uint64] {
	switch {
	case *stormFor > 0:
		return seedsFrom(*stormSeed, *stormFor)
	case *stormSeed > 0:
		return slices.Values([]uint64{*stormSeed})
	}
	return slices.Values(stormSeeds[database])
}

const (
	// maxStorm bounds a storm. With servers that do not answer, some last half a minute, because
	// the service's timeouts pass one after another.
	maxStorm = 5 * testenv.Patience
	// maxFaultyStarts bounds the failed starts of an instance because of faults. After that the
	// faults end.
	maxFaultyStarts = 4
)

// runStorm runs a storm, and returns an error if a promise is broken or the storm does not
// end.
func (r *rig) runStorm(ctx context.Context, plan storm) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r.logged.Take()
	s := &stormRun{rig: r, storm: plan, begun: time.Now(), scenario: newEmptyScenario(plan.skus)}
	ended := make(chan error, 1)
	go func() { ended <- s.run(ctx) }()
	select {
	case err := <-ended:
		return s.report(err)
	case <-time.After(maxStorm):
	}
	var stacks bytes.Buffer
	_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
	stuck := fmt.Errorf("the storm did not end within %v\n%s", maxStorm, &stacks)
	r.sqlFault.Disarm()
	r.hook.Disarm()
	cancel()
	select {
	case err := <-ended:
		stuck = errors.Join(err, stuck)
	case <-time.After(testenv.Patience): // the goroutine is left behind, and the test has failed
	}
	return s.report(stuck)
}

// stormRun is a storm that is under way.
type stormRun struct {
	*rig
	storm     storm
	scenario  *scenario
	instances []*instance
	loops     sync.WaitGroup // loops of the instances
	clients   sync.WaitGroup // clients, and the faults of the waves

	mu    sync.Mutex
	begun time.Time
	log   []string // events, in the order of their ends
}

// note writes to the log.
func (s *stormRun) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, fmt.Sprintf("%5d ms: ", time.Since(s.begun).Milliseconds())+fmt.Sprintf(format, args...))
}

// report adds the known facts about the storm to the error.
func (s *stormRun) report(err error) error {
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Errorf("%w\n%v\n%s\nlog:\n%s", err, s.storm, strings.Join(s.log, "\n"), s.logged.Take())
}

// run runs the storm, and checks the answers.
func (s *stormRun) run(ctx context.Context) (broken error) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		s.endFaults()
		cancel()
		s.clients.Wait()
		s.loops.Wait()
		for _, i := range s.instances {
			i.Close()
		}
		if broken == nil {
			broken = s.cleanUp()
		}
	}()
	for n, w := range s.storm.waves {
		for _, l := range w.launches {
			if err := s.launch(ctx, l); err != nil {
				return err
			}
		}
		if n == 0 {
			if err := s.openSale(ctx); err != nil {
				return err
			}
		}
		s.send(ctx, w)
		s.injectFaults(ctx, w)
		time.Sleep(w.pause) // the pause is a part of the storm, and waits for no event
	}
	s.clients.Wait()
	s.endFaults()
	return s.judge(ctx)
}

// openSale adds the stock, and lets the faults begin.
func (s *stormRun) openSale(ctx context.Context) error {
	if err := s.scenario.addStock(ctx, s.instances[0]); err != nil {
		return err
	}
	if err := s.gather(ctx, s.instances[0], s.scenario, &evidence{}); err != nil {
		return err
	}
	s.sqlFault.Arm(s.storm.sql...)
	s.hook.Arm(s.storm.redis...)
	return nil
}

// endFaults ends the faults, and logs the injected ones.
func (s *stormRun) endFaults() {
	for store, disarm := range map[string]func() (int, []string){"SQL": s.sqlFault.Disarm, "Redis": s.hook.Disarm} {
		if _, injected := disarm(); len(injected) > 0 {
			s.note("end of the faults of %s:\n\t%s", store, strings.Join(injected, "\n\t"))
		}
	}
}

// launch starts an instance, its consumer of the journal, and the loop that measures the database's
// clock. A start that fails because of the faults is tried again, as a supervisor would do.
func (s *stormRun) launch(ctx context.Context, l launch) error {
	set := settings{strategy: l.strategy, noGuard: s.storm.noGuard, change: s.impatient}
	for try := 1; ; try++ {
		i, err := s.start(ctx, set, redislock.Options{Lease: lostUnlockLease})
		if err == nil {
			s.note("started instance %d: %v", len(s.instances), l)
			s.instances = append(s.instances, i)
			if i.consumer != nil {
				s.loops.Go(func() { i.consumer.Run(ctx) })
			}
			s.loops.Go(func() { keepClock(ctx, i.ledger) })
			return nil
		}
		s.note("starting %v: %v", l, err)
		switch {
		case errors.Is(err, reconcile.ErrQueuedOrders):
			if err := s.drain(ctx); err != nil {
				return err
			}
		case ctx.Err() != nil, try > 2*maxFaultyStarts:
			return fmt.Errorf("starting %v: %w", l, err)
		case try == maxFaultyStarts:
			s.endFaults()
		}
	}
}

// keepClock keeps the database's clock known, as Run does, until ctx ends.
func keepClock(ctx context.Context, l *ledger.Ledger) {
	for ctx.Err() == nil {
		_ = l.MeasureClock(ctx)
		testenv.Dither()
	}
}

// impatient makes the consumer of an instance claim orders early.
func (s *stormRun) impatient(built *assembly.Strategy) {
	if built.Journal != nil {
		built.Journal = &impatientJournal{built.Journal, s.storm.idle}
	}
}

// drain does the operator's work before another strategy starts. It repeats a drain until it
// succeeds, at first under the faults.
func (s *stormRun) drain(ctx context.Context) error {
	for try := 1; ; try++ {
		err := s.tryDrain(ctx)
		s.note("draining the journal: %v", err)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil, try > 2*maxFaultyStarts:
			return fmt.Errorf("draining the journal: %w", err)
		case try == maxFaultyStarts:
			s.endFaults()
		}
	}
}

func (s *stormRun) tryDrain(ctx context.Context) error {
	i, err := s.start(ctx, settings{strategy: queues, noGuard: s.storm.noGuard, change: func(built *assembly.Strategy) {
		s.impatient(built)
		draining(built)
	}}, redislock.Options{Lease: lostUnlockLease})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer func() {
		stop()
		running.Wait()
		i.Close()
	}()
	running.Go(func() { i.consumer.Run(ctx) })
	running.Go(func() { keepClock(ctx, i.ledger) })
	for {
		queued, err := i.consumer.Queued(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil && queued == 0 {
			return i.Release(ctx)
		}
		testenv.Dither() // pause between two checks
	}
}

// send sends the requests of the wave.
func (s *stormRun) send(ctx context.Context, w wave) {
	for _, v := range w.requests {
		i := s.instances[v.at]
		s.clients.Go(func() {
			time.Sleep(v.after)
			ctx, cancel := context.WithTimeout(ctx, v.patience)
			defer cancel()
			s.place(ctx, i, v.at, v.Request)
		})
	}
}

// injectFaults injects the faults of the wave.
func (s *stormRun) injectFaults(ctx context.Context, w wave) {
	for _, f := range w.faults {
		i := s.instances[f.at]
		s.clients.Go(func() {
			time.Sleep(f.after)
			// A sweep may last longer than everything else.
			ctx, cancel := context.WithTimeout(ctx, clientTimeout)
			defer cancel()
			err := f.inject(ctx, s.rig, i, s.storm.skus[0])
			s.note("%s, instance %d: %v", f.kind, f.at, err)
		})
	}
}

// place places an order at an instance with this number.
func (s *stormRun) place(ctx context.Context, i *instance, number int, r order.Request) reply {
	a := s.scenario.place(ctx, i, r)
	if a.err != nil {
		s.note("instance %d, %s %v: %v", number, r.Buyer, r.Lines, a.err)
	} else {
		s.note("instance %d, %s %v: %s %s, replayed %v", number, r.Buyer, r.Lines, a.order.Status, a.order.ID, a.replayed)
	}
	return a
}

// judge sweeps until the storm has settled, lets every buyer with a key repeat the request until
// the answer is final, and checks all answers.
func (s *stormRun) judge(ctx context.Context) error {
	last := s.storm.waves[len(s.storm.waves)-1]
	from := len(s.instances) - len(last.launches)
	selling := s.instances[from:]
	e := &evidence{sound: true, takenOver: true, queueLost: s.storm.losesQueue(), answers: s.scenario.answers}
	if err := s.settle(ctx, selling, s.scenario, e); err != nil {
		return err
	}
	s.note("the storm is over")
	retried := make(map[string]bool)
	for _, v := range s.requests() {
		if v.Key == "" || retried[v.Buyer] {
			continue
		}
		retried[v.Buyer] = true
		for n, i := range selling {
			if err := s.decide(ctx, i, from+n, v.Request); err != nil {
				return err
			}
		}
	}
	e.answers = s.scenario.answers
	return s.settle(ctx, selling, s.scenario, e)
}

// requests returns all requests of the storm.
func (s *stormRun) requests() (all []buyerRequest) {
	for _, w := range s.storm.waves {
		all = append(all, w.requests...)
	}
	return all
}

// decide places the buyer's order until it is accepted or sold out.
func (s *stormRun) decide(ctx context.Context, i *instance, number int, r order.Request) error {
	return testenv.Poll(testenv.Patience, func() error {
		a := s.place(ctx, i, number, r)
		if a.err == nil || errors.Is(a.err, stock.ErrSoldOut) {
			return nil
		}
		_ = errors.Join(i.Ready(ctx), i.Sweep(ctx)) // as Run does
		return fmt.Errorf("%s gets no final answer after the storm: %w", r.Buyer, a.err)
	})
}

// impatientJournal is a gate's journal from which orders are claimed early.
type impatientJournal struct {
	async.Journal
	idle time.Duration
}

func (j *impatientJournal) Claim(ctx context.Context, consumer string, limit int, _ time.Duration) ([]stock.Take, error) {
	return j.Journal.Claim(ctx, consumer, limit, j.idle)
}
