package ledger

import (
	"context"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
)

// lookup is one order that is being read.
type lookup struct {
	id    uuid.UUID
	found *order.Order // nil: the order does not exist
	err   error
}

// Order reads one order, in a group with others. It returns order.ErrUnknownOrder if there is none.
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
		q.err = err
		if o, ok := found[q.id]; ok {
			own := *o // several callers may read one order, and each may change its copy
			q.found = &own
		}
	}
}

// durable reads the orders with these IDs, by ID. It returns once they are as durable as after a
// COMMIT: see sqltx.DB.Confirm. It leaves out absent orders.
func (l *Ledger) durable(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]*order.Order, error) {
	found, err := readOrders(ctx, l.db, ids)
	if len(found) == 0 { // an absent order needs no standby
		return nil, err
	}
	if err := l.db.Confirm(ctx); err != nil {
		return nil, err
	}
	return found, nil
}
