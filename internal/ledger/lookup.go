package ledger

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// lookup is one order that is being read.
type lookup struct {
	id    uuid.UUID
	found *order.Order // nil if there is none
	err   error
}

// Order reads one order, in a group with others. order.ErrUnknownOrder: there is none.
func (l *Ledger) Order(ctx context.Context, id uuid.UUID) (*order.Order, error) {
	q := &lookup{id: id}
	if err := l.lookups.Do(ctx, q); err != nil {
		return nil, err
	}
	switch {
	case q.err != nil:
		return nil, q.err
	case q.found == nil || q.found.Status == shrink:
		return nil, order.ErrUnknownOrder
	}
	return q.found, nil
}

func (l *Ledger) lookUp(qs []*lookup) {
	ctx, cancel := context.WithTimeout(context.Background(), transactionTimeout)
	defer cancel()
	ids := make([]uuid.UUID, len(qs))
	for i, q := range qs {
		ids[i] = q.id
	}
	found, err := l.durable(ctx, ids)
	for _, q := range qs {
		q.found, q.err = found[q.id], err
	}
}

// durable reads the orders with these IDs, by ID, and returns once they are as
// durable as their COMMIT promised. It leaves out absent orders.
func (l *Ledger) durable(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]*order.Order, error) {
	found, err := readOrders(ctx, l.db, ids)
	if len(found) == 0 { // what is not there needs no standby
		return nil, err
	}
	if err := l.db.Confirm(ctx); err != nil {
		return nil, err
	}
	return found, nil
}

// errVoided: the ID belongs to a void order, or to another take's order.
var errVoided = errors.New("the order was not committed and never will be")

// Resolve finds out what became of a take whose commit outcome is unknown. It
// inserts a void order under the order's ID. The insert waits for a transaction
// that still holds the ID; a read would miss it and could be overtaken by its
// commit. An expired order has its ID already: there Resolve bars Revive of the order,
// which waits in the same way.
//
// Committed: the ledger has the take's order. Refused: it does not and never will.
// Unknown: the database did not answer, and the void order may be there or not.
func (l *Ledger) Resolve(ctx context.Context, d stock.Deduction) order.Outcome {
	err := insertOrder(ctx, l.db, &order.Order{
		ID: d.OrderID, TakeID: d.TakeID, Buyer: d.Buyer, Status: order.Void,
		Strategy: l.strategy, CreatedAt: Now(),
	})
	if err == nil {
		return order.Refused(errVoided)
	}
	if !sqltx.IsDuplicate(err) {
		return order.Unknown(fmt.Errorf("inserting the void order %s: %w", d.OrderID, err))
	}
	found, err := l.durable(ctx, []uuid.UUID{d.OrderID})
	if o, ok := found[d.OrderID]; ok && o.Status == order.Expired && o.TakeID != d.TakeID {
		if err = l.bar(ctx, d.OrderID); err == nil {
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
