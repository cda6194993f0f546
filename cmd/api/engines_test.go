package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// refusedStart runs the service with flags that it should refuse, and returns its output and exit
// code. If the service starts, the test stops it.
func refusedStart(t *testing.T, flags ...string) (out string, code int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	printed := &stopWhenServing{stop: stop}
	err := run(ctx, append([]string{"--listen", "127.0.0.1:0"}, flags...), os.Environ(), printed, printed)
	code = exitCode(err, printed)
	return printed.text.String(), code
}

// stopWhenServing stores its output, and calls stop once the output says that the service serves.
type stopWhenServing struct {
	stop func()
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *stopWhenServing) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if bytes.Contains(p, []byte(`"serving"`)) {
		s.stop()
	}
	return s.text.Write(p)
}

// TestEngines checks that serve and the doctor agree about an engine. An engine that may keep its
// scripts is refused without the guard, and causes a warning with it.
func TestEngines(t *testing.T) {
	t.Parallel()
	dragonfly := map[string]string{"dragonfly_version": "df-v1.40.1", "run_id": ""}
	for _, test := range []struct {
		name     string
		fields   map[string]string
		guard    string
		strategy string
		level    store.Level // level of the doctor's finding; OK: the doctor finds nothing
		refused  bool
	}{
		{"Redis without guard", nil, "off", "lua", store.OK, false},
		{"Dragonfly with guard", dragonfly, "on", "lua", store.Warning, false},
		{"Dragonfly without guard", dragonfly, "off", "lua", store.Problem, true},
		{"Dragonfly without guard, read-check-write", dragonfly, "off", "mutex", store.Problem, true},
		{"Dragonfly without a gate", dragonfly, "off", "merged", store.OK, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			redisURL := faults.NewInfo(t, testenv.Redis(t), test.fields)
			flags := []string{"--db", testenv.SQLite(t), "--strategy", test.strategy, "--guard", test.guard, "--redis", redisURL}
			const says = "is Dragonfly df-v1.40.1, which is not known to lose its scripts"
			if test.refused {
				out, code := refusedStart(t, append([]string{"--migrate"}, flags...)...)
				if code != 1 || !strings.Contains(out, says) || !strings.Contains(out, "--guard on") {
					t.Errorf("exit code %d: %s", code, out)
				}
				expect(t, examined(t, 1, flags...), store.Problem, "redis", says)
				return
			}
			out := serveHere(t, append([]string{"--migrate"}, flags...)...).Output()
			if got := strings.Contains(out, says); got != (test.level == store.Warning) {
				t.Errorf("warned %v: %s", got, out)
			}
			for line, want := range map[string]bool{
				`"store":"ledger","engine":"SQLite","version":"3.`:                                                   true,
				`"store":"gate","engine":"Dragonfly","version":"df-v1.40.1","replication":"masters: 1, replicas: 0"`: test.level == store.Warning,
			} {
				if got := strings.Count(out, line); got != map[bool]int{true: 1}[want] {
					t.Errorf("%d lines with %s: %s", got, line, out)
				}
			}
			if test.level == store.Warning {
				expect(t, examined(t, 0, flags...), store.Warning, "redis", says)
			}
		})
	}
}

// TestEngines_NoSecrets checks that the log names a store that does not identify itself, and
// contains no password.
func TestEngines_NoSecrets(t *testing.T) {
	t.Parallel()
	const secret = "sesame"
	server := testenv.OwnRedis(t, "--requirepass", secret)
	redisURL := "redis://:" + secret + "@" + server.Addr() + "/0"
	client := storetest.Redis(t, redisURL)
	if err := client.Do(t.Context(), "ACL", "SETUSER", "default", "-info").Err(); err != nil {
		t.Fatal(err)
	}
	db := strings.Replace(testenv.Postgres(t), "postgres@", "postgres:"+secret+"@", 1) // the server does not check the password
	if !strings.Contains(db, secret) {
		t.Fatal(db)
	}
	flags := []string{"--migrate", "--db", db, "--redis", redisURL}
	out := serveHere(t, flags...).Output()
	for _, line := range []string{`"store":"ledger","engine":"PostgreSQL"`, `"store":"gate","engine":"unknown"`} {
		if !strings.Contains(out, line) {
			t.Errorf("no %s: %s", line, out)
		}
	}
	refused, code := refusedStart(t, append(flags, "--guard", "off")...)
	if code != 1 || !strings.Contains(refused, "allow INFO") {
		t.Errorf("exit code %d: %s", code, refused)
	}
	if strings.Contains(out+refused, secret) {
		t.Errorf("the password is printed: %s%s", out, refused)
	}
}

// TestEngines_Locks checks that a database without working advisory locks is refused where locks
// are needed, and serves otherwise. The database is a PostgreSQL with the version() of another
// engine.
func TestEngines_Locks(t *testing.T) {
	t.Parallel()
	dbURL := testenv.Postgres(t)
	migrated(t, []string{"--db", dbURL})
	db := storetest.SQL(t, dbURL)
	if _, err := db.Pool().ExecContext(t.Context(), "CREATE FUNCTION version() RETURNS text LANGUAGE sql AS $$ SELECT 'CockroachDB CCL v25.4.1' $$"); err != nil {
		t.Fatal(err)
	}
	flags := []string{"--db", dbURL + "&search_path=public,pg_catalog", "--redis", testenv.Redis(t), "--lock", "postgres"}
	const says = "the database is CockroachDB: the locks of its sessions cannot be relied on; use another --lock"
	if out, code := refusedStart(t, append(flags, "--strategy", "lock")...); code != 1 || !strings.Contains(out, says) {
		t.Errorf("exit code %d: %s", code, out)
	}
	expect(t, examined(t, 1, append(flags, "--strategy", "lock")...), store.Problem, "locks", says)
	if out := serveHere(t, append(flags, "--strategy", "lua")...).Output(); !strings.Contains(out, `"store":"ledger","engine":"CockroachDB"`) {
		t.Errorf("the log does not name the engine: %s", out)
	}
}
