package order

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// deadline is a take deadline that is over as soon as it is looked at.
const deadline = time.Nanosecond

// taken takes a unit at the gate and leaves it there, as an instance does that
// is killed between the take and the ledger.
func taken(t *testing.T, i *instance, sku stock.SKU) stock.Deduction {
	t.Helper()
	d, err := i.gate.Take(t.Context(), stock.Deduction{
		OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "b", Lines: []stock.Line{{SKU: sku, Quantity: 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// record records a take's order, as an instance does.
func record(t *testing.T, i *instance, d stock.Deduction) error {
	t.Helper()
	o := i.ledger.Record(t.Context(), entry{
		Order:  Order{ID: d.OrderID, Buyer: d.Buyer, Status: Pending, Lines: d.Lines, Strategy: i.strategy, CreatedAt: now()},
		takeID: d.TakeID,
	}, d)
	if o.kind != committed {
		return o.reason()
	}
	return nil
}

func sweep(t *testing.T, i *instance) {
	t.Helper()
	if err := i.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestRecovery: what a killed instance left in flight is resolved, whichever
// step it died at.
func TestRecovery(t *testing.T) {
	t.Parallel()
	steps := []struct {
		name string
		die  func(t *testing.T, i *instance, d stock.Deduction)
		sold int64
	}{
		{"before the ledger", func(*testing.T, *instance, stock.Deduction) {}, 0},
		{"before the settle", func(t *testing.T, i *instance, d stock.Deduction) {
			if err := record(t, i, d); err != nil {
				t.Fatal(err)
			}
		}, 1},
		{"between void and give", func(t *testing.T, i *instance, d stock.Deduction) {
			if o := i.ledger.Resolve(t.Context(), d); o.kind != refused {
				t.Fatal(o)
			}
		}, 0},
		{"as another take's twin", func(t *testing.T, i *instance, d stock.Deduction) {
			// The order of this ID was recorded by another take, which settled.
			d.TakeID = uuid.New()
			if err := record(t, i, d); err != nil {
				t.Fatal(err)
			}
		}, 1},
	}
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua", takeDeadline: deadline})
		for _, step := range steps {
			t.Run(step.name, func(t *testing.T) {
				sku := fresh("recovery")
				lay(t, i, sku, 10)
				d := taken(t, i, sku)
				step.die(t, i, d)
				if step.name == "as another take's twin" {
					// The other take's units were cut at the gate too, and settled.
					other := taken(t, i, sku)
					if err := i.gate.Settle(t.Context(), other); err != nil {
						t.Fatal(err)
					}
				}
				sweep(t, i)
				sweep(t, i) // again: nothing is given twice
				s.atRest(t, i.gate, sku, step.sold)
			})
		}
	})
}

// TestRecoveryByAll: several instances recover the same takes at once, and
// give nothing twice.
func TestRecoveryByAll(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		var instances []*instance
		for range 3 {
			instances = append(instances, s.open(t, settings{strategy: "lua", takeDeadline: deadline}))
		}
		sku := fresh("all")
		lay(t, instances[0], sku, 100)
		for n := range 40 {
			if d := taken(t, instances[0], sku); n%2 == 0 {
				if err := record(t, instances[0], d); err != nil {
					t.Fatal(err)
				}
			}
		}
		failed := make(chan error)
		for _, i := range instances {
			go func() { failed <- i.Sweep(t.Context()) }()
		}
		for range instances {
			if err := wait(t, "a sweep", failed); err != nil {
				t.Error(err)
			}
		}
		sweep(t, instances[0])
		s.atRest(t, instances[0].gate, sku, 20)
	})
}

// TestYoungTakesAreLeft: recovery keeps its hands off takes whose instance may
// be at work.
func TestYoungTakesAreLeft(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:1], func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua"})
		sku := fresh("young")
		lay(t, i, sku, 10)
		d := taken(t, i, sku)
		sweep(t, i)
		if err := record(t, i, d); err != nil {
			t.Fatal(err)
		}
		i.settle(d)
		s.settled(t, i.gate, sku)
		s.atRest(t, i.gate, sku, 1)
	})
}

// TestSlowTwin: an instance that was stopped between take and ledger, past the
// deadline, finds its order void and takes again.
func TestSlowTwin(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, key := range []string{"", "k"} {
			t.Run("key "+key, func(t *testing.T) {
				slow := s.openHooked(t, settings{strategy: "lua"})
				quick := s.open(t, settings{strategy: "lua", takeDeadline: deadline})
				sku := fresh("slow")
				lay(t, quick, sku, 1)
				reached, proceed := slow.gate.taken.arm()
				defer proceed()
				heard := place(t.Context(), slow.instance, ask(sku).keyed(key))
				wait(t, "the take", reached)
				sweep(t, quick) // voids and gives
				proceed()
				r := wait(t, "the answer", heard)
				if r.err != nil || r.replayed {
					t.Fatalf("heard %+v", r)
				}
				o, err := quick.Order(t.Context(), r.order.ID)
				if err != nil || o.Status != Pending {
					t.Errorf("the order that was accepted is %+v, %v", o, err)
				}
				if key != "" {
					again, replayed, err := quick.Place(t.Context(), ask(sku).keyed(key))
					if err != nil || !replayed || again.ID != r.order.ID {
						t.Errorf("replayed %v: %v, %v; want %v", replayed, again.ID, err, r.order.ID)
					}
				}
				s.settled(t, quick.gate, sku)
				s.atRest(t, quick.gate, sku, 1)
			})
		}
	})
}

// TestSlowTwinIsRobbed: the same, but somebody else buys the unit that was
// given back. The slow one is refused, and nobody is sold it twice.
func TestSlowTwinIsRobbed(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		slow := s.openHooked(t, settings{strategy: "lua", noGuard: true})
		quick := s.open(t, settings{strategy: "lua", noGuard: true, takeDeadline: deadline})
		sku := fresh("robbed")
		lay(t, quick, sku, 1)
		reached, proceed := slow.gate.taken.arm()
		defer proceed()
		heard := place(t.Context(), slow.instance, ask(sku).keyed("k"))
		wait(t, "the take", reached)
		sweep(t, quick)
		mustPlace(t, quick, ask(sku))
		proceed()
		if r := wait(t, "the answer", heard); !errors.Is(r.err, stock.ErrSoldOut) {
			t.Errorf("heard %+v", r)
		}
		s.settled(t, quick.gate, sku)
		s.atRest(t, quick.gate, sku, 1)
	})
}

// TestLostTakeAnswer: the gate took, and its answer was lost. The units are
// back at once.
func TestLostTakeAnswer(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.openHooked(t, settings{strategy: "lua"})
		sku := fresh("lost")
		lay(t, i.instance, sku, 1)
		i.gate.lose = 1
		mustRefuse(t, i.instance, ask(sku).keyed("k"), ErrBusy)
		s.atRest(t, i.gate, sku, 0)
		mustPlace(t, i.instance, ask(sku).keyed("k"))
	})
}

// TestLostSettles: settles that fail are recovery's, and the orders stand.
func TestLostSettles(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.openHooked(t, settings{strategy: "lua", takeDeadline: deadline})
		sku := fresh("settles")
		lay(t, i.instance, sku, 5)
		i.gate.set(&i.gate.noSettle, true)
		for range 3 {
			mustPlace(t, i.instance, ask(sku))
		}
		i.settles.Close() // what was sent has failed
		i.gate.set(&i.gate.noSettle, false)
		level, err := i.gate.Level(t.Context(), sku)
		if err != nil || level[0].InFlight != 3 {
			t.Fatalf("the settles did not fail: %+v, %v", level, err)
		}
		sweep(t, i.instance)
		s.atRest(t, i.gate, sku, 3)
	})
}

// TestShrinkDies: an administrator's instance dies between the gate and the
// ledger, or between the ledger and the settle.
func TestShrinkDies(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua", takeDeadline: deadline})
		for _, recorded := range []bool{false, true} {
			sku := fresh("shrink")
			lay(t, i, sku, 10)
			d, err := i.gate.Take(t.Context(), shrinking(sku, 4))
			if err != nil {
				t.Fatal(err)
			}
			total := int64(10)
			if recorded {
				if _, o := i.ledger.Shrink(t.Context(), d, Setting{SKU: sku, Kind: stock.Product, Total: 6}); o.kind != committed {
					t.Fatal(o)
				}
				total = 6
			}
			sweep(t, i)
			sweep(t, i)
			s.atRest(t, i.gate, sku, 0)
			if b := s.books(t, sku); b.total != total {
				t.Errorf("recorded %v: %+v, want a total of %d", recorded, b, total)
			}
			if o, err := i.Order(t.Context(), d.OrderID); recorded && !errors.Is(err, ErrUnknownOrder) {
				t.Errorf("a shrink is shown as an order: %+v, %v", o, err)
			}
		}
	})
}
