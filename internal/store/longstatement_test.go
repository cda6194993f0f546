package store

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// silenced opens a migrated database over a wire. The URL bounds statements to a second.
func silenced(t *testing.T, d testenv.Database) (wire *testenv.Wire, over *SQL, direct string) {
	t.Helper()
	direct = d.URL(t)
	migrated(t, direct)
	wire = testenv.NewWire(t, direct)
	bounded := wire.Through(direct)
	for name, value := range map[string]map[string]string{
		"MariaDB": {"readTimeout": "1s", "max_statement_time": "1"}, "PostgreSQL": {"statement_timeout": "1000"},
	}[d.Name] {
		bounded = withParameter(t, bounded, name, value)
	}
	over = opened(t, bounded)
	over.silence = 3 * time.Second // long enough for a busy server that is pinged every second
	return wire, over, direct
}

// mustGiveUp checks that MigrateUp gives up soon, and returns its error.
func mustGiveUp(t *testing.T, ended <-chan error) (err error) {
	t.Helper()
	if err = testenv.Receive(t, "MigrateUp returns", ended); err == nil {
		t.Error("MigrateUp returned no error")
	}
	return err
}

// TestMigrate_SilentServer makes the server stop answering before a migration, and during one that
// has lasted longer than the allowed silence, and than the URL's bound of a statement.
func TestMigrate_SilentServer(t *testing.T) {
	t.Parallel()
	for _, d := range testenv.NetworkDatabases() {
		t.Run(d.Name+"/before", func(t *testing.T) {
			t.Parallel()
			wire, s, _ := silenced(t, d)
			wire.Freeze()
			ended := make(chan error, 1)
			go func() { ended <- s.MigrateUp(t.Context()) }()
			_ = mustGiveUp(t, ended) // the reason may be a failed connection
		})
		t.Run(d.Name+"/during", func(t *testing.T) {
			t.Parallel()
			wire, s, direct := silenced(t, d)
			blocking, err := OpenSessions(direct)
			if err != nil {
				t.Fatal(err)
			}
			defer blocking.Close()
			conn, err := blocking.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			for _, statement := range map[string][]string{
				"MariaDB":    {"LOCK TABLES schema_migrations WRITE"},
				"PostgreSQL": {"BEGIN", "LOCK TABLE schema_migrations"},
			}[d.Name] {
				if _, err := conn.ExecContext(t.Context(), statement); err != nil {
					t.Fatal(err)
				}
			}
			ctx, interrupt := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- s.MigrateUp(ctx) }()
			select {
			case err := <-ended:
				t.Fatalf("MigrateUp did not wait for a server that answers: %v", err)
			case <-time.After(2 * s.silence):
			}
			interrupt() // the migration continues while the server answers
			wire.Freeze()
			if err := mustGiveUp(t, ended); !errors.Is(err, errSilent) {
				t.Errorf("MigrateUp returned %v, want that the server is silent", err)
			}
		})
	}
}

// TestWhileAnswering_NoConnection makes each ping open a new connection. A ping that gives up
// connecting must not count as an answer. Work that succeeds without an answered ping must not
// fail.
func TestWhileAnswering_NoConnection(t *testing.T) {
	t.Parallel()
	for _, d := range testenv.NetworkDatabases() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			wire, s, _ := silenced(t, d)
			s.Pool().SetMaxIdleConns(-1)
			wire.Freeze()
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
			defer cancel()
			const bound = connectTimeout + time.Second
			err := s.WhileAnswering(ctx, bound, func(ctx context.Context) error {
				err := s.WhileAnswering(ctx, bound, func(ctx context.Context) error {
					<-ctx.Done()
					return nil
				})
				if err != nil {
					t.Errorf("work that has succeeded: %v", err)
				}
				<-ctx.Done()
				return ctx.Err()
			})
			if !errors.Is(err, errSilent) {
				t.Errorf("it returned %v", err)
			}
		})
	}
}
