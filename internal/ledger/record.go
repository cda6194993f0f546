package ledger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// recording is one order in a group transaction.
type recording struct {
	order   order.Order
	take    stock.Take
	outcome order.Outcome
	done    chan struct{} // closed once outcome is final
	span    tracing.Span

	// mu guards the fields below, and the times of order until done is closed.
	mu    sync.Mutex
	begun bool // a transaction that may commit the order has begun
	left  bool // the caller no longer waits
}

// begin is called before each transaction that may commit the order, and again once the transaction
// has locked the stock rows. It sets the order's times. It reports false if the caller no longer
// waits. The order then keeps its times, and a transaction that has not begun must not commit it.
func (r *recording) begin(created, expires time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.left {
		return false
	}
	r.begun = true
	r.order.RecordedAt(created, expires)
	return true
}

// committedAs sets the order's times to those in the ledger.
func (r *recording) committedAs(found *order.Order) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.order.CreatedAt, r.order.ExpiresAt, r.order.QueuedUntil = found.CreatedAt, found.ExpiresAt, found.QueuedUntil
}

// leave is called when the caller stops waiting. It returns the order as it may be committed. If no
// transaction with the order has begun, none will.
func (r *recording) leave(reason error) (order.Order, order.Outcome) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left = true
	if r.begun {
		return r.order, order.Unknown(reason)
	}
	return r.order, order.Refused(stock.Busy(reason))
}

// answer sets the outcome. It must be called only once.
func (r *recording) answer(o order.Outcome) {
	r.outcome = o
	close(r.done)
}

// Record commits the pending order of a take and the cut of its units, in a group with others. It
// returns once the outcome is known, or when ctx ends. Then the order is refused if no transaction
// with it has begun, and the outcome is unknown otherwise.
//
// The order's times are by the database's clock. They are set when the transaction that commits the
// order begins, even if the order has waited long: see commitGroup. If the outcome is unknown, the
// order has the times with which it may have been committed.
//
// Reasons to refuse: ErrSoldOut, ErrBuyerLimit, ErrNotOpen, ErrClosed, ErrStaleEpoch,
// ErrUnknownSKU, ErrNotAdopted and ErrLaterGeneration of package stock (as *stock.Refusal);
// stock.ErrBusy, with ErrRejected if the order can never be recorded.
func (l *Ledger) Record(ctx context.Context, t stock.Take) (o order.Order, out order.Outcome) {
	_, span := l.tracer.Start(ctx, "ledger.record")
	defer func() {
		if span.Recorded() {
			span.Text("holdfast.outcome", out.Kind())
			span.End()
		}
	}()
	r := &recording{order: order.New(t, order.Pending, l.strategy), take: t, done: make(chan struct{}), span: span}
	l.submit(r)
	select {
	case <-r.done:
		return r.order, r.outcome
	case <-ctx.Done():
		return r.leave(ctx.Err())
	}
}

// submit adds the recording to the next group.
func (l *Ledger) submit(r *recording) {
	if err := l.records.Send(r); err != nil {
		r.answer(order.Refused(stock.Busy(err)))
	}
}

// runGroup records a group. It returns when the group is done, or counts as slow.
func (l *Ledger) runGroup(rs []*recording) {
	rs = l.slow.hold(rs)
	if len(rs) == 0 {
		return
	}
	own := new(slowGroup)
	done := make(chan struct{})
	l.groups.Go(func() {
		defer close(done)
		l.recordGroup(rs, own)
		for _, r := range l.slow.remove(own) {
			l.submit(r)
		}
	})
	patience := time.NewTimer(slowAfter)
	defer patience.Stop()
	select {
	case <-done:
		return
	case <-patience.C:
	}
	if !l.slow.add(own, stock.SKUsOf(takesOf(rs)...)) {
		<-done
	}
}

// recordGroup gives every recording its outcome, except those whose callers have left.
func (l *Ledger) recordGroup(rs []*recording, own *slowGroup) {
	l.metrics.groupSize.Observe(float64(len(rs)))
	ctx := context.Background() // the group serves several requests, so none of them bounds it
	if l.tracer != nil {
		spans := make([]tracing.Span, len(rs))
		for i, r := range rs {
			spans[i] = r.span
		}
		var span tracing.Span
		ctx, span = l.tracer.Group(ctx, "ledger.group", spans)
		defer span.End()
	}
	for len(rs) > 0 {
		first, repeats := distinct(rs)
		if err := l.commit(ctx, first, own); err != nil {
			refuse(repeats, err)
			break
		}
		rs = repeats // the order of a repeat is recorded now, or its ID is free
	}
}

// commit is recordGroup for recordings with distinct IDs. If the database cannot be reached, it
// refuses them and returns the error, because further transactions would fail too.
func (l *Ledger) commit(ctx context.Context, rs []*recording, own *slowGroup) error {
	lockWaits := 0
	for try := 1; len(rs) > 0; try++ {
		var err error
		rs, err = l.commitGroup(ctx, rs)
		if err == nil {
			return nil
		}
		switch kindOf(err) {
		case kindUnknownOutcome: // each recording has its outcome
			return nil
		case kindDuplicate:
			left, err := l.answerDuplicates(ctx, rs)
			if err != nil {
				return unreachable(rs, err)
			}
			if len(left) == len(rs) { // the order was deleted meanwhile
				return l.divide(ctx, rs, own, errVanished)
			}
			rs = left
		case kindLockTimeout:
			l.metrics.retries.Inc()
			if rs, err = l.setLockedApart(ctx, rs, own, err); err != nil {
				return err
			}
			if lockWaits++; lockWaits == maxLockWaits {
				refuse(rs, fmt.Errorf("%w: the stock row of one of %v is locked by another transaction", stock.ErrBusy, stock.SKUsOf(takesOf(rs)...)))
				return nil
			}
		case kindConflict, kindRetryable:
			l.metrics.retries.Inc()
			if try >= maxTries {
				refuse(rs, stock.Busy(err))
				return nil
			}
			retry.Wait(ctx, try)
		case kindStatement:
			return l.divide(ctx, rs, own, err)
		default:
			return unreachable(rs, err)
		}
	}
	return nil
}

// begin sets the times of the orders whose callers still wait to now, and returns these orders. If
// the transaction has not begun, the other orders are left out of it. They need no outcome, because
// leave has answered their callers.
func (l *Ledger) begin(rs []*recording) (waiting []*recording, err error) {
	created, expires, err := l.times()
	if err != nil {
		return rs, err
	}
	waiting = make([]*recording, 0, len(rs)) // rs must not change
	for _, r := range rs {
		if r.begin(created, expires) {
			waiting = append(waiting, r)
		}
	}
	return waiting, nil
}

// The kinds of errors of a transaction.
const (
	kindUnknownOutcome = "unknown_outcome"
	kindDuplicate      = "duplicate"
	kindLockTimeout    = "lock_timeout"
	kindConflict       = "conflict"
	kindRetryable      = "retryable"
	kindStatement      = "statement"
)

// kindOf returns the kind of an error of a transaction, or "" for any other error. Unlike the
// error's text, it contains no data of orders, so traces may name it.
func kindOf(err error) string {
	switch {
	case errors.Is(err, sqltx.ErrUnknownOutcome):
		return kindUnknownOutcome
	case sqltx.IsDuplicate(err):
		return kindDuplicate
	case sqltx.IsLockTimeout(err):
		return kindLockTimeout
	case errors.Is(err, cutter.ErrConflict):
		return kindConflict
	case sqltx.IsRetryable(err):
		return kindRetryable
	case sqltx.IsStatementError(err):
		return kindStatement
	}
	return ""
}

var errVanished = errors.New("an order with the same ID existed and can no longer be found")

// unreachable refuses the recordings because the database cannot be reached, and returns the
// reason.
func unreachable(rs []*recording, err error) error {
	err = stock.Busy(err)
	refuse(rs, err)
	return err
}

// ErrRejected means that the database refuses a value of the order, now and later. It comes with
// stock.ErrBusy, because nothing was recorded.
var ErrRejected = errors.New("the database refuses the order's content")

// notRecorded returns the reason to refuse an order that the database did not record.
func notRecorded(err error) error {
	if sqltx.IsValueError(err) {
		err = fmt.Errorf("%w: %w", ErrRejected, err)
	}
	return stock.Busy(err)
}

// divide commits the two halves separately. Repeated calls isolate the order that makes the group
// fail, and the other orders are recorded.
func (l *Ledger) divide(ctx context.Context, rs []*recording, own *slowGroup, err error) error {
	if len(rs) == 1 {
		refuse(rs, notRecorded(err))
		return nil
	}
	for _, half := range [][]*recording{rs[:len(rs)/2], rs[len(rs)/2:]} {
		// If the database could not be reached for the first half, the second half is tried too.
		err = l.commit(ctx, half, own)
	}
	return err
}

// distinct separates the first recording of each ID from its repeats.
func distinct(rs []*recording) (first, repeats []*recording) {
	if len(rs) == 1 {
		return rs, nil
	}
	seen := make(map[uuid.UUID]bool, len(rs))
	first = make([]*recording, 0, len(rs)) // rs must not change
	for _, r := range rs {
		if seen[r.order.ID] {
			repeats = append(repeats, r)
			continue
		}
		seen[r.order.ID] = true
		first = append(first, r)
	}
	return first, repeats
}

func refuse(rs []*recording, err error) {
	for _, r := range rs {
		r.answer(order.Refused(err))
	}
}

// answerDuplicates answers the recordings whose IDs the ledger has, and returns
// the others.
func (l *Ledger) answerDuplicates(ctx context.Context, rs []*recording) (left []*recording, err error) {
	ctx, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	ids := make([]uuid.UUID, len(rs))
	for i, r := range rs {
		ids[i] = r.order.ID
	}
	found, err := l.durable(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, r := range rs {
		switch o, ok := found[r.order.ID]; {
		case !ok:
			left = append(left, r)
		case o.Holds(r.take.TakeID):
			r.committedAs(o)
			r.answer(order.Committed()) // recorded by an earlier try, whose answer was lost
		default:
			r.answer(order.Duplicate(o))
		}
	}
	return left, nil
}
