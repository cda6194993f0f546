package order

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

const (
	// maxTries bounds the tries of one request. A try fails on a stale or empty gate, or on a void
	// order under its ID. After the last try, the request is answered ErrBusy.
	maxTries = 10
	// maxVoids bounds the void orders that one key may have before its live order.
	maxVoids = 1_000_000
)

// Gate is the part of a gate that Service uses.
type Gate interface {
	// Take cuts all lines or none. See gate.Gate.
	Take(ctx context.Context, d stock.Deduction) (stock.Take, error)
}

// Ledger is the part of the ledger that Service uses.
type Ledger interface {
	// Record commits the order of a take, and returns it and its outcome.
	Record(ctx context.Context, t stock.Take) (Order, Outcome)
	// Order reads an order. It returns ErrUnknownOrder if there is none.
	Order(ctx context.Context, id uuid.UUID) (*Order, error)

	// Change and Revive change an order after it was placed. returned are the additions
	// to stock that the gate must get. If decide returns an error, o is the order that
	// decide was called with.
	Change(ctx context.Context, id uuid.UUID, options ChangeOptions, decide Decide) (o Order, returned []stock.Change, err error)
	Revive(ctx context.Context, expired Order, t stock.Take, payment string) (Order, Outcome)
	// Refunded records that a due payment was paid back to the buyer.
	Refunded(ctx context.Context, payment string) (Payment, error)

	// History, Orders and Payments read the histories of orders, and lists of orders and payments.
	History(ctx context.Context, id uuid.UUID, version int64) ([]Step, error)
	Orders(ctx context.Context, f Filter) ([]Order, error)
	Payments(ctx context.Context, f PaymentFilter) ([]Payment, error)
}

// Queue accepts orders that the ledger records later. For placing orders, it replaces gate and
// ledger.
type Queue interface {
	// Take takes the units and queues the order in one step. After an error that is not
	// stock.NothingTaken, the order may be queued, and the queue finishes it.
	Take(ctx context.Context, d stock.Deduction) (stock.Take, error)
	// Accept returns the order of a queued take, and its outcome. A committed outcome means that
	// the queue will bring the order to its end. keyed says that the ledger may have the order's
	// ID.
	Accept(ctx context.Context, t stock.Take, keyed bool) (Order, Outcome)
	// Order returns a queued order. It returns ErrUnknownOrder if the order is not queued.
	Order(ctx context.Context, id uuid.UUID) (*Order, error)
}

// Reconciler ends takes and removes the causes of failures.
type Reconciler interface {
	// Usable returns an error if no units can be cut now.
	Usable(ctx context.Context) error
	// PrepareRetry removes the reason why a take of the SKUs was refused. The reason
	// must be stock.Reconcilable.
	PrepareRetry(ctx context.Context, reason error, skus ...stock.SKU) error
	// CatchUp brings the gate's counts of the SKUs up to what the ledger has committed. An error
	// that is stock.Reconcilable means that a count is being refilled.
	CatchUp(ctx context.Context, skus ...stock.SKU) error
	// FinishTake settles the take or gives it back, according to its outcome. It
	// resolves an unknown outcome if the ledger answers, and returns the final
	// outcome.
	FinishTake(ctx context.Context, t stock.Take, out Outcome) Outcome
	// GiveBack returns the take's units to the gate, and reports whether it did.
	GiveBack(ctx context.Context, t stock.Take) bool
	// BringToGate applies additions that the ledger has committed at the gate.
	BringToGate(ctx context.Context, additions ...stock.Change)
}

// Service places and reads orders. It is safe for concurrent use, and several
// instances may share the stores.
type Service struct {
	ledgerID   uuid.UUID
	gate       Gate // nil if the strategy has no gate
	ledger     Ledger
	queue      Queue // nil: the ledger records an order before it is answered
	reconciler Reconciler
	late       Late
	refusals   refusalCache
	metrics    *metrics
	tracer     *tracing.Tracer
}

// Options configure a Service.
type Options struct {
	Late Late // treatment of late payments
	// SoldOutMemory is how long the ledger's answer "sold out" is repeated without asking again. 0
	// means not at all. It has no effect with a gate.
	SoldOutMemory time.Duration
	// Queue accepts the orders. If it is nil, the ledger records an order before the answer.
	Queue  Queue
	Tracer *tracing.Tracer // nil: there are no traces
}

// NewService returns a service for the ledger with that ID. gate is nil if the
// strategy has none.
func NewService(ledgerID uuid.UUID, gate Gate, l Ledger, r Reconciler, o Options, registry prometheus.Registerer) *Service {
	s := &Service{
		ledgerID: ledgerID, gate: gate, ledger: l, reconciler: r,
		queue: o.Queue, late: o.Late, metrics: newMetrics(registry), tracer: o.Tracer,
	}
	if gate == nil { // a gate answers as fast, and knows the units that other instances return
		s.refusals.soldOut = o.SoldOutMemory
	}
	return s
}

// Place places an order. replayed says that the key's order was placed before, and that o is the
// first answer to it. If the service has a Queue, the status of o is queued, and the ledger gets
// the order later.
//
// Errors: ErrSoldOut, ErrBuyerLimit, ErrNotOpen, ErrClosed and ErrUnknownSKU (as *stock.Refusal),
// ErrBusy, ErrSuperseded and ErrUnavailable of package stock; ErrInProgress; ErrKeyReused. A retry
// on this instance may succeed only after ErrBusy and ErrUnavailable. A request without a key that
// is answered ErrUnavailable may have been recorded.
//
// ctx bounds only the wait; compensation continues after it ends. Place keeps and sorts r.Lines.
func (s *Service) Place(ctx context.Context, r Request) (o Order, replayed bool, err error) {
	stock.SortLines(r.Lines)
	o, replayed, err = s.placeInTries(ctx, r)
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

func (s *Service) placeInTries(ctx context.Context, r Request) (Order, bool, error) {
	voids := 0     // void orders of the key so far
	var last error // why the latest try failed
	for try := 1; try <= maxTries; try++ {
		if err := ctx.Err(); err != nil {
			return s.refused(ctx, r, voids, stock.Busy(errors.Join(err, last)))
		}
		if err := cmp.Or(s.reconciler.Usable(ctx), s.refusals.refuse(r.Lines)); err != nil {
			return s.refused(ctx, r, voids, err)
		}
		asked := time.Now()
		d := stock.Deduction{OrderID: orderID(s.ledgerID, r, voids), TakeID: uuid.New(), Buyer: r.Buyer, Lines: r.Lines}
		o, out := s.placeOnce(ctx, d, r.Key != "")
		found, exists := out.Duplicate()
		switch {
		case out.Committed():
			return o, false, nil
		case exists && movesKeyOn(found):
			live, next, err := s.findKeyed(ctx, r, voids+1)
			switch {
			case err == nil:
				return replay(r, live)
			case !errors.Is(err, ErrUnknownOrder):
				return Order{}, false, fmt.Errorf("%w: %w", stock.ErrUnavailable, err)
			}
			voids, last = next, errVoided
		case exists:
			return replay(r, found)
		case out.Refused() && stock.Reconcilable(out.Reason()):
			if err := s.prepareRetry(ctx, out.Reason(), d); err != nil {
				return s.refused(ctx, r, voids, err)
			}
			last = out.Reason()
			retry.Wait(ctx, try)
		case out.Refused():
			s.refusals.learn(asked, r.Lines, out.Reason())
			return s.refused(ctx, r, voids, out.Reason())
		default:
			return s.refused(ctx, r, voids, fmt.Errorf("%w: %w", stock.ErrUnavailable, out.Reason()))
		}
	}
	return s.refused(ctx, r, voids, stock.Busy(last))
}

// errVoided means that the ID of the key belongs to a void order.
var errVoided = errors.New("the order's ID belongs to a void order")

// placeOnce tries once to record or queue the order of d. The caller need not end the take,
// whatever the outcome.
func (s *Service) placeOnce(ctx context.Context, d stock.Deduction, keyed bool) (Order, Outcome) {
	if s.queue == nil {
		return s.takeAndRecord(ctx, d, s.ledger.Record)
	}
	take, err := s.take(ctx, s.queue, d)
	switch {
	case err == nil:
		return s.queue.Accept(ctx, take, keyed)
	case stock.NothingTaken(err):
		return Order{}, Refused(err)
	}
	// The order may be queued and will then be committed, so nothing is given back.
	return Order{}, Unknown(fmt.Errorf("queueing the order: %w", err))
}

// takeAndRecord takes the units at the gate and records the take, once. Whatever the outcome, the
// take is settled, given back, or left to recovery.
func (s *Service) takeAndRecord(ctx context.Context, d stock.Deduction, record func(context.Context, stock.Take) (Order, Outcome)) (Order, Outcome) {
	take := stock.Take{Deduction: d}
	if s.gate != nil {
		taken, err := s.take(ctx, s.gate, d)
		switch {
		case err == nil:
			take = taken
		case stock.NothingTaken(err):
			return Order{}, Refused(err)
		default: // the take may have been made, or may arrive later
			err = fmt.Errorf("taking at the gate: %w", err)
			if !s.reconciler.GiveBack(ctx, take) {
				return Order{}, Unknown(err)
			}
			return Order{}, Refused(stock.Busy(err))
		}
	}
	start := time.Now()
	o, out := record(ctx, take)
	tracing.Observe(ctx, s.metrics.ledgerSeconds, time.Since(start))
	return o, s.reconciler.FinishTake(ctx, take, out)
}

// take takes the units at the gate, and measures the time.
func (s *Service) take(ctx context.Context, at Gate, d stock.Deduction) (stock.Take, error) {
	start := time.Now()
	inside, span := s.tracer.Start(ctx, "gate.take")
	taken, err := at.Take(inside, d)
	if span.Recorded() {
		describe(span, err)
	}
	span.End()
	tracing.Observe(ctx, s.metrics.gateSeconds, time.Since(start))
	return taken, err
}

// describe records in the span how a take ended. A sold-out SKU is not an error.
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

// prepareRetry removes the reason why a take was refused.
func (s *Service) prepareRetry(ctx context.Context, reason error, d stock.Deduction) error {
	ctx, span := s.tracer.Start(ctx, "gate.refill")
	defer span.End()
	err := s.reconciler.PrepareRetry(ctx, reason, d.SKUs()...)
	if err != nil {
		span.Fail(failure(err))
	}
	return err
}

// refused answers a request that was refused for the reason. With a key, it first looks for the
// key's order: a request that was answered 201 once gets the same answer again, even if the stock
// has run out since.
func (s *Service) refused(ctx context.Context, r Request, voids int, reason error) (Order, bool, error) {
	if r.Key != "" {
		found, _, err := s.findKeyed(ctx, r, voids)
		switch {
		case err == nil:
			return replay(r, found)
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
		reason = stock.Busy(reason)
	}
	return Order{}, false, reason
}

// findKeyed reads the key's live order, skipping void orders from the given number on. With
// ErrUnknownOrder, next is the number of the key's first unused ID. An order that is queued under
// the ID of the last void order will be refused. findKeyed returns it only if no live order
// follows, because another request may have been answered with it.
//
// A client can give its key many void orders, because each refused queued order counts as one. Void
// orders stay void and have the first IDs of the key. So findKeyed searches for the last one in
// steps that grow while it finds void orders, and shrink afterwards.
func (s *Service) findKeyed(ctx context.Context, r Request, from int) (found *Order, next int, err error) {
	ctx, span := s.tracer.Start(ctx, "ledger.find")
	defer span.End()
	var last *Order // the order that is queued under the last void ID
	step, growing := 1, true
	for next = from; next < from+maxVoids; {
		var queued *Order
		found, queued, err = s.look(ctx, orderID(s.ledgerID, r, next+step-1))
		void := err == nil && movesKeyOn(found)
		switch {
		case void:
			next, last = next+step, queued
		case step == 1 && last != nil && errors.Is(err, ErrUnknownOrder):
			return last, next, nil
		case step == 1, err != nil && !errors.Is(err, ErrUnknownOrder):
			return found, next, err
		}
		if growing = growing && void; growing {
			step *= 2
		} else {
			step = max(step/2, 1)
		}
	}
	return nil, next, fmt.Errorf("the key has more than %d void orders in a row", maxVoids)
}

// find reads an order from the ledger, or from the queue if the ledger does not know it or has a
// void one. It returns ErrUnknownOrder if there is none. An order leaves the queue once the ledger
// has it, so the queue must be read before the ledger.
func (s *Service) find(ctx context.Context, id uuid.UUID) (*Order, error) {
	found, queued, err := s.look(ctx, id)
	if queued != nil {
		return queued, nil
	}
	return found, err
}

// look reads the order under an ID from the queue and from the ledger. found is the ledger's order,
// or else the queued one. queued is not nil only if found is void.
func (s *Service) look(ctx context.Context, id uuid.UUID) (found, queued *Order, err error) {
	if s.queue == nil {
		found, err = s.ledger.Order(ctx, id)
		return found, nil, err
	}
	queued, queuedErr := s.queue.Order(ctx, id)
	found, err = s.ledger.Order(ctx, id)
	switch {
	case err != nil && !errors.Is(err, ErrUnknownOrder), err == nil && found.Status != Void:
		return found, nil, err
	case errors.Is(queuedErr, ErrUnknownOrder):
		return found, nil, err
	case queuedErr != nil || found == nil: // the ledger does not have the order
		return queued, nil, queuedErr
	}
	return found, queued, nil
}

// inProgress returns ErrInProgress if the order is queued. Otherwise it returns the reason why the
// order cannot be changed: ErrUnknownOrder if there is none, or if it belongs to another buyer.
func (s *Service) inProgress(ctx context.Context, id uuid.UUID, buyer string) error {
	switch found, err := s.find(ctx, id); {
	case err != nil:
		return err
	case found.Status == Void, buyer != "" && buyer != found.Buyer:
		return ErrUnknownOrder
	}
	return ErrInProgress // the order is queued, or was recorded just now
}

// Learn remembers the reason for which the ledger refused a queued order, if the reason was the
// opening hours. asked is a time before the request to the ledger. Later orders may be refused at
// once for the same reason.
func (s *Service) Learn(asked time.Time, reason error) { s.refusals.learn(asked, nil, reason) }

// StockChanged must be called when the rules of the SKUs may have been changed, or units
// may have been added or returned to them. The next order asks the ledger.
func (s *Service) StockChanged(skus ...stock.SKU) {
	for _, sku := range skus {
		s.refusals.forget(sku)
	}
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

// addHistory adds the order's history, which begins with its first status. Its times never
// decrease. The first times are an instance's estimate of the database's clock, and may be ahead of
// it. A step that seems earlier than the previous one gets the previous one's time.
func (s *Service) addHistory(ctx context.Context, o *Order) (err error) {
	var steps []Step
	first := o.Status
	if o.Version > 0 { // otherwise the order has not changed, as no void or refused order ever does
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
