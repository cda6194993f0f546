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
		if err := s.sql.DB().Exec(statement).Error; err != nil {
			t.Fatal(err)
		}
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
							s.waitSettled(t, i.counter, sku)
							s.checkBalance(t, i.counter, sku, 0)
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
						s.waitSettled(t, i.counter, sku)
						s.checkBalance(t, i.counter, sku, 1)
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
						s.waitSettled(t, i.counter, sku)
						s.checkBalance(t, i.counter, sku, 1)
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
						s.waitSettled(t, i.counter, sku)
						s.checkBalance(t, i.counter, sku, 0)
						mustPlace(t, i, withKey(oneUnit(sku), "never"+name))
						s.waitSettled(t, i.counter, sku)
						s.checkBalance(t, i.counter, sku, 1)
					})
					i.Close()
				})
			}
		})
	}
}

// TestTransactionInLimbo breaks the connection after a whole transaction was sent, while the server
// executes it. The request must not be answered before the transaction ends.
func TestTransactionInLimbo(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		database      testenv.Database
		stop          []string // makes the transaction wait after the orders and before the COMMIT
		lock, release string   // the lock it waits for, and its release
	}{
		{testenv.Database{Name: "MariaDB", URL: testenv.MariaDB}, []string{`CREATE TRIGGER hold BEFORE INSERT ON order_lines FOR EACH ROW
			BEGIN DO GET_LOCK(NEW.sku, 20); DO RELEASE_LOCK(NEW.sku); END`}, "DO GET_LOCK(?, 1)", "DO RELEASE_LOCK(?)"},
		{testenv.Database{Name: "PostgreSQL", URL: testenv.Postgres}, []string{`CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
			'BEGIN PERFORM pg_advisory_xact_lock(hashtext(NEW.sku)); RETURN NEW; END'`,
			"CREATE TRIGGER hold BEFORE INSERT ON order_lines FOR EACH ROW EXECUTE FUNCTION hold()",
		}, "SELECT pg_advisory_lock(hashtext($1))", "SELECT pg_advisory_unlock(hashtext($1))"},
	} {
		t.Run(test.database.Name, func(t *testing.T) {
			t.Parallel()
			dbURL := testenv.Patient(t, test.database.URL(t))
			s := newShop(t, dbURL)
			for _, statement := range test.stop {
				if err := s.sql.DB().Exec(statement).Error; err != nil {
					t.Fatal(err)
				}
			}
			w, wireURL := faults.NewWire(t, dbURL)
			i := s.open(t, settings{strategy: "lua", db: storetest.SQL(t, wireURL).Ledger})
			defer i.Close()
			sku := newSKU("limbo")
			addStock(t, i, sku, 1)

			pool, err := s.sql.DB().DB()
			if err != nil {
				t.Fatal(err)
			}
			holder, err := pool.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer holder.Close()
			if _, err := holder.ExecContext(t.Context(), test.lock, string(sku)); err != nil {
				t.Fatal(err)
			}
			fault := w.Hold("COMMIT")
			fault.Deliver()
			answer := place(t.Context(), i, withKey(oneUnit(sku), "open"))
			testenv.Receive(t, "the transaction", fault.Arrived)
			if !withInserts(fault) {
				t.Fatal("the COMMIT came without the INSERTs")
			}
			testenv.Await(t, "the transaction has inserted the order", func() bool { return s.waiting(t) > 0 })
			fault.Cut()
			testenv.Await(t, "the void order waits for the transaction", func() bool { return s.waiting(t) > 1 })
			select {
			case r := <-answer:
				t.Fatalf("answered %+v while the transaction was open", r)
			default:
			}
			if _, err := holder.ExecContext(t.Context(), test.release, string(sku)); err != nil {
				t.Fatal(err)
			}
			// The server may notice the closed connection and roll back.
			sold := int64(1)
			switch r := testenv.Receive(t, "the answer", answer); {
			case errors.Is(r.err, stock.ErrBusy):
				sold = 0
			case r.err != nil:
				t.Errorf("answered %v", r.err)
			}
			s.waitSettled(t, i.counter, sku)
			s.checkBalance(t, i.counter, sku, sold)
		})
	}
}
