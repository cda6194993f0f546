package reconcile

import (
	"context"
	"errors"
	"time"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// maxSettles bounds the takes that one call settles, and maxSettleQueue the takes that wait for
	// a call.
	maxSettles, maxSettleQueue = 512, 1 << 15
	// maxClearQueue bounds the additions that wait to be cleared from the outbox. Delivery clears
	// the others.
	maxClearQueue = 4096
	// settlePause is the pause between two calls, so that settles gather. No caller waits for a
	// settle, and one call costs Redis as much as ten of the settles in it.
	settlePause = 4 * time.Millisecond
	// maxOpenTakes bounds the takes that wait for a store to answer. Recovery
	// ends the others.
	maxOpenTakes = 4096
	// openTakePause is the shortest pause after a failed try to end a take.
	openTakePause = 20 * time.Millisecond
)

// openTake is a take that could not be ended when its request was answered.
type openTake struct {
	stock.Take
	unknown bool // the take may be committed; false: it must be given back
}

// FinishTake ends the take at the gate, if there is one, according to its outcome in the ledger. A
// committed take is settled in a group, for which FinishTake does not wait. A refused take is given
// back. If the outcome is unknown, FinishTake resolves it first. If the ledger does not answer, the
// outcome stays unknown, and Run ends the take later. FinishTake returns the final outcome.
//
// ctx bounds only the wait for the outcome; compensation continues after it ends.
func (r *Reconciler) FinishTake(ctx context.Context, t stock.Take, out order.Outcome) order.Outcome {
	if out.Unknown() {
		out = r.resolve(ctx, t, out)
	}
	if r.counter == nil {
		return out
	}
	switch {
	case out.Unknown():
		r.leaveOpen(&openTake{t, true})
	case out.Committed():
		if r.settles.Send(&t) != nil { // too many takes wait, or the Reconciler is closed
			r.settleNow(t)
		}
	default:
		r.GiveBack(ctx, t)
		r.AfterRefusal(ctx, t, out.Reason()) // a duplicate has no reason
	}
	return out
}

// resolve finds the outcome of a take.
func (r *Reconciler) resolve(ctx context.Context, t stock.Take, out order.Outcome) order.Outcome {
	ctx, cancel := detached(ctx)
	defer cancel()
	resolved := r.ledger.Resolve(ctx, t.Deduction)
	switch {
	case resolved.Unknown():
		return order.Unknown(errors.Join(out.Reason(), resolved.Reason()))
	case resolved.Refused():
		return order.Refused(stock.Busy(out.Reason()))
	}
	return resolved
}

// settleNow settles the takes. If it fails, recovery settles them.
func (r *Reconciler) settleNow(takes ...stock.Take) {
	ctx, cancel := context.WithTimeout(context.Background(), compensationTimeout)
	defer cancel()
	if err := r.counter.Settle(ctx, takes...); err != nil {
		r.log.Warn("settling takes failed; recovery will settle them", "takes", len(takes), "error", err)
	}
}

// GiveBack returns the take's units to the gate, and reports whether it did. If
// not, Run tries again until it succeeds.
func (r *Reconciler) GiveBack(ctx context.Context, t stock.Take) bool {
	if r.counter == nil {
		return true
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := r.counter.Give(ctx, t); err != nil {
		r.log.WarnContext(ctx, "giving a take back failed and will be retried", "order", t.OrderID, "error", err)
		r.leaveOpen(&openTake{t, false})
		return false
	}
	return true
}

// leaveOpen queues the take for Run. If the queue is full, recovery ends it.
func (r *Reconciler) leaveOpen(t *openTake) {
	select {
	case r.open <- t:
	default:
	}
}

// endOpenTakes ends the takes that requests left open, as soon as the stores
// answer.
func (r *Reconciler) endOpenTakes(ctx context.Context) {
	for failed := 0; ; { // failures in a row
		select {
		case <-ctx.Done():
			return
		case t := <-r.open:
			if r.endOpenTake(ctx, t) == nil {
				failed = 0
				continue
			}
			failed++
			r.leaveOpen(t) // to the end of the queue: the stores of the other takes may answer
			_ = retry.Sleep(ctx, openTakePause+retry.Jitter(openTakePause, failed))
		}
	}
}

func (r *Reconciler) endOpenTake(ctx context.Context, t *openTake) error {
	ctx, cancel := context.WithTimeout(ctx, compensationTimeout)
	defer cancel()
	if t.unknown {
		_, err := r.recoverTake(ctx, t.Take)
		return err
	}
	return r.counter.Give(ctx, t.Take)
}
