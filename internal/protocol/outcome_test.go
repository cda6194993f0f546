package protocol

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestVanishedDuplicate makes the ledger refuse a void order as a duplicate although it has no
// order with this ID. The outcome of the take must stay unknown.
func TestVanishedDuplicate(t *testing.T) {
	t.Parallel()
	s := newShop(t, testenv.Postgres(t))
	i := s.open(t, settings{strategy: "lua", takeDeadline: immediateDeadline})
	sku := newSKU("vanished")
	addStock(t, i, sku, 1)
	for _, statement := range []string{
		`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
			$$ BEGIN RAISE EXCEPTION 'no' USING ERRCODE = 'unique_violation'; END $$`,
		`CREATE TRIGGER refuse BEFORE INSERT ON orders FOR EACH ROW WHEN (NEW.status = 'void') EXECUTE FUNCTION refuse()`,
	} {
		s.exec(t, statement)
	}
	d := takeUnit(t, i, sku)
	if o := i.ledger.Resolve(t.Context(), d.Deduction); !o.Unknown() {
		t.Errorf("resolved as %+v, want unknown", o)
	}
	if err := i.Sweep(t.Context()); err == nil {
		t.Error("the sweep returned no error")
	}
	if levels, err := i.counter.Level(t.Context(), sku); err != nil || levels[0].InFlight != 1 {
		t.Errorf("%+v, %v", levels, err)
	}
}

// TestOpenOutcomeGivesNothingBack checks that a take's units are not given back, by the request or
// by recovery, while the ledger cannot tell its outcome.
func TestOpenOutcomeGivesNothingBack(t *testing.T) {
	t.Parallel()
	eachDatabase(t, outside, func(t *testing.T, s *shop) {
		database := storetest.SQL(t, s.url)
		i := s.open(t, settings{strategy: "lua", takeDeadline: immediateDeadline, db: database.Ledger})
		sku := newSKU("unknown")
		addStock(t, i, sku, 5)
		take := takeUnit(t, i, sku)
		if err := database.Close(); err != nil {
			t.Fatal(err)
		}
		checkInFlight := func(after string) {
			t.Helper()
			levels, err := i.counter.Level(t.Context(), sku)
			if err != nil || levels[0].InFlight != 1 || levels[0].Available != 4 {
				t.Errorf("after %s: %+v, %v", after, levels, err)
			}
		}
		if o := i.FinishTake(t.Context(), take, order.Unknown(errors.New("lost"))); !o.Unknown() {
			t.Errorf("resolved as %+v, want unknown", o)
		}
		checkInFlight("the request")
		// Run also ends takes that are still open. A sweep would fail, because it reads the
		// database.
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		i.Run(ctx)
		cancel()
		checkInFlight("recovery")
		sweep(t, s.open(t, settings{strategy: "lua", takeDeadline: immediateDeadline}))
		s.checkBalance(t, i.counter, sku, 0)
	})
}

// withInserts reports whether the INSERTs came with the COMMIT that is held.
func withInserts(commit *faults.Hold) bool { return strings.Contains(commit.Text, "INSERT") }

// TestCommitInLimbo breaks the connection while a COMMIT is under way. As long as the server may
// still execute the COMMIT, no request may treat it as failed. A request waits for the open
// transaction, or its void order makes the COMMIT fail. Unless the run is thorough, each strategy
// loses its connection to one of the servers.
func TestCommitInLimbo(t *testing.T) {
	t.Parallel()
	for server, d := range servers {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			dbURL := testenv.Patient(t, d.URL(t))
			s := newShop(t, dbURL)
			w, wireURL := faults.NewWire(t, dbURL)
			for n, name := range []string{"lua", "merged", "for-update"} {
				if n%2 == server && !testenv.Thorough() {
					continue
				}
				t.Run(name, func(t *testing.T) {
					// Only the connection of the COMMIT breaks.
					i := s.open(t, settings{strategy: name, noGuard: true, db: storetest.SQL(t, wireURL).Ledger})
					sku := newSKU("limbo")
					addStock(t, i, sku, 1)

					t.Run("commits late", func(t *testing.T) {
						fault := w.Hold("COMMIT")
						answer := place(t.Context(), i, withKey(oneUnit(sku), "late"+name))
						testenv.Receive(t, "the COMMIT", fault.Arrived)
						fault.Cut()
						if withInserts(fault) {
							if r := testenv.Receive(t, "the answer", answer); !errors.Is(r.err, stock.ErrBusy) {
								t.Errorf("answered %+v, want busy: the void order was first", r)
							}
							fault.Deliver()
							testenv.Receive(t, "the server", fault.Done)
							s.checkSettled(t, i, sku, 0)
							return
						}
						answered := false
						testenv.Await(t, "the void order waits for the open transaction, or the request is answered", func() bool {
							select {
							case r := <-answer:
								t.Errorf("answered %+v while the transaction was open", r)
								answered = true
							default:
							}
							return answered || s.waiting(t) > 0
						})
						fault.Deliver()
						if answered {
							return
						}
						if r := testenv.Receive(t, "the answer", answer); r.err != nil {
							t.Errorf("the COMMIT succeeded, but the request was answered %v", r.err)
						}
						mustRefuse(t, i, oneUnit(sku), stock.ErrSoldOut)
						s.checkSettled(t, i, sku, 1)
					})

					t.Run("commits with its answer lost", func(t *testing.T) {
						sku := newSKU("limbo")
						addStock(t, i, sku, 1)
						w.Arm(faults.Fault{Kind: faults.Lost, Nth: 1, Only: "COMMIT"})
						r := testenv.Receive(t, "the answer", place(t.Context(), i, withKey(oneUnit(sku), "lost"+name)))
						if _, injected := w.Disarm(); r.err != nil || len(injected) != 1 {
							t.Errorf("the COMMIT succeeded, but the request was answered %v after %q", r.err, injected)
						}
						mustRefuse(t, i, oneUnit(sku), stock.ErrSoldOut)
						s.checkSettled(t, i, sku, 1)
					})

					t.Run("never commits", func(t *testing.T) {
						sku := newSKU("limbo")
						addStock(t, i, sku, 1)
						fault := w.Hold("COMMIT")
						answer := place(t.Context(), i, withKey(oneUnit(sku), "never"+name))
						testenv.Receive(t, "the COMMIT", fault.Arrived)
						fault.Cut()
						if !withInserts(fault) {
							testenv.Await(t, "the void order waits for the open transaction", func() bool { return s.waiting(t) > 0 })
						}
						fault.Drop()
						if r := testenv.Receive(t, "the answer", answer); !errors.Is(r.err, stock.ErrBusy) {
							t.Errorf("answered %+v, want busy: nothing was cut", r)
						}
						s.checkSettled(t, i, sku, 0)
						mustPlace(t, i, withKey(oneUnit(sku), "never"+name))
						s.checkSettled(t, i, sku, 1)
					})
					i.Close()
				})
			}
		})
	}
}
