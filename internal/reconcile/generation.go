package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// checkTimeout bounds one check.
	checkTimeout = 3 * time.Second
	// loadGrace is how long an instance waits until the instance that raised a generation has
	// loaded it. After that it raises another one. A load takes three round trips on a new
	// connection.
	loadGrace = 2 * time.Second
	// loadPause bounds the pause between two checks whether a generation is loaded.
	loadPause = 20 * time.Millisecond
	// maxRaises bounds the tries to raise the generation while other instances raise it too.
	maxRaises = 5
	// maxJoins bounds the tries to join, with the pause joinPause between them. Instances notice a
	// lost generation within seconds.
	maxJoins, joinPause = 20, 250 * time.Millisecond
)

// generations keeps the instance under the ledger's generation. It raises the
// generation when the layout changes, when the gate's store cannot run the current
// one, and when the ledger was restored from a backup. It is safe for concurrent
// use.
type generations struct {
	ledger  Ledger
	counter Counter // nil without a gate
	layout  string
	queues  bool // the strategy acknowledges orders before the ledger has them
	log     *slog.Logger
	metrics *metrics

	following singleflight.Group
	checking  singleflight.Group

	// auditor means that this process only audits. It sells nothing, and must not take over the
	// stock. It is set before the first use.
	auditor bool
	// onlyFrom, if not nil, is the only owner from which start takes over the stock. It is
	// set before the first use.
	onlyFrom *ledger.Owner

	superseded atomic.Bool // another layout owns the stock

	// demands counts the calls of demandNext. answered is the number of these calls that a new
	// generation has followed.
	demands, answered atomic.Int64

	mu    sync.Mutex // held while the generation in use changes
	since time.Time  // when it changed
}

func (g *generations) current() stock.Generation { return g.ledger.Generation() }

// use moves the instance to the generation, unless the instance is under a later one.
func (g *generations) use(to stock.Generation) {
	g.superseded.Store(false)
	g.mu.Lock()
	defer g.mu.Unlock()
	if to <= g.current() {
		return
	}
	g.since = time.Now()
	g.ledger.Use(to)
	if g.counter != nil {
		g.counter.Use(to)
	}
}

// demandNext demands a new generation, because the counts at the gate may be wrong.
func (g *generations) demandNext() { g.demands.Add(1) }

func (g *generations) demanded() bool { return g.demands.Load() > g.answered.Load() }

// start takes over the stock. It moves the instance to the ledger's generation, or to a new one if
// the ledger's belongs to another layout.
func (g *generations) start(ctx context.Context) error {
	mark, err := g.mark(ctx)
	if err != nil {
		return err
	}
	owner, err := g.ledger.Beat(ctx)
	if err != nil {
		return err
	}
	return untilUnchanged(func() error {
		if owner.Layout == g.layout && !restored(owner, mark) {
			g.use(owner.Generation)
			loaded, err := g.becomesLoaded(ctx) // another instance that starts at the same time may have raised the generation
			switch {
			case err != nil:
				return err
			case loaded:
				return g.setMark(ctx, owner)
			}
		}
		if g.onlyFrom != nil && owner.Layout != g.layout && owner.Generation != g.onlyFrom.Generation {
			return fmt.Errorf("%w: the owner was %q under generation %d, and is now %q under generation %d", stock.ErrRowChanged,
				g.onlyFrom.Layout, g.onlyFrom.Generation, owner.Layout, owner.Generation)
		}
		if owner.Queues && !g.queues {
			return fmt.Errorf("%w: they belong to %q; run api drain with the --redis and --db of its instances first", ErrQueuedOrders, owner.Layout)
		}
		raiseErr := g.raise(ctx, owner, max(owner.Generation, mark.Generation)+1)
		if errors.Is(raiseErr, stock.ErrRowChanged) {
			if owner, err = g.ledger.Owner(ctx); err != nil {
				return err
			}
			mark.Beat = 0 // the beat has been compared already
		}
		return raiseErr
	})
}

// ErrQueuedOrders means that the stock belongs to a strategy that acknowledges orders before the
// ledger has them. Only that strategy commits these orders.
var ErrQueuedOrders = errors.New("queued orders are not drained")

// release gives the stock up, so that any strategy can take it over. It does nothing if another
// instance has released it. It returns stock.ErrRowChanged if another instance has taken the stock
// over.
func (g *generations) release(ctx context.Context) error {
	owner, err := g.ledger.Owner(ctx)
	if err != nil {
		return err
	}
	switch {
	case owner.Unowned():
		return nil
	case owner.Generation != g.current() || owner.Layout != g.layout:
		return fmt.Errorf("%w: the owner is %q", stock.ErrRowChanged, owner.Layout)
	}
	return g.ledger.RaiseGeneration(ctx, owner, ledger.Owner{Generation: owner.Generation + 1})
}

// untilUnchanged runs do repeatedly, a bounded number of times, while it returns
// stock.ErrRowChanged.
func untilUnchanged(do func() error) (err error) {
	for range maxRaises {
		if err = do(); !errors.Is(err, stock.ErrRowChanged) {
			return err
		}
	}
	return err
}

// restored reports whether the ledger was restored from a backup. Then it is older than its mark in
// the gate's store. The mark must have been read before the beat was raised to the owner's.
func restored(owner ledger.Owner, mark stock.Mark) bool {
	return mark.Beat >= owner.Beat && mark.Beat > 0 || mark.Generation > owner.Generation
}

// check compares the instance's generation with the ledger's, and follows the ledger's if it
// differs. It returns an error if orders cannot be placed now. Concurrent callers share one check.
func (g *generations) check(ctx context.Context) error {
	result := g.checking.DoChan("", func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
		defer cancel()
		return nil, g.checkNow(ctx)
	})
	select {
	case r := <-result:
		return r.Err
	case <-ctx.Done():
		return fmt.Errorf("checking the stores: %w", ctx.Err())
	}
}

func (g *generations) checkNow(ctx context.Context) error {
	before := g.current() // read before the owner: a raise in between does not make the ledger look older
	mark, markErr := g.mark(ctx)
	inTime := ctx.Err() == nil // the gate's answer has left time to ask the ledger
	owner, err := g.ledger.Beat(ctx)
	if g.counter != nil {
		g.metrics.checked(gateStore, markErr)
	}
	if inTime {
		g.metrics.checked(ledgerStore, err)
	}
	switch {
	case err != nil:
		return errors.Join(err, markErr)
	case g.isSuperseded(owner, before):
		return g.supersede(owner)
	case markErr != nil:
		return markErr
	case restored(owner, mark), owner.Generation < before:
		g.log.Warn("the ledger was restored from a backup; every count at the gate will be refilled")
		g.demandNext()
		return g.follow(ctx, max(owner.Generation, mark.Generation))
	case g.demanded():
		return g.follow(ctx, owner.Generation)
	}
	g.use(owner.Generation)
	loaded, err := g.loaded(ctx)
	if err != nil {
		return err
	}
	if !loaded {
		return g.follow(ctx, owner.Generation)
	}
	return g.setMark(ctx, owner)
}

// isSuperseded reports whether another layout owns the stock. A ledger that is
// older than the generation in use was restored from a backup. Its layout then
// counts only if the instance was superseded before.
func (g *generations) isSuperseded(owner ledger.Owner, current stock.Generation) bool {
	return owner.Layout != g.layout && (owner.Generation >= current || g.superseded.Load())
}

// supersede records that another layout owns the stock, and returns ErrSuperseded.
func (g *generations) supersede(owner ledger.Owner) error {
	if !g.superseded.Swap(true) {
		g.log.Warn("another strategy or layout has taken over the stock; this instance no longer sells",
			"layout", owner.Layout, "generation", owner.Generation)
	}
	return fmt.Errorf("%w: %q", stock.ErrSuperseded, owner.Layout)
}

// follow moves the instance to a later generation than the given one, which cannot be used. It uses
// the ledger's generation if that is later, and otherwise raises a new one. If the scripts of the
// current generation turn out to be loaded, the generation stays in use. Concurrent callers share
// one result.
func (g *generations) follow(ctx context.Context, unusable stock.Generation) error {
	_, err, _ := g.following.Do("", func() (any, error) {
		ctx, cancel := detached(ctx)
		defer cancel()
		return nil, g.followNow(ctx, unusable)
	})
	return err
}

func (g *generations) followNow(ctx context.Context, unusable stock.Generation) error {
	return untilUnchanged(func() error {
		owner, err := g.ledger.Owner(ctx)
		if err != nil {
			return err
		}
		if g.isSuperseded(owner, g.current()) {
			return g.supersede(owner)
		}
		if owner.Layout == g.layout && !g.demanded() {
			if owner.Generation > unusable && owner.Generation >= g.current() {
				g.use(owner.Generation)
				return nil
			}
			if owner.Generation == g.current() {
				if loaded, err := g.becomesLoaded(ctx); loaded || err != nil {
					return err
				}
			}
		}
		return g.raise(ctx, owner, max(owner.Generation, unusable, g.current())+1)
	})
}

// catchUp moves the instance to the generation of a stock row or a count, or to a
// later one. If the ledger's generation is earlier, the ledger was restored from a
// backup.
func (g *generations) catchUp(ctx context.Context, to stock.Generation) error {
	owner, err := g.ledger.Owner(ctx)
	if err != nil {
		return err
	}
	if owner.Generation >= to {
		return g.follow(ctx, to-1)
	}
	g.demandNext()
	return g.follow(ctx, to)
}

// join moves an auditor to the ledger's generation. If the gate's store cannot run that generation,
// join waits until an instance has raised another one.
func (g *generations) join(ctx context.Context) error {
	for try := 1; ; try++ {
		owner, err := g.ledger.Owner(ctx)
		switch {
		case err != nil:
			return err
		case owner.Unowned():
			return errors.New("no instance holds the stock; start one")
		case owner.Layout != g.layout:
			return fmt.Errorf("it belongs to instances with other flags, or of another build: theirs are for %q, these are for %q", owner.Layout, g.layout)
		}
		g.use(owner.Generation)
		loaded, err := g.loaded(ctx)
		if err != nil || loaded {
			return err
		}
		if try == maxJoins {
			return fmt.Errorf("the gate's store has lost generation %d, and no instance has taken over the stock since; start one", owner.Generation)
		}
		if err := retry.Sleep(ctx, joinPause); err != nil {
			return err
		}
	}
}

// becomesLoaded reports whether the scripts of the generation in use are loaded. While the
// generation is new to this instance, it waits for the instance that raised it to load them.
// If err is not nil, the result is unknown.
func (g *generations) becomesLoaded(ctx context.Context) (bool, error) {
	g.mu.Lock()
	since, generation := g.since, g.current()
	g.mu.Unlock()
	for {
		loaded, err := g.loaded(ctx)
		if loaded || err != nil || time.Since(since) > loadGrace {
			return loaded, err
		}
		if err := retry.Sleep(ctx, retry.Jitter(loadPause, 1)); err != nil {
			return false, fmt.Errorf("waiting until generation %d is loaded: %w", generation, err)
		}
	}
}

// raise raises the ledger to the generation next, moves the instance to it, and
// loads it at the gate. It loads a generation once: if that fails, the generation is
// never loaded again.
func (g *generations) raise(ctx context.Context, seen ledger.Owner, next stock.Generation) error {
	if g.auditor {
		return fmt.Errorf("generation %d cannot be used, and only an instance that serves may raise it", seen.Generation)
	}
	if next > stock.MaxGeneration {
		return fmt.Errorf("raising the generation to %d: the greatest generation is %d", next, stock.MaxGeneration)
	}
	answers := g.demands.Load()
	if err := g.ledger.RaiseGeneration(ctx, seen, ledger.Owner{Generation: next, Layout: g.layout, Queues: g.queues}); err != nil {
		return err
	}
	g.use(next)
	g.answered.Store(answers)
	g.log.Info("took over the stock", "generation", next, "layout", g.layout, "before", seen.Layout)
	if g.counter == nil {
		return nil
	}
	if err := g.counter.Load(ctx, next); err != nil {
		return err
	}
	return g.setMark(ctx, ledger.Owner{Generation: next, Beat: seen.Beat})
}

func (g *generations) loaded(ctx context.Context) (bool, error) {
	if g.counter == nil {
		return true, nil
	}
	return g.counter.Loaded(ctx)
}

func (g *generations) mark(ctx context.Context) (stock.Mark, error) {
	if g.counter == nil {
		return stock.Mark{}, nil
	}
	return g.counter.Mark(ctx)
}

func (g *generations) setMark(ctx context.Context, owner ledger.Owner) error {
	if g.counter == nil {
		return nil
	}
	return g.counter.SetMark(ctx, stock.Mark{Generation: owner.Generation, Beat: owner.Beat})
}

// Ownership says who owns the stock, and whether the gate's store and this instance match that
// owner.
type Ownership struct {
	// Layout is this instance's. Owner.Layout is that of the instances that sell the stock, and is
	// empty if no instance holds it.
	Layout string
	Queues bool // this instance's strategy queues orders; Owner.Queues is the owner's
	Owner  ledger.Owner
	Mark   stock.Mark // the ledger's mark in the gate's store
	// Loaded reports whether the gate's store can run the owner's generation. It is true
	// without a gate.
	Loaded bool
	// Restored reports whether the ledger is older than the mark. Then it was restored from a
	// backup.
	Restored bool
}

// Ownership reads the owner of the stock from the ledger, and the mark from the gate's store. It
// changes nothing. This instance must not serve.
func (r *Reconciler) Ownership(ctx context.Context) (s Ownership, err error) {
	s.Layout, s.Queues = r.generations.layout, r.generations.queues
	if s.Mark, err = r.generations.mark(ctx); err != nil {
		return s, err
	}
	if s.Owner, err = r.ledger.Owner(ctx); err != nil {
		return s, err
	}
	// This process has not raised the beat, so the beat may equal the mark's.
	s.Restored = s.Mark.Beat > s.Owner.Beat || s.Mark.Generation > s.Owner.Generation
	if r.counter != nil {
		r.counter.Use(s.Owner.Generation)
	}
	s.Loaded, err = r.generations.loaded(ctx)
	return s, err
}
