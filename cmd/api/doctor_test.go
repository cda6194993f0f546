package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// examined runs api doctor in this process and returns its output. It must exit with
// the code.
func examined(t *testing.T, code int, args ...string) string {
	t.Helper()
	var out, log bytes.Buffer
	args = append([]string{"doctor", "--listen", "127.0.0.1:0"}, args...)
	err := run(t.Context(), args, nil, &out, &log)
	if got := exitCode(err, &log); got != code {
		t.Fatalf("%v: exit code %d, want %d: %s%s", args, got, code, out.String(), log.String())
	}
	return out.String()
}

// expect fails the test unless a line of the output begins with the level and the
// check, and contains the text.
func expect(t *testing.T, out string, level store.Level, check, text string) {
	t.Helper()
	if !has(out, level, check, text) {
		t.Errorf("no line %s %s …%s… in:\n%s", level, check, text, out)
	}
}

// has reports whether expect finds the line.
func has(out string, level store.Level, check, text string) bool {
	for line := range strings.Lines(out) {
		if words := strings.Fields(line); len(words) > 1 && words[0] == string(level) && words[1] == check && strings.Contains(line, text) {
			return true
		}
	}
	return false
}

// bad matches the lines that are not ok.
var bad = regexp.MustCompile(`(?m)^(warning|problem) .*$`)

// TestDoctor examines correctly configured stores, before and after an instance has used them.
func TestDoctor(t *testing.T) {
	t.Parallel()
	for _, p := range []pair{ // stores of this test's own, because the shared servers are not durable
		{"MariaDB and Redis", func(t *testing.T) []string {
			return []string{"--db", testenv.OwnMariaDB(t).NewDatabase(), "--redis", testenv.Redis(t)}
		}},
		{"PostgreSQL and Redis", func(t *testing.T) []string {
			return []string{"--db", testenv.OwnPostgres(t).NewDatabase(), "--redis", testenv.Redis(t)}
		}},
		{"SQLite", func(t *testing.T) []string { return []string{"--db", testenv.SQLite(t), "--strategy", "merged"} }},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			flags := p.flags(t)
			if out := examined(t, 1, flags...); !strings.Contains(out, "api migrate up") {
				t.Errorf("without a schema: %s", out)
			}
			flags = migrated(t, flags)
			api := serveHere(t, flags...)
			setStock(t, api.URL(), "10001", 3)
			mustCall(t, http.StatusCreated, http.MethodPost, api.URL()+"/orders", orderBody("u-1", "10001", 1))
			out := examined(t, 0, flags...)
			if found := bad.FindString(out); found != "" && !strings.Contains(found, " disk ") {
				t.Error(found)
			}
			expect(t, out, store.OK, "schema", "")
			expect(t, out, store.OK, "ledger", "generation")
			if p.name == "SQLite" {
				expect(t, out, store.OK, "disk", "MiB free")
				expect(t, out, store.OK, "database", "journal mode wal")
			} else {
				expect(t, out, store.OK, "clocks", "Redis")
				out = examined(t, 0, append(flags, "--strategy", "segment")...)
				expect(t, out, store.Warning, "ledger", "takes the stock over")
			}
			expect(t, examined(t, 0, append(flags, "--listen", strings.TrimPrefix(api.URL(), "http://"))...), store.Warning, "listen", "an instance serves")
			a, err := audited(t.Context(), api.URL(), "10001")
			if err != nil || a.Sold != 1 || a.Oversold != 0 || a.LedgerAvailable != 2 {
				t.Errorf("afterwards: %+v %v", a, err)
			}
		})
	}
}

// TestDoctor_ChangesNothing checks that the doctor neither creates nor changes files and rows.
func TestDoctor_ChangesNothing(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "ledger.db")
	expect(t, examined(t, 1, "--db", "sqlite://"+missing, "--strategy", "merged"), store.Problem, "database", "no such file")
	expect(t, examined(t, 0, "--db", "sqlite://"+missing, "--strategy", "merged", "--migrate"), store.Warning, "database", "serve --migrate creates it")
	if _, err := os.Stat(missing); err == nil {
		t.Error("it created the file")
	}
	expect(t, examined(t, 1, "--db", "sqlite://"+filepath.Join(missing, "ledger.db"), "--strategy", "merged"), store.Problem, "database", "folder does not exist")
	foreign := filepath.Join(t.TempDir(), "foreign.db")
	flags := []string{"--db", "sqlite://" + foreign + "?_pragma=journal_mode(DELETE)", "--strategy", "merged"}
	migrated(t, flags)
	before := fileHash(t, foreign)
	examined(t, 0, "--db", "sqlite://"+foreign+"?_pragma=synchronous(FULL)", "--strategy", "merged")
	if fileHash(t, foreign) != before {
		t.Error("it changed the file")
	}
	expect(t, examined(t, 1, "--db", "sqlite://"+foreign+"?_pragma=synchronous(OFF)", "--strategy", "merged"), store.Problem, "database", "synchronous")
}

func fileHash(t *testing.T, name string) [sha256.Size]byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return sha256.Sum256(text)
}

// TestDoctor_Misconfigured examines servers with unsuitable settings.
func TestDoctor_Misconfigured(t *testing.T) {
	t.Parallel()
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		evicting := testenv.OwnRedis(t, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru", "--maxclients", "20")
		db := testenv.MariaDB(t)
		out := examined(t, 1, "--db", db, "--redis", evicting.URL(), "--strategy", "async")
		expect(t, out, store.Problem, "redis", "maxmemory-policy allkeys-lru")
		expect(t, out, store.Warning, "redis", "of at most 20 connections")
		expect(t, out, store.Warning, "redis", "every order that is still queued")
		host, port, _ := strings.Cut(evicting.Addr(), ":")
		replica := testenv.OwnRedis(t, "--replicaof", host+" "+port)
		expect(t, examined(t, 1, "--db", db, "--redis", replica.URL()), store.Problem, "redis", "is a replica")
		node := strings.Split(strings.TrimPrefix(testenv.RedisCluster(t), "redis+cluster://"), ",")[0]
		expect(t, examined(t, 1, "--db", db, "--redis", "redis://"+node), store.Problem, "redis", "use redis+cluster://")
	})
	t.Run("MariaDB", func(t *testing.T) {
		t.Parallel()
		server := testenv.OwnMariaDB(t, "--innodb-flush-log-at-trx-commit=2", "--max-connections=30", "--log-bin", "--sync-binlog=0")
		flags := []string{"--strategy", "merged", "--db", server.NewDatabase()}
		db := storetest.SQL(t, flags[3])
		for _, statement := range []string{"CREATE TABLE careless (id INT) ENGINE=MyISAM", "SET GLOBAL read_only = 1"} {
			if err := db.DB().Exec(statement).Error; err != nil {
				t.Fatal(err)
			}
		}
		out := examined(t, 1, flags...)
		expect(t, out, store.Problem, "database", "innodb_flush_log_at_trx_commit=2")
		expect(t, out, store.Problem, "database", "is read-only")
		expect(t, out, store.Problem, "database", "allows 30 connections")
		expect(t, out, store.Problem, "database", "table careless uses MyISAM")
		expect(t, out, store.Warning, "database", "sync_binlog=0")
		expect(t, out, store.Problem, "schema", "api migrate up")
		expect(t, examined(t, 1, append(flags, "--migrate")...), store.Warning, "schema", "serve --migrate")
		out = examined(t, 1, "--strategy", "merged", "--db", flags[3]+"?tx_isolation=%27SERIALIZABLE%27&sql_mode=%27ANSI%27")
		expect(t, out, store.Warning, "database", "SERIALIZABLE")
		expect(t, out, store.Warning, "database", "STRICT_TRANS_TABLES")
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		dirty := changed(t, "UPDATE schema_migrations SET dirty = 1")
		expect(t, examined(t, 1, "--strategy", "merged", "--db", dirty), store.Problem, "schema", "set dirty to FALSE")
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		server := testenv.OwnPostgres(t, "-c", "fsync=off", "-c", "synchronous_commit=off", "-c", "max_connections=20")
		dbURL := server.NewDatabase()
		out := examined(t, 1, "--strategy", "merged", "--db", dbURL+"&default_transaction_read_only=on")
		expect(t, out, store.Problem, "database", "fsync=off")
		expect(t, out, store.Problem, "database", "synchronous_commit=off")
		expect(t, out, store.Problem, "database", "is read-only")
		expect(t, out, store.Problem, "database", "connections; an instance opens up to 32")
		pooled := testenv.OwnPgBouncer(t, dbURL, "pool_mode = transaction",
			"ignore_startup_parameters = default_transaction_isolation,idle_in_transaction_session_timeout,lock_timeout,statement_timeout,tcp_user_timeout")
		out = examined(t, 1, "--strategy", "merged", "--db", pooled)
		expect(t, out, store.OK, "database", "behind a pooler")
		expect(t, out, store.Warning, "database", "the sessions have no lock_timeout")
	})
}

// TestDoctor_Unreachable examines servers that do not exist or do not answer. Each must get its
// line in time, and the others must be checked.
func TestDoctor_Unreachable(t *testing.T) {
	t.Parallel()
	mute := func(t *testing.T, dbURL string) string {
		wire := testenv.NewWire(t, dbURL)
		wire.Freeze()
		return wire.Through(dbURL)
	}
	for _, test := range []struct {
		name  string
		flags func(t *testing.T) []string
		lines [][3]string
	}{
		{"MariaDB frozen", func(t *testing.T) []string {
			return []string{"--db", mute(t, testenv.MariaDB(t)), "--redis", testenv.Redis(t)}
		}, [][3]string{{"problem", "database", ""}, {"ok", "redis", "Redis"}, {"ok", "clocks", "Redis"}}},
		{"PostgreSQL and Redis frozen", func(t *testing.T) []string {
			return []string{"--db", mute(t, testenv.Postgres(t)), "--redis", mute(t, testenv.Redis(t))}
		}, [][3]string{{"problem", "database", "PostgreSQL at"}, {"problem", "redis", "Redis at"}}},
		{"Redis gone", func(t *testing.T) []string {
			return []string{"--db", testenv.MariaDB(t), "--redis", fmt.Sprintf("redis://:hidden@127.0.0.1:%d", testenv.Port(t))}
		}, [][3]string{{"problem", "redis", "connection refused"}, {"ok", "database", "MariaDB"}, {"problem", "schema", "api migrate up"}}},
		{"etcd gone", func(t *testing.T) []string {
			return migrated(t, []string{"--db", testenv.MariaDB(t), "--redis", testenv.Redis(t), "--strategy", "lock", "--lock", "etcd",
				"--etcd", fmt.Sprintf("127.0.0.1:%d", testenv.Port(t))})
		}, [][3]string{{"problem", "locks", "etcd"}, {"ok", "schema", ""}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			flags := test.flags(t)
			// The doctor waits a few seconds for each server. On a busy machine, a healthy server
			// may need longer.
			testenv.AwaitSuccess(t, "every line", func() error {
				out := examined(t, 1, flags...)
				if strings.Contains(out, "hidden") {
					t.Errorf("a password is shown:\n%s", out)
				}
				for _, line := range test.lines {
					if !has(out, store.Level(line[0]), line[1], line[2]) {
						return fmt.Errorf("%w: no line %q in:\n%s", errNotReady, line, out)
					}
				}
				return nil
			})
		})
	}
}

// TestDoctor_Flags checks the findings about flags, an address in use and embedded stores, and the
// exit status of a usage error.
func TestDoctor_Flags(t *testing.T) {
	t.Parallel()
	out := examined(t, 0, "--strategy", "lock", "--lock", "local", "--guard", "off", "--take-deadline", "1s")
	expect(t, out, store.Warning, "flags", "the guard is off")
	expect(t, out, store.Warning, "flags", "--lock local")
	expect(t, out, store.Warning, "flags", "--take-deadline 1s")
	expect(t, out, store.Warning, "flags", "embedded")
	expect(t, examined(t, 1, "--strategy", "db-none"), store.Problem, "flags", "sells units twice")
	expect(t, examined(t, 1, "--strategy", "none", "--guard", "off"), store.Problem, "flags", "sells units twice")
	expect(t, examined(t, 0, "--strategy", "none"), store.Warning, "flags", "only the guard refuses them")
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	expect(t, examined(t, 1, "--listen", other.Listener.Addr().String()), store.Problem, "listen", "in use")
	examined(t, 0, "--strategy", "merged", "--db", testenv.SQLite(t), "--migrate", "--redis", "redis://127.0.0.1:1") // an instance does not open it
	examined(t, 2, "--strategy", "magic")
	examined(t, 2, "--redis", "redis://127.0.0.1:1")
	examined(t, 2, "--repair")

	var document struct {
		Checks             []json.RawMessage
		Problems, Warnings int
	}
	out = examined(t, 1, "--json", "--strategy", "db-none")
	if err := json.Unmarshal([]byte(out), &document); err != nil || document.Problems != 1 || document.Warnings != 1 || len(document.Checks) < 4 {
		t.Errorf("%v: %s", err, out)
	}
}

// TestDoctor_Access examines the addresses of the listeners and the source of the keys.
func TestDoctor_Access(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	taken := other.Listener.Addr().String()
	free := net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.Port(t)))
	out := examined(t, 1, "--listen", free, "--ops-listen", taken)
	expect(t, out, store.OK, "listen", free+" is free")
	expect(t, out, store.Problem, "listen", "choose another --ops-listen")
	// Use another port: a process that is being started may still have inherited the listener on
	// the first.
	free = net.JoinHostPort("127.0.0.1", strconv.Itoa(testenv.Port(t)))
	out = examined(t, 1, "--listen", free, "--ops-listen", strings.Replace(free, "127.0.0.1", "0.0.0.0", 1), "--admin-token", testToken)
	expect(t, out, store.Problem, "listen", "choose another --ops-listen") // both listeners would use the same port
	out = examined(t, 1, "--listen", "192.0.2.1:8080", "--admin-token", testToken, "--rate-limit", "50")
	expect(t, out, store.Problem, "listen", "an address of this machine")
	expect(t, out, store.Warning, "security", "set --ops-listen")
	expect(t, examined(t, 0, "--rate-burst", "5"), store.Warning, "security", "set --rate-limit")

	_, keys := issuerKeys(t, "k-1")
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/keys":
			_, _ = w.Write(keys)
		case "/discovery":
			_, _ = io.WriteString(w, `{"jwks_uri":"https://issuer.test/keys"}`)
		default:
			http.NotFound(w, r)
		}
	}))
	defer issuer.Close()
	from := func(source string) []string {
		return []string{"--auth", "jwt", "--admin-token", testToken, "--jwt-jwks", source}
	}
	out = examined(t, 0, from(issuer.URL+"/keys")...)
	expect(t, out, store.OK, "security", `"k-1"`)
	expect(t, out, store.Warning, "security", "set --jwt-audience")
	expect(t, examined(t, 1, from(issuer.URL+"/nowhere")...), store.Problem, "security", "404")
	expect(t, examined(t, 1, from(issuer.URL+"/discovery")...), store.Problem, "security", "use its jwks_uri")
	out = examined(t, 1, from(strings.Replace("http://"+free, "//", "//user:hidden@", 1))...)
	expect(t, out, store.Problem, "security", "connection refused")
	if strings.Contains(out, "hidden") {
		t.Errorf("a password is shown:\n%s", out)
	}
}

// TestDoctor_Listen examines an address on which another program serves, an instance with these
// flags, or an instance with others.
func TestDoctor_Listen(t *testing.T) {
	t.Parallel()
	answers := func(status int, body string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}
	}
	const limited = `{"type":"/problems/rate-limited","status":429}`
	instance := httptest.NewServer(answers(http.StatusOK, `{"running":"merged"}`))
	t.Cleanup(instance.Close)
	stores := []string{"--strategy", "merged", "--db", "sqlite://" + filepath.Join(t.TempDir(), "ledger.db"), "--migrate"}
	for _, test := range []struct {
		name    string
		handler http.Handler
		flags   []string
		level   store.Level
		says    string
	}{
		{"an instance", answers(http.StatusOK, `{"running":"merged"}`), stores, store.Warning, "an instance serves on "},
		{"an instance that limits", answers(http.StatusTooManyRequests, limited), stores, store.Warning, "an instance serves on "},
		{"an instance of another strategy", answers(http.StatusOK, `{"running":"lua"}`), stores, store.Problem, "another instance serves there"},
		{"an embedded instance", answers(http.StatusOK, `{"running":"merged"}`), []string{"--strategy", "merged"}, store.Problem, "another instance serves there"},
		{"another program", http.NotFoundHandler(), stores, store.Problem, "in use"},
		{"a program with other strategies", answers(http.StatusOK, `{"running":"unreachable"}`), stores, store.Problem, "in use"},
		{"an error that looks like an instance", answers(http.StatusNotFound, `{"running":"merged"}`), stores, store.Problem, "in use"},
		{"a page that looks like a limit", answers(http.StatusOK, limited), stores, store.Problem, "in use"},
		{"a redirect to an instance", http.RedirectHandler(instance.URL+"/strategies", http.StatusFound), stores, store.Problem, "in use"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(test.handler)
			defer server.Close()
			address := server.Listener.Addr().String()
			code := 0
			if test.level == store.Problem {
				code = 1
			}
			out := examined(t, code, append(slices.Clone(test.flags), "--listen", address)...)
			expect(t, out, test.level, "listen", test.says)
			expect(t, out, test.level, "listen", address)
		})
	}
}

// TestDoctor_Ownership examines a ledger that was restored, and a Redis that was emptied.
func TestDoctor_Ownership(t *testing.T) {
	t.Parallel()
	redis := testenv.OwnRedis(t)
	flags := migrated(t, []string{"--db", testenv.SQLite(t), "--redis", redis.URL()})
	expect(t, examined(t, 0, flags...), store.OK, "ledger", "no instance holds the stock")
	api := serveHere(t, flags...)
	api.Interrupt()
	api.Wait()
	expect(t, examined(t, 0, flags...), store.OK, "ledger", "generation")
	db := storetest.SQL(t, flags[1])
	if err := db.DB().Exec("UPDATE ledger SET beat = 0").Error; err != nil {
		t.Fatal(err)
	}
	expect(t, examined(t, 0, flags...), store.Warning, "ledger", "restored from a backup")
	client := storetest.Redis(t, redis.URL())
	for _, clean := range []error{client.FlushAll(t.Context()).Err(), client.ScriptFlush(t.Context()).Err()} {
		if clean != nil {
			t.Fatal(clean)
		}
	}
	expect(t, examined(t, 0, flags...), store.Warning, "ledger", "has lost generation")
}
