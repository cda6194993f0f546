package order

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// shop has a service over a gate, a ledger and a reconciler in memory, which implement their
// documented contracts. A test sets their failures. It is not safe for concurrent use.
type shop struct {
	*Service
	registry   *prometheus.Registry
	gate       *fakeGate // nil: the shop has no gate
	ledger     *fakeLedger
	reconciler *fakeReconciler
}

// the SKUs of a shop.
const (
	apple stock.SKU = "apple"
	pear  stock.SKU = "pear"
)

// units is the number of units of each SKU in a shop.
const units = 5

func newShop(withGate bool) *shop {
	s := &shop{
		registry: prometheus.NewRegistry(),
		ledger:   &fakeLedger{epoch: 1, available: map[stock.SKU]int64{apple: units, pear: units}, orders: make(map[uuid.UUID]Order), payments: make(map[string]Payment), histories: make(map[uuid.UUID][]Step)},
	}
	var g Gate
	if withGate {
		s.gate = &fakeGate{
			epoch: 1, available: map[stock.SKU]int64{apple: units, pear: units},
			inFlight: make(map[uuid.UUID]stock.Take), burned: make(map[uuid.UUID]bool),
		}
		g = s.gate
	}
	s.reconciler = &fakeReconciler{gate: s.gate, ledger: s.ledger}
	s.Service = NewService(uuid.New(), g, s.ledger, s.reconciler, Options{Late: Revive}, s.registry)
	return s
}

// now returns the time as the ledger stores it.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// atRest checks that the given number of units of apple were sold, that no unit is lost or in
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

// fakeGate is a gate with one epoch for all SKUs.
type fakeGate struct {
	epoch     int64
	available map[stock.SKU]int64      // available units of the filled SKUs
	inFlight  map[uuid.UUID]stock.Take // takes in flight, by order
	burned    map[uuid.UUID]bool       // burned takes
	takes     int                      // number of calls of Take

	refuse func() error // called before a take, unless nil; take returns its error
	lost   error        // the answer of a take that was cut, if not nil
	stuck  error        // the answer of every give, if not nil

	*flaky
}

func (g *fakeGate) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	if err := g.call("Take"); err != nil {
		return stock.Take{}, err
	}
	return g.take(ctx, d)
}

func (g *fakeGate) take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
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
func (g *fakeGate) settle(t stock.Take) {
	if g.inFlight[t.OrderID].TakeID == t.TakeID {
		delete(g.inFlight, t.OrderID)
	}
}

// give returns the take's units, or burns the take.
func (g *fakeGate) give(t stock.Take) error {
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

// fill replaces the counts and drops what is in flight.
func (g *fakeGate) fill(epoch int64, available map[stock.SKU]int64) {
	g.epoch = epoch
	clear(g.inFlight)
	for sku, units := range available {
		g.available[sku] = units
	}
}

// fakeLedger is a ledger with one epoch for all SKUs.
type fakeLedger struct {
	epoch     int64
	available map[stock.SKU]int64
	orders    map[uuid.UUID]Order
	payments  map[string]Payment
	histories map[uuid.UUID][]Step
	records   int // number of calls of Record

	before      func(t stock.Take)                           // called before a take is recorded, if not nil
	answer      func(out Outcome) Outcome                    // replaces the answer of Record, if not nil
	read        func(id uuid.UUID) (found *Order, err error) // replaces Order, if not nil
	unreachable error                                        // error of resolving a take, if not nil

	*flaky
}

func (l *fakeLedger) Record(ctx context.Context, t stock.Take) (Order, Outcome) {
	if err := l.call("Record"); err != nil {
		return Order{}, l.outcome(err)
	}
	l.records++
	if l.before != nil {
		l.before(t)
	}
	o := Order{
		ID: t.OrderID, TakeID: t.TakeID, Buyer: t.Buyer, Status: Pending, Lines: t.Lines,
		Strategy: "fake", CreatedAt: now(),
	}
	out := Unknown(ctx.Err())
	if ctx.Err() == nil {
		out = l.record(t, o)
	}
	if l.answer != nil {
		out = l.answer(out)
	}
	return o, out
}

func (l *fakeLedger) record(t stock.Take, o Order) Outcome {
	if found, ok := l.orders[o.ID]; ok {
		if found.TakeID == o.TakeID && found.Status != Void {
			return Committed()
		}
		return Duplicate(&found)
	}
	for i, line := range t.Lines {
		switch available, ok := l.available[line.SKU]; {
		case !ok:
			return Refused(stock.Refuse(line.SKU, stock.ErrUnknownSKU))
		case t.Epoch(i) != 0 && t.Epoch(i) != l.epoch:
			return Refused(stock.Refuse(line.SKU, stock.ErrStaleEpoch))
		case available < line.Quantity:
			return Refused(stock.Refuse(line.SKU, stock.ErrSoldOut))
		}
	}
	for _, line := range t.Lines {
		l.available[line.SKU] -= line.Quantity
	}
	l.orders[o.ID] = o
	return Committed()
}

// resolve inserts a void order under the take's order ID, unless the ID is used.
func (l *fakeLedger) resolve(t stock.Take) Outcome {
	if l.unreachable != nil {
		return Unknown(l.unreachable)
	}
	found, ok := l.orders[t.OrderID]
	switch {
	case !ok:
		l.void(t.OrderID)
	case found.TakeID == t.TakeID && found.Status != Void:
		return Committed()
	}
	return Refused(errors.New("the order was not committed and never will be"))
}

// void inserts a void order of another take.
func (l *fakeLedger) void(id uuid.UUID) {
	l.orders[id] = Order{ID: id, TakeID: uuid.New(), Status: Void, CreatedAt: now()}
}

func (l *fakeLedger) Order(_ context.Context, id uuid.UUID) (*Order, error) {
	if err := l.call("Order"); err != nil {
		return nil, err
	}
	if l.read != nil {
		return l.read(id)
	}
	if o, ok := l.orders[id]; ok {
		return &o, nil
	}
	return nil, ErrUnknownOrder
}

// Change makes the change that decide chooses. An order is due if it expires at all.
func (l *fakeLedger) Change(_ context.Context, id uuid.UUID, options ChangeOptions, decide Decide) (_ Order, returned []stock.Change, _ error) {
	if err := l.call("Change"); err != nil {
		return Order{}, nil, err
	}
	o, ok := l.orders[id]
	if !ok || o.Status == Void || options.Buyer != "" && options.Buyer != o.Buyer {
		return Order{}, nil, ErrUnknownOrder
	}
	state := Locked{Order: o, Due: !o.ExpiresAt.IsZero()}
	if p, ok := l.payments[options.Payment]; ok {
		state.Payment = &p
	}
	c, err := decide(state)
	if err != nil {
		return o, nil, err
	}
	if c.Returns && !options.Returns {
		return Order{}, nil, errors.New("units may return, but the stock rows were not locked")
	}
	if c.To != "" {
		o.Status, o.Restocked = c.To, c.To == Refunded && c.Returns
		if c.To == Paid {
			o.PaymentID = c.PaymentID
		}
		l.save(o)
	}
	if c.PaymentID != "" {
		l.payments[c.PaymentID] = Payment{ID: c.PaymentID, OrderID: id, Status: c.PaymentStatus}
	}
	if c.Returns {
		for _, line := range o.Lines {
			l.available[line.SKU] += line.Quantity
			returned = append(returned, stock.Change{SKU: line.SKU, Delta: line.Quantity})
		}
	}
	return l.orders[id], returned, nil
}

// save stores a change of the order.
func (l *fakeLedger) save(o Order) {
	o.Version++
	l.orders[o.ID] = o
	l.histories[o.ID] = append(l.histories[o.ID], Step{Status: o.Status, At: now()})
}

func (l *fakeLedger) Revive(_ context.Context, expired Order, t stock.Take, payment string) (Order, Outcome) {
	if err := l.call("Revive"); err != nil {
		return Order{}, l.outcome(err)
	}
	o := l.orders[expired.ID]
	if o.Status != Expired || o.Version != expired.Version {
		return Order{}, Refused(stock.ErrRowChanged)
	}
	if t.Buyer != o.Buyer {
		return Order{}, Refused(errors.New("the take counts towards another buyer's limit"))
	}
	for i, line := range t.Lines {
		switch {
		case t.Epoch(i) != 0 && t.Epoch(i) != l.epoch:
			return Order{}, Refused(stock.Refuse(line.SKU, stock.ErrStaleEpoch))
		case l.available[line.SKU] < line.Quantity:
			return Order{}, Refused(stock.Refuse(line.SKU, stock.ErrSoldOut))
		}
	}
	for _, line := range t.Lines {
		l.available[line.SKU] -= line.Quantity
	}
	o.Status, o.TakeID, o.PaymentID = Paid, t.TakeID, payment
	l.save(o)
	l.payments[payment] = Payment{ID: payment, OrderID: o.ID, Status: PaymentPaid}
	out := Committed()
	if l.answer != nil {
		out = l.answer(out)
	}
	return l.orders[o.ID], out
}

// refuse records that the order of a take was refused after it was queued.
func (l *fakeLedger) refuse(t stock.Take) {
	l.orders[t.OrderID] = Order{ID: t.OrderID, TakeID: t.TakeID, Buyer: t.Buyer, Status: TurnedDown, Lines: t.Lines}
}

func (l *fakeLedger) Refunded(_ context.Context, payment string) (Payment, error) {
	if err := l.call("Refunded"); err != nil {
		return Payment{}, err
	}
	p, ok := l.payments[payment]
	if !ok {
		return p, ErrUnknownPayment
	}
	if p.Status == PaymentRefundDue {
		p.Status = PaymentRefunded
		l.payments[payment] = p
	}
	return p, nil
}

func (l *fakeLedger) History(_ context.Context, id uuid.UUID, version int64) ([]Step, error) {
	if err := l.call("History"); err != nil {
		return nil, err
	}
	return l.histories[id][:version], nil
}

func (l *fakeLedger) Orders(_ context.Context, f Filter) (page []Order, err error) {
	if err := l.call("Orders"); err != nil {
		return nil, err
	}
	for _, o := range l.orders {
		page = append(page, o)
	}
	slices.SortFunc(page, func(a, b Order) int { return bytes.Compare(a.ID[:], b.ID[:]) })
	page = slices.DeleteFunc(page, func(o Order) bool { return bytes.Compare(o.ID[:], f.After[:]) <= 0 })
	return page[:min(f.Limit, len(page))], nil
}

func (l *fakeLedger) Payments(_ context.Context, f PaymentFilter) (page []Payment, err error) {
	if err := l.call("Payments"); err != nil {
		return nil, err
	}
	for _, id := range slices.Sorted(maps.Keys(l.payments)) {
		if id > f.After && len(page) < f.Limit {
			page = append(page, l.payments[id])
		}
	}
	return page, nil
}

// sold adds up the SKU's units in orders that hold their units.
func (l *fakeLedger) sold(sku stock.SKU) (sold int64) {
	for _, o := range l.orders {
		holds := o.Status == Pending || o.Status == Paid || o.Status == Refunded && !o.Restocked
		if !holds {
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

// fakeReconciler reconciles the fakes.
type fakeReconciler struct {
	gate   *fakeGate // nil: the shop has no gate
	ledger *fakeLedger
	open   int // takes that could not be ended

	unusable error // the answer of Usable, if not nil
	cannot   error // the answer of PrepareRetry, if not nil

	*flaky
}

func (r *fakeReconciler) Usable(context.Context) error {
	return cmp.Or(r.call("Usable"), r.unusable)
}

// PrepareRetry fills the counts of the SKUs, and no others.
func (r *fakeReconciler) PrepareRetry(_ context.Context, reason error, skus ...stock.SKU) error {
	if err := r.call("PrepareRetry"); err != nil {
		return err
	}
	if !stock.Reconcilable(reason) {
		return fmt.Errorf("asked to prepare a retry that is not possible: %v", reason) // not that reason itself
	}
	if r.cannot != nil {
		return r.cannot
	}
	counts := make(map[stock.SKU]int64)
	for _, sku := range skus {
		available, ok := r.ledger.available[sku]
		if !ok {
			return stock.Refuse(sku, stock.ErrUnknownSKU)
		}
		counts[sku] = available
	}
	r.ledger.epoch++
	if r.gate != nil {
		r.gate.fill(r.ledger.epoch, counts)
	}
	return nil
}

// CatchUp sets the gate's counts to the ledger's, less what is in flight.
func (r *fakeReconciler) CatchUp(_ context.Context, skus ...stock.SKU) error {
	if err := r.call("CatchUp"); err != nil {
		return err
	}
	for _, sku := range skus {
		r.update(sku)
	}
	return nil
}

func (r *fakeReconciler) FinishTake(_ context.Context, t stock.Take, out Outcome) Outcome {
	if err := r.call("FinishTake"); err != nil && !out.Committed() {
		return Unknown(errors.Join(out.Reason(), err))
	}
	if out.Unknown() {
		switch resolved := r.ledger.resolve(t); {
		case resolved.Unknown():
			out = Unknown(errors.Join(out.Reason(), resolved.Reason()))
		case resolved.Refused():
			out = Refused(fmt.Errorf("%w: %w", stock.ErrBusy, out.Reason()))
		default:
			out = resolved
		}
	}
	switch {
	case out.Unknown():
		r.open++
	case !out.Committed():
		r.giveBack(t)
	case r.gate != nil:
		r.gate.settle(t)
	}
	return out
}

func (r *fakeReconciler) GiveBack(_ context.Context, t stock.Take) bool {
	return r.call("GiveBack") == nil && r.giveBack(t)
}

func (r *fakeReconciler) giveBack(t stock.Take) bool {
	if r.gate == nil {
		return true
	}
	if err := r.gate.give(t); err != nil {
		r.open++
		return false
	}
	return true
}

// BringToGate sets the gate's counts to the ledger's, less what is in flight.
func (r *fakeReconciler) BringToGate(_ context.Context, additions ...stock.Change) {
	if r.call("BringToGate") != nil {
		return
	}
	for _, c := range additions {
		r.update(c.SKU)
	}
}

// update sets the gate's count to the ledger's, less what is in flight.
func (r *fakeReconciler) update(sku stock.SKU) {
	if r.gate == nil {
		return
	}
	r.gate.available[sku] = r.ledger.available[sku]
	for _, t := range r.gate.inFlight {
		for _, line := range t.Lines {
			if line.SKU == sku {
				r.gate.available[sku] -= line.Quantity
			}
		}
	}
}

// fakeQueue is a queue. It is not safe for concurrent use.
type fakeQueue struct {
	gate    *fakeGate
	ledger  *fakeLedger
	takes   map[uuid.UUID]stock.Take // by order
	consume func(stock.Take)         // ends an order as soon as it is queued, if not nil

	*flaky
}

func (q *fakeQueue) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	if err := q.call("Queue"); err != nil {
		return stock.Take{}, err
	}
	if _, ok := q.takes[d.OrderID]; ok {
		return stock.Take{}, stock.ErrInFlight
	}
	t, err := q.gate.take(ctx, d)
	if err != nil {
		return t, err
	}
	t.QueuedAt = time.Now()
	if q.consume != nil {
		q.consume(t)
	} else {
		q.takes[t.OrderID] = t
	}
	return t, nil
}

func (q *fakeQueue) Accept(_ context.Context, t stock.Take, keyed bool) (Order, Outcome) {
	if err := q.call("Accept"); err != nil {
		return Order{}, q.outcome(err)
	}
	if found, ok := q.ledger.orders[t.OrderID]; ok && keyed && found.TakeID != t.TakeID {
		delete(q.takes, t.OrderID)
		_ = q.gate.give(t)
		return Order{}, Duplicate(&found)
	}
	return queuedOrder(t), Committed()
}

func (q *fakeQueue) Order(_ context.Context, id uuid.UUID) (*Order, error) {
	if err := q.call("Queued"); err != nil {
		return nil, err
	}
	t, ok := q.takes[id]
	if !ok {
		return nil, ErrUnknownOrder
	}
	o := queuedOrder(t)
	return &o, nil
}

func queuedOrder(t stock.Take) Order {
	return Order{ID: t.OrderID, TakeID: t.TakeID, Buyer: t.Buyer, Status: Queued, Lines: t.Lines, CreatedAt: t.QueuedAt}
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
