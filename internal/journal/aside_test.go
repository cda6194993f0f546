package journal

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// other is a second SKU.
const other stock.SKU = "b"

func unitOf(skus ...stock.SKU) stock.Deduction {
	d := stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "u"}
	for _, sku := range skus {
		d.Lines = append(d.Lines, stock.Line{SKU: sku, Quantity: 1})
	}
	return d
}

// TestLockedRow checks that the orders of a locked stock row delay no others, however many
// there are, and that they are committed once the row is free. An order of two SKUs waits
// for the locked one, and holds up no order of the other.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, r *rig) {
		if err := r.gate.Fill(t.Context(), other, r.epoch, units); err != nil {
			t.Fatal(err)
		}
		queue := func(n int, skus ...stock.SKU) (takes []stock.Take) {
			t.Helper()
			for range n {
				taken, err := r.journal.Queue(t.Context(), unitOf(skus...), time.Now())
				if err != nil {
					t.Fatal(err)
				}
				takes = append(takes, taken)
			}
			return takes
		}
		unlock := make(chan struct{})
		r.ledger.locked = []stock.SKU{sku}
		r.ledger.before = func(taken stock.Take) (order.Outcome, bool) {
			if taken.Lines[0].SKU == sku {
				<-unlock
			}
			return order.Outcome{}, false
		}
		locked := append(queue(5, sku, other), queue(maxHeld+2*maxBatch, sku)...)
		free := queue(20, other)
		stop := run(t, r.consumer())
		defer stop()
		release := func() { close(unlock) }
		defer func() { release() }()
		committed := func(takes []stock.Take) (n int) {
			for _, taken := range takes {
				if _, err := r.ledger.Order(t.Context(), taken.OrderID); err == nil {
					n++
				}
			}
			return n
		}
		for deadline := time.Now().Add(time.Minute); committed(free) < len(free); time.Sleep(5 * time.Millisecond) { // between two looks
			if time.Now().After(deadline) {
				t.Fatalf("%d of %d orders of another SKU are committed", committed(free), len(free))
			}
		}
		if n := committed(locked); n != 0 {
			t.Fatalf("%d orders of the locked row are committed", n)
		}
		release()
		release = func() {}
		r.waitEmpty(t)
		if n := committed(locked); n != len(locked) {
			t.Errorf("%d of %d orders are committed", n, len(locked))
		}
		levels, err := r.gate.Level(t.Context(), sku, other)
		if err != nil || levels[0].Available != units-int64(len(locked)) || levels[1].Available != units-25 || levels[0].InFlight+levels[1].InFlight != 0 {
			t.Errorf("%+v, %v", levels, err)
		}
	})
}

// claimable always has the same order to claim, and another new one.
type claimable struct {
	stock.QueuedOrders
	left, fresh stock.Take
}

func (q claimable) Claim(context.Context, string, int, time.Duration) ([]stock.Take, error) {
	return []stock.Take{q.left}, nil
}

func (q claimable) Read(context.Context, string, int, time.Duration) ([]stock.Take, error) {
	return []stock.Take{q.fresh}, nil
}

// TestClaimedOrdersOfALockedRow checks that new orders are read although the orders of a
// locked row can be claimed all the time.
func TestClaimedOrdersOfALockedRow(t *testing.T) {
	t.Parallel()
	q := claimable{left: stock.Take{Deduction: unitOf(sku)}, fresh: stock.Take{Deduction: unitOf(other)}}
	c := NewForeign(q, nil, nil, &mender{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), nil)
	c.aside.hold([]stock.SKU{sku})
	if takes, err := c.next(t.Context()); err != nil || len(takes) != 1 || takes[0].OrderID != q.fresh.OrderID {
		t.Errorf("%+v, %v", takes, err)
	}
	c.aside.release([]stock.SKU{sku})
	if takes, err := c.next(t.Context()); err != nil || len(takes) != 1 || takes[0].OrderID != q.left.OrderID {
		t.Errorf("%+v, %v", takes, err)
	}
}

// TestAsideIsResumed checks that orders that were set aside are the first to go on once
// their row is free.
func TestAsideIsResumed(t *testing.T) {
	t.Parallel()
	q := claimable{left: stock.Take{Deduction: unitOf(other)}, fresh: stock.Take{Deduction: unitOf(other)}}
	c := NewForeign(q, nil, nil, &mender{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), nil)
	waits := stock.Take{Deduction: unitOf(sku)}
	c.aside.hold([]stock.SKU{sku})
	if free := c.aside.admit([]stock.Take{waits}); len(free) != 0 {
		t.Errorf("%+v", free)
	}
	c.aside.release([]stock.SKU{sku})
	if takes, err := c.next(t.Context()); err != nil || len(takes) != 1 || takes[0].OrderID != waits.OrderID {
		t.Errorf("%+v, %v", takes, err)
	}
}

// TestAsideIsBounded checks how many orders are held and set aside, and that an order
// waits until none of its SKUs is locked.
func TestAsideIsBounded(t *testing.T) {
	t.Parallel()
	var a aside
	both, one := []stock.SKU{sku, other}, []stock.SKU{sku}
	for n := range maxHeld {
		if !a.hold([][]stock.SKU{both, one}[n%2]) {
			t.Fatalf("%d orders are held", n)
		}
	}
	if a.hold(one) {
		t.Error("one order more is held")
	}
	takes := []stock.Take{{Deduction: unitOf("free")}, {Deduction: unitOf("free", other)}}
	for range maxAside {
		takes = append(takes, stock.Take{Deduction: unitOf(sku)})
	}
	for range 2 { // orders may be delivered again
		if free := a.admit(takes); len(free) != 1 || free[0].OrderID != takes[0].OrderID {
			t.Errorf("%d orders can begin", len(free))
		}
	}
	if len(a.waiting) != maxAside {
		t.Errorf("%d orders are set aside", len(a.waiting))
	}
	for n := range maxHeld {
		if n == maxHeld-1 { // an order of one SKU is held
			if free := a.resume(maxAside); len(free) != 1 || free[0].OrderID != takes[1].OrderID {
				t.Errorf("%d orders go on", len(free))
			}
		}
		a.release([][]stock.SKU{both, one}[n%2])
	}
	resumed := len(a.resume(10))
	resumed += len(a.resume(2 * maxAside))
	if resumed != maxAside-1 || len(a.waiting) != 0 || len(a.admit(takes)) != len(takes) {
		t.Errorf("%d orders were resumed, %d wait", resumed, len(a.waiting))
	}
}
