package ledger

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestAnswersWaitForTheStandby checks that an answer that only reports existing rows waits until
// the synchronous standby has these rows. A commit whose wait was cancelled leaves rows on the
// primary that the standby lacks.
func TestAnswersWaitForTheStandby(t *testing.T) {
	t.Parallel()
	primary, standby := testenv.OwnPostgresPair(t)
	d := &database{primary.URL(), storetest.Migrated(t, primary.URL())}
	l := d.open(t, cutter.Merged())
	row := lay(t, l, "a", 10)
	paid, cancelled := place(t, l, "a"), place(t, l, "a")
	errPaid := errors.New("the order is paid")
	if _, _, err := l.Change(t.Context(), paid.ID, order.ChangeOptions{Payment: "p-1"}, pay("p-1")); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.Change(t.Context(), paid.ID, order.ChangeOptions{Payment: "p-2"}, pay("p-2")); err != nil {
		t.Fatal(err)
	}
	wired, wire := d.throughWire(t, map[sqltx.Dialect][2]string{sqltx.Postgres: {"statement_timeout", "60000"}})
	unconfirmed := faults.Fault{Kind: faults.Refused, Nth: 1, Only: "pg_logical_emit_message"}
	wire.Arm(unconfirmed) // the COMMIT has waited already
	if _, err := wired.Refunded(t.Context(), "p-2"); err != nil {
		t.Fatal(err)
	}
	if o, err := wired.Order(t.Context(), paid.ID); err == nil || errors.Is(err, order.ErrUnknownOrder) {
		t.Errorf("without the standby: %+v, %v", o, err)
	}
	wire.Arm(unconfirmed)
	if o, _, err := wired.Change(t.Context(), paid.ID, order.ChangeOptions{Payment: "p-1"}, pay("p-1")); err == nil {
		t.Errorf("a payment again without the standby: %+v", o)
	}
	wire.Disarm()
	if err := cancelOrder(t.Context(), l, cancelled.ID); err != nil {
		t.Fatal(err)
	}
	changed := func(_ order.Order, _ []stock.Change, err error) error { return err }
	for name, call := range map[string]func(ctx context.Context) error{
		"a payment again": func(ctx context.Context) error {
			return changed(l.Change(ctx, paid.ID, order.ChangeOptions{Payment: "p-1"}, pay("p-1")))
		},
		"a cancellation again": func(ctx context.Context) error { return cancelOrder(ctx, l, cancelled.ID) },
		"a refused cancellation": func(ctx context.Context) error {
			err := changed(l.Change(ctx, paid.ID, order.ChangeOptions{Returns: true}, func(order.Locked) (order.Transition, error) { return order.Transition{}, errPaid }))
			if !errors.Is(err, errPaid) {
				return errors.Join(errors.New("not refused"), err)
			}
			return nil
		},
		"payments": func(ctx context.Context) error {
			page, err := l.Payments(ctx, order.PaymentFilter{Limit: 10})
			if err == nil && len(page) != 2 {
				t.Errorf("%d payments", len(page))
			}
			return err
		},
		"refunded again": func(ctx context.Context) error {
			_, err := l.Refunded(ctx, "p-2")
			return err
		},
		"orders": func(ctx context.Context) error {
			_, err := l.Orders(ctx, order.Filter{Limit: 10})
			return err
		},
		"an order": func(ctx context.Context) error {
			_, err := l.Order(ctx, paid.ID)
			return err
		},
		"a duplicate": func(ctx context.Context) error {
			again := takeOf("a")
			again.OrderID = paid.ID
			_, out := l.Record(ctx, again)
			if found, exists := out.Duplicate(); !exists || found.ID != paid.ID {
				return errors.Join(errors.New("no duplicate"), out.Reason())
			}
			return nil
		},
		"a resolved take": func(ctx context.Context) error {
			out := l.Resolve(ctx, stock.Deduction{OrderID: paid.ID, TakeID: paid.TakeID, Buyer: paid.Buyer, Lines: paid.Lines})
			if !out.Committed() {
				return errors.Join(errors.New("not committed"), out.Reason())
			}
			return nil
		},
		"a refusal of a committed order": func(ctx context.Context) error {
			out := l.RecordRefusal(ctx, again(paid))
			if !out.Committed() {
				return errors.Join(errors.New("not committed"), out.Reason())
			}
			return nil
		},
		"the same setting": func(ctx context.Context) error {
			_, _, err := l.Set(ctx, stock.Setting{SKU: row.SKU, Kind: row.Kind, Total: row.Total})
			return err
		},
	} {
		standby.Stop()
		if _, err := l.Order(t.Context(), uuid.New()); !errors.Is(err, order.ErrUnknownOrder) {
			t.Errorf("an unknown ID while the standby is unreachable: %v", err)
		}
		answer := make(chan error, 1)
		go func() { answer <- call(context.WithoutCancel(t.Context())) }()
		waits := make(chan struct{})
		looking, stop := context.WithCancel(t.Context())
		go func() {
			for n := 0; looking.Err() == nil; testenv.Dither() {
				err := l.db.QueryRow(looking, []any{&n}, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
				if err == nil && n > 0 {
					close(waits)
					return
				}
			}
		}()
		select {
		case err := <-answer:
			t.Errorf("%s: answered without the standby: %v", name, err)
			standby.Cont()
		case <-waits:
			locked, err := l.lockedRows(t.Context(), []stock.SKU{"a"})
			if err != nil || len(locked) > 0 && name != "the same setting" { // the same setting is committed, so it holds the lock
				t.Errorf("%s: the stock row is locked while the answer waits for the standby (%v)", name, err)
			}
			standby.Cont()
			if err := testenv.Receive(t, name, answer); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		stop()
	}
}
