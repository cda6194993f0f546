package store

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// fakes imitate engines that cannot be installed for the tests, by their INFO.
var fakes = []struct {
	name    string
	fields  map[string]string
	engine  string // name and version
	refused bool   // whether the engine is refused without the guard
	warned  string
}{
	{"Redis 7", nil, "Redis 7", false, ""},
	{"Redis 6", map[string]string{"redis_version": "6.2.14"}, "Redis 6.2.14", false, "saves scripts in snapshots"},
	{"Valkey", map[string]string{"redis_version": "7.2.4", "valkey_version": "8.1.1", "server_name": "valkey"}, "Valkey 8.1.1", false, ""},
	{"Valkey by its name", map[string]string{"redis_version": "7.2.4", "server_name": "valkey"}, "Valkey 7.2.4", false, ""},
	{"Dragonfly", map[string]string{"redis_version": "7.4.0", "dragonfly_version": "df-v1.40.1", "gcc_version": "", "run_id": ""}, "Dragonfly df-v1.40.1", true, "is Dragonfly df-v1.40.1"},
	{"KeyDB", map[string]string{"redis_version": "6.3.4", "executable": "/data/keydb-server"}, "KeyDB 6.3.4", true, "is KeyDB"},
	{"Kvrocks", map[string]string{"redis_version": "7.0.0", "kvrocks_version": "2.11.0"}, "Kvrocks 2.11.0", true, "is Kvrocks"},
	{"Garnet", map[string]string{"redis_version": "7.4.3", "garnet_version": "1.0.84"}, "Garnet 1.0.84", true, "is Garnet"},
	{"another engine", map[string]string{"redis_version": "9.9.9", "another_version": "1.2"}, "another 1.2", true, "is another 1.2"},
	{"no version", map[string]string{"redis_version": ""}, "unknown ", true, "is unknown"},
	{"a version that cannot be read", map[string]string{"redis_version": "unstable"}, "Redis unstable", true, "is Redis unstable"},
	{"no run ID", map[string]string{"run_id": ""}, "unknown 7", true, "is unknown 7"},
}

// TestRedisEngines checks the detected engine, the warnings, and which engines are refused without
// the guard. The fakes are a Redis that reports another name.
func TestRedisEngines(t *testing.T) {
	t.Parallel()
	for _, fake := range fakes {
		t.Run(fake.name, func(t *testing.T) {
			t.Parallel()
			client := openedRedis(t, faults.NewInfo(t, testenv.Redis(t), fake.fields))
			engine := RedisEngine(t.Context(), client)
			if got := engine.Name + " " + engine.Version; !strings.HasPrefix(got, fake.engine) || engine.Replication != "masters: 1, replicas: 0" {
				t.Errorf("found %+v, want %s", engine, fake.engine)
			}
			warnings := strings.Join(RedisWarnings(t.Context(), client), "; ")
			if (warnings == "") != (fake.warned == "") || !strings.Contains(warnings, fake.warned) {
				t.Errorf("warned %q, want %q", warnings, fake.warned)
			}
			err := RefuseWithoutGuard(t.Context(), client)
			if (err != nil) != fake.refused || err != nil && !strings.Contains(err.Error(), "--guard on") {
				t.Errorf("refused: %v, want %v", err, fake.refused)
			}
			for _, guard := range []bool{true, false} {
				want := OK
				switch {
				case fake.refused && !guard:
					want = Problem
				case fake.warned != "":
					want = Warning
				}
				if got := worst(InspectRedis(t.Context(), client, RedisUse{Guard: guard})); got != want {
					t.Errorf("guard %v: the doctor says %s, want %s", guard, got, want)
				}
			}
		})
	}
}

// worst returns the worst level of the findings.
func worst(found Findings) Level {
	level := OK
	for _, f := range found {
		if f.Level == Problem || level == OK {
			level = f.Level
		}
	}
	return level
}

// TestRefuseWithoutGuard_Silent checks that a server that does not identify itself is refused, and a
// cluster with such a master.
func TestRefuseWithoutGuard_Silent(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ kind, url, name, replication string }{
		{"Redis", testenv.OwnRedis(t).URL(), unknownEngine, "does not answer INFO"},
		{"Cluster", testenv.OwnRedisCluster(t, 0).URL(), "Redis, unknown", "masters: 2, "},
	} {
		client := openedRedis(t, test.url)
		var silenced atomic.Bool
		if _, err := askMasters(t.Context(), client, func(ctx context.Context, node *redis.Client) (any, error) {
			if !silenced.CompareAndSwap(false, true) {
				return nil, nil
			}
			return nil, node.Do(ctx, "ACL", "SETUSER", "default", "-info").Err()
		}); err != nil {
			t.Fatal(err)
		}
		if err := RefuseWithoutGuard(t.Context(), client); err == nil || !strings.Contains(err.Error(), "allow INFO") {
			t.Errorf("%s: error %v, want one that says to allow INFO", test.kind, err)
		}
		if engine := RedisEngine(t.Context(), client); engine.Name != test.name || !strings.Contains(engine.Replication, test.replication) {
			t.Errorf("%s: found %+v", test.kind, engine)
		}
	}
}

// TestRedisEngine checks that all masters of a cluster count, and that Sentinels name the master and
// its replica. A service in another process may use an in-process Redis without the guard, as in the
// load test.
func TestRedisEngine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ kind, url, name, replication string }{
		{"Cluster", testenv.RedisCluster(t), "Redis", "masters: 3, replicas: 0"},
		{"Sentinel", testenv.RedisSentinel(t), "Redis", "masters: 1, replicas: 1"},
		{"InProcess", openInProcessRedis(t).URL(), "in-process Redis", "masters: 1, replicas: 0"},
	} {
		t.Run(test.kind, func(t *testing.T) {
			t.Parallel()
			client := openedRedis(t, test.url)
			if engine := RedisEngine(t.Context(), client); engine.Name != test.name || engine.Replication != test.replication {
				t.Errorf("found %+v", engine)
			}
			// The in-process Redis has only some of the sections of INFO.
			if found := InspectRedis(t.Context(), client, RedisUse{}); test.kind != "InProcess" && worst(found) != OK {
				t.Errorf("the doctor says %+v", found)
			}
			if err := RefuseWithoutGuard(t.Context(), client); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestRecogniseSQL checks engines that cannot be installed for the tests, by their version().
func TestRecogniseSQL(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		dialect       sqltx.Dialect
		version, want string
	}{
		{sqltx.MySQL, "10.11.14-MariaDB-0+deb12u2", "MariaDB"},
		{sqltx.MySQL, "8.0.43-0ubuntu0.24.04.1", "MySQL"},
		{sqltx.MySQL, "8.0.11-TiDB-v8.5.3", "TiDB"},
		{sqltx.MySQL, "8.0.40-Vitess", "Vitess"},
		{sqltx.Postgres, "PostgreSQL 15.14 (Debian 15.14-0+deb12u1) on x86_64-pc-linux-gnu", "PostgreSQL"},
		{sqltx.Postgres, "CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27 01:53:43, go1.19.10)", "CockroachDB"},
		{sqltx.Postgres, "PostgreSQL 11.2-YB-2.20.1.0-b0 on x86_64-pc-linux-gnu", "YugabyteDB"},
		{sqltx.SQLite, "", "SQLite"},
	} {
		if got := recogniseSQL(test.dialect, test.version).name; got != test.want {
			t.Errorf("%s: %s, want %s", test.version, got, test.want)
		}
	}
}

// TestEngine checks the detected engines of the tests' databases.
func TestEngine(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, url string
		want      Engine
	}{
		{"MariaDB", testenv.MariaDB(t), Engine{Name: "MariaDB", Isolation: "READ-COMMITTED", Replication: "no replication"}},
		{"PostgreSQL", testenv.Postgres(t), Engine{Name: "PostgreSQL", Isolation: "read committed", Replication: "primary, standbys: 0"}},
		{"PostgreSQL, serializable", testenv.Postgres(t) + "&default_transaction_isolation=serializable",
			Engine{Name: "PostgreSQL", Isolation: "serializable", Replication: "primary, standbys: 0"}},
		{"SQLite", testenv.SQLite(t), Engine{Name: "SQLite", Isolation: "serializable", Replication: "none"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := opened(t, test.url).Engine(t.Context())
			if got.Version == "" {
				t.Error("there is no version")
			}
			if got.Version = ""; got != test.want {
				t.Errorf("found %+v, want %+v", got, test.want)
			}
		})
	}
	t.Run("a standby", func(t *testing.T) {
		t.Parallel()
		primary, standby := testenv.OwnPostgresPair(t)
		if got := opened(t, primary.URL()).Engine(t.Context()).Replication; got != "primary, standbys: 1, synchronous" {
			t.Errorf("the primary says %q", got)
		}
		if got := opened(t, standby.URL()).Engine(t.Context()).Replication; got != "a standby" {
			t.Errorf("the standby says %q", got)
		}
	})
}

// TestSessionLocks checks which engines are refused where session locks are needed. The fakes are a
// PostgreSQL and a MariaDB with the version() of another engine.
func TestSessionLocks(t *testing.T) {
	t.Parallel()
	check := func(t *testing.T, url string, locks, migrations bool) {
		t.Helper()
		pool, err := OpenSessions(url)
		if err != nil {
			t.Fatal(err)
		}
		defer pool.Close()
		if err := CheckLocks(t.Context(), pool, url); errors.Is(err, ErrNoLocks) == locks || locks && err != nil {
			t.Errorf("locks: %v", err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := CheckLocks(ended, pool, url); !errors.Is(err, context.Canceled) {
			t.Errorf("locks of a database that does not answer: %v", err)
		}
		db := opened(t, url)
		for name, migrate := range map[string]func(context.Context) error{"up": db.MigrateUp, "down": db.MigrateDown} {
			if err := migrate(t.Context()); errors.Is(err, ErrNoLocks) == migrations || migrations && err != nil {
				t.Errorf("migrate %s: %v", name, err)
			}
		}
	}
	as := func(t *testing.T, version string) (url, faked string) {
		url = testenv.Postgres(t)
		if _, err := opened(t, url).Pool().ExecContext(t.Context(), "CREATE FUNCTION version() RETURNS text LANGUAGE sql AS $$ SELECT '"+version+"' $$"); err != nil {
			t.Fatal(err)
		}
		return url, url + "&search_path=public,pg_catalog" // this schema precedes that of the server's function
	}
	for name, version := range map[string]string{"CockroachDB": "CockroachDB CCL v25.4.1 (x86_64-pc-linux-gnu)", "YugabyteDB": "PostgreSQL 15.12-YB-2025.1.0.0-b0 on x86_64-pc-linux-gnu"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, faked := as(t, version)
			check(t, faked, false, false)
			migrated(t, url) // imitates a migration by hand
			db := opened(t, faked)
			if err := db.MigrateUp(t.Context()); err != nil {
				t.Errorf("there is nothing to migrate: %v", err)
			}
			run(t, db.DB(), "UPDATE schema_migrations SET version = 99")
			if err := db.MigrateUp(t.Context()); !errors.Is(err, ErrSchemaNew) {
				t.Errorf("the schema is newer: %v", err)
			}
			if got := db.Engine(t.Context()); got.Name != name || got.Version != version {
				t.Errorf("found %+v", got)
			}
		})
	}
	t.Run("TiDB", func(t *testing.T) {
		t.Parallel()
		check(t, testenv.OwnMariaDB(t, "--version=8.0.11-TiDB-v8.5.3-MariaDB").URL(), false, true)
	})
	for _, d := range testenv.NetworkDatabases() {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			check(t, d.URL(t), true, true)
		})
	}
}
