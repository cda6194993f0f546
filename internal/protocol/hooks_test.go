package protocol

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter/cuttertest"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/gate"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// hook is a place in the code where a test can stop a goroutine.
type hook struct {
	mu      sync.Mutex
	armed   bool
	reached chan struct{}
	proceed chan struct{}
}

// arm makes the hook stop the next goroutine that reaches it. reached is closed when the goroutine
// has stopped. proceed lets the goroutine continue, and may be called again.
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

// halt begins a call, and returns when the call has stopped at the hook. proceed lets the call
// continue, as the end of the test does.
func halt[A any](t *testing.T, at *hook, begin func() <-chan A) (answer <-chan A, proceed func()) {
	t.Helper()
	reached, proceed := at.arm()
	t.Cleanup(proceed)
	answer = begin()
	testenv.Receive(t, "the call reaches the hook", reached)
	return answer, proceed
}

// haltPlace is halt for an order.
func haltPlace(t *testing.T, at *hook, i *instance, r order.Request) (answer <-chan reply, proceed func()) {
	t.Helper()
	return halt(t, at, func() <-chan reply { return place(t.Context(), i, r) })
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

// hookedGate is a gate with a hook after a take, and a hook before its counter adjusts. It can lose
// answers.
type hookedGate struct {
	gate.Gate
	taken, adjusting hook
	loseTake         atomic.Bool // loses the answer to the next take
	noAdjust         atomic.Bool // adjusts fail
}

var errLostAnswer = errors.New("the answer was lost")

func (g *hookedGate) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	taken, err := g.Gate.Take(ctx, d)
	if err == nil {
		g.taken.reach()
	}
	if err == nil && g.loseTake.CompareAndSwap(true, false) {
		return taken, errLostAnswer
	}
	return taken, err
}

// around stops the commands of the counter at hooks, and makes them fail.
func (g *hookedGate) around(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error) error {
	if gate.ScriptName(cmds[0]) == "adjust" {
		g.adjusting.reach()
		if g.noAdjust.Load() {
			return errLostAnswer
		}
	}
	return run(ctx)
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
	g := new(hookedGate)
	set.around = g.around
	set.change = func(built *assembly.Strategy) {
		if built.Gate != nil {
			g.Gate, built.Gate, h.gate = built.Gate, g, g
		}
		h.cutter = new(hookedCutter)
		built.Cutter = h.cutter.over(built.Cutter)
	}
	h.instance = s.open(t, set)
	return h
}

var errSKUUnreachable = errors.New("this SKU's server is unreachable")

// mentions reports whether the SKU is an argument of the command.
func mentions(cmd redis.Cmder, sku stock.SKU) bool {
	return slices.ContainsFunc(cmd.Args(), func(arg any) bool {
		text, ok := arg.(*string)
		return arg == string(sku) || ok && *text == string(sku)
	})
}

// badSKU makes adjustments and reads of one SKU fail, or all adjustments.
type badSKU struct {
	sku stock.SKU
	all bool
}

func (b *badSKU) around(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error) error {
	if gate.ScriptName(cmds[0]) == "adjust" && (b.all || mentions(cmds[0], b.sku)) {
		return errSKUUnreachable
	}
	err := run(ctx)
	for _, cmd := range cmds {
		if cmd.Name() == "hmget" && mentions(cmd, b.sku) {
			cmd.SetErr(errSKUUnreachable)
		}
	}
	return err
}
