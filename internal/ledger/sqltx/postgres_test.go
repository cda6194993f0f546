package sqltx_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestCommit_StandbyAway checks that no COMMIT succeeds while the synchronous standby cannot be
// reached, however its wait ends.
func TestCommit_StandbyAway(t *testing.T) {
	t.Parallel()
	primary, standby := testenv.OwnPostgresPair(t)
	admin := storetest.Migrated(t, primary.URL()).Ledger()
	s := storetest.SQL(t, primary.URL()+"&statement_timeout=1500&lock_timeout=200")
	s.Pool().SetMaxIdleConns(0) // no idle sessions, because the test terminates some
	db := s.Ledger()
	for _, sku := range []string{"a", "b", "c", "d", "e", "f", "g"} {
		insertStock(t, admin, sku)
	}
	waiting := func() int {
		return one[int](t, admin, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	}
	// start runs commit, and returns when it waits for the standby.
	start := func(timeout time.Duration, sku string, commit func(ctx context.Context, update string) error) <-chan error {
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			done <- commit(ctx, "UPDATE stock SET available = 3 WHERE sku = '"+sku+"'")
		}()
		testenv.Await(t, "the commit waits for the standby", func() bool { return waiting() == 1 })
		return done
	}
	transaction := func(ctx context.Context, update string) error {
		return db.Transact(ctx, func(tx *sqltx.Tx) error {
			_, err := tx.Exec(ctx, update)
			return err
		})
	}
	atOnce := func(ctx context.Context, update string) error {
		committed, err := commitIf(ctx, db, sqltx.Statement{SQL: update}, 1, func(func(string) string) []sqltx.Statement { return nil })
		if err == nil && !committed {
			t.Errorf("%s: not committed", update)
		}
		return err
	}
	alone := func(ctx context.Context, update string) error {
		_, err := db.Exec(ctx, update)
		return err
	}
	single := storetest.SQL(t, primary.URL())
	single.Pool().SetMaxOpenConns(1)
	aloneAgain := func(ctx context.Context, update string) error { // in a session that is used again
		_, err := single.Ledger().Exec(ctx, update)
		return err
	}

	standby.Stop()
	for _, step := range []struct {
		sku, end string
		commit   func(context.Context, string) error
		unknown  bool
	}{
		{"a", "pg_cancel_backend", transaction, true},
		{"b", "pg_terminate_backend", transaction, true},
		{"c", "pg_cancel_backend", aloneAgain, false},
		{"d", "pg_terminate_backend", alone, false},
		{"f", "pg_cancel_backend", atOnce, true},
		{"g", "pg_terminate_backend", atOnce, true},
	} {
		done := start(30*time.Second, step.sku, step.commit)
		run(t, admin, "SELECT "+step.end+"(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
		if err := <-done; err == nil || errors.Is(err, sqltx.ErrUnknownOutcome) != step.unknown || sqltx.ProvesNoCommit(err) {
			t.Errorf("%s, %s: %v (%s), want an error that leaves the outcome open", step.sku, step.end, err, classes(err))
		}
		testenv.Await(t, "no statement is sent again", func() bool { return waiting() == 0 })
	}
	// The primary shows a row that the standby does not have, so Confirm must fail.
	if n := one[int](t, admin, "SELECT available FROM stock WHERE sku = 'a'"); n != 3 {
		t.Errorf("%d left of the SKU whose commit was cancelled, want 3", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := db.Confirm(ctx); err == nil {
		t.Error("confirmed without the standby")
	}
	run(t, admin, "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	testenv.Await(t, "no commit waits", func() bool { return waiting() == 0 })
	// The client gives up after more than statement_timeout. The server does not give up: the
	// commit continues to wait, and its row stays locked.
	began := time.Now()
	err := <-start(2*time.Second, "e", transaction)
	if !errors.Is(err, sqltx.ErrUnknownOutcome) || time.Since(began) < 2*time.Second {
		t.Errorf("the client gave up after %v: %v, want an unknown outcome", time.Since(began), err)
	}
	patient, done := context.WithTimeout(t.Context(), testenv.Patience)
	defer done()
	if err := alone(patient, "UPDATE stock SET available = 4 WHERE sku = 'e'"); !sqltx.IsLockTimeout(err) {
		t.Errorf("the row of a commit that waits: %v, want a lock timeout", err)
	}
	if n := waiting(); n != 1 {
		t.Errorf("%d commits wait, want the one that the client gave up", n)
	}
	standby.Cont()
	if err := db.Confirm(t.Context()); err != nil {
		t.Error(err)
	}
	for _, commit := range []func(context.Context, string) error{transaction, aloneAgain} {
		if err := commit(t.Context(), "UPDATE stock SET available = 4 WHERE sku = 'e'"); err != nil {
			t.Error(err)
		}
	}
}

// TestCommitIf_TriggerWarns checks that a warning of a trigger before the COMMIT, and an
// information from one that runs in the COMMIT, leave the outcome known.
func TestCommitIf_TriggerWarns(t *testing.T) {
	t.Parallel()
	db := storetest.Migrated(t, testenv.Postgres(t)).Ledger()
	insertStock(t, db, "a")
	run(t, db, "CREATE FUNCTION warn() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE WARNING ''audited''; RETURN NEW; END'")
	run(t, db, "CREATE TRIGGER warn BEFORE UPDATE OR INSERT ON stock FOR EACH ROW EXECUTE FUNCTION warn()")
	committed, err := commitIf(t.Context(), db, sqltx.Statement{SQL: "UPDATE stock SET available = 1 WHERE sku = 'a'"}, 1, inserting("c"))
	if !committed || err != nil {
		t.Errorf("committed %v, %v", committed, err)
	}
	run(t, db, "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE INFO ''audited''; RETURN NULL; END'")
	run(t, db, "CREATE CONSTRAINT TRIGGER note AFTER UPDATE ON stock DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION note()")
	tx := begin(t, t.Context(), db)
	run(t, tx, "UPDATE stock SET available = 2 WHERE sku = 'a'")
	if err := tx.Commit(); err != nil { // an earlier statement has a warning
		t.Error(err)
	}
}

// TestCommit_NoTransaction checks that the outcome is unknown if a COMMIT finds no transaction. A
// pooler that changes servers within a transaction causes that.
func TestCommit_NoTransaction(t *testing.T) {
	db := storetest.Migrated(t, testenv.Postgres(t)).Ledger()
	insertStock(t, db, "a")
	tx := begin(t, t.Context(), db)
	run(t, tx, "UPDATE stock SET available = 1 WHERE sku = 'a'")
	run(t, tx, "ROLLBACK")
	if err := tx.Commit(); !errors.Is(err, sqltx.ErrUnknownOutcome) {
		t.Errorf("%v, want an unknown outcome", err)
	}
}

// TestCommit_AnsweredByRollback checks the COMMIT of a transaction in which a statement has failed,
// alone or in a pipeline. It must return an error that proves the rollback. The server answers it
// with ROLLBACK.
func TestCommit_AnsweredByRollback(t *testing.T) {
	db := storetest.Migrated(t, testenv.Postgres(t)).Ledger()
	insertStock(t, db, "a")
	for failed, fail := range map[string]func(tx *sqltx.Tx) error{
		"a query": func(tx *sqltx.Tx) error { return tx.QueryRow(t.Context(), []any{new(int)}, "SELECT 1 / 0") },
		"a statement": func(tx *sqltx.Tx) error {
			_, err := tx.Exec(t.Context(), "nonsense")
			return err
		},
	} {
		for sent, commit := range map[string]func(tx *sqltx.Tx) error{
			"alone": (*sqltx.Tx).Commit,
			"in a pipeline": func(tx *sqltx.Tx) error {
				defer tx.Rollback()
				_, err := tx.ExecAll(t.Context(), sqltx.Statement{SQL: "COMMIT"}, sqltx.Statement{SQL: "COMMIT"})
				return err
			},
		} {
			tx := begin(t, t.Context(), db)
			run(t, tx, "UPDATE stock SET available = 1 WHERE sku = 'a'")
			if err := fail(tx); err == nil {
				t.Fatalf("%s did not fail", failed)
			}
			if err := commit(tx); !sqltx.IsKnownRollback(err) || errors.Is(err, sqltx.ErrUnknownOutcome) {
				t.Errorf("%s failed, COMMIT %s: %v is %q", failed, sent, err, classes(err))
			}
			if left := one[int](t, db, "SELECT available FROM stock WHERE sku = 'a'"); left != 10 {
				t.Errorf("%s failed, COMMIT %s: %d left, want 10", failed, sent, left)
			}
		}
	}
}

// TestCommitIf_NotPrepared checks that the outcome of a pipeline is known if the
// connection breaks while its statements are prepared.
func TestCommitIf_NotPrepared(t *testing.T) {
	t.Parallel()
	dbURL := testenv.Postgres(t)
	insertStock(t, storetest.Migrated(t, dbURL).Ledger(), "a")
	wire, wireURL := faults.NewWire(t, dbURL)
	db := storetest.SQL(t, wireURL).Ledger()
	wire.Arm(faults.Fault{Kind: faults.Lost, Nth: 1, Only: "PREPARE"})
	committed, err := commitIf(t.Context(), db, sqltx.Statement{SQL: "UPDATE stock SET available = 1 WHERE sku = 'a'"}, 1, inserting("c"))
	if _, injected := wire.Disarm(); len(injected) != 1 {
		t.Fatalf("injected %v", injected)
	}
	if committed || err == nil || errors.Is(err, sqltx.ErrUnknownOutcome) {
		t.Errorf("committed %v, %v, want an error that proves no commit", committed, err)
	}
}
