package ledger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// errVoided means that the ID belongs to a void order, or to another take's order.
var errVoided = errors.New("the order was not committed and never will be")

// Resolve finds the outcome of a take whose commit outcome is unknown. It inserts a void order
// under the order's ID. The insert waits for a transaction that still holds the ID. A read would
// miss that transaction, which could commit later. An expired order has a row already. Then Resolve
// raises the row's version instead. This waits in the same way, and a Revive that has read the row
// before fails.
//
// A committed outcome means that the ledger has the take's order. A refused outcome means that it
// does not and never will. After an unknown outcome, the void order may exist or not, because the
// database did not answer.
func (l *Ledger) Resolve(ctx context.Context, d stock.Deduction) order.Outcome {
	void := order.New(stock.Take{Deduction: d}, order.Void, l.strategy)
	void.RecordedAt(Now(), time.Time{})
	err := insertOrder(ctx, l.db, &void)
	if err == nil {
		return order.Refused(errVoided)
	}
	if !sqltx.IsDuplicate(err) {
		return order.Unknown(fmt.Errorf("inserting the void order %s: %w", d.OrderID, err))
	}
	found, err := l.durable(ctx, []uuid.UUID{d.OrderID})
	if o, ok := found[d.OrderID]; ok && o.Status == order.Expired {
		if err = l.blockRevivals(ctx, d.OrderID); err == nil {
			found, err = l.durable(ctx, []uuid.UUID{d.OrderID})
		}
	}
	if err != nil {
		return order.Unknown(err)
	}
	switch o, ok := found[d.OrderID]; {
	case !ok:
		return order.Unknown(fmt.Errorf("order %s is not found, but its ID is taken", d.OrderID))
	case o.Holds(d.TakeID):
		return order.Committed()
	default:
		return order.Refused(errVoided)
	}
}
