package protocol

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter/cuttertest"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// hook is a place in the code where a test can stop a goroutine.
type hook struct {
	mu      sync.Mutex
	armed   bool
	reached chan struct{}
	proceed chan struct{}
}

// arm makes the hook stop the next goroutine that reaches it. reached is closed when
// the goroutine has stopped. proceed lets it go on, and may be called again.
func (h *hook) arm() (reached <-chan struct{}, proceed func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.armed = true
	here, on := make(chan struct{}), make(chan struct{})
	h.reached, h.proceed = here, on
	return here, sync.OnceFunc(func() { close(on) })
}

// reach blocks the caller until proceed is called, if the hook is armed.
func (h *hook) reach() {
	h.mu.Lock()
	armed, reached, proceed := h.armed, h.reached, h.proceed
	h.armed = false
	h.mu.Unlock()
	if armed {
		close(reached)
		<-proceed
	}
}

// failingAfterCut returns a cutter that returns err after the cut.
func failingAfterCut(c cutter.Cutter, err error) cutter.Cutter {
	return cuttertest.WithCut(c, func(ctx context.Context, tx *sqltx.Tx, _ []stock.Take, cut cuttertest.Cut) ([]cutter.Decision, error) {
		if _, err := cut(ctx, tx); err != nil {
			return nil, err
		}
		return nil, err
	})
}

// hookedCutter has hooks before and after the cut, inside the ledger's transaction.
type hookedCutter struct{ before, after hook }

func (h *hookedCutter) over(c cutter.Cutter) cutter.Cutter {
	return cuttertest.WithCut(c, func(ctx context.Context, tx *sqltx.Tx, _ []stock.Take, cut cuttertest.Cut) ([]cutter.Decision, error) {
		h.before.reach()
		decisions, err := cut(ctx, tx)
		h.after.reach()
		return decisions, err
	})
}

// hookedPlan is a cutter with a hook between its plan and the transaction.
type hookedPlan struct {
	cutter.Cutter
	planned *hook
}

func (c hookedPlan) Plan(ctx context.Context, db *sqltx.DB, g stock.Generation, takes []stock.Take) (cutter.Plan, error) {
	plan, err := c.Cutter.Plan(ctx, db, g, takes)
	c.planned.reach()
	return plan, err
}

// openOptimistic starts an instance of the strategy optimistic, with a hook after it has
// read the stock row.
func (s *shop) openOptimistic(t *testing.T) (*instance, *hook) {
	t.Helper()
	planned := new(hook)
	return s.open(t, settings{strategy: "optimistic", change: func(built *assembly.Strategy) {
		built.Cutter = hookedPlan{built.Cutter, planned}
	}}), planned
}

// hookedGate is a gate with hooks after a take, before a settle and before an adjust. It
// can lose answers.
type hookedGate struct {
	stock.Gate
	taken, settling, adjusting hook

	mu        sync.Mutex
	loseTakes int  // how many of the next takes lose their answer
	unsettled int  // the number of takes whose settle failed
	noSettle  bool // settles fail
	noAdjust  bool // adjusts fail
	noGive    bool // gives fail
}

var errLostAnswer = errors.New("the answer was lost")

func (g *hookedGate) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	taken, err := g.Gate.Take(ctx, d)
	if err == nil {
		g.taken.reach()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil && g.loseTakes > 0 {
		g.loseTakes--
		return taken, errLostAnswer
	}
	return taken, err
}

func (g *hookedGate) Settle(ctx context.Context, takes ...stock.Take) error {
	g.settling.reach()
	if g.is(&g.noSettle) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.unsettled += len(takes)
		return errLostAnswer
	}
	return g.Gate.Settle(ctx, takes...)
}

func (g *hookedGate) Give(ctx context.Context, t stock.Take) error {
	if g.is(&g.noGive) {
		return errLostAnswer
	}
	return g.Gate.Give(ctx, t)
}

func (g *hookedGate) Adjust(ctx context.Context, c stock.Change) error {
	g.adjusting.reach()
	if g.is(&g.noAdjust) {
		return errLostAnswer
	}
	return g.Gate.Adjust(ctx, c)
}

func (g *hookedGate) is(flag *bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *flag
}

func (g *hookedGate) set(flag *bool, value bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	*flag = value
}

// hooked is an instance with hooks in its gate and its cutter.
type hooked struct {
	*instance
	gate   *hookedGate // nil without a gate
	cutter *hookedCutter
}

func (s *shop) openHooked(t *testing.T, set settings) hooked {
	t.Helper()
	var h hooked
	set.change = func(built *assembly.Strategy) {
		if built.Gate != nil {
			h.gate = &hookedGate{Gate: built.Gate}
			built.Gate = h.gate
		}
		h.cutter = new(hookedCutter)
		built.Cutter = h.cutter.over(built.Cutter)
	}
	h.instance = s.open(t, set)
	return h
}

var errSKUAway = errors.New("this SKU's server is away")

// partlyFailingGate is a gate that fails for one SKU, or for all.
type partlyFailingGate struct {
	stock.Gate
	bad stock.SKU
	all bool
}

func (g *partlyFailingGate) Adjust(ctx context.Context, c stock.Change) error {
	if g.all || c.SKU == g.bad {
		return errSKUAway
	}
	return g.Gate.Adjust(ctx, c)
}

func (g *partlyFailingGate) Level(ctx context.Context, skus ...stock.SKU) ([]stock.Level, error) {
	levels, err := g.Gate.Level(ctx, skus...)
	for i := range levels {
		if levels[i].SKU == g.bad {
			levels[i], err = stock.Level{SKU: g.bad, Err: errSKUAway}, errSKUAway
		}
	}
	return levels, err
}

// stuckGate is a gate that cannot give one SKU's units back.
type stuckGate struct {
	stock.Gate
	stuck stock.SKU
}

func (g *stuckGate) Give(ctx context.Context, d stock.Take) error {
	if slices.ContainsFunc(d.Lines, func(line stock.Line) bool { return line.SKU == g.stuck }) {
		return errSKUAway
	}
	return g.Gate.Give(ctx, d)
}

// openStuck starts an instance with a stuckGate.
func (s *shop) openStuck(t *testing.T, stuck stock.SKU) *instance {
	t.Helper()
	return s.open(t, settings{strategy: "lua", takeDeadline: immediateDeadline, change: func(built *assembly.Strategy) {
		built.Gate = &stuckGate{built.Gate, stuck}
	}})
}

// noFillGate is a gate that cannot be filled.
type noFillGate struct{ stock.Gate }

func (noFillGate) Fill(context.Context, stock.SKU, int64, int64) error { return errSKUAway }

func (noFillGate) FillAll(_ context.Context, fills []stock.Fill) []error {
	return slices.Repeat([]error{errSKUAway}, len(fills))
}

// loadCounter is a gate that counts loads, and fails the next fail of them.
type loadCounter struct {
	stock.Gate
	fail  int
	loads map[stock.Generation]int
}

func (g *loadCounter) Load(ctx context.Context, to stock.Generation) error {
	g.loads[to]++
	if g.fail > 0 {
		g.fail--
		return errors.New("the load failed")
	}
	return g.Gate.Load(ctx, to)
}
