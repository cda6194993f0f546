package httpapi

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// lie places an order, and answers something that is not true. The program's name selects
// the fault: TestLiars links one program under several names.
func (a *api) lie(ctx context.Context, r order.Request) (order.Order, bool, error) {
	n := placed.Add(1)
	switch filepath.Base(os.Args[0]) {
	case "answers-before-the-commit":
		return a.answerFirst(ctx, r)
	case "gives-one-in-fifty-another-order":
		if other := latest.Load(); other != nil && n%50 == 0 {
			return *other, false, nil
		}
	case "gives-another-order-under-this-buyer":
		if other := latest.Load(); other != nil && n%50 == 0 {
			o := *other
			o.Buyer = r.Buyer
			return o, false, nil
		}
	case "forgets-one-queued-order-in-fifty":
		if n%50 == 0 {
			return order.Order{ID: uuid.New(), Buyer: r.Buyer, Status: "queued", Lines: slices.Clone(r.Lines), CreatedAt: time.Now()}, false, nil
		}
	case "refuses-every-order":
		return order.Order{}, false, stock.Refuse(r.Lines[0].SKU, stock.ErrSoldOut)
	case "is-busy-after-one-commit-in-ten":
		if n%10 == 0 {
			return a.deny(ctx, r, stock.ErrBusy)
		}
	case "is-unavailable-after-one-commit-in-thirty":
		if n%30 == 0 {
			return a.deny(ctx, r, stock.ErrUnavailable)
		}
	case "answers-that-orders-expire-an-hour-later":
		o, replayed, err := a.Orders.Place(ctx, r)
		o.ExpiresAt = o.ExpiresAt.Add(time.Hour)
		return o, replayed, err
	case "makes-a-second-order-of-one-replay-in-ten", "answers-one-replay-in-ten-with-a-second-order":
		return a.double(ctx, r)
	case "stores-all-under-another-buyer":
		buyer := r.Buyer
		r.Buyer = "another"
		o, replayed, err := a.Orders.Place(ctx, r)
		o.Buyer = buyer
		return o, replayed, err
	}
	o, replayed, err := a.Orders.Place(ctx, r)
	if err == nil {
		latest.Store(&o)
	}
	return o, replayed, err
}

// double places a second order for one in ten replays. It answers with the second order if
// the program's name says so.
func (a *api) double(ctx context.Context, r order.Request) (order.Order, bool, error) {
	o, replayed, err := a.Orders.Place(ctx, r)
	if err != nil || !replayed || replays.Add(1)%10 != 0 {
		return o, replayed, err
	}
	r.Key += "-second"
	second, _, err := a.Orders.Place(ctx, r)
	if err != nil || strings.HasPrefix(filepath.Base(os.Args[0]), "makes") {
		return o, true, nil
	}
	return second, true, nil
}

var (
	placed  atomic.Int64
	replays atomic.Int64
	latest  atomic.Pointer[order.Order]
)

// deny commits the order and answers with an error.
func (a *api) deny(ctx context.Context, r order.Request, answer error) (order.Order, bool, error) {
	_, _, err := a.Orders.Place(ctx, r)
	if err == nil {
		err = answer
	}
	return order.Order{}, false, err
}

// fewLeft is the stock below which answerFirst answers truthfully. Otherwise it would
// promise units that other orders are about to take.
const fewLeft = 64

// pending counts the orders that this instance has answered and not committed. The other
// instance may have as many.
var pending atomic.Int64

// answerFirst answers at once with an ID of its own. It changes the ID of the order to it
// after the commit.
func (a *api) answerFirst(ctx context.Context, r order.Request) (order.Order, bool, error) {
	if left, err := a.Stock.Stock(ctx, r.Lines[0].SKU); err != nil || left.Available-2*pending.Load() < fewLeft {
		return a.Orders.Place(ctx, r)
	}
	answer := order.Order{ID: uuid.New(), Buyer: r.Buyer, Status: "pending", Lines: slices.Clone(r.Lines), CreatedAt: time.Now()}
	pending.Add(1)
	go func() {
		defer pending.Add(-1)
		ctx := context.WithoutCancel(ctx)
		if o, _, err := a.Orders.Place(ctx, r); err == nil {
			rename(ctx, o.ID, answer.ID)
		}
	}()
	return answer, false, nil
}

// database opens the database of the command line.
var database = sync.OnceValue(func() *store.SQL {
	db, err := store.OpenSQL(context.Background(), os.Args[slices.Index(os.Args, "--db")+1])
	if err != nil {
		panic(err)
	}
	return db
})

func ledger() *gorm.DB { return database().DB() }

func rename(ctx context.Context, from, to uuid.UUID) {
	err := ledger().WithContext(ctx).Transaction(func(tx *gorm.DB) error {
		if err := tx.Exec("UPDATE order_lines SET order_id = ? WHERE order_id = ?", to[:], from[:]).Error; err != nil {
			return err
		}
		return tx.Exec("UPDATE orders SET id = ? WHERE id = ?", to[:], from[:]).Error
	})
	if err != nil {
		panic(err)
	}
}
