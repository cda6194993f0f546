package reconcile

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// errUnreachable is the error of a store that cannot be reached.
var errUnreachable = errors.New("the store is unreachable")

// ownerRow is the one row of the table ledger, which instances share.
type ownerRow struct {
	mu    sync.Mutex
	owner ledger.Owner
}

// fakeLedger is an instance's ledger in memory. It follows the contract of Ledger.
type fakeLedger struct {
	*fakeJobs
	AuditLedger // nil: only the tests of package protocol audit stock
	shared      *ownerRow

	mu         sync.Mutex
	generation stock.Generation
	rows       map[stock.SKU]ledger.StockRow
	raises     []stock.SKU // calls of RaiseEpoch, in order
	onDeliver  func()      // called when the outbox is read, if not nil
	onPage     func()      // called when a page of rows is read, if not nil
	outcome    func() order.Outcome
	outbox     []stock.Change
	applied    []stock.Change // changes of the calls of Applied
}

func newLedger(shared *ownerRow) *fakeLedger {
	return &fakeLedger{fakeJobs: &fakeJobs{}, shared: shared, rows: make(map[stock.SKU]ledger.StockRow)}
}

func (l *fakeLedger) Generation() stock.Generation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.generation
}

func (l *fakeLedger) Use(g stock.Generation) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.generation = g
}

func (l *fakeLedger) Owner(ctx context.Context) (ledger.Owner, error) {
	if err := l.called(ctx, "Owner"); err != nil {
		return ledger.Owner{}, err
	}
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	return l.shared.owner, ctx.Err()
}

func (l *fakeLedger) Beat(ctx context.Context) (ledger.Owner, error) {
	if err := l.called(ctx, "Beat"); err != nil {
		return ledger.Owner{}, err
	}
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	l.shared.owner.Beat++
	return l.shared.owner, nil
}

func (l *fakeLedger) RaiseGeneration(ctx context.Context, seen, next ledger.Owner) error {
	if err := l.called(ctx, "RaiseGeneration"); err != nil {
		return err
	}
	l.shared.mu.Lock()
	defer l.shared.mu.Unlock()
	now := &l.shared.owner
	if now.Generation != seen.Generation || now.Layout != seen.Layout {
		return stock.ErrRowChanged
	}
	now.Generation, now.Layout, now.Queues = next.Generation, next.Layout, next.Queues
	return nil
}

func (l *fakeLedger) Row(_ context.Context, sku stock.SKU) (ledger.StockRow, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	row, ok := l.rows[sku]
	if !ok {
		return row, stock.Refuse(sku, stock.ErrUnknownSKU)
	}
	return row, nil
}

func (l *fakeLedger) Rows(_ context.Context, after stock.SKU, limit int) ([]ledger.StockRow, error) {
	if l.onPage != nil {
		l.onPage()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var page []ledger.StockRow
	for _, sku := range slices.Sorted(maps.Keys(l.rows)) {
		if sku > after && len(page) < limit {
			page = append(page, l.rows[sku])
		}
	}
	return page, nil
}

func (l *fakeLedger) RowsOf(_ context.Context, skus []stock.SKU) (rows []ledger.StockRow, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, sku := range slices.Sorted(slices.Values(skus)) {
		if row, ok := l.rows[sku]; ok {
			rows = append(rows, row)
		}
	}
	return rows, nil
}

func (l *fakeLedger) RaiseEpochs(ctx context.Context, seen []ledger.StockRow, above int64) (raised []ledger.StockRow, err error) {
	for _, row := range seen {
		row, err := l.RaiseEpoch(ctx, row.SKU, row.Epoch, above)
		switch {
		case errors.Is(err, stock.ErrRowChanged):
		case err != nil:
			return nil, err
		default:
			raised = append(raised, row)
		}
	}
	return raised, nil
}

func (l *fakeLedger) RaiseEpoch(_ context.Context, sku stock.SKU, seen, above int64) (ledger.StockRow, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	row := l.rows[sku]
	if row.Epoch != seen {
		return row, stock.ErrRowChanged
	}
	var err error
	if row.Epoch, err = l.generation.Renew(row.Epoch, above); err != nil {
		return row, err
	}
	l.rows[sku] = row
	l.raises = append(l.raises, sku)
	return row, nil
}

func (l *fakeLedger) Changes(ctx context.Context, _ stock.SKU, _ stock.Change) ([]stock.Change, bool, error) {
	if err := l.called(ctx, "Changes"); err != nil {
		return nil, false, err
	}
	if l.onDeliver != nil {
		l.onDeliver()
	}
	return l.outbox, true, nil
}

func (l *fakeLedger) Applied(_ context.Context, changes ...stock.Change) error {
	l.applied = append(l.applied, changes...)
	return nil
}

func (l *fakeLedger) Resolve(ctx context.Context, _ stock.Deduction) order.Outcome {
	if err := ctx.Err(); err != nil {
		return order.Unknown(err)
	}
	return l.outcome()
}

// redis is the data that the gates of several instances share.
type redis struct {
	mu     sync.Mutex
	mark   stock.Mark
	loaded map[stock.Generation]bool
	counts map[stock.SKU]stock.Level

	inFlight []stock.Take // takes in flight with records
}

func newRedis() *redis {
	return &redis{loaded: make(map[stock.Generation]bool), counts: make(map[stock.SKU]stock.Level)}
}

// fakeGate is an instance's counter in memory. It implements the parts of the contract of
// gate.Counter that the tests need, and records its calls.
type fakeGate struct {
	Counter // provides the methods that no test calls
	redis   *redis

	mu       sync.Mutex
	using    stock.Generation
	loads    []stock.Generation
	settled  [][]stock.Take // takes of each call of Settle
	given    []uuid.UUID    // IDs of takes given back
	adjusted []stock.Change // changes of the calls of Adjust
	tries    []time.Time    // times of Give and Settle

	unreadable func(stock.SKU) bool // SKUs for which Level fails, if not nil
	unlisted   bool                 // InFlight fails

	fail func(t stock.Take) error // called before Give and Settle, unless nil; they return its error

	onLoad, onLoaded func() error                                                           // called before Load and Loaded, unless nil; they return its error
	onMark           func(ctx context.Context) error                                        // called before Mark, unless nil; it returns its error
	adjusts          func(c stock.Change) error                                             // replaces Adjust, unless nil
	scan             func(ctx context.Context, cursor string) ([]stock.Take, string, error) // replaces ScanInFlight, unless nil
}

func newGate(r *redis) *fakeGate { return &fakeGate{redis: r} }

func (g *fakeGate) Use(to stock.Generation) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.using = to
}

func (g *fakeGate) Load(_ context.Context, generation stock.Generation) error {
	g.mu.Lock()
	g.loads = append(g.loads, generation)
	g.mu.Unlock()
	if g.onLoad != nil {
		if err := g.onLoad(); err != nil {
			return err
		}
	}
	g.redis.mu.Lock()
	defer g.redis.mu.Unlock()
	g.redis.loaded[generation] = true
	return nil
}

func (g *fakeGate) Loaded(context.Context) (bool, error) {
	g.mu.Lock()
	using := g.using
	g.mu.Unlock()
	if g.onLoaded != nil {
		if err := g.onLoaded(); err != nil {
			return false, err
		}
	}
	g.redis.mu.Lock()
	defer g.redis.mu.Unlock()
	return g.redis.loaded[using], nil
}

func (g *fakeGate) Mark(ctx context.Context) (stock.Mark, error) {
	if g.onMark != nil {
		if err := g.onMark(ctx); err != nil {
			return stock.Mark{}, err
		}
	}
	g.redis.mu.Lock()
	defer g.redis.mu.Unlock()
	return g.redis.mark, nil
}

func (g *fakeGate) SetMark(_ context.Context, m stock.Mark) error {
	g.redis.mu.Lock()
	defer g.redis.mu.Unlock()
	g.redis.mark = m
	return nil
}

func (g *fakeGate) Adjust(_ context.Context, c stock.Change) error {
	if g.adjusts != nil {
		return g.adjusts(c)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.adjusted = append(g.adjusted, c)
	return nil
}

func (g *fakeGate) Settle(_ context.Context, takes ...stock.Take) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tries = append(g.tries, time.Now())
	if g.fail != nil {
		if err := g.fail(takes[0]); err != nil {
			return err
		}
	}
	g.settled = append(g.settled, slices.Clone(takes))
	return nil
}

func (g *fakeGate) settleCalls() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.settled)
}

func (g *fakeGate) Give(ctx context.Context, t stock.Take) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tries = append(g.tries, time.Now())
	if g.fail != nil {
		if err := g.fail(t); err != nil {
			return err
		}
	}
	g.given = append(g.given, t.TakeID)
	return nil
}

func (g *fakeGate) Fill(_ context.Context, sku stock.SKU, epoch, units int64) error {
	g.redis.mu.Lock()
	defer g.redis.mu.Unlock()
	if epoch <= g.redis.counts[sku].Epoch {
		return stock.ErrStaleEpoch
	}
	g.redis.counts[sku] = stock.Level{SKU: sku, Filled: true, Epoch: epoch, Available: units}
	return nil
}

func (g *fakeGate) FillAll(ctx context.Context, fills []stock.Fill) []error {
	errs := make([]error, len(fills))
	for i, f := range fills {
		errs[i] = g.Fill(ctx, f.SKU, f.Epoch, f.Units)
	}
	return errs
}

func (g *fakeGate) ScanInFlight(ctx context.Context, _ time.Duration, cursor string) ([]stock.Take, string, error) {
	if g.scan != nil {
		return g.scan(ctx, cursor)
	}
	return nil, "", nil
}

// lists makes the gate list the takes in one step.
func (g *fakeGate) lists(takes ...stock.Take) {
	g.scan = func(context.Context, string) ([]stock.Take, string, error) { return takes, "", nil }
}

func (g *fakeGate) InFlight(_ context.Context, limit int, skus ...stock.SKU) (takes []stock.Take, err error) {
	if g.unlisted {
		return nil, errUnreachable
	}
	g.redis.mu.Lock()
	defer g.redis.mu.Unlock()
	takes = make([]stock.Take, 0, min(limit, len(g.redis.inFlight)))
	for _, t := range g.redis.inFlight {
		if slices.Contains(skus, t.Lines[0].SKU) && len(takes) < limit {
			t.Recorded = t.Lines
			takes = append(takes, t)
		}
	}
	return takes, nil
}

func (g *fakeGate) Level(_ context.Context, skus ...stock.SKU) ([]stock.Level, error) {
	g.redis.mu.Lock()
	defer g.redis.mu.Unlock()
	levels := make([]stock.Level, len(skus))
	var err error
	for i, sku := range skus {
		levels[i] = g.redis.counts[sku]
		levels[i].SKU = sku
		if g.unreadable != nil && g.unreadable(sku) {
			levels[i], err = stock.Level{SKU: sku, Err: errUnreachable}, errUnreachable
		}
	}
	return levels, err
}

// answering returns a hook that answers with err after a while, or when its context ends.
func answering(after time.Duration, err error) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(after): // in a bubble
			return err
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// newReconciler returns an instance's reconciler. gate is nil if there is none.
func newReconciler(gate *fakeGate, l Ledger) *Reconciler {
	var c Counter
	if gate != nil {
		c = gate
	}
	return newReconcilerOf(c, l)
}

// started returns a reconciler that has taken over the stock of row, and its fakes.
func started(t *testing.T, row *ownerRow) (*Reconciler, *fakeGate, *fakeLedger) {
	t.Helper()
	gate, l := newGate(newRedis()), newLedger(row)
	r := newReconciler(gate, l)
	t.Cleanup(r.Close)
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r, gate, l
}

// newReconcilerOf is newReconciler for any counter.
func newReconcilerOf(c Counter, l Ledger) *Reconciler {
	return New(c, l, Options{
		Layout: "fake", TakeDeadline: time.Minute, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
}

// takeOf returns the take of one unit of the SKU, cut under the epoch.
func takeOf(sku stock.SKU, epoch int64) stock.Take {
	return stock.Take{
		Deduction: stock.Deduction{
			OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "buyer-1", Lines: []stock.Line{{SKU: sku, Quantity: 1}},
		},
		Receipt: stock.Receipt{{Epoch: epoch}},
	}
}
