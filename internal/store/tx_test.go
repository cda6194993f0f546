package store

import (
	"context"
	"database/sql/driver"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// inserting is what goes with the first statement: a row of this SKU, which is
// guarded, and another.
func inserting(sku string) func(guard Guard) []Statement {
	return func(guard Guard) []Statement {
		return []Statement{
			{SQL: "INSERT INTO stock (sku, kind, total, available) VALUES (" + guard("'"+sku+"'") + ", 'product', 1, 1), ('more', 'product', 1, 1)"},
			{SQL: "UPDATE stock SET available = 2 WHERE sku = 'more'"},
		}
	}
}

// TestCommitIf: all of it is committed, or nothing, as the first statement says.
func TestCommitIf(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) { commitIf(t, dbURL) })
	for name, query := range map[string]string{
		"that forgives":       "?sql_mode=" + url.QueryEscape("''"),
		"one round trip each": "?interpolateParams=false",
	} {
		t.Run("MariaDB/"+name, func(t *testing.T) { commitIf(t, testenv.MariaDB(t)+query) })
	}
}

func commitIf(t *testing.T, dbURL string) {
	s := migrated(t, dbURL)
	insertStock(t, s.DB(), "a")
	run(t, s.DB(), "UPDATE stock SET available = 10")
	down := func(sku string) Statement {
		return Statement{SQL: "UPDATE stock SET available = available - 1 WHERE sku = '" + sku + "'"}
	}
	for _, step := range []struct {
		name      string
		first     Statement
		rows      int64
		others    func(Guard) []Statement
		committed bool
		fails     func(error) bool
		left      int
	}{
		{name: "no row", first: down("b"), rows: 1, others: inserting("c"), left: 10},
		{name: "too few rows", first: down("a"), rows: 2, others: inserting("c"), left: 10},
		{name: "a row that is there", first: down("a"), rows: 1, others: inserting("a"), fails: IsDuplicate, left: 10},
		{name: "a statement that fails", first: down("a"), rows: 1, others: func(guard Guard) []Statement {
			return append(inserting("c")(guard), Statement{SQL: "UPDATE nothing SET available = 1"})
		}, fails: IsStatementError, left: 10},
		{name: "as many rows", first: down("a"), rows: 1, others: inserting("c"), committed: true, left: 9},
	} {
		committed, err := CommitIf(t.Context(), s.DB(), step.first, step.rows, step.others)
		switch {
		case committed != step.committed, (err != nil) != (step.fails != nil), errors.Is(err, ErrUnknownOutcome):
			t.Errorf("%s: committed %v, %v", step.name, committed, err)
		case err != nil && !step.fails(err):
			t.Errorf("%s: %v is %q", step.name, err, classes(err))
		}
		if left := one[int](t, s.DB(), "SELECT available FROM stock WHERE sku = 'a'"); left != step.left {
			t.Errorf("%s: %d left, want %d", step.name, left, step.left)
		}
		want := 1
		if step.committed {
			want = 3
		}
		if rows := one[int](t, s.DB(), "SELECT COUNT(*) FROM stock"); rows != want {
			t.Errorf("%s: %d rows, want %d", step.name, rows, want)
		}
	}
	if more := one[int](t, s.DB(), "SELECT available FROM stock WHERE sku = 'more'"); more != 2 {
		t.Errorf("the last statement left %d, want 2", more)
	}
	if n := one[int](t, s.DB(), "SELECT COUNT(*) FROM stock WHERE sku = 'c'"); n != 1 {
		t.Errorf("%d rows have the guarded value, want 1", n)
	}
}

// TestCommitIf_AnswerLost: it is committed, and who has not heard knows nothing.
func TestCommitIf_AnswerLost(t *testing.T) {
	t.Parallel()
	own := testenv.MariaDB(t)
	u, err := url.Parse(own)
	if err != nil {
		t.Fatal(err)
	}
	wire := testenv.NewWire(t, u.Host)
	s := migrated(t, strings.Replace(own, u.Host, wire.Addr(), 1))
	insertStock(t, s.DB(), "a")
	direct := opened(t, own)
	var cutter sync.WaitGroup
	defer cutter.Wait()
	committed, err := CommitIf(t.Context(), s.DB(), Statement{SQL: "UPDATE stock SET available = 7 WHERE sku = 'a'"}, 1,
		func(guard Guard) []Statement {
			wire.Mute()
			cutter.Go(func() {
				defer wire.Cut()
				for one[int](t, direct.DB(), "SELECT available FROM stock WHERE sku = 'a'") != 7 && t.Context().Err() == nil {
					time.Sleep(time.Millisecond)
				}
			})
			return inserting("c")(guard)
		})
	if committed || !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("committed %v, %v", committed, err)
	}
}

// TestCommit_AnswerLost: a COMMIT whose answer is lost is neither done nor
// refused.
func TestCommit_AnswerLost(t *testing.T) {
	t.Parallel()
	for name, dbURL := range map[string]func(testenv.T) string{"MariaDB": testenv.MariaDB, "PostgreSQL": testenv.Postgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			own := dbURL(t)
			u, err := url.Parse(own)
			if err != nil {
				t.Fatal(err)
			}
			wire := testenv.NewWire(t, u.Host)
			s := migrated(t, strings.Replace(own, u.Host, wire.Addr(), 1))
			insertStock(t, s.DB(), "a")
			direct := opened(t, own)
			tx := s.DB().Begin()
			run(t, tx, "UPDATE stock SET available = 7 WHERE sku = 'a'")
			wire.Mute()
			done := make(chan error, 1)
			go func() { done <- Commit(tx) }()
			eventually(t, 10*time.Second, "it is committed", func() bool {
				return one[int](t, direct.DB(), "SELECT available FROM stock WHERE sku = 'a'") == 7
			})
			wire.Cut()
			wire.Thaw()
			if err := <-done; !errors.Is(err, ErrUnknownOutcome) {
				t.Errorf("%v, want an unknown outcome", err)
			}
		})
	}
}

// TestCommit_NotSent: a COMMIT that was not sent is refused.
func TestCommit_NotSent(t *testing.T) {
	forEachSQL(t, func(t *testing.T, dbURL string) {
		s := migrated(t, dbURL)
		insertStock(t, s.DB(), "a")
		begin := func(ctx context.Context) *gorm.DB {
			tx := s.DB().WithContext(ctx).Begin()
			run(t, tx, "UPDATE stock SET available = 7 WHERE sku = 'a'")
			return tx
		}
		ctx, cancel := context.WithCancel(t.Context())
		late := begin(ctx)
		cancel()
		if err := Commit(late); err == nil || errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("the request had ended: %v, want a refusal", err)
		}
		eventually(t, 5*time.Second, "the row is free, and as it was", func() bool {
			return one[int](t, s.DB(), "SELECT available FROM stock WHERE sku = 'a'") == 10 &&
				s.DB().Exec("UPDATE stock SET available = 10 WHERE sku = 'a'").Error == nil
		})
		if s.Dialect() == SQLite {
			return // it has no connection that may be lost
		}
		lost := begin(t.Context())
		_ = lost.Statement.ConnPool.(*transaction).conn.Raw(func(any) error { return driver.ErrBadConn })
		if err := Commit(lost); err == nil || errors.Is(err, ErrUnknownOutcome) {
			t.Errorf("the connection was lost: %v, want a refusal", err)
		}
	})
}
