package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// writes are the ways to insert the stock row b in a transaction. They report whether it was
// committed.
var writes = map[string]func(ctx context.Context, db *sqltx.DB) (committed bool, err error){
	"Transact": func(ctx context.Context, db *sqltx.DB) (bool, error) {
		err := db.Transact(ctx, func(tx *sqltx.Tx) error {
			var units int64
			if err := tx.QueryRow(ctx, []any{&units}, "SELECT available FROM stock WHERE sku = 'a'"); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, insertB)
			return err
		})
		return err == nil, err
	},
	"ExecAll": func(ctx context.Context, db *sqltx.DB) (bool, error) {
		err := db.Transact(ctx, func(tx *sqltx.Tx) error {
			_, err := tx.ExecAll(ctx, sqltx.Statement{SQL: insertB}, sqltx.Statement{SQL: "UPDATE stock SET total = 7"})
			return err
		})
		return err == nil, err
	},
	"CommitIf": func(ctx context.Context, db *sqltx.DB) (bool, error) {
		return commitIf(ctx, db, sqltx.Statement{SQL: "UPDATE stock SET total = 7 WHERE sku = 'a'"}, 1, inserting("b"))
	},
}

const insertB = "INSERT INTO stock (sku, kind, total, available) VALUES ('b', 'product', 10, 10)"

// TestLostConnection makes each statement of a transaction lose its connection in turn. The
// transaction must be committed whole or not at all, report which, and return its connection.
func TestLostConnection(t *testing.T) {
	for name, write := range writes {
		for n, injected := 1, true; injected; n++ {
			dbURL := testenv.SQLite(t)
			s := storetest.Migrated(t, dbURL)
			insertStock(t, s.Ledger(), "a")
			db, faulty, d := storetest.FaultySQLite(t, dbURL, "", nil)
			d.Arm(faults.Fault{Kind: faults.Refused, Nth: n})
			committed, err := write(t.Context(), db)
			_, faults := d.Disarm()
			injected = len(faults) > 0
			if injected != errors.Is(err, io.ErrUnexpectedEOF) || injected == committed {
				t.Errorf("%s: committed %v after %v, %v", name, committed, faults, err)
			}
			rows := one[int](t, s.Ledger(), "SELECT COUNT(*) FROM stock WHERE sku = 'b'")
			if rows == 1 != committed {
				t.Errorf("%s: committed %v after %v, and there are %d rows", name, committed, faults, rows)
			}
			noneInUse(t, faulty, fmt.Sprint(name, faults))
			if n > 10 {
				t.Fatalf("%s never ends without a fault", name)
			}
		}
	}
}

// TestNothingIsBegun checks that nothing is committed under an ended context, and that every way to
// use the database returns its error.
func TestNothingIsBegun(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := storetest.Migrated(t, dbURL)
		db := s.Ledger()
		insertStock(t, db, "a")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for name, write := range writes {
			if committed, err := write(ctx, db); committed || !errors.Is(err, context.Canceled) || errors.Is(err, sqltx.ErrUnknownOutcome) {
				t.Errorf("%s: committed %v, %v", name, committed, err)
			}
		}
		if tx, err := db.Begin(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Begin: %v, %v", tx, err)
		}
		if now, err := db.Now(ctx); !errors.Is(err, context.Canceled) || !now.IsZero() {
			t.Errorf("Now: %v, %v", now, err)
		}
		if rows := one[int](t, db, "SELECT COUNT(*) FROM stock"); rows != 1 {
			t.Errorf("there are %d rows, want 1", rows)
		}
		noneInUse(t, s.Pool(), "the end")
	})
}

// TestRefusedStatements checks that a statement that the driver or the database refuses fails its
// transaction, and that no connection stays in use.
func TestRefusedStatements(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := storetest.Migrated(t, dbURL)
		db := s.Ledger()
		insertStock(t, db, "a")
		down := sqltx.Statement{SQL: "UPDATE stock SET total = 7 WHERE sku = 'a'"}
		refused := errors.New("refused")
		for name, write := range map[string]func() error{
			"an argument of no type": func() error {
				return db.Transact(t.Context(), func(tx *sqltx.Tx) error {
					_, err := tx.ExecAll(t.Context(), down, sqltx.Statement{SQL: "UPDATE stock SET total = ?", Args: []any{struct{}{}}})
					return err
				})
			},
			"the second statement": func() error {
				return db.Transact(t.Context(), func(tx *sqltx.Tx) error {
					_, err := tx.ExecAll(t.Context(), down, sqltx.Statement{SQL: "UPDATE none SET total = 1"})
					return err
				})
			},
			"the function": func() error {
				return db.Transact(t.Context(), func(tx *sqltx.Tx) error {
					if _, err := tx.ExecAll(t.Context(), down); err != nil {
						t.Error(err)
					}
					return refused
				})
			},
		} {
			if err := write(); err == nil || name == "an argument of no type" && sqltx.IsStatementError(err) { // the statement was not sent
				t.Errorf("%s: %v", name, err)
			}
			if total := one[int](t, db, "SELECT total FROM stock WHERE sku = 'a'"); total != 10 {
				t.Errorf("%s: the total is %d", name, total)
			}
			noneInUse(t, s.Pool(), name)
		}
	})
}

// TestTransactionIsOver checks that a transaction that has ended runs no statement, and returns an
// error.
func TestTransactionIsOver(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := storetest.Migrated(t, dbURL)
		for name, end := range map[string]func(tx *sqltx.Tx) error{
			"Commit":   (*sqltx.Tx).Commit,
			"Rollback": func(tx *sqltx.Tx) error { return tx.RollbackError() },
		} {
			tx := begin(t, t.Context(), s.Ledger())
			if err := end(tx); err != nil {
				t.Errorf("%s of nothing: %v", name, err)
			}
			_, err := tx.Exec(t.Context(), insertB)
			if !errors.Is(err, sql.ErrTxDone) {
				t.Errorf("a statement after %s: %v", name, err)
			}
			var n int
			if err := tx.QueryRow(t.Context(), []any{&n}, "SELECT 1"); !errors.Is(err, sql.ErrTxDone) {
				t.Errorf("a query after %s: %v", name, err)
			}
			if err := tx.RollbackError(); !errors.Is(err, sql.ErrTxDone) {
				t.Errorf("Rollback after %s: %v", name, err)
			}
			if err := tx.Commit(); !errors.Is(err, sql.ErrTxDone) || errors.Is(err, sqltx.ErrUnknownOutcome) {
				t.Errorf("Commit after %s: %v", name, err)
			}
			noneInUse(t, s.Pool(), name)
		}
	})
}

// TestConnect_NoServer checks that a missing PostgreSQL server is an error, and gives no session.
func TestConnect_NoServer(t *testing.T) {
	listener := testenv.Listen(t)
	address := listener.Addr().String()
	listener.Close()
	config, err := pgx.ParseConfig("postgres://" + address + "/none")
	if err != nil {
		t.Fatal(err)
	}
	if conn, err := sqltx.PostgresConnector(config).Connect(t.Context()); conn != nil || !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v, %v", conn, err)
	}
}

// TestQueryRow checks the errors of reading one row.
func TestQueryRow(t *testing.T) {
	t.Parallel()
	s := storetest.Migrated(t, testenv.SQLite(t))
	db := s.Ledger()
	var n int
	if err := db.QueryRow(t.Context(), []any{&n}, "SELECT total FROM stock"); !errors.Is(err, sql.ErrNoRows) {
		t.Errorf("no row: %v", err)
	}
	if err := db.QueryRow(t.Context(), []any{&n}, "SELECT 'text'"); err == nil {
		t.Error("a text was read as a number")
	}
	noneInUse(t, s.Pool(), "the end")
	pg := storetest.Migrated(t, testenv.Postgres(t)).Ledger()
	if err := pg.QueryRow(t.Context(), []any{&n}, "SELECT 1 / (2 - n) FROM generate_series(1, 2) AS n"); !sqltx.IsStatementError(err) {
		t.Errorf("the second row fails: %v", err)
	}
	for _, value := range []any{"yesterday", int64(7), 1.5} {
		var at sqltx.Time
		if err := at.Scan(value); err == nil {
			t.Errorf("%v was read as the time %v", value, at)
		}
	}
}
