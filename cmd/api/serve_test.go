package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// pair is a pair of stores. flags returns the flags that name them.
type pair struct {
	name  string
	flags func(t *testing.T) []string
}

var (
	mariaDBAndRedis  = pair{"MariaDB and Redis", func(t *testing.T) []string { return []string{"--db", testenv.MariaDB(t), "--redis", testenv.Redis(t)} }}
	postgresAndRedis = pair{"PostgreSQL and Redis", func(t *testing.T) []string {
		return []string{"--db", testenv.Postgres(t), "--redis", testenv.Redis(t)}
	}}
	mariaDBAndSentinel = pair{"MariaDB and Sentinel", func(t *testing.T) []string {
		return []string{"--db", testenv.MariaDB(t), "--redis", testenv.RedisSentinel(t)}
	}}
	postgresAndCluster = pair{"PostgreSQL and Cluster", func(t *testing.T) []string {
		return []string{"--db", testenv.Postgres(t), "--redis", testenv.RedisCluster(t)}
	}}
)

// migrated migrates the schema of --db and returns the flags, for any number of
// instances.
func migrated(t *testing.T, flags []string) []string {
	t.Helper()
	for n, flag := range flags {
		if flag != "--db" {
			continue
		}
		sql, err := store.OpenSQL(t.Context(), flags[n+1])
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(sql.MigrateUp(t.Context()), sql.Close()); err != nil {
			t.Fatal(err)
		}
	}
	return flags
}

// TestEmbedded checks the service without flags, as a new user runs it.
func TestEmbedded(t *testing.T) {
	t.Parallel()
	before := embeddedFolders(t)
	api := startProcess(t)
	if page := mustCall(t, http.StatusOK, http.MethodGet, api.URL()+"/console/", ""); !strings.Contains(string(page), "<h1>Holdfast</h1>") {
		t.Errorf("the console is %s", page)
	}
	if rush := mustCall(t, http.StatusOK, http.MethodGet, api.URL()+"/console/rush", ""); !strings.Contains(string(rush), `"available":true`) {
		t.Errorf("the rush is %s", rush)
	}
	mustCall(t, http.StatusCreated, http.MethodPost, api.URL()+"/orders", orderBody("u-1", "10001", 1))
	mustCall(t, http.StatusCreated, http.MethodPost, api.URL()+"/orders", orderBody("u-1", "coupon-300", 2))
	c := rush(t.Context(), 8, "coupon-300", api.URL())
	c.wait()
	c.checkStatuses(t, http.StatusCreated, http.StatusConflict)
	if a := waitAtRest(t, api.URL(), "coupon-300"); a.Sold != 300 || c.count.Load() != 298 {
		t.Errorf("%+v after %d orders of one unit", a, c.count.Load())
	}
	metrics := string(mustCall(t, http.StatusOK, http.MethodGet, api.URL()+"/metrics", ""))
	for _, name := range []string{`holdfast_orders_total{result="accepted"} 300`, "holdfast_gate_take_seconds_count", "holdfast_ledger_record_seconds_count",
		"holdfast_ledger_group_orders_count", "holdfast_ledger_transaction_seconds_count", "holdfast_gate_in_flight", "holdfast_gate_drift_units 0", "go_goroutines", "process_cpu_seconds_total"} {
		if !strings.Contains(metrics, name) {
			t.Errorf("/metrics has no %s", name)
		}
	}
	stream := openStream(t, api.URL())
	api.Interrupt()
	if code := api.Wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, api.Output())
	}
	if strings.Contains(api.Output(), "some requests were cut off") {
		t.Errorf("an open console delayed the end: %s", api.Output())
	}
	if _, err := io.Copy(io.Discard, stream); err != nil {
		t.Errorf("the stream was broken off: %v", err)
	}
	for line := range strings.Lines(api.Output()) { // output has standard output and standard error
		if !json.Valid([]byte(line)) {
			t.Errorf("a collector of logs cannot parse %q", line)
		}
	}
	for folder := range embeddedFolders(t) {
		if !before[folder] && strings.Contains(api.Output(), folder) {
			t.Errorf("the service did not remove %s", folder)
		}
	}
}

// openStream opens a stream of the console and reads its first event.
func openStream(t *testing.T, url string) io.Reader {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/console/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	if begin := make([]byte, 12); response.StatusCode != http.StatusOK || !readsHello(response.Body, begin) {
		t.Fatalf("the stream answers %d and begins with %q", response.StatusCode, begin)
	}
	return response.Body
}

func readsHello(stream io.Reader, begin []byte) bool {
	_, err := io.ReadFull(stream, begin)
	return err == nil && string(begin) == "event: hello"
}

// embeddedFolders returns the folders of embedded services in the temporary
// folder.
func embeddedFolders(t *testing.T) map[string]bool {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(os.TempDir(), "holdfast-*"))
	if err != nil {
		t.Fatal(err)
	}
	set := make(map[string]bool)
	for _, f := range found {
		set[f] = true
	}
	return set
}

// TestContract makes every call of the contract on every kind of stores. The tests of package
// httpapi check the answers in detail. Unless the run is thorough, each database is in one pair.
func TestContract(t *testing.T) {
	t.Parallel()
	embedded := pair{"embedded", func(*testing.T) []string { return nil }}
	pairs := []pair{embedded, mariaDBAndSentinel, postgresAndCluster}
	if testenv.Thorough() {
		pairs = append(pairs, mariaDBAndRedis, postgresAndRedis)
	}
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			url := serveHere(t, migrated(t, p.flags(t))...).URL()
			orders, stock := url+"/orders", url+"/stock/"
			mustCall(t, 201, "PUT", stock+"a", `{"kind":"product","total":5}`)
			mustCall(t, 200, "PUT", stock+"a", `{"kind":"product","total":6,"buyer_limit":0}`)
			mustCall(t, 422, "PUT", stock+"a", `{"kind":"product","total":6,"buyer_limit":-1}`)
			mustCall(t, 422, "PUT", stock+"a", `{"kind":"coupon","total":6}`)
			mustCall(t, 201, "PUT", stock+"b", `{"kind":"coupon","total":1}`)

			body := `{"buyer_id":"u-1","lines":[{"sku":"b","quantity":1},{"sku":"a","quantity":2}]}`
			first := mustCall(t, 201, "POST", orders, body, "Idempotency-Key", "k")
			o := decoded[placed](t, first)
			want := fmt.Sprintf(`%s,"payment_id":null,"history":[{"status":"pending","at":%q}]}`, strings.TrimSuffix(string(first), "}"), o.CreatedAt)
			if found := mustCall(t, 200, "GET", orders+"/"+o.ID, ""); string(found) != want {
				t.Errorf("placed %s, found %s", first, found)
			}
			if again := mustCall(t, 201, "POST", orders, `{"lines":[{"quantity":2,"sku":"a"},{"sku":"b","quantity":1}],"buyer_id":"u-1"}`, "Idempotency-Key", "k"); string(again) != string(first) {
				t.Errorf("placed %s, replayed %s", first, again)
			}
			mustCall(t, 422, "POST", orders, orderBody("u-1", "a", 1), "Idempotency-Key", "k")
			mustCall(t, 409, "POST", orders, orderBody("u-2", "b", 1))
			mustCall(t, 404, "POST", orders, orderBody("u-2", "nowhere", 1))
			mustCall(t, 404, "GET", orders+"/00000000-0000-0000-0000-000000000000", "")
			mustCall(t, 409, "PUT", stock+"a", `{"kind":"product","total":1}`)
			mustCall(t, 200, "PUT", stock+"a", `{"kind":"product","total":4}`)
			mustCall(t, 404, "GET", stock+"nowhere", "")
			mustCall(t, 404, "GET", stock+"nowhere/audit", "")
			mustCall(t, 400, "POST", orders, `{"buyer_id":`)
			mustCall(t, 422, "POST", orders, orderBody("u-2", "a", 0))
			mustCall(t, 405, "DELETE", orders, "")
			mustCall(t, 404, "GET", url+"/nothing", "")
			waitAtRest(t, url, "a")
			if got := string(mustCall(t, 200, "GET", stock+"a", "")); got != `{"sku":"a","kind":"product","total":4,"available":2,"sold":2,"buyer_limit":0,"opens_at":null,"closes_at":null}` {
				t.Errorf("the stock of a: %s", got)
			}
			if a := waitAtRest(t, url, "b"); a.Sold != 1 {
				t.Errorf("%+v", a)
			}
			checkLifecycle(t, url)
			waitReady(t, url)
			for _, path := range []string{"/stock?limit=1", "/strategies", "/healthz", "/openapi.yaml", "/metrics?name[]=holdfast_build_info"} {
				mustCall(t, 200, "GET", url+path, "")
			}
		})
	}
}

// TestRedisEmptied flushes Redis during a rush, and then restarts it empty. All errors must be 503,
// no unit may be oversold, and the service must resume by itself. It has no guard, which would hide
// an oversell.
func TestRedisEmptied(t *testing.T) {
	t.Parallel()
	redis := testenv.OwnRedis(t)
	args := migrated(t, []string{"--db", testenv.MariaDB(t), "--redis", redis.URL(), "--guard", "off"})
	one, two := serveHere(t, args...), serveHere(t, args...)
	const total = 900
	setStock(t, one.URL(), "hot", total)
	c := rush(t.Context(), 16, "hot", one.URL(), two.URL())
	c.waitForOrders(t, 100)
	client := storetest.Redis(t, redis.URL())
	if err := client.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	c.waitForOrders(t, 300)
	redis.Restart()
	c.wait()
	c.checkStatuses(t, http.StatusCreated, http.StatusConflict, http.StatusServiceUnavailable)
	if a := waitAtRest(t, two.URL(), "hot"); a.Sold != total || a.Sold != c.count.Load() {
		t.Errorf("%+v after %d orders", a, c.count.Load())
	}
	c.checkFound(t, two.URL())
}

// TestSentinelFailover isolates the replica from the master of a Redis Sentinel during a rush,
// stops the master, and resumes it after the failover. Writes that only the master had are lost.
// Each time the service must sell again by itself. Then the rest is sold: no accepted order may be
// missing, and every unit must be sold once.
func TestSentinelFailover(t *testing.T) {
	t.Parallel()
	if !testenv.Thorough() {
		t.Log("only in a thorough run: it starts five servers. TestRedisEmptied loses the counts of one")
		return
	}
	redis := testenv.OwnRedisSentinel(t)
	args := migrated(t, []string{"--strategy", "lua", "--db", testenv.MariaDB(t), "--redis", redis.URL(), "--take-deadline", "5s"})
	one, two := serveHere(t, args...), serveHere(t, args...)
	const units, clients = 100_000, 4 // more units than the crowd buys before it stops
	setStock(t, one.URL(), "hot", units)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	c := rushUpTo(ctx, units, clients, "hot", one.URL(), two.URL())
	sellsOn := func() { c.waitForOrders(t, c.count.Load()+50) }
	sellsOn()
	redis.Detach()
	sellsOn() // the replica has none of these orders
	redis.Master.Stop()
	sellsOn()
	redis.Master.Cont()
	master := storetest.Redis(t, redis.Master.URL())
	testenv.Await(t, "the old master is a replica", func() bool {
		return strings.Contains(master.Info(t.Context(), "replication").Val(), "role:slave")
	})
	sellsOn()
	leave()
	c.wait()
	c.checkStatuses(t, http.StatusCreated, http.StatusServiceUnavailable)
	a := waitAtRest(t, one.URL(), "hot")
	if n := c.count.Load(); a.Sold < n || a.Sold > n+clients { // each client may have left one call unanswered
		t.Errorf("%+v after %d orders", a, n)
	}
	c.checkFound(t, two.URL())

	total := a.Sold + 100
	setStock(t, two.URL(), "hot", int(total))
	rest := rush(t.Context(), clients, "hot", one.URL(), two.URL())
	rest.wait()
	rest.checkStatuses(t, http.StatusCreated, http.StatusConflict, http.StatusServiceUnavailable)
	if a := waitAtRest(t, one.URL(), "hot"); a.Sold != total || rest.count.Load() != 100 {
		t.Errorf("%+v after %d more orders, want 100", a, rest.count.Load())
	}
	rest.checkFound(t, two.URL())
}

// TestDatabaseFails kills the database during a rush and restarts it, and stops its process during
// the next rush. Meanwhile /readyz and all errors must be 503. After the restart every accepted
// order must be found. SIGTERM must end a service whose database does not answer. The tests of
// package ledger cover failures of each kind of database.
func TestDatabaseFails(t *testing.T) {
	t.Parallel()
	database := testenv.OwnPostgres(t)
	api := startProcess(t, migrated(t, []string{"--db", database.URL(), "--redis", testenv.Redis(t), "--take-deadline", "5s"})...)
	setStock(t, api.URL(), "hot", 600)
	c := rush(t.Context(), 16, "hot", api.URL())
	c.waitForOrders(t, 100)
	database.Kill()
	checkNotReady(t, api.URL())
	database.Restart()
	waitReady(t, api.URL())
	c.wait()
	c.checkStatuses(t, http.StatusCreated, http.StatusConflict, http.StatusServiceUnavailable)
	if c.answers(http.StatusServiceUnavailable) == 0 {
		t.Error("no answer was 503 although the database was killed")
	}
	c.checkFound(t, api.URL())
	if a := waitAtRest(t, api.URL(), "hot"); a.Sold != c.count.Load() {
		t.Errorf("%+v after %d orders", a, c.count.Load())
	}

	const units = 100_000 // more units than are sold before the service ends
	setStock(t, api.URL(), "next", units)
	ctx, leave := context.WithCancel(t.Context())
	next := rushUpTo(ctx, units, 16, "next", api.URL())
	defer next.wait()
	defer leave()
	next.waitForOrders(t, 100)
	database.Stop()
	defer database.Cont()
	checkNotReady(t, api.URL())
	api.Interrupt()
	api.Wait() // the exit code may be 1, because takes may be left to recovery
	if log := api.Output(); strings.Contains(log, "WARN slow statement") {
		t.Errorf("slow statements are logged as text, not by the service's logger: %s", log)
	}
}

// TestDrain checks that an instance that gets SIGTERM under load answers all
// accepted requests and leaves nothing in flight.
func TestDrain(t *testing.T) {
	t.Parallel()
	flags := migrated(t, mariaDBAndRedis.flags(t))
	one, two := startProcess(t, flags...), serveHere(t, flags...)
	const units = 100_000 // more units than are sold before the instance ends
	setStock(t, one.URL(), "hot", units)
	ctx, leave := context.WithCancel(t.Context())
	c := rushUpTo(ctx, units, 32, "hot", one.URL(), two.URL())
	c.waitForOrders(t, 300)
	one.Interrupt()
	if code := one.Wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, one.Output())
	}
	c.waitForOrders(t, c.count.Load()+100)
	leave()
	c.wait()
	c.checkStatuses(t, http.StatusCreated, http.StatusServiceUnavailable)
	c.checkFound(t, two.URL())
	// the stock is at rest before the take deadline: the instance has settled its takes
	waitAtRest(t, two.URL(), "hot")
}

// changed returns the URL of a SQLite file whose schema the statement has changed. Without a
// statement the file has no schema.
func changed(t *testing.T, statement string) (dbURL string) {
	t.Helper()
	dbURL = testenv.SQLite(t)
	db := storetest.SQL(t, dbURL)
	if statement == "" {
		return dbURL
	}
	if err := errors.Join(db.MigrateUp(t.Context()), db.DB().Exec(statement).Error); err != nil {
		t.Fatal(err)
	}
	return dbURL
}

// TestRefusesToStart checks the exit code and the message if the service cannot
// start.
func TestRefusesToStart(t *testing.T) {
	t.Parallel()
	missing := testenv.SQLite(t)
	old, dirty := changed(t, ""), changed(t, "UPDATE schema_migrations SET dirty = 1")
	for _, test := range []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"no file", []string{"--db", missing}, 1, []string{"--db", "no such file", "migrate up"}},
		{"no file to drain", []string{"drain", "--db", missing, "--migrate"}, 1, []string{"--db", "no such file"}},
		{"no file to reconcile", []string{"reconcile", "--strategy", "merged", "--db", missing, "--migrate"}, 1, []string{"--db", "no such file"}},
		{"an old schema", []string{"--db", old}, 1, []string{"old", "migrate up", "--migrate"}},
		{"a dirty schema", []string{"--db", dirty}, 1, []string{"dirty", "set dirty to FALSE"}},
		{"a dirty schema that cannot be completed", []string{"--db", dirty, "--migrate"}, 1, []string{"dirty", "set dirty to FALSE"}},
		{"an unreachable Redis", []string{"--db", testenv.MariaDB(t), "--redis", "redis://127.0.0.1:1", "--migrate"}, 1, []string{"--redis", "127.0.0.1:1"}},
		{"an unreachable database", []string{"--strategy", "merged", "--db", "mysql://u:hush@127.0.0.1:1/x"}, 1, []string{"--db", "127.0.0.1:1"}},
		{"an unknown database", []string{"--strategy", "merged", "--db", "oracle://u:hush@h/x"}, 2, []string{"--db", "oracle"}},
		{"a broken URL", []string{"--db", old, "--redis", "redis://u:hush@h:port"}, 2, []string{"--redis"}},
		{"a wrong flag", []string{"--strategy", "fast"}, 2, []string{"--strategy"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			out := ran(t, test.code, append([]string{"--listen", "127.0.0.1:0"}, test.args...), test.says...)
			if strings.Contains(out, "hush") {
				t.Errorf("the output contains a password: %s", out)
			}
		})
	}
}

// TestAddressInUse starts a process at the address of another one.
func TestAddressInUse(t *testing.T) {
	t.Parallel()
	p := launchProcess(t, "--listen", strings.TrimPrefix(serveHere(t).URL(), "http://"))
	if code, out := p.Wait(), p.Output(); code != 1 || !strings.Contains(out, "api: --listen") || !strings.Contains(out, "stop the other program") {
		t.Errorf("exit code %d: %s", code, out)
	}
}

// TestSQLiteFile checks that orders in a SQLite file survive the process, although
// its in-process Redis does not.
func TestSQLiteFile(t *testing.T) {
	t.Parallel()
	url := testenv.SQLite(t)
	one := startProcess(t, "--migrate", "--db", url)
	setStock(t, one.URL(), "a", 3)
	mustCall(t, http.StatusCreated, http.MethodPost, one.URL()+"/orders", orderBody("u", "a", 2))
	one.Kill()
	two := serveHere(t, "--db", url)
	if a := waitAtRest(t, two.URL(), "a"); a.Sold != 2 || *a.GateAvailable != 1 {
		t.Errorf("%+v", a)
	}
	mustCall(t, http.StatusCreated, http.MethodPost, two.URL()+"/orders", orderBody("u", "a", 1))
	mustCall(t, http.StatusConflict, http.MethodPost, two.URL()+"/orders", orderBody("u", "a", 1))
}
