package ledger

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// become decides that an order changes from one status to another, if it has the first one.
func become(from, to order.Status, returns bool) func(order.Locked) (order.Transition, error) {
	return func(s order.Locked) (order.Transition, error) {
		if s.Order.Status != from {
			return order.Transition{}, nil
		}
		return order.Transition{To: to, Returns: returns}, nil
	}
}

// cancelOrder cancels a pending order.
func cancelOrder(ctx context.Context, l *Ledger, id uuid.UUID) error {
	_, _, err := l.Change(ctx, id, order.ChangeOptions{Returns: true}, become(order.Pending, order.Cancelled, true))
	return err
}

// expire expires a pending order, whatever the time is.
func expire(t *testing.T, l *Ledger, id uuid.UUID) order.Order {
	t.Helper()
	o, _, err := l.Change(t.Context(), id, order.ChangeOptions{Returns: true}, become(order.Pending, order.Expired, true))
	if err != nil || o.Status != order.Expired {
		t.Fatalf("the order is %s, %v", o.Status, err)
	}
	return o
}

// TestChange_Due checks that an order is due by the database's clock.
func TestChange_Due(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 10)
		o := place(t, l, "a")
		now, err := l.db.Now(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for offset, want := range map[time.Duration]bool{-time.Second: true, time.Minute: false} {
			exec(t, l.db, "UPDATE orders SET expires_at = ?", now.Add(offset))
			_, _, err := l.Change(t.Context(), o.ID, order.ChangeOptions{}, func(s order.Locked) (order.Transition, error) {
				if s.Due != want {
					t.Errorf("%v after its deadline: due %v", -offset, s.Due)
				}
				return order.Transition{}, nil
			})
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// TestChange_Refused checks that Change returns the order that decide was called with if decide
// refuses the change.
func TestChange_Refused(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	refusal := errors.New("refused")
	var seen order.Order
	found, _, err := s.l.Change(t.Context(), s.paid.ID, order.ChangeOptions{}, func(l order.Locked) (order.Transition, error) {
		seen = l.Order
		return order.Transition{}, refusal
	})
	if !errors.Is(err, refusal) || found.Status != order.Paid || !reflect.DeepEqual(found, seen) {
		t.Errorf("refused with %+v, %v; decide saw %+v", found, err, seen)
	}
}

// TestChange_LocksStockFirst checks that a change that may return units locks the stock rows before
// the order's row. An INSERT that finds a duplicate waits for the order's row while its group holds
// stock rows, so the opposite order would deadlock.
func TestChange_LocksStockFirst(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		if d.sql.Ledger().Dialect() == sqltx.SQLite {
			return // one transaction at a time
		}
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 10)
		o := place(t, l, "a")
		holder := begin(t, l.db)
		if _, err := readRows(t.Context(), holder, []stock.SKU{"a"}, stockColumns, holder.Dialect().RowLock()); err != nil {
			t.Fatal(err)
		}
		cancelled := make(chan error, 1)
		go func() { cancelled <- cancelOrder(context.WithoutCancel(t.Context()), l, o.ID) }()
		// The change waits for the stock row. Meanwhile the order's row must stay free.
		testenv.Await(t, "the change waits", func() bool { return d.lockWaits(t) > 0 })
		var id []byte
		if err := l.db.Transact(t.Context(), func(tx *sqltx.Tx) error {
			return tx.QueryRow(t.Context(), []any{&id}, "SELECT take_id FROM orders WHERE id = ? FOR UPDATE NOWAIT", tx.Dialect().UUID(o.ID))
		}); err != nil {
			t.Fatalf("the order's row is locked: %v", err)
		}
		select {
		case err := <-cancelled:
			t.Fatalf("the change did not wait for the stock row: %v", err)
		default:
		}
		holder.Rollback()
		if err := testenv.Receive(t, "the change", cancelled); err != nil {
			t.Error(err)
		}
		d.atRest(t, "a", 0)
	})
}

// TestChange_LowersClaim checks that a buyer's claim falls by the returned units, but only if the
// SKU has a limit.
func TestChange_LowersClaim(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		for _, sku := range []stock.SKU{"limited", "open"} {
			lay(t, l, sku, 10)
		}
		o := place(t, l, "limited", "open")
		for _, statement := range []string{
			"UPDATE stock SET limit_per_buyer = 5 WHERE sku = 'limited'",
			"INSERT INTO claims (sku, buyer_id, units) VALUES ('limited', 'buyer-1', 3)",
			"INSERT INTO claims (sku, buyer_id, units) VALUES ('limited', 'buyer-2', 3)",
		} {
			exec(t, l.db, statement)
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

// TestRevive_Blocked checks that a take of an expired order can no longer be committed once it was
// resolved.
func TestRevive_Blocked(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 10)
		expired := expire(t, l, place(t, l, "a").ID)
		other := expire(t, l, place(t, l, "a").ID)
		late := takeOf("a")
		late.OrderID = expired.ID
		if out := l.Resolve(t.Context(), late.Deduction); !out.Refused() {
			t.Fatalf("resolving the take: %+v", out)
		}
		if _, out := l.Revive(t.Context(), expired, late, "payment-1"); !out.Refused() || !errors.Is(out.Reason(), stock.ErrRowChanged) {
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
		if _, out := l.Revive(t.Context(), *read, slow, "payment-2"); !out.Refused() || !errors.Is(out.Reason(), stock.ErrRowChanged) {
			t.Errorf("reviving what another payment has revived: %+v", out)
		}
		second := takeOf("a")
		second.OrderID = other.ID
		if _, out := l.Revive(t.Context(), other, second, "payment-1"); !out.Refused() || !errors.Is(out.Reason(), stock.ErrRowChanged) {
			t.Errorf("reviving a second order by the same payment: %+v", out)
		}
		d.atRest(t, "a", 1)
	})
}

// TestResolve_RevivedMeanwhile checks that a take counts as committed if it was committed after
// Resolve had found its order expired.
func TestResolve_RevivedMeanwhile(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 10)
		expired := expire(t, l, place(t, l, "a").ID)
		late := late(expired)
		slow := d.openHooked(t, "version = version + 1", func() error {
			if _, out := l.Revive(t.Context(), expired, late, "payment-1"); !out.Committed() {
				t.Error(out.Reason())
			}
			return nil
		})
		if out := slow.Resolve(t.Context(), late.Deduction); !out.Committed() {
			t.Errorf("%s, %v", out.Kind(), out.Reason())
		}
		d.atRest(t, "a", 1)
	})
}

// TestRevive_EarlierTake checks that the ledger still knows the first take of a revived order.
// Recovery must not return its units, because expiry has returned them. A take that was never
// committed must be refused.
func TestRevive_EarlierTake(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 10)
		first := takeOf("a")
		mustRecord(t, l, first)
		expired := expire(t, l, first.OrderID)
		second, lost := first, first
		second.TakeID, lost.TakeID = expired.NextTake(), expired.NextTake()
		twin := first
		twin.TakeID = uuid.New()
		check := func(when string, committed, refused []stock.Take) {
			t.Helper()
			for _, take := range committed {
				if out := l.Resolve(t.Context(), take.Deduction); !out.Committed() {
					t.Errorf("%s: take %s was committed, and is resolved as %+v", when, take.TakeID, out)
				}
				// A slow consumer of the journal records the take again.
				if _, out := l.Record(t.Context(), take); !out.Committed() {
					t.Errorf("%s: take %s was committed, and is recorded again as %+v", when, take.TakeID, out)
				}
			}
			for _, take := range refused {
				if out := l.Resolve(t.Context(), take.Deduction); !out.Refused() {
					t.Errorf("%s: take %s was not committed, and is resolved as %+v", when, take.TakeID, out)
				}
			}
		}
		check("expired", []stock.Take{first}, []stock.Take{lost, twin})
		read, err := l.Order(t.Context(), expired.ID) // Resolve has blocked takes of the order in this version
		if err != nil {
			t.Fatal(err)
		}
		if _, out := l.Revive(t.Context(), *read, second, "payment-1"); !out.Committed() {
			t.Fatal(out.Reason())
		}
		check("revived", []stock.Take{first, second}, []stock.Take{lost, twin})
		if _, _, err := l.Change(t.Context(), first.OrderID, order.ChangeOptions{Returns: true}, become(order.Paid, order.Refunded, true)); err != nil {
			t.Fatal(err)
		}
		check("refunded", []stock.Take{first, second}, []stock.Take{lost, twin})
		d.atRest(t, "a", 0)

		// A change decides on the order as it is under the lock, not as it was read before.
		now, err := l.Order(t.Context(), first.OrderID)
		if err != nil {
			t.Fatal(err)
		}
		state, _, err := l.change(t.Context(), expired, nil, "", func(order.Locked) (order.Transition, error) { return order.Transition{}, nil })
		if got, want := fmt.Sprintf("%+v", state.Order), fmt.Sprintf("%+v", *now); err != nil || got != want {
			t.Errorf("a change of an order that was read before: %s, %v, want %s", got, err, want)
		}
	})
}

// TestChange_PaymentOfTwoOrders checks a payment that is reported for two orders at once:
// it pays the order whose transaction is first.
func TestChange_PaymentOfTwoOrders(t *testing.T) {
	t.Parallel()
	payment := func(before func()) func(order.Locked) (order.Transition, error) {
		return func(s order.Locked) (order.Transition, error) {
			if s.Payment != nil && s.Payment.OrderID != s.Order.ID {
				return order.Transition{}, order.ErrPaymentReused
			}
			before()
			return order.Transition{To: order.Paid, PaymentID: "payment-1", PaymentStatus: order.PaymentPaid}, nil
		}
	}
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 10)
		first, second, late := place(t, l, "a"), place(t, l, "a"), expire(t, l, place(t, l, "a").ID)
		pay := func() {
			if _, _, err := l.Change(t.Context(), first.ID, order.ChangeOptions{Payment: "payment-1"}, payment(func() {})); err != nil {
				t.Fatal(err)
			}
		}
		decisions := 0
		between := func() {
			if decisions++; decisions == 1 {
				pay()
			}
		}
		faster := stock.ErrRowChanged
		if l.db.Dialect() == sqltx.SQLite { // one transaction at a time
			pay()
			between, faster = func() {}, order.ErrPaymentReused
		}
		for _, want := range []error{faster, order.ErrPaymentReused} {
			if _, _, err := l.Change(t.Context(), second.ID, order.ChangeOptions{Payment: "payment-1"}, payment(between)); !errors.Is(err, want) {
				t.Errorf("paying the second order: %v, want %q", err, want)
			}
		}
		again := takeOf("a")
		again.OrderID, again.TakeID = late.ID, late.NextTake()
		if _, out := l.Revive(t.Context(), late, again, "payment-1"); !out.Refused() || !errors.Is(out.Reason(), stock.ErrRowChanged) {
			t.Errorf("reviving an expired order: %+v, want %q", out, stock.ErrRowChanged)
		}
		for id, want := range map[uuid.UUID]order.Status{first.ID: order.Paid, second.ID: order.Pending, late.ID: order.Expired} {
			if o, err := l.Order(t.Context(), id); err != nil || o.Status != want {
				t.Errorf("order %s: %+v, %v; want %s", id, o, err, want)
			}
		}
	})
}

// TestChange_PaymentTwice records a payment for the same order between decide and the commit,
// without the order's lock, as another node of a Galera cluster may.
func TestChange_PaymentTwice(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(servers, "MariaDB"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 10)
		o := place(t, l, "a")
		due := order.Transition{PaymentID: "payment-1", PaymentStatus: order.PaymentRefundDue}
		decide := func(s order.Locked) (order.Transition, error) {
			if s.Payment != nil {
				return order.Transition{}, nil
			}
			other := writePayment(l.db.Dialect(), false, order.Payment{ID: due.PaymentID, OrderID: o.ID, Status: due.PaymentStatus})
			return due, l.db.Transact(t.Context(), func(tx *sqltx.Tx) error {
				tx.AtCommit(other)
				return nil
			})
		}
		for _, want := range []error{stock.ErrRowChanged, nil} {
			if _, _, err := l.Change(t.Context(), o.ID, order.ChangeOptions{Payment: due.PaymentID}, decide); !errors.Is(err, want) {
				t.Errorf("recording the payment: %v, want %v", err, want)
			}
		}
	})
}

// TestOrders_StatusChanges pays an order between the statements that read a list of pending orders.
// The list must not contain the order.
func TestOrders_StatusChanges(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "MariaDB"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 10)
		placed := []order.Order{place(t, l, "a"), place(t, l, "a"), place(t, l, "a")}
		reads := 0
		slow := d.openHooked(t, "FROM orders", func() error {
			d.setStatus(t, placed[reads], order.Paid)
			reads++
			return nil
		})
		pending, err := slow.Orders(t.Context(), order.Filter{Status: order.Pending, Limit: 10})
		if err != nil || len(pending) != len(placed)-reads {
			t.Errorf("%d orders, %v, after %d reads", len(pending), err, reads)
		}
		for _, o := range pending {
			if o.Status != order.Pending {
				t.Errorf("order %s is %s", o.ID, o.Status)
			}
		}
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
			o := place(t, l, "a")
			all = append(all, o.ID)
			if n%2 == 0 {
				continue
			}
			payment := fmt.Sprint("payment-", n)
			_, _, err := l.Change(t.Context(), o.ID, order.ChangeOptions{Payment: payment}, pay(payment))
			if err != nil {
				t.Fatal(err)
			}
			paid = append(paid, o.ID)
		}
		stranger := takeOf("a")
		stranger.Buyer = "buyer-2"
		mustRecord(t, l, stranger)
		l.Resolve(t.Context(), takeOf("a").Deduction) // leaves a void order of buyer-1
		slices.SortFunc(all, compareIDs)
		slices.SortFunc(paid, compareIDs)

		for name, test := range map[string]struct {
			filter order.Filter
			want   []uuid.UUID
		}{
			"all of a buyer":  {order.Filter{Buyer: "buyer-1", Limit: 100}, all},
			"paid":            {order.Filter{Buyer: "buyer-1", Status: order.Paid, Limit: 100}, paid},
			"first page":      {order.Filter{Buyer: "buyer-1", Limit: 3}, all[:3]},
			"second page":     {order.Filter{Buyer: "buyer-1", After: all[2], Limit: 3}, all[3:6]},
			"of every buyer":  {order.Filter{Status: order.Paid, Limit: 100}, paid},
			"a buyer without": {order.Filter{Buyer: "nobody", Limit: 100}, nil},
		} {
			orders, err := l.Orders(t.Context(), test.filter)
			var ids []uuid.UUID
			for _, o := range orders {
				ids = append(ids, o.ID)
				if len(o.Lines) != 1 || (o.Status == order.Paid) != (o.PaymentID != "") {
					t.Errorf("%s: %+v", name, o)
				}
			}
			if err != nil || !slices.Equal(ids, test.want) {
				t.Errorf("%s: %v, %v, want %v", name, ids, err, test.want)
			}
		}
		page, err := l.Payments(t.Context(), order.PaymentFilter{Status: order.PaymentPaid, After: "payment-1", Limit: 1})
		if err != nil || len(page) != 1 || page[0].ID != "payment-3" || page[0].CreatedAt.Location() != time.UTC {
			t.Errorf("a page of payments: %+v, %v", page, err)
		}
		if _, err := l.Refunded(t.Context(), "unknown"); !errors.Is(err, order.ErrUnknownPayment) {
			t.Errorf("refunding an unknown payment: %v", err)
		}
		if p, err := l.Refunded(t.Context(), "payment-1"); err != nil || p.Status != order.PaymentPaid {
			t.Errorf("refunding a payment that pays an order: %+v, %v", p, err)
		}
		if _, _, err := l.Change(t.Context(), all[0], order.ChangeOptions{Payment: "due"}, func(order.Locked) (order.Transition, error) {
			return order.Transition{PaymentID: "due", PaymentStatus: order.PaymentRefundDue}, nil
		}); err != nil {
			t.Fatal(err)
		}
		first, err := l.Refunded(t.Context(), "due")
		if err != nil || first.Status != order.PaymentRefunded || first.ChangedAt.Before(first.CreatedAt) {
			t.Errorf("refunding a payment that is due: %+v, %v", first, err)
		}
		exec(t, d.sql.Ledger(), "UPDATE payments SET changed_at = ? WHERE id = ?", Now().Add(-time.Hour), "due")
		if first, err = readPayment(t.Context(), l.db, "due"); err != nil {
			t.Fatal(err)
		}
		if p, err := l.Refunded(t.Context(), "due"); err != nil || p != first {
			t.Errorf("refunding it again: %+v, %v, want %+v", p, err, first)
		}
	})
}

// TestRefundsDue checks the count of payments that are due back, and the age of the
// oldest.
func TestRefundsDue(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		lay(t, l, "a", 100)
		check := func(want int, atLeast, atMost time.Duration) {
			t.Helper()
			if n, oldest, err := l.RefundsDue(t.Context(), 3); err != nil || n != want || oldest < atLeast || oldest > atMost {
				t.Errorf("%d are due, the oldest for %v, %v; want %d, for %v to %v", n, oldest, err, want, atLeast, atMost)
			}
		}
		check(0, 0, 0)
		for n, status := range []order.PaymentStatus{order.PaymentPaid, order.PaymentRefundDue, order.PaymentRefunded, order.PaymentRefundDue, order.PaymentRefundDue, order.PaymentRefundDue} {
			payment := fmt.Sprint("payment-", n)
			_, _, err := l.Change(t.Context(), place(t, l, "a").ID, order.ChangeOptions{Payment: payment}, func(order.Locked) (order.Transition, error) {
				return order.Transition{PaymentID: payment, PaymentStatus: status}, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if n == 1 {
				check(1, 0, time.Minute)
			}
			if n == 3 {
				exec(t, d.sql.Ledger(), "UPDATE payments SET changed_at = ? WHERE id = ?", Now().Add(-time.Hour), payment)
				check(2, 59*time.Minute, 61*time.Minute)
			}
		}
		if n, _, err := l.RefundsDue(t.Context(), 3); err != nil || n != 3 {
			t.Errorf("%d of 4 are counted up to 3, %v", n, err)
		}
	})
}

func compareIDs(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) }
