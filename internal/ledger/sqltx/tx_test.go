package sqltx_test

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// begin begins a transaction.
func begin(t testing.TB, ctx context.Context, db *sqltx.DB) *sqltx.Tx {
	t.Helper()
	tx, err := db.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// commitIf commits a transaction if first affects the given number of rows. others returns the
// statements that follow. The first of them must contain the checked value.
func commitIf(ctx context.Context, db *sqltx.DB, first sqltx.Statement, rows int64, others func(func(string) string) []sqltx.Statement) (committed bool, err error) {
	tx, err := db.Begin(ctx)
	if err != nil {
		return false, err
	}
	expected := false
	statements := others(func(value string) string {
		expected = true
		return tx.Expect(rows, first, value)
	})
	if !expected {
		tx.Expect(rows, first, "")
	}
	tx.AtCommit(statements...)
	if err = tx.Commit(); errors.Is(err, sqltx.ErrUnmet) {
		return false, nil
	}
	return err == nil, err
}

// inserting returns statements for commitIf. They insert two stock rows: one for
// the SKU sku, which is guarded, and one for the SKU more.
func inserting(sku string) func(checked func(string) string) []sqltx.Statement {
	return func(checked func(string) string) []sqltx.Statement {
		return []sqltx.Statement{
			{SQL: "INSERT INTO stock (sku, kind, total, available) VALUES (" + checked("'"+sku+"'") + ", 'product', 1, 1), ('more', 'product', 1, 1)"},
			{SQL: "UPDATE stock SET available = 2 WHERE sku = 'more'"},
		}
	}
}

// TestCommitIf checks that Commit commits all statements if the first affects
// the expected number of rows, and none otherwise.
func TestCommitIf(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) { testCommitIf(t, dbURL) })
	for name, query := range map[string]string{
		"no strict mode":      "?sql_mode=" + url.QueryEscape("''"),
		"one round trip each": "?interpolateParams=false",
	} {
		t.Run("MariaDB/"+name, func(t *testing.T) { testCommitIf(t, testenv.MariaDB(t)+query) })
	}
}

func testCommitIf(t *testing.T, dbURL string) {
	s := storetest.Migrated(t, dbURL)
	db := s.Ledger()
	requiring := func(condition string) func(func(string) string) []sqltx.Statement {
		return func(checked func(string) string) []sqltx.Statement {
			return append(inserting("c")(checked), sqltx.Statement{
				SQL: "UPDATE stock SET available = " + db.Dialect().Require(condition, "available") + " WHERE sku = 'a'",
			})
		}
	}
	insertStock(t, db, "a")
	run(t, db, "UPDATE stock SET available = 10")
	down := func(sku string) sqltx.Statement {
		return sqltx.Statement{SQL: "UPDATE stock SET available = available - 1 WHERE sku = '" + sku + "'"}
	}
	for _, step := range []struct {
		name      string
		first     sqltx.Statement
		rows      int64
		others    func(func(string) string) []sqltx.Statement
		committed bool
		fails     func(error) bool
		left      int
	}{
		{name: "no row", first: down("b"), rows: 1, others: inserting("c"), left: 10},
		{name: "too few rows", first: down("a"), rows: 2, others: inserting("c"), left: 10},
		{name: "a row that exists", first: down("a"), rows: 1, others: inserting("a"), fails: sqltx.IsDuplicate, left: 10},
		{name: "a statement that fails", first: down("a"), rows: 1, others: func(checked func(string) string) []sqltx.Statement {
			return append(inserting("c")(checked), sqltx.Statement{SQL: "UPDATE nothing SET available = 1"})
		}, fails: sqltx.IsStatementError, left: 10},
		{name: "a condition that does not hold", first: down("a"), rows: 1, others: requiring("available > 9"), left: 10},
		{name: "as many rows", first: down("a"), rows: 1, others: requiring("available > 8"), committed: true, left: 9},
	} {
		committed, err := commitIf(t.Context(), db, step.first, step.rows, step.others)
		switch {
		case committed != step.committed, (err != nil) != (step.fails != nil), errors.Is(err, sqltx.ErrUnknownOutcome):
			t.Errorf("%s: committed %v, %v", step.name, committed, err)
		case err != nil && !step.fails(err):
			t.Errorf("%s: %v is %q", step.name, err, classes(err))
		}
		if left := one[int](t, db, "SELECT available FROM stock WHERE sku = 'a'"); left != step.left {
			t.Errorf("%s: %d left, want %d", step.name, left, step.left)
		}
		want := 1
		if step.committed {
			want = 3
		}
		if rows := one[int](t, db, "SELECT COUNT(*) FROM stock"); rows != want {
			t.Errorf("%s: %d rows, want %d", step.name, rows, want)
		}
	}
	if more := one[int](t, db, "SELECT available FROM stock WHERE sku = 'more'"); more != 2 {
		t.Errorf("the last statement left %d, want 2", more)
	}
	if n := one[int](t, db, "SELECT COUNT(*) FROM stock WHERE sku = 'c'"); n != 1 {
		t.Errorf("%d rows have the guarded value, want 1", n)
	}
	noneInUse(t, s.Pool(), "the end")
}

// TestAppendText checks that every text is stored as it is, by the driver with and
// without placeholders, in every sql_mode.
func TestAppendText(t *testing.T) {
	var visible []byte
	for c := byte('!'); c <= '~'; c++ {
		visible = append(visible, c)
	}
	texts := []string{"", "a", "a b", "a'b", "''", `a\`, `\'`, "a?", "$1", "a;--", string(visible[:50]), string(visible[50:])}
	stored := func(t *testing.T, dbURL string) {
		t.Parallel()
		db := storetest.Migrated(t, dbURL).Ledger()
		for i, text := range texts {
			literal := db.Dialect().AppendText([]byte("INSERT INTO stock (total, available, kind, sku) VALUES (1, ?, 'product', "), text)
			run(t, db, string(append(literal, ')')), i)
			if got := one[int](t, db, "SELECT available FROM stock WHERE sku = ?", text); got != i {
				t.Errorf("%q is row %d, want %d", text, got, i)
			}
		}
	}
	t.Run("SQLite", func(t *testing.T) { stored(t, testenv.SQLite(t)) })
	t.Run("MariaDB", func(t *testing.T) { stored(t, testenv.MariaDB(t)) })
	t.Run("MariaDB/no escapes", func(t *testing.T) {
		stored(t, testenv.MariaDB(t)+"?sql_mode="+url.QueryEscape("'NO_BACKSLASH_ESCAPES,ANSI_QUOTES'"))
	})
}

// TestCommit_AnswerLost checks that the outcome is unknown if the server commits and its answer is
// lost, whether the COMMIT was sent alone or with other statements.
func TestCommit_AnswerLost(t *testing.T) {
	t.Parallel()
	forEachServer(t, func(t *testing.T, dbURL string) {
		wire, wireURL := faults.NewWire(t, dbURL)
		db, direct := storetest.Migrated(t, wireURL).Ledger(), storetest.SQL(t, dbURL).Ledger()
		insertStock(t, db, "a")
		for name, write := range writes {
			wire.Arm(faults.Fault{Kind: faults.Lost, Nth: 1, Only: "COMMIT"})
			committed, err := write(t.Context(), db)
			if _, injected := wire.Disarm(); committed || len(injected) != 1 || !errors.Is(err, sqltx.ErrUnknownOutcome) {
				t.Errorf("%s: committed %v after %q, %v", name, committed, injected, err)
			}
			if rows := one[int](t, direct, "SELECT COUNT(*) FROM stock WHERE sku = 'b'"); rows != 1 {
				t.Errorf("%s: the server has %d rows", name, rows)
			}
			run(t, direct, "DELETE FROM stock WHERE sku <> 'a'")
		}
	})
}

// TestCommit_NotSent checks that nothing is committed, and that the error proves
// it, if the COMMIT is not sent.
func TestCommit_NotSent(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		db := storetest.Migrated(t, dbURL).Ledger()
		insertStock(t, db, "a")
		update := func(ctx context.Context) *sqltx.Tx {
			tx := begin(t, ctx, db)
			run(t, tx, "UPDATE stock SET available = 7 WHERE sku = 'a'")
			return tx
		}
		ctx, cancel := context.WithCancel(t.Context())
		late := update(ctx)
		cancel()
		if err := late.Commit(); err == nil || errors.Is(err, sqltx.ErrUnknownOutcome) {
			t.Errorf("the context had ended: %v, want an error that proves no commit", err)
		}
		testenv.Await(t, "the row is unlocked and unchanged", func() bool {
			if one[int](t, db, "SELECT available FROM stock WHERE sku = 'a'") != 10 {
				return false
			}
			_, err := db.Exec(t.Context(), "UPDATE stock SET available = 10 WHERE sku = 'a'")
			return err == nil
		})
		if db.Dialect() == sqltx.SQLite {
			return // SQLite's connections are in this process and cannot be lost
		}
		lost := update(t.Context())
		lost.LoseConnection()
		if err := lost.Commit(); err == nil || errors.Is(err, sqltx.ErrUnknownOutcome) {
			t.Errorf("the connection was lost: %v, want an error that proves no commit", err)
		}
		if db.Dialect() == sqltx.Postgres {
			closed := update(t.Context())
			if err := errors.Join(closed.CloseSession(t.Context()), closed.Commit()); !sqltx.IsUnsent(err) {
				t.Errorf("the session was closed: %v, want an error that proves no commit", err)
			}
		}
	})
}

// TestBeginFails checks that the first statement of a transaction returns the error of BEGIN,
// whichever method runs it.
func TestBeginFails(t *testing.T) {
	const query = "SELECT COUNT(*) FROM stock"
	forEachSQL(t, func(t *testing.T, dbURL string) {
		db := storetest.Migrated(t, dbURL).Ledger()
		if db.Dialect() == sqltx.SQLite {
			holder := begin(t, t.Context(), db)
			defer holder.Rollback()
			run(t, holder, "UPDATE stock SET available = 7") // holds the write lock
			db = storetest.SQL(t, dbURL+"?_pragma=busy_timeout(1)").Ledger()
		}
		for name, first := range map[string]func(*sqltx.Tx) error{
			"Exec": func(tx *sqltx.Tx) error {
				_, err := tx.Exec(t.Context(), "UPDATE stock SET available = 0")
				return err
			},
			"ExecAll": func(tx *sqltx.Tx) error {
				_, err := tx.ExecAll(t.Context(), sqltx.Statement{SQL: "UPDATE stock SET available = 0"})
				return err
			},
			"QueryEach": func(tx *sqltx.Tx) error {
				return tx.QueryEach(t.Context(), func(*sql.Rows) error { return nil }, query)
			},
			"QueryRow": func(tx *sqltx.Tx) error { return tx.QueryRow(t.Context(), []any{new(int)}, query) },
		} {
			tx := begin(t, t.Context(), db)
			want := sqltx.IsRetryable
			if db.Dialect() != sqltx.SQLite {
				tx.LoseConnection()
				want = sqltx.IsUnsent
			}
			if err := first(tx); !want(err) {
				t.Errorf("%s: %v is %q", name, err, classes(err))
			}
			tx.Rollback()
		}
	})
}

// TestRollback_Failed checks that a connection whose ROLLBACK failed is not used again, because the
// next statement would run in the old transaction.
func TestRollback_Failed(t *testing.T) {
	t.Parallel()
	forEachServer(t, func(t *testing.T, dbURL string) {
		s := storetest.Migrated(t, dbURL)
		db := s.Ledger()
		insertStock(t, db, "a")
		s.Pool().SetMaxOpenConns(1)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		tx := begin(t, ctx, db)
		sent := false
		tx.FailRollback(func(ctx context.Context) {
			_, bounded := ctx.Deadline()
			if sent = true; !bounded || ctx.Err() != nil {
				t.Errorf("the ROLLBACK waits without a bound, or not at all: %v", ctx.Err())
			}
		})
		run(t, tx, "UPDATE stock SET available = 1 WHERE sku = 'a'")
		cancel()
		if err := tx.RollbackError(); err == nil || !sent {
			t.Error("the ROLLBACK did not fail")
		}
		if left := one[int](t, db, "SELECT available FROM stock WHERE sku = 'a'"); left != 10 {
			t.Errorf("%d left, want 10: the old transaction is still open", left)
		}
		if err := tx.Commit(); err == nil {
			t.Error("a transaction that was over was committed")
		}
	})
}

// inEachWay is forEachSQL, and runs the test again for drivers that send statements in another way.
// To MariaDB they send the statements one by one, as to a Galera cluster. To PostgreSQL they send
// them as through a pooler.
func inEachWay(t *testing.T, test func(t *testing.T, dbURL string)) {
	t.Helper()
	forEachSQL(t, test)
	t.Run("MariaDB/one round trip each", func(t *testing.T) { test(t, testenv.MariaDB(t)+"?interpolateParams=false") })
	t.Run("PostgreSQL/as behind a pooler", func(t *testing.T) {
		test(t, testenv.Postgres(t)+"&default_query_exec_mode=cache_describe")
	})
}

// TestFirstQuery checks that a query that begins its transaction returns the same as any other, and
// that its errors leave no transaction behind.
func TestFirstQuery(t *testing.T) {
	inEachWay(t, func(t *testing.T, dbURL string) {
		s := storetest.Migrated(t, dbURL)
		db := s.Ledger()
		s.Pool().SetMaxOpenConns(1)
		other := storetest.SQL(t, dbURL).Ledger()
		insertStock(t, db, "a")
		insertStock(t, db, "b")
		id := uuid.New()
		run(t, db, "INSERT INTO orders (buyer_id, status, strategy, id, take_id, created_at) VALUES ('b-1', 'pending', 'lua', ?, ?, ?)",
			db.Dialect().UUID(id), db.Dialect().UUID(id), time.Date(2026, 2, 3, 4, 5, 6, 7000, time.UTC))
		type row struct {
			id        uuid.UUID
			buyer     string
			version   int64
			restocked bool
			payment   sql.NullString
			total     int64
			at        sqltx.Time
		}
		read := func(s session) (r row, err error) {
			err = s.QueryRow(t.Context(), []any{&r.id, &r.buyer, &r.version, &r.restocked, &r.payment, &r.total, &r.at},
				"SELECT id, buyer_id, version, restocked, payment_id, (SELECT SUM(total) FROM stock), created_at FROM orders WHERE id = ?"+db.Dialect().RowLock(), db.Dialect().UUID(id))
			return r, err
		}
		want, err := read(db)
		if err != nil || want.id != id || want.total != 20 || want.payment.Valid {
			t.Fatalf("read %+v, %v", want, err)
		}
		tx := begin(t, t.Context(), db)
		for range 2 { // the first query begins the transaction
			if got, err := read(tx); got != want || err != nil {
				t.Errorf("read %+v, %v, want %+v", got, err, want)
			}
		}
		var skus []string
		err = tx.QueryEach(t.Context(), func(rows *sql.Rows) error {
			skus = append(skus, "")
			return rows.Scan(&skus[len(skus)-1])
		}, "SELECT sku FROM stock ORDER BY sku")
		if err != nil || !slices.Equal(skus, []string{"a", "b"}) {
			t.Errorf("read %q, %v", skus, err)
		}
		tx.AtCommit(sqltx.Statement{SQL: "UPDATE stock SET available = 3"})
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if left := one[int](t, db, "SELECT available FROM stock WHERE sku = 'a'"); left != 3 {
			t.Errorf("%d left", left)
		}

		left := 3
		for name, query := range map[string]string{"refused": "SELECT nothing FROM stock", "no row": "SELECT sku FROM stock WHERE sku = 'c'", "not a number": "SELECT sku FROM stock"} {
			tx := begin(t, t.Context(), db)
			n := 0
			err := tx.QueryRow(t.Context(), []any{&n}, query)
			if err == nil || (name == "refused") != sqltx.IsStatementError(err) || (name == "no row") != errors.Is(err, sql.ErrNoRows) {
				t.Errorf("%s: %v is %q", name, err, classes(err))
			}
			tx.Rollback()
			run(t, db, "UPDATE stock SET available = available + 1")
			left++
			if got := one[int](t, other, "SELECT available FROM stock WHERE sku = 'a'"); got != left {
				t.Errorf("%s: others see %d left, want %d: the transaction is still open", name, got, left)
			}
		}
		if db.Dialect() == sqltx.Postgres {
			tx := begin(t, t.Context(), db)
			err := tx.QueryEach(t.Context(), func(*sql.Rows) error { return nil }, "SELECT 1 / (2 - n) FROM generate_series(1, 2) AS n")
			if !sqltx.IsStatementError(err) {
				t.Errorf("the second row fails: %v", err)
			}
			tx.Rollback()
			tx = begin(t, t.Context(), db)
			n := 0
			if err := tx.QueryRow(t.Context(), []any{&n}, "SELECT 1 / ?::int", 0); !sqltx.IsStatementError(err) { // refused after it was prepared
				t.Errorf("dividing by 0: %v", err)
			}
			tx.Rollback()
		}
		tx = begin(t, t.Context(), db)
		tx.Rollback()
		if _, err := read(tx); !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("after the end: %v", err)
		}
		noneInUse(t, s.Pool(), "the end")
	})
}

// TestFirstQuery_Lost checks that a transaction fails if its first query gets no answer.
func TestFirstQuery_Lost(t *testing.T) {
	t.Parallel()
	forEachServer(t, func(t *testing.T, dbURL string) {
		wire, wireURL := faults.NewWire(t, dbURL)
		s := storetest.Migrated(t, wireURL)
		tx := begin(t, t.Context(), s.Ledger())
		wire.Arm(faults.Fault{Kind: faults.Refused, Nth: 1})
		n := 0
		if err := tx.QueryRow(t.Context(), []any{&n}, "SELECT 1"); err == nil || n != 0 {
			t.Errorf("read %d, %v", n, err)
		}
		if err := tx.Commit(); err == nil {
			t.Error("it was committed")
		}
		noneInUse(t, s.Pool(), "the end")
	})
}

// TestAtCommit checks that a statement that the server refuses together with the COMMIT
// leaves nothing of its transaction, and that this is known.
func TestAtCommit(t *testing.T) {
	inEachWay(t, func(t *testing.T, dbURL string) {
		s := storetest.Migrated(t, dbURL)
		db := s.Ledger()
		insertStock(t, db, "a")
		insert := sqltx.Statement{SQL: "INSERT INTO stock (sku, kind, total, available) VALUES ('b', 'product', 1, 1)"}
		for name, test := range map[string]struct {
			last sqltx.Statement
			is   func(error) bool
		}{
			"a duplicate":  {insert, sqltx.IsDuplicate},
			"no table":     {sqltx.Statement{SQL: "UPDATE nothing SET total = 1"}, sqltx.IsStatementError},
			"out of range": {sqltx.Statement{SQL: "UPDATE stock SET total = " + db.Dialect().Require("1 = 2", "1")}, sqltx.IsStatementError},
		} {
			err := db.Transact(t.Context(), func(tx *sqltx.Tx) error {
				run(t, tx, "UPDATE stock SET available = 1")
				tx.AtCommit(insert, test.last)
				return nil
			})
			if err == nil || !test.is(err) || errors.Is(err, sqltx.ErrUnknownOutcome) || errors.Is(err, sqltx.ErrUnmet) {
				t.Errorf("%s: %v is %q", name, err, classes(err))
			}
			if left := one[int](t, db, "SELECT SUM(available) FROM stock"); left != 10 {
				t.Errorf("%s: %d left", name, left)
			}
		}
		noneInUse(t, s.Pool(), "the end")
	})
}
