package order

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
)

// eachStrategy runs the test for every strategy, on every database, with guard
// and without where there is a gate to guard.
func eachStrategy(t *testing.T, test func(t *testing.T, s *shop, i *instance)) {
	t.Helper()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, spec := range strategy.Table() {
			guards := []bool{true}
			if spec.HasGate() {
				guards = append(guards, false)
			}
			for _, guard := range guards {
				name := spec.Name
				if !guard {
					name += " unguarded"
				}
				t.Run(name, func(t *testing.T) {
					i := s.open(t, settings{strategy: spec.Name, noGuard: !guard})
					test(t, s, i)
					i.Close() // the next strategy adopts the stock
				})
			}
		}
	})
}

// fresh is a SKU of the test's own.
func fresh(name string) stock.SKU { return stock.SKU(name + "." + uuid.NewString()[:8]) }

// TestPlace is what every strategy does for a client who is alone.
func TestPlace(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, s *shop, i *instance) {
		a, b := fresh("a"), fresh("b")
		lay(t, i, a, 5)
		lay(t, i, b, 2)

		o := mustPlace(t, i, asking(stock.Line{SKU: b, Quantity: 1}, stock.Line{SKU: a, Quantity: 2}))
		want := []stock.Line{{SKU: a, Quantity: 2}, {SKU: b, Quantity: 1}}
		if o.Status != Pending || o.Buyer != "buyer-1" || o.Strategy != i.strategy || !sameLines(o.Lines, want) {
			t.Errorf("placed %+v", o)
		}
		if o.CreatedAt.Location() != time.UTC || o.CreatedAt.Nanosecond()%1000 != 0 {
			t.Errorf("created at %v: not UTC, or not whole microseconds", o.CreatedAt)
		}
		found, err := i.Order(t.Context(), o.ID)
		if err != nil || !sameOrder(found, o) {
			t.Errorf("found %+v, %v; placed %+v", found, err, o)
		}
		if _, err := i.Order(t.Context(), uuid.New()); !errors.Is(err, ErrUnknownOrder) {
			t.Errorf("an order that nobody placed: %v", err)
		}

		// All lines or none: b has one unit left.
		two := asking(stock.Line{SKU: a, Quantity: 1}, stock.Line{SKU: b, Quantity: 2})
		mustRefuse(t, i, two, stock.ErrSoldOut)
		if sku := skuOf(second(i.Place(t.Context(), two))); sku != b {
			t.Errorf("%q is said to be sold out, not %q", sku, b)
		}
		nowhere := fresh("nowhere")
		mustRefuse(t, i, asking(stock.Line{SKU: a, Quantity: 1}, stock.Line{SKU: nowhere, Quantity: 1}), stock.ErrUnknownSKU)

		// Not one more, not one less.
		mustPlace(t, i, asking(stock.Line{SKU: a, Quantity: 3}))
		mustRefuse(t, i, ask(a), stock.ErrSoldOut)
		mustPlace(t, i, ask(b))
		mustRefuse(t, i, ask(b), stock.ErrSoldOut)

		s.settled(t, i.gate, a)
		s.settled(t, i.gate, b)
		s.atRest(t, i.gate, a, 5)
		s.atRest(t, i.gate, b, 2)
	})
}

func sameOrder(a, b Order) bool {
	return a.ID == b.ID && a.Buyer == b.Buyer && a.Status == b.Status && a.Strategy == b.Strategy &&
		a.CreatedAt.Equal(b.CreatedAt) && a.ExpiresAt.Equal(b.ExpiresAt) && sameLines(a.Lines, b.Lines)
}

// sameLines compares what was asked for: a line as it was placed knows its
// epoch, as it was read it does not.
func sameLines(a, b []stock.Line) bool {
	return slices.EqualFunc(a, b, func(x, y stock.Line) bool { return x.SKU == y.SKU && x.Quantity == y.Quantity })
}

func second(_ Order, _ bool, err error) error { return err }

// TestKeys: a key names an intent. Its replay is the first answer, whatever
// became of the stock and of the order since.
func TestKeys(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, s *shop, i *instance) {
		a, b := fresh("a"), fresh("b")
		lay(t, i, a, 3)
		lay(t, i, b, 3)
		k1, k2 := string(fresh("k-1")), string(fresh("k-2"))
		both := func() Request {
			return asking(stock.Line{SKU: a, Quantity: 1}, stock.Line{SKU: b, Quantity: 2}).keyed(k1)
		}
		first := mustPlace(t, i, both())

		replay := func(r Request) {
			t.Helper()
			o, replayed, err := i.Place(t.Context(), r)
			if err != nil || !replayed || !sameOrder(o, first) {
				t.Errorf("replayed %v: %+v, %v; the first answer was %+v", replayed, o, err, first)
			}
		}
		replay(both())
		turned := both()
		slices.Reverse(turned.Lines)
		replay(turned)

		other := both()
		other.Lines[1].Quantity = 1
		mustRefuse(t, i, other, ErrKeyReused)
		mustRefuse(t, i, ask(a).keyed(k1), ErrKeyReused)

		// Another buyer's key is another key.
		theirs := both()
		theirs.Buyer = "buyer-2"
		theirs.Lines = []stock.Line{{SKU: a, Quantity: 1}}
		if o := mustPlace(t, i, theirs); o.ID == first.ID {
			t.Error("two buyers share an order")
		}

		// A refusal is not remembered: the key is as good as new after a restock.
		mustRefuse(t, i, asking(stock.Line{SKU: a, Quantity: 2}).keyed(k2), stock.ErrSoldOut)
		mustPlace(t, i, ask(a)) // sold out now
		replay(both())
		mustRefuse(t, i, ask(a).keyed(k2), stock.ErrSoldOut)
		lay(t, i, a, 5)
		mustPlace(t, i, asking(stock.Line{SKU: a, Quantity: 2}).keyed(k2))

		// An order that was paid or cancelled meanwhile was pending once.
		if err := s.sql.DB().Exec("UPDATE orders SET status = 'paid' WHERE id = ?", idColumn(s.sql.DB(), first.ID)).Error; err != nil {
			t.Fatal(err)
		}
		replay(both())

		s.settled(t, i.gate, a)
		s.settled(t, i.gate, b)
		s.atRest(t, i.gate, a, 5)
		s.atRest(t, i.gate, b, 2)
	})
}

// TestTwins: many requests under one key at once make one order.
func TestTwins(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, s *shop, i *instance) {
		sku := fresh("twins")
		lay(t, i, sku, 100)
		const twins = 12
		var heard [twins]<-chan reply
		for n := range heard {
			heard[n] = place(t.Context(), i, ask(sku).keyed(string(sku)))
		}
		ids := make(map[uuid.UUID]bool)
		var fresh int
		for n := range heard {
			a := wait(t, "a twin's answer", heard[n])
			switch {
			case a.err == nil:
				ids[a.order.ID] = true
				if !a.replayed {
					fresh++
				}
			case !errors.Is(a.err, ErrInProgress) && !errors.Is(a.err, ErrBusy):
				t.Errorf("a twin heard %v", a.err)
			}
		}
		if len(ids) != 1 || fresh != 1 {
			t.Errorf("%d orders, %d answers said new; want one of each", len(ids), fresh)
		}
		gate := i.gate
		if spec, _ := strategy.Find(i.strategy); !spec.Sound {
			gate = nil // one that miscounts twins
		}
		s.settled(t, gate, sku)
		s.atRest(t, gate, sku, 1)
	})
}

// TestStock: growing and shrinking, in any strategy.
func TestStock(t *testing.T) {
	t.Parallel()
	eachStrategy(t, func(t *testing.T, s *shop, i *instance) {
		sku := fresh("stock")
		set := func(total int64) (Stock, bool, error) {
			return i.SetStock(t.Context(), Setting{SKU: sku, Kind: stock.Coupon, Total: total})
		}
		expect := func(total, available int64, wantCreated bool) {
			t.Helper()
			st, created, err := set(total)
			want := Stock{SKU: sku, Kind: stock.Coupon, Total: total, Available: available, Sold: total - available}
			if err != nil || created != wantCreated || st != want {
				t.Errorf("setting %d: %+v, created %v, %v; want %+v", total, st, created, err, want)
			}
			if got, err := i.Stock(t.Context(), sku); err != nil || got != want {
				t.Errorf("after setting %d: %+v, %v; want %+v", total, got, err, want)
			}
		}
		if _, err := i.Stock(t.Context(), sku); !errors.Is(err, stock.ErrUnknownSKU) {
			t.Errorf("a SKU that nobody laid in: %v", err)
		}
		expect(3, 3, true)
		mustPlace(t, i, asking(stock.Line{SKU: sku, Quantity: 3}))
		mustRefuse(t, i, ask(sku), stock.ErrSoldOut)
		s.settled(t, i.gate, sku)
		expect(5, 2, false)
		expect(5, 2, false)
		mustPlace(t, i, ask(sku))
		s.settled(t, i.gate, sku)
		expect(4, 0, false)
		if _, _, err := set(3); !errors.Is(err, ErrBelowSold) {
			t.Errorf("setting less than is sold: %v", err)
		}
		mustRefuse(t, i, ask(sku), stock.ErrSoldOut)
		if _, _, err := i.SetStock(t.Context(), Setting{SKU: sku, Kind: stock.Product, Total: 4}); !errors.Is(err, ErrKindFixed) {
			t.Errorf("changing the kind: %v", err)
		}
		expect(6, 2, false)
		s.settled(t, i.gate, sku) // the administrator's take
		audit, err := i.Audit(t.Context(), sku)
		if err != nil || audit.Total != 6 || audit.Sold != 4 || audit.Oversold != 0 || audit.LedgerAvailable != 2 || audit.Drift != 0 {
			t.Errorf("audit %+v, %v", audit, err)
		}
		if (audit.GateAvailable == nil) != (i.gate == nil) || (audit.GateInFlight == nil) != (i.gate == nil) {
			t.Errorf("gate figures without a gate, or none with one: %+v", audit)
		}
		if i.gate != nil && (*audit.GateAvailable != 2 || *audit.GateInFlight != 0) {
			t.Errorf("the gate has %d, and %d in flight", *audit.GateAvailable, *audit.GateInFlight)
		}
		s.atRest(t, i.gate, sku, 4)
	})
}

func TestListStock(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "lua"})
		// In byte order: digits, capitals, small letters.
		names := []stock.SKU{"0-9", "A.b", "B", "a", "a-b", "a.b", "a:b", "b_1"}
		for n, name := range names {
			lay(t, i, name, int64(n))
		}
		var all []stock.SKU
		var after stock.SKU
		for range 10 {
			page, next, err := i.ListStock(t.Context(), after, 3)
			if err != nil || len(page) > 3 {
				t.Fatalf("%d SKUs, %v", len(page), err)
			}
			for _, st := range page {
				if want := int64(slices.Index(names, st.SKU)); st.Available != want || st.Total != want {
					t.Errorf("%+v, want %d", st, want)
				}
				all = append(all, st.SKU)
			}
			if after = next; after == "" {
				break
			}
		}
		if !slices.Equal(all, names) {
			t.Errorf("listed %v, want %v", all, names)
		}
	})
}

// TestLayouts: once another strategy has adopted the stock, an instance of the
// one before sells nothing more, and says that it is not ready.
func TestLayouts(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, next := range strategy.Names() {
			t.Run("lua to "+next, func(t *testing.T) {
				sku := fresh("layout")
				old := s.open(t, settings{strategy: "lua"})
				lay(t, old, sku, 10)
				mustPlace(t, old, ask(sku))
				if err := old.Ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				young := s.open(t, settings{strategy: next})
				mustPlace(t, young, ask(sku))
				if next != "lua" {
					mustRefuse(t, old, ask(sku), ErrSuperseded)
					if err := old.Ready(t.Context()); !errors.Is(err, ErrSuperseded) {
						t.Errorf("the old instance is ready: %v", err)
					}
				}
				if err := young.Ready(t.Context()); err != nil {
					t.Error(err)
				}
				s.settled(t, young.gate, sku)
				s.atRest(t, young.gate, sku, 2)
				old.Close()
				young.Close()
			})
		}
	})
}

// TestOrderIDs: IDs of keys are stable for ever, and apart where they should
// be.
func TestOrderIDs(t *testing.T) {
	r, service := Request{Buyer: "ab", Key: "c"}, Service{ledgerID: uuid.New()}
	orderID := service.orderID
	other := Service{ledgerID: uuid.New()}
	if orderID(r, 0) == other.orderID(r, 0) {
		t.Error("who knows buyer and key knows the ID")
	}
	if got := orderID(r, 0).String(); got != orderID(r, 0).String() || got[14] != '8' || !strings.ContainsRune("89ab", rune(got[19])) {
		t.Errorf("%s is not stable, or not of version 8", got)
	}
	seen := make(map[uuid.UUID]string)
	for _, r := range []Request{{Buyer: "ab", Key: "c"}, {Buyer: "a", Key: "bc"}, {Buyer: "abc", Key: " "}} {
		for generation := range 3 {
			id, name := orderID(r, generation), fmt.Sprint(r.Buyer, "/", r.Key, "/", generation)
			if seen[id] != "" {
				t.Errorf("%s and %s share an ID", seen[id], name)
			}
			seen[id] = name
		}
	}
	a, b := orderID(Request{Buyer: "x"}, 0), orderID(Request{Buyer: "x"}, 0)
	if a == b || a.Version() != 7 {
		t.Errorf("without a key: %v and %v", a, b)
	}
}

// TestHangUp: a buyer who hangs up changes nothing for the others, and hears
// the truth when he asks again under his key.
func TestHangUp(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, name := range []string{"lua", "merged", "for-update"} {
			t.Run(name, func(t *testing.T) {
				sku := fresh("hangup")
				i := s.openHooked(t, settings{strategy: name})
				lay(t, i.instance, sku, 10)

				ctx, hangUp := context.WithCancel(t.Context())
				reached, proceed := i.cutter.after.arm()
				defer proceed()
				his := place(ctx, i.instance, ask(sku).keyed("his"+string(sku)))
				wait(t, "his transaction", reached)
				theirs := place(t.Context(), i.instance, ask(sku))
				hangUp()
				// He leaves while his transaction is open: his outcome is sought
				// by an insert that waits for it.
				proceed()
				a := wait(t, "his answer", his)
				if b := wait(t, "their answer", theirs); b.err != nil {
					t.Errorf("a neighbour heard %v", b.err)
				}
				o, replayed, err := i.Place(t.Context(), ask(sku).keyed("his"+string(sku)))
				switch {
				case err != nil:
					t.Errorf("asking again: %v", err)
				case a.err == nil && (!replayed || o.ID != a.order.ID):
					t.Errorf("he heard %v, and then %v, replayed %v", a.order.ID, o.ID, replayed)
				}
				s.settled(t, i.Service.gate, sku)
				s.atRest(t, i.Service.gate, sku, 2)
				i.Close()
			})
		}
	})
}
