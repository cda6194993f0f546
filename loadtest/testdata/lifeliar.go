package httpapi

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// lieAbout changes an order, and then answers or stores something that is not true. The
// program's name selects the fault: TestLifecycleLiars links one program under several
// names.
func lieAbout(ctx context.Context, id uuid.UUID, change func(context.Context, uuid.UUID) (order.Order, error)) (order.Order, error) {
	o, err := change(ctx, id)
	if filepath.Base(os.Args[0]) == "is-unavailable-after-every-fifth-call" && called.Add(1)%5 == 0 && err == nil {
		return order.Order{}, stock.ErrUnavailable
	}
	var due *order.RefundDue
	isDue := errors.As(err, &due)
	cancelled := err == nil && o.Status == "cancelled"
	switch liar := filepath.Base(os.Args[0]); {
	case liar == "forgets-payments-that-are-due" && isDue:
		falsify(ctx, "DELETE FROM payments WHERE id = ?", due.PaymentID)
	case liar == "thanks-for-payments-that-are-due" && isDue:
		return order.Order{ID: id, Status: "paid", CreatedAt: time.Now()}, nil
	case liar == "revives-without-units" && err == nil && o.Status == "paid" && hasExpired(ctx, id):
		for _, line := range o.Lines {
			falsify(ctx, "UPDATE stock SET available = available + ? WHERE sku = ?", line.Quantity, line.SKU)
		}
	case liar == "returns-units-twice" && cancelled:
		falsify(ctx, "UPDATE stock SET available = available + 1 WHERE sku = ?", o.Lines[0].SKU)
	case liar == "returns-units-twice-at-the-gate" && cancelled && cancels.Add(1) == 2:
		addToGate(ctx, string(o.Lines[0].SKU))
	case liar == "keeps-claims" && cancelled && len(o.Lines) > 1:
		falsify(ctx, "UPDATE claims SET units = units + 1 WHERE buyer_id = ?", o.Buyer)
	}
	return o, err
}

// hasExpired reports whether the order has been expired.
func hasExpired(ctx context.Context, id uuid.UUID) (yes bool) {
	const query = "SELECT EXISTS (SELECT 1 FROM order_history WHERE order_id = ? AND status = 'expired')"
	if err := ledger().WithContext(ctx).Raw(query, id[:]).Scan(&yes).Error; err != nil {
		panic(err)
	}
	return yes
}

// called and cancels count the calls on orders, and the cancellations.
var called, cancels atomic.Int64

// addToGate adds a unit to the gate's count of the SKU.
func addToGate(ctx context.Context, sku string) {
	id, err := database().LedgerID(ctx)
	if err != nil {
		panic(err)
	}
	client, err := store.OpenRedis(ctx, os.Args[slices.Index(os.Args, "--redis")+1])
	if err != nil {
		panic(err)
	}
	defer client.Close()
	const script = `local epoch, available, rest = string.match(redis.call('HGET', KEYS[1], ARGV[1]), '^(%d+) (%-?%d+) (.*)$')
		return redis.call('HSET', KEYS[1], ARGV[1], string.format('%s %d %s', epoch, available + 1, rest))`
	if err := client.Eval(ctx, script, []string{"holdfast:{" + id.String() + "}:count"}, sku).Err(); err != nil {
		panic(err)
	}
}

// falsify changes the ledger behind the service's back.
func falsify(ctx context.Context, statement string, args ...any) {
	if err := ledger().WithContext(ctx).Exec(statement, args...).Error; err != nil {
		panic(err)
	}
}
