package order

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// checkEvery is how often an instance looks whether its generation is
	// still the ledger's.
	checkEvery = time.Second
	// checkTimeout bounds one such look.
	checkTimeout = 3 * time.Second
	// loadGrace is how long an instance waits for the one that raised a
	// generation to load it, before it raises another.
	loadGrace = 500 * time.Millisecond
	// raisePause is the least time between two raises by one instance.
	raisePause = 200 * time.Millisecond
	// raiseTries bounds how often a raise meets another instance's.
	raiseTries = 5
)

// generations keeps the instance under the ledger's generation, and raises that
// when the layout changes, when the gate's store cannot run it, and when the
// ledger was restored from a backup. It is safe for concurrent use.
type generations struct {
	ledger *ledger
	gate   stock.Gate // nil: none
	layout string
	log    *slog.Logger

	following singleflight.Group
	checking  singleflight.Group

	superseded atomic.Bool // another layout owns the stock

	// suspicions counts the reasons to believe that gate and ledger have parted;
	// those up to answered were answered by a new generation.
	suspicions, answered atomic.Int64

	mu     sync.Mutex // held while the generation in use changes
	since  time.Time  // when it changed
	raised time.Time  // when this instance last raised one
}

func (g *generations) current() stock.Generation { return g.ledger.Generation() }

// use puts the instance under the generation, unless it is past it.
func (g *generations) use(to stock.Generation) {
	g.superseded.Store(false)
	g.mu.Lock()
	defer g.mu.Unlock()
	if to <= g.current() {
		return
	}
	g.since = time.Now()
	g.ledger.generation.Store(int64(to))
	if g.gate != nil {
		g.gate.Use(to)
	}
}

// suspect demands a new generation: every count at the gate is to be filled anew.
func (g *generations) suspect() { g.suspicions.Add(1) }

func (g *generations) suspected() bool { return g.suspicions.Load() > g.answered.Load() }

// start takes the stock over: it puts the instance under the ledger's
// generation, or under a new one if that belongs to another layout.
func (g *generations) start(ctx context.Context) error {
	mark, err := g.mark(ctx)
	if err != nil {
		return err
	}
	row, err := g.ledger.Beat(ctx)
	if err != nil {
		return err
	}
	for range raiseTries {
		if row.Layout == g.layout && !restored(row, mark) {
			g.use(row.Generation)
			loaded, err := g.loaded(ctx)
			if err != nil || loaded {
				return errors.Join(err, g.setMark(ctx, row))
			}
		}
		if err = g.raise(ctx, row, max(row.Generation, mark.Generation)+1); !errors.Is(err, errRowChanged) {
			return err
		}
		if row, err = g.ledger.LedgerRow(ctx); err != nil {
			return err
		}
		mark = stock.Mark{Generation: mark.Generation} // the beat has been compared
	}
	return err
}

// restored reports whether the ledger is older than what the gate's store saw of
// it. mark was read before the ledger's beat was raised to the row's.
func restored(row ledgerRow, mark stock.Mark) bool {
	return mark.Beat >= row.Beat && mark.Beat > 0 || mark.Generation > row.Generation
}

// check looks whether the ledger's generation is still the instance's, and
// follows it if not. It reports why orders cannot be placed now, if so.
// Concurrent callers share one look.
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
	before := g.current() // read first: what is raised meanwhile is no older ledger
	mark, markErr := g.mark(ctx)
	row, err := g.ledger.Beat(ctx)
	switch {
	case err != nil:
		return errors.Join(err, markErr)
	case g.isSuperseded(row, before):
		return g.supersede(row)
	case markErr != nil:
		return markErr
	case restored(row, mark), row.Generation < before:
		g.log.Warn("the ledger was restored from a backup; every count at the gate is filled anew")
		g.suspect()
		return g.follow(ctx, max(row.Generation, mark.Generation))
	case g.suspected():
		return g.follow(ctx, row.Generation)
	}
	g.use(row.Generation)
	loaded, err := g.loaded(ctx)
	if err != nil {
		return err
	}
	if !loaded {
		return g.follow(ctx, row.Generation)
	}
	return g.setMark(ctx, row)
}

// isSuperseded reports whether another layout owns the stock. A ledger that is
// older than the generation in use was restored from a backup: what layout it had
// then counts for nothing, unless the instance was superseded before.
func (g *generations) isSuperseded(row ledgerRow, current stock.Generation) bool {
	return row.Layout != g.layout && (row.Generation >= current || g.superseded.Load())
}

// supersede notes that another layout owns the stock.
func (g *generations) supersede(row ledgerRow) error {
	if !g.superseded.Swap(true) {
		g.log.Warn("another strategy or layout has taken the stock over; this instance no longer sells",
			"layout", row.Layout, "generation", row.Generation)
	}
	return fmt.Errorf("%w: %q", ErrSuperseded, row.Layout)
}

// usable reports why nothing can be cut now, after it has tried to mend that.
func (g *generations) usable(ctx context.Context) error {
	switch {
	case g.superseded.Load():
		return ErrSuperseded
	case g.suspected():
		return g.follow(ctx, g.current())
	}
	return nil
}

// follow puts the instance under a generation later than the one given, which
// cannot be used: the ledger's if that is later, else a new one. A generation
// whose scripts turn out to be loaded after all stays in use. Concurrent callers
// share one answer.
func (g *generations) follow(ctx context.Context, unusable stock.Generation) error {
	_, err, _ := g.following.Do("", func() (any, error) {
		ctx, cancel := detached(ctx)
		defer cancel()
		return nil, g.followNow(ctx, unusable)
	})
	return err
}

func (g *generations) followNow(ctx context.Context, unusable stock.Generation) error {
	var err error
	for range raiseTries {
		var row ledgerRow
		if row, err = g.ledger.LedgerRow(ctx); err != nil {
			return err
		}
		if g.isSuperseded(row, g.current()) {
			return g.supersede(row)
		}
		if row.Layout == g.layout && !g.suspected() {
			if row.Generation > unusable && row.Generation >= g.current() {
				g.use(row.Generation)
				return nil
			}
			if row.Generation == g.current() && g.becomesLoaded(ctx) {
				return nil
			}
		}
		if err = g.raise(ctx, row, max(row.Generation, unusable, g.current())+1); !errors.Is(err, errRowChanged) {
			return err
		}
	}
	return err
}

// reach puts the instance under a generation that a stock row or a count belongs
// to, or a later one. A ledger that knows nothing of it was restored from a backup.
func (g *generations) reach(ctx context.Context, to stock.Generation) error {
	row, err := g.ledger.LedgerRow(ctx)
	if err != nil {
		return err
	}
	if row.Generation >= to {
		return g.follow(ctx, to-1)
	}
	g.suspect()
	return g.follow(ctx, to)
}

// becomesLoaded waits for the scripts of a generation that came up a moment ago:
// the instance that raised it may be loading them.
func (g *generations) becomesLoaded(ctx context.Context) bool {
	g.mu.Lock()
	since, own := g.since, !g.raised.Before(g.since)
	g.mu.Unlock()
	for {
		if loaded, err := g.loaded(ctx); loaded && err == nil {
			return true
		}
		if own || time.Since(since) > loadGrace || ctx.Err() != nil { // own: nobody else is loading
			return false
		}
		waitFor(ctx, 1)
	}
}

// raise raises the ledger to the generation next, uses it, and loads it at the
// gate, once: a generation that could not be loaded is never loaded again.
func (g *generations) raise(ctx context.Context, seen ledgerRow, next stock.Generation) error {
	if next > stock.MaxGeneration {
		return fmt.Errorf("raising the generation to %d: there are no more than %d", next, stock.MaxGeneration)
	}
	g.mu.Lock()
	pause := time.Until(g.raised.Add(raisePause))
	g.mu.Unlock()
	if err := sleep(ctx, pause); err != nil {
		return fmt.Errorf("raising the generation to %d: %w", next, err)
	}
	answers := g.suspicions.Load()
	if err := g.ledger.RaiseGeneration(ctx, seen, next, g.layout); err != nil {
		return err
	}
	g.use(next)
	g.mu.Lock()
	g.raised = time.Now()
	g.mu.Unlock()
	g.answered.Store(answers)
	g.log.Info("took the stock over", "generation", next, "layout", g.layout, "before", seen.Layout)
	if g.gate == nil {
		return nil
	}
	if err := g.gate.Load(ctx, next); err != nil {
		return err
	}
	return g.setMark(ctx, ledgerRow{Generation: next, Beat: seen.Beat})
}

func (g *generations) loaded(ctx context.Context) (bool, error) {
	if g.gate == nil {
		return true, nil
	}
	return g.gate.Loaded(ctx)
}

func (g *generations) mark(ctx context.Context) (stock.Mark, error) {
	if g.gate == nil {
		return stock.Mark{}, nil
	}
	return g.gate.Mark(ctx)
}

func (g *generations) setMark(ctx context.Context, row ledgerRow) error {
	if g.gate == nil {
		return nil
	}
	return g.gate.SetMark(ctx, stock.Mark{Generation: row.Generation, Beat: row.Beat})
}
