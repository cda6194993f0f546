package store

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestCommit_StandbyAway: while the standby is away a COMMIT is not done, by
// whatever way its wait ends.
func TestCommit_StandbyAway(t *testing.T) {
	t.Parallel()
	primary, standby := testenv.OwnPostgresPair(t)
	s := migrated(t, primary.URL()+"&statement_timeout=500&lock_timeout=200")
	s.pool.SetMaxIdleConns(0) // some of the sessions are terminated
	admin := opened(t, primary.URL())
	for _, sku := range []string{"a", "b", "c", "d", "e"} {
		insertStock(t, s.DB(), sku)
	}
	waiting := func() int {
		return one[int](t, admin.DB(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	}
	// begin runs commit until it waits for the standby.
	begin := func(timeout time.Duration, sku string, commit func(ctx context.Context, update string) error) <-chan error {
		done := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), timeout)
			defer cancel()
			done <- commit(ctx, "UPDATE stock SET available = 3 WHERE sku = '"+sku+"'")
		}()
		eventually(t, 10*time.Second, "the commit waits for the standby", func() bool { return waiting() == 1 })
		return done
	}
	transaction := func(ctx context.Context, update string) error {
		tx := s.DB().WithContext(ctx).Begin()
		if err := tx.Exec(update).Error; err != nil {
			return err
		}
		return Commit(tx)
	}
	alone := func(ctx context.Context, update string) error { return s.DB().WithContext(ctx).Exec(update).Error }

	standby.Stop()
	for _, step := range []struct {
		sku, end string
		commit   func(context.Context, string) error
		unknown  bool
	}{
		{"a", "pg_cancel_backend", transaction, true},
		{"b", "pg_terminate_backend", transaction, true},
		{"c", "pg_cancel_backend", alone, false},
		{"d", "pg_terminate_backend", alone, false},
	} {
		done := begin(10*time.Second, step.sku, step.commit)
		run(t, admin.DB(), "SELECT "+step.end+"(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
		if err := <-done; err == nil || errors.Is(err, ErrUnknownOutcome) != step.unknown || provesNoCommit(err) {
			t.Errorf("%s, %s: %v (%s), want a doubt", step.sku, step.end, err, classes(err))
		}
		eventually(t, 5*time.Second, "nobody tries it again", func() bool { return waiting() == 0 })
	}
	// A row that only the primary has is there to be read, and not confirmed.
	if n := one[int](t, admin.DB(), "SELECT available FROM stock WHERE sku = 'a'"); n != 3 {
		t.Errorf("%d left of the SKU whose commit was cancelled, want 3", n)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := Confirm(ctx, s.DB()); err == nil {
		t.Error("confirmed without the standby")
	}
	run(t, admin.DB(), "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
	eventually(t, 10*time.Second, "nobody waits", func() bool { return waiting() == 0 })
	// The client gives up after longer than a statement may take. Nobody else
	// does: the commit goes on waiting, and its row stays locked.
	start := time.Now()
	err := <-begin(time.Second, "e", transaction)
	if !errors.Is(err, ErrUnknownOutcome) || time.Since(start) < time.Second {
		t.Errorf("given up after %v: %v, want an unknown outcome", time.Since(start), err)
	}
	patient, done := context.WithTimeout(t.Context(), 5*time.Second)
	defer done()
	if err := alone(patient, "UPDATE stock SET available = 4 WHERE sku = 'e'"); !IsLockTimeout(err) {
		t.Errorf("the row of a commit that waits: %v, want a lock timeout", err)
	}
	if n := waiting(); n != 1 {
		t.Errorf("%d commits wait, want the one that was given up", n)
	}
	standby.Cont()
	if err := Confirm(t.Context(), s.DB()); err != nil {
		t.Error(err)
	}
	if err := transaction(t.Context(), "UPDATE stock SET available = 4 WHERE sku = 'e'"); err != nil {
		t.Error(err)
	}
}

// TestCommit_NoTransaction: a COMMIT that finds no transaction, as a pooler that
// changed servers leaves it, has committed nothing.
func TestCommit_NoTransaction(t *testing.T) {
	s := migrated(t, testenv.Postgres(t))
	insertStock(t, s.DB(), "a")
	tx := s.DB().Begin()
	run(t, tx, "UPDATE stock SET available = 1 WHERE sku = 'a'")
	run(t, tx, "ROLLBACK")
	if err := Commit(tx); !errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("%v, want an unknown outcome", err)
	}
}

// TestCommit_AnsweredByRollback: a statement that answers rows failed, nobody
// looked, and the server answers the COMMIT with ROLLBACK.
func TestCommit_AnsweredByRollback(t *testing.T) {
	s := migrated(t, testenv.Postgres(t))
	insertStock(t, s.DB(), "a")
	tx := s.DB().Begin()
	run(t, tx, "UPDATE stock SET available = 1 WHERE sku = 'a'")
	if err := tx.Raw("SELECT 1 / 0").Row().Scan(new(int)); err == nil {
		t.Fatal("no error")
	}
	if err := Commit(tx); err == nil || errors.Is(err, ErrUnknownOutcome) {
		t.Errorf("%v, want a refusal", err)
	}
	if left := one[int](t, s.DB(), "SELECT available FROM stock WHERE sku = 'a'"); left != 10 {
		t.Errorf("%d left, want 10", left)
	}
}

// TestPgBouncer: in transaction mode the service says what to set, and works
// once it is set.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	direct := testenv.Postgres(t)
	migrated(t, direct)
	_, err := OpenSQL(t.Context(), testenv.OwnPgBouncer(t, direct, "pool_mode = transaction"))
	if err == nil {
		t.Fatal("startup parameters that PgBouncer does not know were accepted")
	}
	_, advice, _ := strings.Cut(err.Error(), "set ignore_startup_parameters = ")
	ignored, _, ok := strings.Cut(advice, " in pgbouncer.ini")
	if !ok {
		t.Fatalf("the error does not say what to set: %v", err)
	}
	pooled := testenv.OwnPgBouncer(t, direct, "pool_mode = transaction", "default_pool_size = 2", "ignore_startup_parameters = "+ignored)
	for name, query := range map[string]string{"as it is": "", "as advised": "&default_query_exec_mode=cache_describe"} {
		t.Run(name, func(t *testing.T) {
			s := opened(t, pooled+query)
			insertStock(t, s.DB(), name)
			// More sessions than one, which take turns on the server's.
			done := make(chan error, 8)
			for range cap(done) {
				go func() {
					for range 25 {
						if committed, err := CommitIf(t.Context(), s.DB(), Statement{
							SQL: "UPDATE stock SET available = available - 1 WHERE sku = ANY($1::text[])", Args: []any{[]string{name}}}, 1,
							func(Guard) []Statement {
								return []Statement{{SQL: "UPDATE stock SET version = version + 1 WHERE sku = $1", Args: []any{name}}}
							},
						); err != nil || !committed {
							done <- errors.Join(errors.New("not committed"), err)
							return
						}
					}
					done <- nil
				}()
			}
			for range cap(done) {
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			var version int
			if err := s.DB().Raw("SELECT version FROM stock WHERE sku = ?", name).Row().Scan(&version); err != nil || version != 200 {
				t.Errorf("version %d, %v, want 200", version, err)
			}
		})
	}
}

// TestOpenSQL_NoArrays: a mode of the driver that cannot send arrays is refused.
func TestOpenSQL_NoArrays(t *testing.T) {
	for _, mode := range []string{"exec", "simple_protocol"} {
		u, err := url.Parse(testenv.Postgres(t))
		if err != nil {
			t.Fatal(err)
		}
		u.RawQuery += "&default_query_exec_mode=" + mode
		if _, err := OpenSQL(t.Context(), u.String()); !errors.Is(err, ErrBadURL) || !strings.Contains(err.Error(), "cache_describe") {
			t.Errorf("%s: %v, want ErrBadURL and what to use", mode, err)
		}
	}
}
