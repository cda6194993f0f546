package order

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// remembering returns a cache that repeats "sold out" for 100 ms.
func remembering() *refusalCache { return &refusalCache{soldOut: 100 * time.Millisecond} }

// TestRefusalCache checks how long a refusal is repeated. For opening hours, it is at most a
// second, and never after the opening. For lack of units, it is the configured time. The time
// counts from the request to the ledger.
func TestRefusalCache(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		reason error
		want   time.Duration // how long the refusal is repeated
	}{
		{"opens in an hour", &stock.NotOpen{In: time.Hour}, time.Second},
		{"opens soon", &stock.NotOpen{In: 300 * time.Millisecond}, 300*time.Millisecond - clockError},
		{"closed", stock.ErrClosed, time.Second},
		{"sold out", stock.ErrSoldOut, 100 * time.Millisecond},
		{"buyer limit", stock.ErrBuyerLimit, 0},
		{"unknown SKU", stock.ErrUnknownSKU, 0},
		{"busy", stock.ErrBusy, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := remembering()
				lines := []stock.Line{{SKU: "a", Quantity: 1}, {SKU: "b", Quantity: 1}}
				asked := time.Now()
				time.Sleep(50 * time.Millisecond) // the ledger's answer takes this long
				c.learn(asked, lines, fmt.Errorf("recording: %w", stock.Refuse("a", test.reason)))
				if err := c.refuse(lines[1:]); err != nil {
					t.Errorf("another SKU is refused: %v", err)
				}
				for {
					err := c.refuse(lines)
					if err == nil {
						break
					}
					var refusal *stock.Refusal
					if !errors.As(err, &refusal) || refusal.SKU != "a" || !errors.Is(err, test.reason) {
						t.Fatalf("repeated %v, want %v", err, test.reason)
					}
					time.Sleep(time.Millisecond)
				}
				if got := time.Since(asked); got != max(test.want, 50*time.Millisecond) {
					t.Errorf("repeated until %v after the ledger was asked, want %v", got, test.want)
				}
			})
		})
	}
}

// TestRefusalCache_Events checks which orders of a SKU that was sold out or closed are refused from
// memory, in rows of events. a:5 is an order of 5 units of a.
func TestRefusalCache_Events(t *testing.T) {
	t.Parallel()
	type event struct {
		at   int    // ms
		does string // "refused", "passes", "changes", "closed", or the SKU that is sold out
		of   string // the order, or the SKU that changes or is closed
		from int    // ms: when the ledger was asked
	}
	for _, test := range []struct {
		name   string
		memory int // ms
		events []event
	}{
		{"a refusal of 5 says nothing about 4", 100, []event{{0, "a", "a:5", 0}, {1, "passes", "a:4", 0}, {1, "refused", "a:5", 0}, {1, "refused", "a:6", 0}}},
		{"the smallest quantity is remembered", 100, []event{{0, "a", "a:5", 0}, {1, "a", "a:1", 0}, {2, "refused", "a:1", 0}}},
		{"a larger one does not replace it", 100, []event{{0, "a", "a:1", 0}, {50, "a", "a:5", 50}, {60, "refused", "a:1", 0}}},
		{"nor keeps it", 100, []event{{0, "a", "a:1", 0}, {50, "a", "a:5", 50}, {100, "passes", "a:1", 0}}},
		{"a larger one follows it", 100, []event{{0, "a", "a:1", 0}, {100, "a", "a:5", 100}, {150, "refused", "a:5", 0}, {150, "passes", "a:1", 0}}},
		{"the same again", 100, []event{{0, "a", "a:1", 0}, {50, "a", "a:1", 50}, {149, "refused", "a:1", 0}, {150, "passes", "a:1", 0}}},
		{"only the SKU of the refusal is short", 100, []event{{0, "b", "a:3 b:2", 0}, {1, "passes", "a:3", 0}, {1, "refused", "b:2", 0}, {1, "passes", "b:1", 0}}},
		{"a later line asks the ledger", 100, []event{{0, "b", "b:1", 0}, {1, "passes", "a:1 b:1", 0}, {1, "refused", "b:1 c:1", 0}}},
		{"an answer that took too long", 100, []event{{100, "a", "a:1", 0}, {100, "passes", "a:1", 0}}},
		{"units were added", 100, []event{{0, "a", "a:1", 0}, {1, "changes", "a", 0}, {1, "passes", "a:1", 0}}},
		{"units of another SKU were added", 100, []event{{0, "a", "a:1", 0}, {1, "changes", "b", 0}, {1, "refused", "a:1", 0}}},
		{"an answer from before units were added", 100, []event{{5, "changes", "a", 0}, {6, "a", "a:1", 4}, {6, "passes", "a:1", 0}}},
		{"an answer from afterwards", 100, []event{{5, "changes", "a", 0}, {6, "a", "a:1", 5}, {6, "refused", "a:1", 0}}},
		{"an answer from before units of another SKU were added", 100, []event{{5, "changes", "b", 0}, {6, "a", "a:1", 4}, {6, "passes", "a:1", 0}}},
		{"closed until its rules change", 100, []event{{0, "closed", "a", 0}, {1, "refused", "a:1", 0}, {1, "changes", "a", 0}, {1, "passes", "a:1", 0}}},
		{"closed before its rules changed", 100, []event{{5, "changes", "a", 0}, {6, "closed", "a", 4}, {6, "passes", "a:1", 0}}},
		{"closed after its rules changed", 100, []event{{5, "changes", "a", 0}, {6, "closed", "a", 5}, {6, "refused", "a:1", 0}}},
		{"nothing is remembered", 0, []event{{0, "a", "a:1", 0}, {0, "passes", "a:1", 0}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, start := &Service{refusals: refusalCache{soldOut: time.Duration(test.memory) * time.Millisecond}}, time.Now()
				at := func(ms int) time.Time { return start.Add(time.Duration(ms) * time.Millisecond) }
				for n, e := range test.events {
					time.Sleep(time.Until(at(e.at)))
					switch e.does {
					case "refused", "passes":
						if err := s.refusals.refuse(orderOf(t, e.of)); (err != nil) != (e.does == "refused") {
							t.Errorf("event %d: %s is answered %v", n+1, e.of, err)
						}
					case "changes":
						s.StockChanged(stock.SKU(e.of))
					case "closed":
						s.Learn(at(e.from), stock.Refuse(stock.SKU(e.of), stock.ErrClosed))
					default:
						s.refusals.learn(at(e.from), orderOf(t, e.of), stock.Refuse(stock.SKU(e.does), stock.ErrSoldOut))
					}
				}
			})
		})
	}
}

// orderOf returns the lines of "a:1 b:2".
func orderOf(t *testing.T, text string) (lines []stock.Line) {
	t.Helper()
	for _, field := range strings.Fields(text) {
		sku, units, _ := strings.Cut(field, ":")
		n, err := strconv.ParseInt(units, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, stock.Line{SKU: stock.SKU(sku), Quantity: n})
	}
	return lines
}

// TestRefusalCache_Bound checks that the number of SKUs that are remembered is bounded.
func TestRefusalCache_Bound(t *testing.T) {
	t.Parallel()
	c := remembering()
	for n := range maxRefusals + 1 {
		sku := stock.SKU(fmt.Sprint(n))
		c.learn(time.Now(), []stock.Line{{SKU: sku, Quantity: 1}}, stock.Refuse(sku, stock.ErrClosed))
	}
	if n := len(c.last); n == 0 || n > maxRefusals {
		t.Errorf("%d SKUs are remembered", n)
	}
}

// TestPlaceBeforeTheOpening checks that after the ledger has refused a SKU as not open, requests
// for the SKU reach neither gate nor ledger until it opens. Orders must be replayed meanwhile.
func TestPlaceBeforeTheOpening(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShop(true)
		s.mustPlace(t, keyed())
		opens := time.Now().Add(500 * time.Millisecond)
		s.ledger.before = func(asked stock.Take) {
			s.ledger.answer = func(out Outcome) Outcome {
				in := time.Until(opens)
				if in <= 0 || asked.Lines[0].SKU != apple {
					return out
				}
				delete(s.ledger.orders, asked.OrderID)
				s.ledger.available[apple] += asked.Lines[0].Quantity
				return Refused(stock.Refuse(apple, &stock.NotOpen{OpensAt: opens, In: in}))
			}
		}
		for range 3 {
			if _, _, err := s.Place(t.Context(), ask()); !errors.Is(err, stock.ErrNotOpen) {
				t.Fatalf("answered %v", err)
			}
		}
		if s.gate.takes != 2 || s.ledger.records != 2 {
			t.Errorf("%d takes and %d records, want the first order's and one more", s.gate.takes, s.ledger.records)
		}
		if _, _, err := s.Place(t.Context(), asking(pear)); err != nil {
			t.Errorf("another SKU: %v", err)
		}
		if _, replayed, err := s.Place(t.Context(), keyed()); err != nil || !replayed {
			t.Errorf("the key: replayed %v, %v", replayed, err)
		}
		time.Sleep(time.Until(opens))
		s.mustPlace(t, ask())
		s.atRest(t, 2)
	})
}

// newMemory returns a shop without a gate that repeats "sold out" for 100 ms, and has sold all its
// apples, in orders that have a unit of each other SKU too. One of them belongs to the key of keyed.
func newMemory(t *testing.T, also ...stock.SKU) *shop {
	t.Helper()
	s := newShop(false)
	s.Service = NewService(s.ledgerID, nil, s.ledger, s.reconciler, Options{Late: Revive, SoldOutMemory: 100 * time.Millisecond}, prometheus.NewRegistry())
	r := asking(append(also, apple)...)
	for range units - 1 {
		s.mustPlace(t, r)
	}
	r.Key = keyed().Key
	s.mustPlace(t, r)
	for _, line := range r.Lines {
		s.mustRefuse(t, asking(line.SKU), stock.ErrSoldOut)
	}
	return s
}

// mustRefuse places an order that is refused for the reason.
func (s *shop) mustRefuse(t *testing.T, r Request, reason error) {
	t.Helper()
	if _, _, err := s.Place(t.Context(), r); !errors.Is(err, reason) {
		t.Fatalf("answered %v, want %v", err, reason)
	}
}

// TestSoldOutMemory checks which requests reach the ledger after it has refused a SKU as sold out,
// and for how long the others do not.
func TestSoldOutMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			name string
			does func(t *testing.T, s *shop)
			asks int // orders that reach the ledger
		}{
			{"refused from memory", func(t *testing.T, s *shop) {
				s.ledger.read = func(uuid.UUID) (*Order, error) { return nil, errors.New("a request without a key reads an order") }
				s.mustRefuse(t, ask(), stock.ErrSoldOut)
			}, 0},
			{"a new key is refused", func(t *testing.T, s *shop) {
				r := keyed()
				r.Key = "key-2"
				s.mustRefuse(t, r, stock.ErrSoldOut)
			}, 0},
			{"a replay is recognised", func(t *testing.T, s *shop) {
				if _, replayed, err := s.Place(t.Context(), keyed()); err != nil || !replayed {
					t.Errorf("replayed %v, %v", replayed, err)
				}
			}, 0},
			{"a key that is reused", func(t *testing.T, s *shop) {
				r := keyed()
				r.Lines[0].Quantity = 2
				s.mustRefuse(t, r, ErrKeyReused)
			}, 0},
			{"another SKU", func(t *testing.T, s *shop) { s.mustPlace(t, asking(pear)) }, 1},
			{"an unknown SKU", func(t *testing.T, s *shop) { s.mustRefuse(t, asking("aloe"), stock.ErrUnknownSKU) }, 1},
			{"an unknown SKU before it", func(t *testing.T, s *shop) { s.mustRefuse(t, asking(apple, "aloe"), stock.ErrUnknownSKU) }, 1},
			{"after the time", func(t *testing.T, s *shop) {
				time.Sleep(100 * time.Millisecond)
				s.mustRefuse(t, ask(), stock.ErrSoldOut)
				s.mustRefuse(t, ask(), stock.ErrSoldOut)
			}, 1},
			{"after a slow answer", func(t *testing.T, s *shop) {
				time.Sleep(100 * time.Millisecond)
				s.ledger.before = func(stock.Take) { time.Sleep(100 * time.Millisecond) }
				s.mustRefuse(t, ask(), stock.ErrSoldOut)
				s.mustRefuse(t, ask(), stock.ErrSoldOut)
			}, 2},
			{"after a restock", func(t *testing.T, s *shop) {
				time.Sleep(time.Millisecond)
				s.StockChanged(pear, apple)
				s.mustRefuse(t, ask(), stock.ErrSoldOut)
			}, 1},
			{"a restock while the ledger answers", func(t *testing.T, s *shop) {
				time.Sleep(100 * time.Millisecond)
				s.ledger.answer = func(out Outcome) Outcome {
					time.Sleep(time.Millisecond)
					s.StockChanged(apple)
					return out
				}
				s.mustRefuse(t, ask(), stock.ErrSoldOut)
				s.ledger.answer = nil
				s.mustRefuse(t, ask(), stock.ErrSoldOut)
				s.mustRefuse(t, ask(), stock.ErrSoldOut)
			}, 2},
			{"another generation", func(t *testing.T, s *shop) {
				s.reconciler.unusable = stock.ErrSuperseded
				s.mustRefuse(t, ask(), stock.ErrSuperseded)
			}, 0},
		} {
			t.Log(test.name)
			s := newMemory(t)
			s.ledger.records = 0
			test.does(t, s)
			if s.ledger.records != test.asks {
				t.Errorf("%s: %d orders reached the ledger, want %d", test.name, s.ledger.records, test.asks)
			}
		}
	})
}

// TestSoldOutMemory_Returns checks that units that return through this instance are sold at once,
// and those that return through another instance after 100 ms.
func TestSoldOutMemory_Returns(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		returns func(s *Service, id uuid.UUID) error
	}{
		{"cancelled", func(s *Service, id uuid.UUID) error {
			_, err := s.Cancel(t.Context(), id, "")
			return err
		}},
		{"refunded", func(s *Service, id uuid.UUID) error {
			_, err := s.Pay(t.Context(), id, "p-1")
			if err == nil {
				_, err = s.Refund(t.Context(), id, true)
			}
			return err
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newMemory(t)
				other := NewService(s.ledgerID, nil, s.ledger, s.reconciler, Options{SoldOutMemory: 100 * time.Millisecond}, prometheus.NewRegistry())
				if _, _, err := other.Place(t.Context(), ask()); !errors.Is(err, stock.ErrSoldOut) {
					t.Fatalf("the other instance answers %v", err)
				}
				asked := time.Now()
				time.Sleep(time.Millisecond)
				if err := test.returns(s.Service, orderID(s.ledgerID, keyed(), 0)); err != nil {
					t.Fatal(err)
				}
				for {
					if _, _, err := other.Place(t.Context(), ask()); err == nil {
						break
					}
					time.Sleep(time.Millisecond)
				}
				if after := time.Since(asked); after != 100*time.Millisecond {
					t.Errorf("the other instance sells the unit %v after it had asked", after)
				}

				s = newMemory(t, pear)
				time.Sleep(time.Millisecond)
				if err := test.returns(s.Service, orderID(s.ledgerID, keyed(), 0)); err != nil {
					t.Fatal(err)
				}
				s.mustPlace(t, ask())
				s.mustPlace(t, asking(pear))
			})
		})
	}
}

// TestSoldOutMemory_Gate checks that with a gate every order is sent to the gate.
func TestSoldOutMemory_Gate(t *testing.T) {
	t.Parallel()
	s := newShop(true)
	s.Service = NewService(s.ledgerID, s.gate, s.ledger, s.reconciler, Options{SoldOutMemory: time.Second}, prometheus.NewRegistry())
	s.gate.refuse = failing(2, stock.Refuse(apple, stock.ErrSoldOut))
	s.mustRefuse(t, ask(), stock.ErrSoldOut)
	s.mustRefuse(t, ask(), stock.ErrSoldOut)
	s.mustPlace(t, ask())
	if len(s.refusals.last) > 0 {
		t.Errorf("remembered %v", s.refusals.last)
	}
}
