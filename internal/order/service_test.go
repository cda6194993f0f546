package order

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// errUnreachable is the error of a store that cannot be reached.
var errUnreachable = errors.New("the store is unreachable")

// failing returns a function that returns err the first n times, and then nil.
func failing(n int, err error) func() error {
	return func() error {
		if n == 0 {
			return nil
		}
		n--
		return err
	}
}

// TestPlace checks the answer to a request without a key, and how often it asks gate and ledger, with
// bounded waits between its tries. All its units must be sold or returned. TestFailures makes single
// calls fail.
func TestPlace(t *testing.T) {
	t.Parallel()
	const tries = 10 // as docs/protocol.md says
	reconcilable := []error{
		stock.Refuse(apple, stock.ErrNotFilled), stock.Refuse(apple, stock.ErrStaleEpoch), stock.Refuse(apple, stock.ErrNotAdopted),
		stock.Refuse(apple, stock.ErrLaterGeneration), stock.ErrNoGeneration,
	}
	tests := []struct {
		name    string
		noGate  bool
		request Request
		prepare func(s *shop)
		want    error // nil: the order is accepted
		cause   error // of the answer, besides want; may be nil
		takes   int   // number of takes at the gate
		records int
	}{
		{name: "accepted", request: ask(), takes: 1, records: 1},
		{name: "accepted without a gate", noGate: true, request: ask(), records: 1},
		{name: "accepted for two SKUs", request: asking(pear, apple), takes: 1, records: 1},
		{
			name: "sold out in the ledger", request: Request{Lines: []stock.Line{{SKU: apple, Quantity: units + 1}}}, noGate: true,
			want: stock.ErrSoldOut, records: 1,
		},
		{
			name: "above the buyer limit", request: ask(), want: stock.ErrBuyerLimit, takes: 1, records: 1,
			prepare: func(s *shop) {
				s.ledger.answer = func(Outcome) Outcome {
					clear(s.ledger.orders)
					s.ledger.available[apple] = units
					return Refused(stock.Refuse(apple, stock.ErrBuyerLimit))
				}
			},
		},
		{
			name: "the gate has lost both counts", request: asking(pear, apple), takes: 2, records: 1,
			prepare: func(s *shop) { clear(s.gate.available) },
		},
		{name: "unknown SKU", request: asking("plum"), want: stock.ErrUnknownSKU, takes: 1},
		{name: "unknown SKU without a gate", noGate: true, request: asking("plum"), want: stock.ErrUnknownSKU, records: 1},
		{
			name: "the take was burned", request: ask(), want: stock.ErrBusy, takes: 1,
			prepare: func(s *shop) { s.gate.refuse = failing(1, stock.ErrBurned) },
		},
		{
			name: "the answer of the ledger is lost after the commit", request: ask(), takes: 1, records: 1,
			prepare: func(s *shop) {
				s.ledger.answer = func(Outcome) Outcome { return Unknown(errUnreachable) }
			},
		},
		{
			name: "an ID that another order has", request: ask(), want: stock.ErrUnavailable, takes: 1, records: 1,
			prepare: func(s *shop) {
				s.ledger.before = func(taken stock.Take) {
					s.ledger.orders[taken.OrderID] = Order{ID: taken.OrderID, TakeID: uuid.New(), Status: Cancelled, Lines: taken.Lines}
				}
			},
		},
	}
	for _, reason := range reconcilable {
		for _, n := range []int{1, tries - 1, tries} {
			test := tests[0]
			test.name = fmt.Sprintf("%d times %v", n, reason)
			test.prepare = func(s *shop) { s.gate.refuse = failing(n, reason) }
			test.takes = min(n+1, tries)
			if n == tries {
				test.want, test.cause, test.records = stock.ErrBusy, reason, 0
			}
			tests = append(tests, test)
		}
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newShop(!test.noGate)
				if test.prepare != nil {
					test.prepare(s)
				}
				s.ledger.read = func(id uuid.UUID) (*Order, error) {
					t.Errorf("read order %s for a request without a key", id)
					return nil, ErrUnknownOrder
				}
				start := time.Now()
				o, replayed, err := s.Place(t.Context(), test.request)
				if took := time.Since(start); took > 1300*time.Millisecond || test.takes == tries && took == 0 {
					t.Errorf("answered after %v", took)
				}
				s.ledger.read = nil
				if !errors.Is(err, test.want) || test.cause != nil && !errors.Is(err, test.cause) || replayed {
					t.Errorf("answered %+v, replayed %v, %v; want %v", o, replayed, err, test.want)
				}
				if (err == nil) != (o.ID != uuid.Nil) {
					t.Errorf("the order is %+v, the error %v", o, err)
				}
				for _, unknown := range []error{stock.ErrUnavailable, stock.ErrBusy} {
					if errors.Is(err, unknown) != errors.Is(test.want, unknown) {
						t.Errorf("answered %v, want %v", err, test.want)
					}
				}
				if s.gate != nil && s.gate.takes != test.takes || s.ledger.records != test.records {
					t.Errorf("%d takes and %d records, want %d and %d", s.gate.takes, s.ledger.records, test.takes, test.records)
				}
				sold := int64(0)
				if test.want == nil {
					sold = 1
					if read, err := s.Order(t.Context(), o.ID); err != nil || !sameOrder(read, o) || o.Status != Pending || o.Buyer != "buyer-1" {
						t.Errorf("answered %+v, read %+v, %v", o, read, err)
					}
				}
				s.atRest(t, sold)
			})
		})
	}
}

// TestEndedContext checks that a request whose context has ended takes no units, and gets its
// earlier order if it has one.
func TestEndedContext(t *testing.T) {
	t.Parallel()
	s := newShop(true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := s.Place(ctx, keyed()); !errors.Is(err, stock.ErrBusy) || !errors.Is(err, context.Canceled) {
		t.Errorf("answered %v", err)
	}
	if s.gate.takes != 0 || s.ledger.records != 0 {
		t.Errorf("%d takes, %d records", s.gate.takes, s.ledger.records)
	}
	first := s.mustPlace(t, keyed())
	if o, replayed, err := s.Place(ctx, keyed()); err != nil || !replayed || !sameOrder(o, first) {
		t.Errorf("answered %+v, replayed %v, %v; want %+v", o, replayed, err, first)
	}
	s.atRest(t, 1)
}

// TestReplay checks that a key always gets its first answer, whatever happened to the order since.
// The lines may come in any sequence.
func TestReplay(t *testing.T) {
	t.Parallel()
	for _, status := range []Status{Pending, Paid, Cancelled, Expired} {
		t.Run(string(status), func(t *testing.T) {
			s := newShop(true)
			one, other := asking(apple, pear), asking(pear, apple)
			one.Key, other.Key = "key-1", "key-1"
			first := s.mustPlace(t, one)
			now := first
			now.Status = status
			s.ledger.orders[first.ID] = now
			if o, replayed, err := s.Place(t.Context(), other); err != nil || !replayed || !sameOrder(o, first) || o.Status != Pending {
				t.Errorf("answered %+v, replayed %v, %v; want %+v", o, replayed, err, first)
			}
			s.ledger.read = func(uuid.UUID) (*Order, error) { return nil, errUnreachable }
			if o, replayed, err := s.Place(t.Context(), other); err != nil || !replayed || !sameOrder(o, first) {
				t.Errorf("without a lookup: answered %+v, replayed %v, %v; want %+v", o, replayed, err, first)
			}
			s.ledger.read = nil
			if read, err := s.Order(t.Context(), first.ID); err != nil || read.Status != status {
				t.Errorf("the order is %+v, %v", read, err)
			}
			for _, lines := range [][]stock.Line{
				{{SKU: apple, Quantity: 1}}, {{SKU: pear, Quantity: 1}}, {{SKU: apple, Quantity: 1}, {SKU: pear, Quantity: 2}},
			} {
				o, replayed, err := s.Place(t.Context(), Request{Buyer: "buyer-1", Key: "key-1", Lines: lines})
				if !errors.Is(err, ErrKeyReused) || replayed || o.ID != uuid.Nil {
					t.Errorf("%v: answered %+v, replayed %v, %v", lines, o, replayed, err)
				}
			}
			if len(s.ledger.orders) != 1 || s.gate.available[apple] != units-1 || s.gate.available[pear] != units-1 || len(s.gate.inFlight) > 0 {
				t.Errorf("orders %v; the gate has %v available, %v in flight", s.ledger.orders, s.gate.available, s.gate.inFlight)
			}
		})
	}
}

// TestUnreadReplay checks that a request is answered unavailable, and not refused, if its key
// cannot be looked up. The answer must have both causes.
func TestUnreadReplay(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		prepare func(s *shop)
		reason  error
	}{
		{"sold out", func(s *shop) { s.gate.refuse = failing(1, stock.Refuse(apple, stock.ErrSoldOut)) }, stock.ErrSoldOut},
		{"in flight", func(s *shop) { s.gate.refuse = failing(1, stock.ErrInFlight) }, stock.ErrInFlight},
		{"burned", func(s *shop) { s.gate.refuse = failing(1, stock.ErrBurned) }, stock.ErrBurned},
		{"superseded", func(s *shop) { s.reconciler.unusable = stock.ErrSuperseded }, stock.ErrSuperseded},
		{"unusable", func(s *shop) { s.reconciler.unusable = errUnreachable }, errUnreachable},
		{"lost take", func(s *shop) { s.gate.refuse = failing(1, errUnreachable) }, errUnreachable},
		{"stale forever", func(s *shop) { s.gate.refuse = failing(maxTries, stock.ErrNoGeneration) }, stock.ErrNoGeneration},
		{"not refilled", func(s *shop) {
			s.gate.refuse, s.reconciler.cannot = failing(1, stock.ErrNoGeneration), errUnreachable
		}, errUnreachable},
		{"unknown outcome", func(s *shop) {
			s.ledger.before = func(stock.Take) { s.ledger.unreachable = errUnreachable }
			s.ledger.answer = func(out Outcome) Outcome { return Unknown(errUnreachable) }
		}, errUnreachable},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				errUnread := errors.New("reading failed")
				s := newShop(true)
				s.ledger.read = func(uuid.UUID) (*Order, error) { return nil, errUnread }
				test.prepare(s)
				_, _, err := s.Place(t.Context(), keyed())
				if !errors.Is(err, stock.ErrUnavailable) || !errors.Is(err, errUnread) || !errors.Is(err, test.reason) {
					t.Errorf("answered %v, want unavailable, %v and %v", err, errUnread, test.reason)
				}
			})
		})
	}
}

// TestVoids checks that void orders move their key on to the next ID, one of them or many.
func TestVoids(t *testing.T) {
	t.Parallel()
	for _, voids := range []int{1, 25} {
		s := newShop(true)
		for n := range voids {
			s.ledger.void(orderID(s.ledgerID, keyed(), n))
		}
		first := s.mustPlace(t, keyed())
		if want := orderID(s.ledgerID, keyed(), voids); first.ID != want {
			t.Errorf("the order's ID is %s, want %s", first.ID, want)
		}
		replays := func() {
			t.Helper()
			if o, replayed, err := s.Place(t.Context(), keyed()); err != nil || !replayed || !sameOrder(o, first) {
				t.Errorf("answered %+v, replayed %v, %v; want %+v", o, replayed, err, first)
			}
		}
		replays()
		if takes := s.gate.takes; takes != 3 {
			t.Errorf("%d takes, want 3: two IDs, and one before the replay", takes)
		}
		// A refused request finds the order behind the void ones.
		s.gate.refuse = failing(1, stock.Refuse(apple, stock.ErrSoldOut))
		replays()
		reused := keyed()
		reused.Lines = []stock.Line{{SKU: pear, Quantity: 1}}
		if o, replayed, err := s.Place(t.Context(), reused); !errors.Is(err, ErrKeyReused) || replayed || o.ID != uuid.Nil {
			t.Errorf("for other lines, answered %+v, replayed %v, %v", o, replayed, err)
		}
		if void, err := s.Order(t.Context(), orderID(s.ledgerID, keyed(), 0)); err != nil || void.Status != Void {
			t.Errorf("the void order is %+v, %v", void, err)
		}
		s.atRest(t, 1)
	}
}

// TestFindKeyed checks that the live order of a key, or else its first unused ID, is found after
// any number of void orders with few reads.
func TestFindKeyed(t *testing.T) {
	t.Parallel()
	for _, live := range []bool{true, false} {
		for voids := range 300 {
			s, r, reads := newShop(true), keyed(), 0
			ids := make(map[uuid.UUID]*Order)
			for n := range voids {
				ids[orderID(s.ledgerID, r, n)] = &Order{Status: TurnedDown}
			}
			var want *Order
			if live {
				want = &Order{Status: Pending}
				ids[orderID(s.ledgerID, r, voids)] = want
			}
			s.ledger.read = func(id uuid.UUID) (*Order, error) {
				reads++
				if o := ids[id]; o != nil {
					return o, nil
				}
				return nil, ErrUnknownOrder
			}
			found, next, err := s.findKeyed(t.Context(), r, 0)
			if live != (err == nil) || found != want || !live && !errors.Is(err, ErrUnknownOrder) || next != voids {
				t.Fatalf("behind %d void orders: found %+v after %d, %v", voids, found, next, err)
			}
			if reads > 2*bits.Len(uint(voids))+1 {
				t.Fatalf("%d reads for %d void orders", reads, voids)
			}
			all, read := reads, s.ledger.read
			for failed := 1; failed <= min(all, 3); failed++ { // the search ends with a read that fails
				reads = 0
				s.ledger.read = func(id uuid.UUID) (*Order, error) {
					if reads == failed-1 {
						reads++
						return nil, errUnreachable
					}
					return read(id)
				}
				if _, _, err := s.findKeyed(t.Context(), r, 0); !errors.Is(err, errUnreachable) || reads != failed {
					t.Fatalf("behind %d void orders, after read %d failed: %d reads, %v", voids, failed, reads, err)
				}
			}
		}
	}
}

// TestVoidsWithoutEnd checks that a request gives up if every ID of its key turns
// out to be void.
func TestVoidsWithoutEnd(t *testing.T) {
	t.Parallel()
	t.Run("each before it is recorded", func(t *testing.T) {
		s := newShop(true)
		s.ledger.before = func(taken stock.Take) { s.ledger.void(taken.OrderID) }
		_, _, err := s.Place(t.Context(), keyed())
		if !errors.Is(err, stock.ErrBusy) || !errors.Is(err, errVoided) || s.ledger.records != maxTries {
			t.Errorf("answered %v after %d records", err, s.ledger.records)
		}
		s.atRest(t, 0)
	})
	t.Run("all", func(t *testing.T) {
		s := newShop(true)
		s.ledger.void(orderID(s.ledgerID, keyed(), 0))
		reads := 0
		s.ledger.read = func(uuid.UUID) (*Order, error) {
			reads++
			return &Order{Status: Void}, nil
		}
		_, _, err := s.Place(t.Context(), keyed())
		if !errors.Is(err, stock.ErrUnavailable) || reads != bits.Len(maxVoids) {
			t.Errorf("answered %v after %d reads", err, reads)
		}
		s.atRest(t, 0)
	})
}

// TestPlace_ContextEnds checks that the wait between two tries ends with the request's context.
func TestPlace_ContextEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newShop(true)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		const before = maxTries / 2
		var lastTry time.Time
		s.gate.refuse = func() error {
			lastTry = time.Now()
			if s.gate.takes == before {
				cancel()
			}
			return stock.ErrNoGeneration
		}
		_, _, err := s.Place(ctx, ask())
		if !errors.Is(err, stock.ErrBusy) || !errors.Is(err, context.Canceled) || !errors.Is(err, stock.ErrNoGeneration) {
			t.Errorf("answered %v", err)
		}
		if waited := time.Since(lastTry); waited != 0 || s.gate.takes != before {
			t.Errorf("waited %v after the end, %d takes", waited, s.gate.takes)
		}
	})
}
