package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// mustRecord commits the order of a take of one unit.
func mustRecord(t *testing.T, l *Ledger, sku stock.SKU) Order {
	t.Helper()
	o, out := l.Record(t.Context(), takeOf(sku))
	if !out.Committed() {
		t.Fatal(out.Reason())
	}
	return o
}

// become decides that an order moves from one status to another, if it has the first.
func become(from, to Status, returns bool) func(State) (Change, error) {
	return func(s State) (Change, error) {
		if s.Order.Status != from {
			return Change{}, nil
		}
		return Change{To: to, Returns: returns}, nil
	}
}

// expire expires a pending order, whatever the time is.
func expire(t *testing.T, l *Ledger, id uuid.UUID) Order {
	t.Helper()
	o, err := l.Change(t.Context(), id, Ask{Returns: true}, become(Pending, Expired, true))
	if err != nil || o.Status != Expired {
		t.Fatalf("the order is %s, %v", o.Status, err)
	}
	return o
}

// TestChange_Due checks that an order is due by the database's clock.
func TestChange_Due(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 10)
		o := mustRecord(t, l, "a")
		now, err := l.db.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for offset, want := range map[time.Duration]bool{-time.Second: true, time.Minute: false} {
			if _, err := l.db.Exec(t.Context(), "UPDATE orders SET expires_at = ?", now.Add(offset)); err != nil {
				t.Fatal(err)
			}
			_, err := l.Change(t.Context(), o.ID, Ask{}, func(s State) (Change, error) {
				if s.Due != want {
					t.Errorf("%v after its deadline: due %v", -offset, s.Due)
				}
				return Change{}, nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// TestChange_LocksStockFirst checks that a change that may return units locks the
// stock rows before the order's row. An INSERT that meets a duplicate waits for the
// order's row while its group holds stock rows, so the other order deadlocks.
func TestChange_LocksStockFirst(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		if d.sql.Ledger().Dialect() == sqltx.SQLite {
			return // one transaction at a time
		}
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 10)
		o := mustRecord(t, l, "a")
		holder, err := l.db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer holder.Rollback()
		if _, err := lockRows(t.Context(), holder, []stock.SKU{"a"}, holder.Dialect().RowLock()); err != nil {
			t.Fatal(err)
		}
		cancelled := make(chan error, 1)
		go func() {
			_, err := l.Change(context.WithoutCancel(t.Context()), o.ID, Ask{Returns: true}, become(Pending, Cancelled, true))
			cancelled <- err
		}()
		// The change waits for the stock row. Meanwhile the order's row must stay free.
		for deadline := time.Now().Add(500 * time.Millisecond); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
			var id []byte
			err := l.db.Transact(t.Context(), func(tx *sqltx.Tx) error {
				return tx.QueryRow(t.Context(), []any{&id}, "SELECT take_id FROM orders WHERE id = ? FOR UPDATE NOWAIT", tx.Dialect().UUID(o.ID))
			})
			if err != nil {
				t.Fatalf("the order's row is locked: %v", err)
			}
		}
		select {
		case err := <-cancelled:
			t.Fatalf("the change did not wait for the stock row: %v", err)
		default:
		}
		holder.Rollback()
		if err := wait(t, "the change", cancelled); err != nil {
			t.Error(err)
		}
		d.atRest(t, "a", 0)
	})
}

// TestChange_LowersClaim checks that a buyer's claim falls with the units that
// return, and only where the SKU has a limit.
func TestChange_LowersClaim(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		for _, sku := range []stock.SKU{"limited", "open"} {
			lay(t, l, sku, 10)
		}
		o, out := l.Record(t.Context(), takeOf("limited", "open"))
		if !out.Committed() {
			t.Fatal(out.Reason())
		}
		for _, statement := range []string{
			"UPDATE stock SET buyer_limit = 5 WHERE sku = 'limited'",
			"INSERT INTO claims (sku, buyer_id, units) VALUES ('limited', 'buyer-1', 3)",
			"INSERT INTO claims (sku, buyer_id, units) VALUES ('limited', 'buyer-2', 3)",
		} {
			if _, err := l.db.Exec(t.Context(), statement); err != nil {
				t.Fatal(err)
			}
		}
		expire(t, l, o.ID)
		for buyer, want := range map[string]int64{"buyer-1": 2, "buyer-2": 3} {
			var units int64
			if err := l.db.QueryRow(t.Context(), []any{&units}, "SELECT units FROM claims WHERE sku = 'limited' AND buyer_id = ?", buyer); err != nil || units != want {
				t.Errorf("%s claims %d units, %v; want %d", buyer, units, err, want)
			}
		}
	})
}

// TestRevive_Barred checks that a take of an expired order can no longer be
// committed once it was resolved.
func TestRevive_Barred(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 10)
		expired := expire(t, l, mustRecord(t, l, "a").ID)
		late := takeOf("a")
		late.OrderID = expired.ID
		if out := l.Resolve(t.Context(), late.Deduction); !out.Refused() {
			t.Fatalf("resolving the take: %+v", out)
		}
		if _, out := l.Revive(t.Context(), expired, late, "payment-1"); !out.Refused() || !errors.Is(out.Reason(), ErrRowChanged) {
			t.Errorf("reviving by a resolved take: %+v", out)
		}
		d.atRest(t, "a", 0)

		read, err := l.Order(t.Context(), expired.ID)
		if err != nil {
			t.Fatal(err)
		}
		again := takeOf("a")
		again.OrderID = expired.ID
		if _, out := l.Revive(t.Context(), *read, again, "payment-1"); !out.Committed() {
			t.Errorf("reviving by another take: %v", out.Reason())
		}
		if out := l.Resolve(t.Context(), again.Deduction); !out.Committed() {
			t.Errorf("resolving a committed revival: %+v", out)
		}
		slow := takeOf("a")
		slow.OrderID = expired.ID
		if _, out := l.Revive(t.Context(), *read, slow, "payment-2"); !out.Refused() || !errors.Is(out.Reason(), ErrRowChanged) {
			t.Errorf("reviving what another payment has revived: %+v", out)
		}
		d.atRest(t, "a", 1)
	})
}

// TestOrders checks the lists of orders and payments, page by page.
func TestOrders(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 100)
		var all, paid []uuid.UUID
		for n := range 7 {
			o := mustRecord(t, l, "a")
			all = append(all, o.ID)
			if n%2 == 0 {
				continue
			}
			payment := fmt.Sprint("payment-", n)
			_, err := l.Change(t.Context(), o.ID, Ask{Payment: payment}, func(State) (Change, error) {
				return Change{To: Paid, PaymentID: payment, PaymentStatus: PaymentPaid}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			paid = append(paid, o.ID)
		}
		stranger := takeOf("a")
		stranger.Buyer = "buyer-2"
		if _, out := l.Record(t.Context(), stranger); !out.Committed() {
			t.Fatal(out.Reason())
		}
		l.Resolve(t.Context(), takeOf("a").Deduction) // leaves a void order of buyer-1
		slices.SortFunc(all, compareIDs)
		slices.SortFunc(paid, compareIDs)

		for name, test := range map[string]struct {
			filter OrderFilter
			want   []uuid.UUID
		}{
			"all of a buyer":  {OrderFilter{Buyer: "buyer-1", Limit: 100}, all},
			"paid":            {OrderFilter{Buyer: "buyer-1", Status: Paid, Limit: 100}, paid},
			"first page":      {OrderFilter{Buyer: "buyer-1", Limit: 3}, all[:3]},
			"second page":     {OrderFilter{Buyer: "buyer-1", After: all[2], Limit: 3}, all[3:6]},
			"of every buyer":  {OrderFilter{Status: Paid, Limit: 100}, paid},
			"a buyer without": {OrderFilter{Buyer: "nobody", Limit: 100}, nil},
		} {
			orders, err := l.Orders(t.Context(), test.filter)
			var ids []uuid.UUID
			for _, o := range orders {
				ids = append(ids, o.ID)
				if len(o.Lines) != 1 || (o.Status == Paid) != (o.PaymentID != "") {
					t.Errorf("%s: %+v", name, o)
				}
			}
			if err != nil || !slices.Equal(ids, test.want) {
				t.Errorf("%s: %v, %v, want %v", name, ids, err, test.want)
			}
		}
		page, err := l.Payments(t.Context(), PaymentFilter{Status: PaymentPaid, After: "payment-1", Limit: 1})
		if err != nil || len(page) != 1 || page[0].ID != "payment-3" || page[0].CreatedAt.Location() != time.UTC {
			t.Errorf("a page of payments: %+v, %v", page, err)
		}
		if _, err := l.Refunded(t.Context(), "unknown"); !errors.Is(err, ErrNoPayment) {
			t.Errorf("refunding an unknown payment: %v", err)
		}
		if p, err := l.Refunded(t.Context(), "payment-1"); err != nil || p.Status != PaymentPaid {
			t.Errorf("refunding a payment that pays an order: %+v, %v", p, err)
		}
	})
}

// TestRefundsDue checks the count of payments that are due back, and the age of the
// oldest.
func TestRefundsDue(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 100)
		check := func(want int, atLeast, atMost time.Duration) {
			t.Helper()
			if n, oldest, err := l.RefundsDue(t.Context(), 3); err != nil || n != want || oldest < atLeast || oldest > atMost {
				t.Errorf("%d are due, the oldest for %v, %v; want %d, for %v to %v", n, oldest, err, want, atLeast, atMost)
			}
		}
		check(0, 0, 0)
		for n, status := range []PaymentStatus{PaymentPaid, PaymentRefundDue, PaymentRefunded, PaymentRefundDue, PaymentRefundDue, PaymentRefundDue} {
			payment := fmt.Sprint("payment-", n)
			_, err := l.Change(t.Context(), mustRecord(t, l, "a").ID, Ask{Payment: payment}, func(State) (Change, error) {
				return Change{PaymentID: payment, PaymentStatus: status}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if n == 1 {
				check(1, 0, time.Minute)
				_, err := d.sql.Ledger().Exec(t.Context(), "UPDATE payments SET changed_at = ? WHERE id = ?", Now().Add(-time.Hour), payment)
				if err != nil {
					t.Fatal(err)
				}
			}
			if n == 3 {
				check(2, 59*time.Minute, 61*time.Minute)
			}
		}
		if n, _, err := l.RefundsDue(t.Context(), 3); err != nil || n != 3 {
			t.Errorf("%d of 4 are counted up to 3, %v", n, err)
		}
	})
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }
