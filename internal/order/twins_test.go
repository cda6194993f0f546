package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// shop has a service over a gate, a ledger and a reconciler in memory, which follow
// their documented contracts. A test scripts their failures. It is for one goroutine.
type shop struct {
	*Service
	registry   *prometheus.Registry
	gate       *twinGate // nil if there is none
	ledger     *twinLedger
	reconciler *twinReconciler
}

// the SKUs of a shop.
const (
	apple stock.SKU = "apple"
	pear  stock.SKU = "pear"
)

// units is what a shop has of each SKU.
const units = 5

func newShop(withGate bool) *shop {
	s := &shop{
		registry: prometheus.NewRegistry(),
		ledger:   &twinLedger{epoch: 1, available: map[stock.SKU]int64{apple: units, pear: units}, orders: make(map[uuid.UUID]Order)},
	}
	var g Gate
	if withGate {
		s.gate = &twinGate{
			epoch: 1, available: map[stock.SKU]int64{apple: units, pear: units},
			inFlight: make(map[uuid.UUID]stock.Take), burned: make(map[uuid.UUID]bool),
		}
		g = s.gate
	}
	s.reconciler = &twinReconciler{gate: s.gate, ledger: s.ledger}
	s.Service = NewService(uuid.New(), g, s.ledger, s.reconciler, s.registry)
	return s
}

// atRest asserts that so many units of apple were sold, that no unit is lost or in
// flight, and that every take has ended.
func (s *shop) atRest(t *testing.T, sold int64) {
	t.Helper()
	if got := s.ledger.sold(apple); got != sold {
		t.Errorf("%d units were sold, want %d", got, sold)
	}
	for sku, available := range s.ledger.available {
		if sold := s.ledger.sold(sku); available+sold != units {
			t.Errorf("%s: the ledger has %d available and %d sold of %d", sku, available, sold, units)
		}
		if s.gate != nil && s.gate.available[sku] != available {
			t.Errorf("%s: the gate has %d available, the ledger %d", sku, s.gate.available[sku], available)
		}
	}
	if s.gate != nil && len(s.gate.inFlight) > 0 {
		t.Errorf("%d takes are in flight", len(s.gate.inFlight))
	}
	if s.reconciler.open > 0 {
		t.Errorf("%d takes are open", s.reconciler.open)
	}
}

// twinGate is a gate with one epoch for all SKUs.
type twinGate struct {
	epoch     int64
	available map[stock.SKU]int64      // of the SKUs that are filled
	inFlight  map[uuid.UUID]stock.Take // by order
	burned    map[uuid.UUID]bool       // by take
	takes     int                      // calls of Take

	refuse func() error // if not nil, called before a take; an error is its answer
	lost   error        // if not nil, the answer of a take that was cut
	stuck  error        // if not nil, the answer of every give
}

func (g *twinGate) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	g.takes++
	if err := ctx.Err(); err != nil {
		return stock.Take{}, err
	}
	if g.refuse != nil {
		if err := g.refuse(); err != nil {
			return stock.Take{}, err
		}
	}
	if t, ok := g.inFlight[d.OrderID]; ok {
		if t.TakeID == d.TakeID {
			return t, nil
		}
		return stock.Take{}, stock.ErrInFlight
	}
	if g.burned[d.TakeID] {
		return stock.Take{}, stock.ErrBurned
	}
	for _, line := range d.Lines {
		switch available, filled := g.available[line.SKU]; {
		case !filled:
			return stock.Take{}, stock.Refuse(line.SKU, stock.ErrNotFilled)
		case available < line.Quantity:
			return stock.Take{}, stock.Refuse(line.SKU, stock.ErrSoldOut)
		}
	}
	t := stock.Take{Deduction: d}
	for _, line := range d.Lines {
		g.available[line.SKU] -= line.Quantity
		t.Receipt = append(t.Receipt, stock.Cut{Epoch: g.epoch})
	}
	g.inFlight[d.OrderID] = t
	if g.lost != nil {
		return stock.Take{}, g.lost
	}
	return t, nil
}

// settle removes the take, if it is in flight.
func (g *twinGate) settle(t stock.Take) {
	if g.inFlight[t.OrderID].TakeID == t.TakeID {
		delete(g.inFlight, t.OrderID)
	}
}

// give returns the take's units, or burns the take.
func (g *twinGate) give(t stock.Take) error {
	if g.stuck != nil {
		return g.stuck
	}
	taken, ok := g.inFlight[t.OrderID]
	if !ok || taken.TakeID != t.TakeID {
		g.burned[t.TakeID] = true
		return nil
	}
	for i, line := range taken.Lines {
		if taken.Epoch(i) == g.epoch {
			g.available[line.SKU] += line.Quantity
		}
	}
	delete(g.inFlight, t.OrderID)
	return nil
}

// fill replaces all counts and drops what is in flight.
func (g *twinGate) fill(epoch int64, available map[stock.SKU]int64) {
	g.epoch = epoch
	clear(g.inFlight)
	for sku, units := range available {
		g.available[sku] = units
	}
}

// twinLedger is a ledger with one epoch for all SKUs.
type twinLedger struct {
	epoch     int64
	available map[stock.SKU]int64
	orders    map[uuid.UUID]Order
	records   int // calls of Record

	before func(t stock.Take)                           // if not nil, called before a take is recorded
	answer func(out ledger.Outcome) ledger.Outcome      // if not nil, replaces the answer of Record
	read   func(id uuid.UUID) (found *Order, err error) // if not nil, replaces Order
	away   error                                        // if not nil, the ledger cannot resolve a take
}

func (l *twinLedger) Record(ctx context.Context, t stock.Take) (Order, ledger.Outcome) {
	l.records++
	if l.before != nil {
		l.before(t)
	}
	o := Order{
		ID: t.OrderID, TakeID: t.TakeID, Buyer: t.Buyer, Status: ledger.Pending, Lines: t.Lines,
		Strategy: "twin", CreatedAt: ledger.Now(),
	}
	out := ledger.Unknown(ctx.Err())
	if ctx.Err() == nil {
		out = l.record(t, o)
	}
	if l.answer != nil {
		out = l.answer(out)
	}
	return o, out
}

func (l *twinLedger) record(t stock.Take, o Order) ledger.Outcome {
	if found, ok := l.orders[o.ID]; ok {
		if found.TakeID == o.TakeID && found.Status != ledger.Void {
			return ledger.Committed()
		}
		return ledger.Duplicate(&found)
	}
	for i, line := range t.Lines {
		switch available, ok := l.available[line.SKU]; {
		case !ok:
			return ledger.Refused(stock.Refuse(line.SKU, stock.ErrUnknownSKU))
		case t.Epoch(i) != 0 && t.Epoch(i) != l.epoch:
			return ledger.Refused(stock.Refuse(line.SKU, stock.ErrStaleEpoch))
		case available < line.Quantity:
			return ledger.Refused(stock.Refuse(line.SKU, stock.ErrSoldOut))
		}
	}
	for _, line := range t.Lines {
		l.available[line.SKU] -= line.Quantity
	}
	l.orders[o.ID] = o
	return ledger.Committed()
}

// resolve inserts a void order under the take's order ID, unless the ID is used.
func (l *twinLedger) resolve(t stock.Take) ledger.Outcome {
	if l.away != nil {
		return ledger.Unknown(l.away)
	}
	found, ok := l.orders[t.OrderID]
	switch {
	case !ok:
		l.void(t.OrderID)
	case found.TakeID == t.TakeID && found.Status != ledger.Void:
		return ledger.Committed()
	}
	return ledger.Refused(errors.New("the order was not committed and never will be"))
}

// void inserts a void order of another take.
func (l *twinLedger) void(id uuid.UUID) {
	l.orders[id] = Order{ID: id, TakeID: uuid.New(), Status: ledger.Void, CreatedAt: ledger.Now()}
}

func (l *twinLedger) Order(_ context.Context, id uuid.UUID) (*Order, error) {
	if l.read != nil {
		return l.read(id)
	}
	if o, ok := l.orders[id]; ok {
		return &o, nil
	}
	return nil, ledger.ErrNoOrder
}

// sold adds up the SKU's units in pending and paid orders.
func (l *twinLedger) sold(sku stock.SKU) (sold int64) {
	for _, o := range l.orders {
		if o.Status != ledger.Pending && o.Status != ledger.Paid {
			continue
		}
		for _, line := range o.Lines {
			if line.SKU == sku {
				sold += line.Quantity
			}
		}
	}
	return sold
}

// twinReconciler reconciles the twins.
type twinReconciler struct {
	gate   *twinGate // nil if there is none
	ledger *twinLedger
	open   int           // takes that could not be ended
	mended [][]stock.SKU // by the calls of Mend

	unusable error // if not nil, the answer of Usable
	cannot   error // if not nil, the answer of Mend
}

func (r *twinReconciler) Usable(context.Context) error { return r.unusable }

func (r *twinReconciler) Mend(_ context.Context, reason error, skus ...stock.SKU) error {
	r.mended = append(r.mended, skus)
	if !stock.Reconcilable(reason) {
		return fmt.Errorf("asked to mend %w", reason)
	}
	if r.cannot != nil {
		return r.cannot
	}
	for _, sku := range skus {
		if _, ok := r.ledger.available[sku]; !ok {
			return stock.Refuse(sku, stock.ErrUnknownSKU)
		}
	}
	r.ledger.epoch++
	if r.gate != nil {
		r.gate.fill(r.ledger.epoch, r.ledger.available)
	}
	return nil
}

func (r *twinReconciler) End(ctx context.Context, t stock.Take, out ledger.Outcome) ledger.Outcome {
	if out.Unknown() {
		switch resolved := r.ledger.resolve(t); {
		case resolved.Unknown():
			out = ledger.Unknown(errors.Join(out.Reason(), resolved.Reason()))
		case resolved.Refused():
			out = ledger.Refused(fmt.Errorf("%w: %w", stock.ErrBusy, out.Reason()))
		default:
			out = resolved
		}
	}
	switch {
	case out.Unknown():
		r.open++
	case !out.Committed():
		r.GiveBack(ctx, t)
	case r.gate != nil:
		r.gate.settle(t)
	}
	return out
}

func (r *twinReconciler) GiveBack(_ context.Context, t stock.Take) bool {
	if r.gate == nil {
		return true
	}
	if err := r.gate.give(t); err != nil {
		r.open++
		return false
	}
	return true
}

// ask is a request for one unit of apple.
func ask() Request { return asking(apple) }

// asking is a request for one unit of each SKU.
func asking(skus ...stock.SKU) Request {
	r := Request{Buyer: "buyer-1"}
	for _, sku := range skus {
		r.Lines = append(r.Lines, stock.Line{SKU: sku, Quantity: 1})
	}
	return r
}

// keyed is a request for one unit of apple under a key.
func keyed() Request {
	r := ask()
	r.Key = "key-1"
	return r
}

// mustPlace places an order that must be accepted and new.
func (s *shop) mustPlace(t *testing.T, r Request) Order {
	t.Helper()
	o, replayed, err := s.Place(t.Context(), r)
	if err != nil || replayed {
		t.Fatalf("placing %v: replayed %v, %v", r.Lines, replayed, err)
	}
	return o
}

func sameOrder(a, b Order) bool {
	return a.ID == b.ID && a.TakeID == b.TakeID && a.Buyer == b.Buyer && a.Status == b.Status &&
		a.Strategy == b.Strategy && a.CreatedAt.Equal(b.CreatedAt) && slices.Equal(a.Lines, b.Lines)
}
