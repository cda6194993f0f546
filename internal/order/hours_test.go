package order

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestHours checks how long a refusal by opening hours is repeated: never longer than
// a second, and never after the opening.
func TestHours(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		reason error
		want   time.Duration // how long the refusal is repeated
	}{
		{"opens in an hour", &stock.NotOpen{In: time.Hour}, time.Second},
		{"opens soon", &stock.NotOpen{In: 300 * time.Millisecond}, 300 * time.Millisecond},
		{"closed", stock.ErrClosed, time.Second},
		{"sold out", stock.ErrSoldOut, 0},
		{"buyer limit", stock.ErrBuyerLimit, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h hours
				asked := time.Now()
				time.Sleep(100 * time.Millisecond) // the ledger's answer takes that long
				h.learn(asked, fmt.Errorf("recording: %w", stock.Refuse("a", test.reason)))
				lines := []stock.Line{{SKU: "0", Quantity: 1}, {SKU: "a", Quantity: 1}}
				if err := h.refuse(lines[:1]); err != nil {
					t.Errorf("another SKU is refused: %v", err)
				}
				for {
					err := h.refuse(lines)
					if err == nil {
						break
					}
					var refusal *stock.Refusal
					if !errors.As(err, &refusal) || refusal.SKU != "a" || !errors.Is(err, test.reason) {
						t.Fatalf("repeated %v, want %v", err, test.reason)
					}
					time.Sleep(100 * time.Millisecond)
				}
				if got := time.Since(asked); got != max(test.want, 100*time.Millisecond) {
					t.Errorf("repeated until %v after the ledger was asked, want %v", got, test.want)
				}
			})
		})
	}
}

// TestHours_Changed checks that a refusal is not repeated once the SKU's rules have been
// changed, nor one for which the ledger was asked before the change.
func TestHours_Changed(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShop(true)
		reason, lines := stock.Refuse(apple, stock.ErrClosed), ask().Lines
		before := time.Now()
		s.Learn(before, reason)
		if err := s.hours.refuse(lines); !errors.Is(err, stock.ErrClosed) {
			t.Fatalf("before the change: %v", err)
		}
		time.Sleep(time.Millisecond)
		s.RulesChanged(apple)
		if err := s.hours.refuse(lines); err != nil {
			t.Errorf("after the change: %v", err)
		}
		s.Learn(before, reason)
		if err := s.hours.refuse(lines); err != nil {
			t.Errorf("an answer from before the change: %v", err)
		}
		time.Sleep(time.Millisecond)
		s.Learn(time.Now(), reason)
		if err := s.hours.refuse(lines); !errors.Is(err, stock.ErrClosed) {
			t.Errorf("an answer from after the change: %v", err)
		}
	})
}

// TestHours_Bound checks that the number of SKUs that are remembered is bounded.
func TestHours_Bound(t *testing.T) {
	var h hours
	for n := range maxHours + 10 {
		h.learn(time.Now(), stock.Refuse(stock.SKU(fmt.Sprint(n)), stock.ErrClosed))
	}
	if len(h.refusals) > maxHours {
		t.Errorf("%d SKUs are remembered", len(h.refusals))
	}
}

// TestPlaceBeforeTheOpening checks that requests for a SKU that the ledger refused as
// not open reach neither gate nor ledger until it opens, and that a key is replayed
// meanwhile.
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
