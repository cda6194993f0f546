package order

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// flaky makes one call of a service to its stores or its reconciler fail. The failed call has no
// effect.
type flaky struct {
	at    int      // the call that fails, counted from 1
	err   error    // error of the failed call
	lost  bool     // the error means an unknown outcome, and not a refusal
	calls []string // names of all calls
}

// hit records a call, and returns the error if this call must fail.
func (f *flaky) hit(name string) error {
	f.calls = append(f.calls, name)
	if len(f.calls) == f.at {
		return f.err
	}
	return nil
}

// outcome is the outcome of a call that failed with err.
func (f *flaky) outcome(err error) Outcome {
	if f.lost {
		return Unknown(err)
	}
	return Refused(err)
}

// makeFlaky puts f between the shop's service and everything that it calls.
func (s *shop) makeFlaky(f *flaky) {
	if s.Service.gate != nil {
		s.Service.gate = flakyGate{s.Service.gate, f}
	}
	if s.queue != nil {
		s.queue = flakyQueue{s.queue, f}
	}
	s.Service.ledger = flakyLedger{s.Service.ledger, f}
	s.Service.reconciler = flakyReconciler{s.Service.reconciler, f}
}

type flakyGate struct {
	Gate
	f *flaky
}

func (g flakyGate) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	if err := g.f.hit("Take"); err != nil {
		return stock.Take{}, err
	}
	return g.Gate.Take(ctx, d)
}

type flakyQueue struct {
	inner Queue
	f     *flaky
}

func (q flakyQueue) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	if err := q.f.hit("Queue"); err != nil {
		return stock.Take{}, err
	}
	return q.inner.Take(ctx, d)
}

func (q flakyQueue) Accept(ctx context.Context, t stock.Take, keyed bool) (Order, Outcome) {
	if err := q.f.hit("Accept"); err != nil {
		return Order{}, q.f.outcome(err)
	}
	return q.inner.Accept(ctx, t, keyed)
}

func (q flakyQueue) Order(ctx context.Context, id uuid.UUID) (*Order, error) {
	if err := q.f.hit("Queued"); err != nil {
		return nil, err
	}
	return q.inner.Order(ctx, id)
}

type flakyLedger struct {
	Ledger
	f *flaky
}

func (l flakyLedger) Record(ctx context.Context, t stock.Take) (Order, Outcome) {
	if err := l.f.hit("Record"); err != nil {
		return Order{}, l.f.outcome(err)
	}
	return l.Ledger.Record(ctx, t)
}

func (l flakyLedger) Revive(ctx context.Context, expired Order, t stock.Take, payment string) (Order, Outcome) {
	if err := l.f.hit("Revive"); err != nil {
		return Order{}, l.f.outcome(err)
	}
	return l.Ledger.Revive(ctx, expired, t, payment)
}

func (l flakyLedger) Order(ctx context.Context, id uuid.UUID) (*Order, error) {
	if err := l.f.hit("Order"); err != nil {
		return nil, err
	}
	return l.Ledger.Order(ctx, id)
}

func (l flakyLedger) Change(ctx context.Context, id uuid.UUID, options ChangeOptions, decide Decide) (Order, []stock.Change, error) {
	if err := l.f.hit("Change"); err != nil {
		return Order{}, nil, err
	}
	return l.Ledger.Change(ctx, id, options, decide)
}

func (l flakyLedger) Refunded(ctx context.Context, payment string) (Payment, error) {
	if err := l.f.hit("Refunded"); err != nil {
		return Payment{}, err
	}
	return l.Ledger.Refunded(ctx, payment)
}

func (l flakyLedger) History(ctx context.Context, id uuid.UUID, version int64) ([]Step, error) {
	if err := l.f.hit("History"); err != nil {
		return nil, err
	}
	return l.Ledger.History(ctx, id, version)
}

func (l flakyLedger) Orders(ctx context.Context, filter Filter) ([]Order, error) {
	if err := l.f.hit("Orders"); err != nil {
		return nil, err
	}
	return l.Ledger.Orders(ctx, filter)
}

func (l flakyLedger) Payments(ctx context.Context, filter PaymentFilter) ([]Payment, error) {
	if err := l.f.hit("Payments"); err != nil {
		return nil, err
	}
	return l.Ledger.Payments(ctx, filter)
}

type flakyReconciler struct {
	Reconciler
	f *flaky
}

func (r flakyReconciler) Usable(ctx context.Context) error {
	if err := r.f.hit("Usable"); err != nil {
		return err
	}
	return r.Reconciler.Usable(ctx)
}

func (r flakyReconciler) PrepareRetry(ctx context.Context, reason error, skus ...stock.SKU) error {
	if err := r.f.hit("PrepareRetry"); err != nil {
		return err
	}
	return r.Reconciler.PrepareRetry(ctx, reason, skus...)
}

func (r flakyReconciler) FinishTake(ctx context.Context, t stock.Take, out Outcome) Outcome {
	if err := r.f.hit("FinishTake"); err != nil && !out.Committed() {
		return Unknown(errors.Join(out.Reason(), err))
	}
	return r.Reconciler.FinishTake(ctx, t, out)
}

func (r flakyReconciler) GiveBack(ctx context.Context, t stock.Take) bool {
	return r.f.hit("GiveBack") == nil && r.Reconciler.GiveBack(ctx, t)
}

func (r flakyReconciler) BringToGate(ctx context.Context, additions ...stock.Change) {
	if r.f.hit("BringToGate") == nil {
		r.Reconciler.BringToGate(ctx, additions...)
	}
}

// fakeQueue is a queue. It is for one goroutine.
type fakeQueue struct {
	gate    *fakeGate
	ledger  *fakeLedger
	takes   map[uuid.UUID]stock.Take // by order
	consume func(stock.Take)         // ends an order as soon as it is queued, if not nil
}

func (q *fakeQueue) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	if _, ok := q.takes[d.OrderID]; ok {
		return stock.Take{}, stock.ErrInFlight
	}
	t, err := q.gate.Take(ctx, d)
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
	if found, ok := q.ledger.orders[t.OrderID]; ok && keyed && found.TakeID != t.TakeID {
		delete(q.takes, t.OrderID)
		_ = q.gate.give(t)
		return Order{}, Duplicate(&found)
	}
	return queuedOrder(t), Committed()
}

func (q *fakeQueue) Order(_ context.Context, id uuid.UUID) (*Order, error) {
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
