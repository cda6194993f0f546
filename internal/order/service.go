package order

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/latency"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

const (
	// maxTries bounds how often one request meets a stale or empty gate, or a
	// void order under its ID, before it is answered ErrBusy.
	maxTries = 10
	// maxVoids bounds the void orders that one key may have before its live order.
	maxVoids = 1_000_000
)

// Gate is what placing needs of a gate.
type Gate interface {
	// Take cuts all lines or none. See stock.Gate.
	Take(ctx context.Context, d stock.Deduction) (stock.Take, error)
}

// Ledger is what placing needs of the ledger.
type Ledger interface {
	// Record commits the order of a take, and returns it and its outcome.
	Record(ctx context.Context, t stock.Take) (Order, Outcome)
	// Replace commits the order of a take in place of a void order.
	Replace(ctx context.Context, void Order, t stock.Take) (Order, Outcome)
	// TurnDown records that the queued order of a take is refused. Refused: the take is not
	// committed and never will be.
	TurnDown(ctx context.Context, t stock.Take) Outcome
	// Pass keeps Replace from a void order. stock.ErrRowChanged: it was replaced, or passed.
	Pass(ctx context.Context, id uuid.UUID) error
	// Order reads an order. ErrUnknownOrder: there is none.
	Order(ctx context.Context, id uuid.UUID) (*Order, error)
	// Queued returns the order of a take that is in the journal.
	Queued(t stock.Take) Order
	// Now returns the time by the ledger's clock.
	Now() (time.Time, error)
	// Generation returns the generation in use.
	Generation() stock.Generation

	// Change and Revive change an order after it was placed.
	Change(ctx context.Context, id uuid.UUID, options ChangeOptions, decide Decide) (Order, error)
	Revive(ctx context.Context, expired Order, t stock.Take, payment string) (Order, Outcome)
	// Refunded records that a payment that was due went back to the buyer.
	Refunded(ctx context.Context, payment string) (Payment, error)

	// History, Orders and Payments read what became of orders and payments.
	History(ctx context.Context, id uuid.UUID, version int64) ([]Step, error)
	Orders(ctx context.Context, f Filter) ([]Order, error)
	Payments(ctx context.Context, f PaymentFilter) ([]Payment, error)
}

// Reconciler is what placing needs to end takes and to remove what makes them
// fail.
type Reconciler interface {
	// Usable returns why nothing can be cut now. nil: orders can be placed.
	Usable(ctx context.Context) error
	// Mend removes the reason why a take of the SKUs was refused. The reason
	// must be stock.Reconcilable.
	Mend(ctx context.Context, reason error, skus ...stock.SKU) error
	// End settles the take or gives it back, according to its outcome. It
	// resolves an unknown outcome if the ledger answers, and returns the final
	// outcome.
	End(ctx context.Context, t stock.Take, out Outcome) Outcome
	// GiveBack returns the take's units to the gate, and reports whether it did.
	GiveBack(ctx context.Context, t stock.Take) bool
	// Returned brings units that the ledger has returned to stock to the gate.
	Returned(ctx context.Context, skus ...stock.SKU)
}

// Service places and reads orders. It is safe for concurrent use, and several
// instances may share the stores.
type Service struct {
	ledgerID   uuid.UUID
	gate       Gate // nil if there is none
	ledger     Ledger
	journal    Journal      // nil if the gate has none
	queued     QueuedOrders // nil if there is no Redis that may have queued orders
	reconciler Reconciler
	late       Late
	queue      bool
	hours      hours
	metrics    *metrics
	tracer     *tracing.Tracer

	// What SawJournal has seen: the generation under which the journal had no orders when
	// it last answered, or 0 if it had some; whether it does not answer now.
	emptyUnder  atomic.Int64
	journalAway atomic.Bool
}

// Options configure a Service.
type Options struct {
	Late Late // what becomes of late payments
	// Queue answers orders as soon as the journal has them. It needs a journal.
	Queue bool
	// Queued finds queued orders that the ledger does not have yet. nil: there are
	// none.
	Queued QueuedOrders
	Tracer *tracing.Tracer // nil: there are no traces
}

// NewService returns a service for the ledger with that ID. gate is nil if the
// strategy has none, and journal if the gate has none.
func NewService(ledgerID uuid.UUID, gate Gate, journal Journal, l Ledger, r Reconciler, o Options, registry prometheus.Registerer) *Service {
	return &Service{
		ledgerID: ledgerID, gate: gate, ledger: l, journal: journal, reconciler: r,
		queued: o.Queued, late: o.Late, queue: o.Queue, metrics: newMetrics(registry), tracer: o.Tracer,
	}
}

// Place places an order. replayed says that the key's order was placed before, and
// that o is its first answer. The service may be set to queue orders: then o is in
// the journal, its status is queued, and the ledger gets it later.
//
// Errors: ErrSoldOut, ErrBuyerLimit, ErrNotOpen, ErrClosed and ErrUnknownSKU (as
// *stock.Refusal), ErrBusy, ErrSuperseded and ErrUnavailable of package stock;
// ErrInProgress; ErrKeyReused. A retry on this instance may succeed only after
// ErrBusy and ErrUnavailable. A request without a key that is answered
// ErrUnavailable may have been recorded.
//
// ctx bounds only the wait; compensation continues after it ends. Place keeps and
// sorts r.Lines.
func (s *Service) Place(ctx context.Context, r Request) (o Order, replayed bool, err error) {
	stock.SortLines(r.Lines)
	o, replayed, err = s.place(ctx, r)
	label := result(o.Status, replayed, err)
	s.metrics.orders[label].Inc()
	if span := s.tracer.Of(ctx); span.Recorded() {
		span.Text("holdfast.order.result", label)
		if err == nil {
			span.Text("holdfast.order.id", o.ID.String())
		}
	}
	return o, replayed, err
}

func (s *Service) place(ctx context.Context, r Request) (Order, bool, error) {
	voids := 0     // that the key has met
	var last error // why the latest try failed
	for try := 1; try <= maxTries; try++ {
		if err := ctx.Err(); err != nil {
			return s.refused(ctx, r, voids, fmt.Errorf("%w: %w", stock.ErrBusy, errors.Join(err, last)))
		}
		if err := s.sellable(ctx, r.Lines); err != nil {
			return s.refused(ctx, r, voids, err)
		}
		asked := time.Now()
		d := stock.Deduction{OrderID: orderID(s.ledgerID, r, voids), TakeID: uuid.New(), Buyer: r.Buyer, Lines: r.Lines}
		o, out := s.try(ctx, d, r.Key != "")
		found, exists := out.Duplicate()
		switch {
		case out.Committed():
			return o, false, nil
		case exists && movesKeyOn(found):
			live, at, err := s.moveOn(ctx, r, voids, found)
			switch {
			case err != nil:
				return Order{}, false, fmt.Errorf("%w: %w", stock.ErrUnavailable, err)
			case live != nil:
				return s.replay(r, live)
			}
			voids, last = at, errVoided
		case exists:
			return s.replay(r, found)
		case out.Refused() && stock.Reconcilable(out.Reason()):
			if err := s.mend(ctx, out.Reason(), d); err != nil {
				return s.refused(ctx, r, voids, err)
			}
			last = out.Reason()
			retry.Wait(ctx, try)
		case out.Refused():
			s.hours.learn(asked, out.Reason())
			return s.refused(ctx, r, voids, out.Reason())
		default:
			return s.refused(ctx, r, voids, fmt.Errorf("%w: %w", stock.ErrUnavailable, out.Reason()))
		}
	}
	return s.refused(ctx, r, voids, fmt.Errorf("%w: %w", stock.ErrBusy, last))
}

// moveOn follows a key that must leave the ID with this number, under which the order was
// found. It returns the key's live order, or the number of the ID to try next. A queued
// order can no longer take the place of the void order before that ID. If one may just
// have done so, the ID is the same as before.
func (s *Service) moveOn(ctx context.Context, r Request, number int, found *Order) (live *Order, next int, err error) {
	last, next, err := s.findKeyed(ctx, r, number+1)
	if !errors.Is(err, ErrUnknownOrder) {
		return last, next, err
	}
	if last == nil {
		last = found
	}
	if last.Replaceable() {
		switch err := s.ledger.Pass(ctx, last.ID); {
		case errors.Is(err, stock.ErrRowChanged):
			return nil, number, nil
		case err != nil:
			return nil, number, err
		}
	}
	return nil, next, nil
}

// sellable returns why the lines cannot be sold now, as far as this instance knows.
func (s *Service) sellable(ctx context.Context, lines []stock.Line) error {
	if err := s.reconciler.Usable(ctx); err != nil {
		return err
	}
	return s.hours.refuse(lines)
}

// errVoided: a void order has the ID that the key led to.
var errVoided = errors.New("the order's ID belongs to a void order")

// try tries once to place the order of d: to record it, or to queue it. Whatever the
// outcome, nothing is left to do for the take here.
func (s *Service) try(ctx context.Context, d stock.Deduction, keyed bool) (Order, Outcome) {
	if s.queue {
		return s.enqueue(ctx, d, keyed)
	}
	if keyed && s.asksJournal() {
		_, err := s.queued.Queued(ctx, d.OrderID)
		if err == nil {
			var first *Order
			if first, err = s.findQueued(ctx, d.OrderID); err == nil {
				return Order{}, Duplicate(first)
			}
		}
		if !errors.Is(err, stock.ErrNotQueued) {
			return Order{}, Refused(fmt.Errorf("%w: %w", stock.ErrBusy, err))
		}
	}
	return s.attempt(ctx, d, s.ledger.Record)
}

// attempt takes the units at the gate and records the take, once. Whatever the
// outcome, the take is settled, given back, or left to recovery.
func (s *Service) attempt(ctx context.Context, d stock.Deduction, record recordFunc) (Order, Outcome) {
	take := stock.Take{Deduction: d}
	if s.gate != nil {
		taken, err := s.take(ctx, func(ctx context.Context) (stock.Take, error) { return s.gate.Take(ctx, d) })
		switch {
		case stock.NothingTaken(err):
			return Order{}, Refused(err)
		case err != nil: // it may have been taken, or may arrive later
			err = fmt.Errorf("taking at the gate: %w", err)
			if !s.reconciler.GiveBack(ctx, take) {
				return Order{}, Unknown(err)
			}
			return Order{}, Refused(fmt.Errorf("%w: %w", stock.ErrBusy, err))
		}
		take = taken
	}
	start := time.Now()
	o, out := record(ctx, take)
	latency.Observe(ctx, s.metrics.ledgerSeconds, time.Since(start))
	return o, s.reconciler.End(ctx, take, out)
}

// take calls the gate, and measures it.
func (s *Service) take(ctx context.Context, call func(context.Context) (stock.Take, error)) (stock.Take, error) {
	start := time.Now()
	inside, span := s.tracer.Start(ctx, "gate.take")
	taken, err := call(inside)
	if span.Recorded() {
		describe(span, err)
	}
	span.End()
	latency.Observe(ctx, s.metrics.gateSeconds, time.Since(start))
	return taken, err
}

// describe says in the span how a take ended. That the stock is sold out is no failure.
func describe(span tracing.Span, err error) {
	switch {
	case err == nil:
		span.Text("holdfast.outcome", "taken")
	case stock.Reconcilable(err):
		span.Text("holdfast.outcome", "stale")
	case stock.NothingTaken(err):
		span.Text("holdfast.outcome", failure(err))
	default:
		span.Fail(failure(err))
	}
}

// mend removes the reason why a take was refused.
func (s *Service) mend(ctx context.Context, reason error, d stock.Deduction) error {
	ctx, span := s.tracer.Start(ctx, "gate.mend")
	defer span.End()
	err := s.reconciler.Mend(ctx, reason, d.SKUs()...)
	if err != nil {
		span.Fail(failure(err))
	}
	return err
}

// refused answers a request that was refused for the reason. It looks up the key
// first: a request that was answered 201 once gets the same answer again, even if
// the stock has run out since.
func (s *Service) refused(ctx context.Context, r Request, voids int, reason error) (Order, bool, error) {
	if r.Key != "" {
		found, _, err := s.findKeyed(ctx, r, voids)
		switch {
		case err == nil:
			return s.replay(r, found)
		case !errors.Is(err, ErrUnknownOrder):
			return Order{}, false, fmt.Errorf("%w: %w", stock.ErrUnavailable, errors.Join(reason, err))
		}
	}
	switch {
	case errors.Is(reason, stock.ErrUnavailable), errors.Is(reason, stock.ErrSuperseded), errors.Is(reason, stock.ErrBusy):
	case stock.Final(reason):
	case errors.Is(reason, stock.ErrInFlight):
		reason = fmt.Errorf("%w: %w", ErrInProgress, reason)
	default:
		reason = fmt.Errorf("%w: %w", stock.ErrBusy, reason)
	}
	return Order{}, false, reason
}

// findKeyed reads the key's live order, skipping void orders from the given number
// on. With ErrUnknownOrder, voids is the number of void orders skipped, and found is the
// last of those that were skipped here, or nil.
//
// A client can give its key many void orders, because a queued order that is refused
// is one. Void orders stay void and have the first IDs of the key. So findKeyed looks
// for their end in steps that grow while it finds void orders, and shrink afterwards.
func (s *Service) findKeyed(ctx context.Context, r Request, from int) (found *Order, voids int, err error) {
	ctx, span := s.tracer.Start(ctx, "ledger.find")
	defer span.End()
	read := s.ledger.Order
	if s.queue || s.asksJournal() { // otherwise an order that is queued elsewhere is in flight, and refused as such
		read = s.findQueued
	}
	var skipped *Order
	step, growing := 1, true
	for voids = from; voids < from+maxVoids; {
		found, err = read(ctx, orderID(s.ledgerID, r, voids+step-1))
		void := err == nil && movesKeyOn(found)
		switch {
		case void:
			voids, skipped = voids+step, found
		case step == 1 && errors.Is(err, ErrUnknownOrder):
			return skipped, voids, err
		case step == 1, err != nil && !errors.Is(err, ErrUnknownOrder):
			return found, voids, err
		}
		if growing = growing && void; growing {
			step *= 2
		} else {
			step = max(step/2, 1)
		}
	}
	return nil, voids, fmt.Errorf("the key has more than %d void orders in a row", maxVoids)
}

// replay answers a request whose order exists already.
func (s *Service) replay(r Request, found *Order) (Order, bool, error) {
	if r.Key == "" { // an ID collision, which no client can cause
		return Order{}, false, fmt.Errorf("%w: order %s exists", stock.ErrUnavailable, found.ID)
	}
	first, err := replay(r, found)
	return first, err == nil, err
}

// Order returns an order with its history. It returns void orders, too.
//
// Errors: ErrUnknownOrder, stock.ErrUnavailable.
func (s *Service) Order(ctx context.Context, id uuid.UUID) (Order, error) {
	found, err := s.find(ctx, id)
	if err == nil {
		err = s.addHistory(ctx, found)
	}
	switch {
	case errors.Is(err, ErrUnknownOrder):
		return Order{}, ErrUnknownOrder
	case err != nil:
		return Order{}, fmt.Errorf("%w: %w", stock.ErrUnavailable, err)
	}
	return *found, nil
}

// addHistory adds the order's history, which begins with its first status. Its times
// never fall: the first ones are an instance's estimate of the database's clock and may
// be later than the clock itself, so a step that seems to precede the one before it gets
// that one's time.
func (s *Service) addHistory(ctx context.Context, o *Order) (err error) {
	var steps []Step
	first := o.Status
	if o.Version > 0 && o.Status != Void { // otherwise nothing has happened to it
		first = Pending
		steps, err = s.ledger.History(ctx, o.ID, o.Version)
	}
	if o.QueuedUntil.IsZero() {
		o.History = append([]Step{{Status: first, At: o.CreatedAt}}, steps...)
	} else {
		o.History = append([]Step{{Status: Queued, At: o.CreatedAt}, {Status: first, At: o.QueuedUntil}}, steps...)
	}
	for i, step := range o.History[1:] {
		if before := o.History[i].At; step.At.Before(before) {
			o.History[i+1].At = before
		}
	}
	return err
}
