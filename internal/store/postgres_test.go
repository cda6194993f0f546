package store

import (
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestPgBouncer checks that OpenSQL's error names the setting for PgBouncer in transaction mode,
// and that the database works once it is set.
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
	for name, query := range map[string]string{"default mode": "", "as advised": "&default_query_exec_mode=cache_describe"} {
		t.Run(name, func(t *testing.T) {
			s := opened(t, pooled+query)
			insertStock(t, s.DB(), name)
			// Eight clients share the two sessions of the server.
			done := make(chan error, 8)
			for range cap(done) {
				go func() {
					for range 25 {
						tx, err := s.Ledger().Begin(t.Context())
						if err != nil {
							done <- err
							return
						}
						tx.Expect(1, sqltx.Statement{
							SQL: "UPDATE stock SET available = available - 1 WHERE sku = ANY(?::text[])", Args: []any{[]string{name}},
						}, "")
						tx.AtCommit(sqltx.Statement{SQL: "UPDATE stock SET version = version + 1 WHERE sku = ?", Args: []any{name}})
						if err := tx.Commit(); err != nil {
							done <- err
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

// TestOpenSQL_NoArrays checks that OpenSQL refuses driver modes that cannot send arrays.
func TestOpenSQL_NoArrays(t *testing.T) {
	t.Parallel()
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
