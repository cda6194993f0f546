package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// waitStatus waits until the order has the status, and returns the answer.
func waitStatus(t *testing.T, url, id, want string) (answer []byte) {
	t.Helper()
	testenv.Await(t, "the order is "+want, func() bool {
		answer = mustCall(t, 200, "GET", url+"/orders/"+id, "")
		return decoded[placed](t, answer).Status == want
	})
	return answer
}

// TestQueuedContract follows queued orders over HTTP on embedded stores and on servers. Unless the
// run is thorough, it leaves out Sentinel, which TestContract uses.
func TestQueuedContract(t *testing.T) {
	t.Parallel()
	embedded := pair{"embedded", func(*testing.T) []string { return nil }}
	pairs := []pair{embedded, postgresAndRedis}
	if testenv.Thorough() {
		pairs = append(pairs, mariaDBAndSentinel)
	}
	for _, p := range pairs {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			url := serveHere(t, append(migrated(t, p.flags(t)), "--strategy", "async")...).URL()
			orders := url + "/orders"
			setStock(t, url, "q", 3)
			status, first, err := call(t.Context(), "POST", orders, orderBody("u-1", "q", 2), "Idempotency-Key", "k")
			if err != nil || status != http.StatusAccepted {
				t.Fatalf("%d %s %v", status, first, err)
			}
			o := decoded[placed](t, first)
			if o.Status != "queued" || !strings.Contains(string(first), `"expires_at":null`) {
				t.Errorf("%s", first)
			}
			if found := decoded[placed](t, mustCall(t, 200, "GET", orders+"/"+o.ID, "")); found.Status != "queued" && found.Status != "pending" || found.CreatedAt != o.CreatedAt {
				t.Errorf("found %+v at once", found)
			}
			again := func() {
				t.Helper()
				if replayed := mustCall(t, 202, "POST", orders, orderBody("u-1", "q", 2), "Idempotency-Key", "k"); !bytes.Equal(replayed, first) {
					t.Errorf("answered %s, then %s", first, replayed)
				}
				mustCall(t, 422, "POST", orders, orderBody("u-1", "q", 1), "Idempotency-Key", "k")
			}
			again()
			found := decoded[placed](t, waitStatus(t, url, o.ID, "pending"))
			if len(found.History) != 2 || found.History[0].Status != "queued" || found.History[1].Status != "pending" || found.CreatedAt != o.CreatedAt {
				t.Errorf("%+v", found)
			}
			again()
			mustCall(t, 409, "POST", orders, orderBody("u-2", "q", 2))
			mustCall(t, 404, "POST", orders, orderBody("u-2", "nowhere", 1))
			last := decoded[placed](t, mustCall(t, 202, "POST", orders, orderBody("u-2", "q", 1))).ID
			mustCall(t, 404, "GET", orders+"/00000000-0000-0000-0000-000000000000", "")
			waitStatus(t, url, last, "pending")
			again() // answered again, although the stock has run out
			mustCall(t, 200, "POST", orders+"/"+last+"/pay", `{"payment_id":"q-1"}`)
			mustCall(t, 200, "POST", orders+"/"+o.ID+"/cancel", "")
			again()
			if a := waitAtRest(t, url, "q"); a.Sold != 1 {
				t.Errorf("%+v", a)
			}
			if says := string(mustCall(t, 200, "GET", url+"/strategies", "")); !strings.Contains(says, `"promise":"a 202 is as durable as `) {
				t.Errorf("%s", says)
			}
			for _, line := range []string{`holdfast_orders_total{result="queued"} 2`, `holdfast_journal_ended_total{outcome="committed"} 2`, "holdfast_journal_orders 0", "holdfast_journal_oldest_seconds 0"} {
				name := line[:strings.IndexAny(line, "{ ")]
				testenv.Await(t, "/metrics has "+line, func() bool { // the journal is measured every second
					return strings.Contains(string(mustCall(t, 200, "GET", url+"/metrics?name[]="+name, "")), line)
				})
			}
		})
	}
}

// checkEnded checks that every acknowledged order comes to an end at the instance. It returns how
// many are pending and how many were refused.
func (c *crowd) checkEnded(t *testing.T, url string) (pending, refused int64) {
	t.Helper()
	c.accepted.Range(func(id, _ any) bool {
		testenv.Await(t, "an order is no longer queued", func() bool {
			status, answer, err := call(t.Context(), http.MethodGet, url+"/orders/"+id.(string), "")
			switch {
			case err != nil || status != http.StatusOK:
				t.Errorf("acknowledged order %v: %d %s %v", id, status, answer, err)
				return true
			case bytes.Contains(answer, []byte(`"status":"pending"`)):
				pending++
				return true
			case bytes.Contains(answer, []byte(`"status":"refused"`)):
				refused++
				return true
			case !bytes.Contains(answer, []byte(`"status":"queued"`)):
				t.Errorf("acknowledged order %v: %s", id, answer)
				return true
			}
			return false
		})
		return true
	})
	return pending, refused
}

// TestQueuedInstanceKilled kills an instance during a rush for queued orders. Every acknowledged
// order must be committed once, if necessary by the other instance.
func TestQueuedInstanceKilled(t *testing.T) {
	t.Parallel()
	const total = 1000
	// Without the guard an order that is committed twice, or given back and
	// committed, oversells.
	args := append([]string{"--strategy", "async", "--guard", "off", "--take-deadline", "1s"}, migrated(t, postgresAndRedis.flags(t))...)
	one, two := startProcess(t, args...), serveHere(t, args...)
	setStock(t, one.URL(), "hot", total)
	c := rush(t.Context(), 32, "hot", one.URL(), two.URL())
	c.waitForOrders(t, 200)
	one.Kill()
	c.wait()
	if c.failed.Load() == 0 {
		t.Error("no call failed although an instance was killed")
	}
	c.checkStatuses(t, http.StatusAccepted, http.StatusConflict, http.StatusServiceUnavailable)
	pending, refused := c.checkEnded(t, two.URL())
	a := waitAtRest(t, two.URL(), "hot")
	if pending != c.count.Load() || refused != 0 || a.Sold != total || pending > total {
		t.Errorf("%d acknowledged: %d pending, %d refused; %+v", c.count.Load(), pending, refused, a)
	}
	two.Interrupt()
	if code := two.Wait(); code != 0 {
		t.Errorf("exit code %d: %s", code, two.Output())
	}
}

// TestQueuedRedisKilled kills a Redis that saves every write, during a rush for queued
// orders, and restarts it. Every acknowledged order must come to one end.
func TestQueuedRedisKilled(t *testing.T) {
	t.Parallel()
	const total, before = 600, 100
	redis := testenv.OwnRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	args := append([]string{"--strategy", "async", "--guard", "off"}, migrated(t, []string{"--db", testenv.MariaDB(t), "--redis", redis.URL()})...)
	one, two := serveHere(t, args...), serveHere(t, args...)
	setStock(t, one.URL(), "hot", total)
	c := rush(t.Context(), 16, "hot", one.URL(), two.URL())
	c.waitForOrders(t, before)
	redis.Restart()
	c.wait()
	c.checkStatuses(t, http.StatusAccepted, http.StatusConflict, http.StatusServiceUnavailable)
	pending, refused := c.checkEnded(t, one.URL())
	a := waitAtRest(t, two.URL(), "hot")
	if pending+refused != c.count.Load() || a.Sold < pending || a.Sold > total {
		t.Errorf("%d acknowledged: %d pending, %d refused; %+v", c.count.Load(), pending, refused, a)
	}
	if pending <= before {
		t.Errorf("only %d orders are pending: nothing was sold after the restart", pending)
	}
}

// TestQueuedDatabaseAway queues orders while the database cannot be reached. Then the instance is
// killed, and Redis restarts from a snapshot without the last order. When the database is back, the
// other orders must be committed by the next instance, and the units of the last one must be for
// sale.
func TestQueuedDatabaseAway(t *testing.T) {
	t.Parallel()
	redis := testenv.OwnRedis(t)
	wire, dbURL := faults.NewWire(t, testenv.MariaDB(t))
	args := append([]string{"--strategy", "async"}, migrated(t, []string{"--db", dbURL, "--redis", redis.URL()})...)
	first := startProcess(t, args...)
	url := first.URL()
	setStock(t, url, "q", 10)
	order := func(status int, headers ...string) string {
		t.Helper()
		return decoded[placed](t, mustCall(t, status, "POST", url+"/orders", orderBody("u", "q", 1), headers...)).ID
	}
	waitStatus(t, url, order(202), "pending") // the gate has the count from now on
	wire.Arm(faults.Fault{Kind: faults.Gone, Nth: 1})
	kept := order(202)
	key := []string{"Idempotency-Key", "k"}
	if answer := mustCall(t, 503, "POST", url+"/orders", orderBody("u", "q", 1), key...); !bytes.Contains(answer, []byte("unavailable")) {
		t.Errorf("an order with a key is answered %s", answer)
	}
	client := goredis.NewClient(&goredis.Options{Addr: redis.Addr()})
	defer client.Close()
	if err := client.Save(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	last := order(202)
	first.Kill()
	redis.Restart()
	wire.Disarm()
	url = serveHere(t, args...).URL()
	waitStatus(t, url, kept, "pending")
	waitStatus(t, url, order(202, key...), "pending")
	mustCall(t, 404, "GET", url+"/orders/"+last, "")
	if a := waitAtRest(t, url, "q"); a.Sold != 3 || a.LedgerAvailable != 7 || a.Drift != 0 {
		t.Errorf("%+v", a)
	}
}

// TestDrainQueued kills an instance with queued orders that it cannot commit. No other strategy may
// start, and its error says what to do. An api drain that is stopped before it can commit them must
// leave them queued, and the next one must commit them. Then every strategy must start, and find
// the orders.
func TestDrainQueued(t *testing.T) {
	t.Parallel()
	args := migrated(t, mariaDBAndRedis.flags(t))
	first := startProcess(t, append([]string{"--strategy", "async"}, args...)...)
	setStock(t, first.URL(), "q", 10)
	release := storetest.LockRow(t, args[slices.Index(args, "--db")+1], "q")
	var ids []string
	for range 3 {
		answer := mustCall(t, 202, "POST", first.URL()+"/orders", orderBody("u", "q", 1))
		ids = append(ids, decoded[placed](t, answer).ID)
	}
	first.Kill()
	others := []string{"merged", "lua"}
	for _, next := range others {
		start := append([]string{"--strategy", next, "--listen", "127.0.0.1:0"}, args...)
		ran(t, 1, start, "run api drain with the --redis and --db of its instances first")
		examined(t, 1, start...)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	log, stderr := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, append([]string{"drain"}, args...), nil, io.Discard, stderr) }()
	for lines := bufio.NewScanner(log); lines.Scan() && !strings.Contains(lines.Text(), "committing queued orders"); {
	}
	go io.Copy(io.Discard, log)
	stop()
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "run api drain again") {
		t.Errorf("%v", err)
	}
	release()
	ran(t, 0, append([]string{"drain"}, args...), "3 orders were queued, none is left")
	ran(t, 0, append([]string{"drain"}, args...), "0 orders were queued, none is left")
	for n, next := range others {
		second := serveHere(t, append([]string{"--strategy", next}, args...)...)
		for _, id := range ids {
			waitStatus(t, second.URL(), id, "pending")
		}
		mustCall(t, 201, "POST", second.URL()+"/orders", orderBody("u", "q", 1))
		if a := waitAtRest(t, second.URL(), "q"); a.Sold != int64(4+n) || a.LedgerAvailable != int64(6-n) {
			t.Errorf("%s: %+v", next, a)
		}
	}
}

// TestDrainQueued_Twice starts a second api drain, which sees that orders may be queued. Before
// it takes over the stock, the first one ends and another strategy starts. Then the second one
// must leave the stock to that.
func TestDrainQueued_Twice(t *testing.T) {
	t.Parallel()
	redis := testenv.OwnRedis(t)
	args := migrated(t, []string{"--db", testenv.SQLite(t), "--redis", redis.URL()})
	first := serveHere(t, append([]string{"--strategy", "async"}, args...)...)
	first.Interrupt()
	first.Wait()
	redis.Restart() // it saves nothing: a drain warns of that before it takes over the stock
	var next *service
	meanwhile := &onWarning{"has never seen the ledger", sync.OnceFunc(func() {
		ran(t, 0, append([]string{"drain"}, args...), "0 orders were queued, none is left")
		next = serveHere(t, append([]string{"--strategy", "lua"}, args...)...)
		setStock(t, next.URL(), "q", 10)
	})}
	if err := run(t.Context(), append([]string{"drain"}, args...), nil, io.Discard, meanwhile); !errors.Is(err, stock.ErrRowChanged) || !strings.Contains(err.Error(), "and is now \"lua") {
		t.Errorf("the second: %v", err)
	}
	if next == nil {
		t.Fatal("no warning")
	}
	mustCall(t, 200, "GET", next.URL()+"/readyz", "")
	mustCall(t, 201, "POST", next.URL()+"/orders", orderBody("u", "q", 1))
}

// TestReleaseDrained checks that the drain asks again if the journal does not answer, because it
// may have orders. The drain must end with an error if an instance that queues has taken over the
// stock meanwhile, even after the last order was committed.
func TestReleaseDrained(t *testing.T) {
	t.Parallel()
	log, parts := slog.New(slog.DiscardHandler), assembly.Parts{Strategy: assembly.Queueing(), Guard: true, Draining: true}
	stores, err := assembly.OpenStores(t.Context(), parts, log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stores.Close() })
	start := func() *assembly.Instance {
		i, err := assembly.Build(t.Context(), stores, parts, assembly.Options{TakeDeadline: time.Minute, Log: log, Metrics: prometheus.NewRegistry()})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = i.Close() })
		if err := i.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		return i
	}
	draining := start()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const give = 10 // after this many failures the test cancels the drain
	failures, most := 0, 3
	stores.Redis.AddHook(faults.Around(func(ctx context.Context, cmds []goredis.Cmder, run func(context.Context) error) error {
		if cmds[0].Name() != "multi" || failures == most { // the journal is measured in one MULTI
			return run(ctx)
		}
		if failures++; failures == give {
			cancel()
		}
		return errors.New("the journal does not answer")
	}))
	if err := releaseDrained(ctx, draining, 1, log); err != nil || failures != most {
		t.Errorf("%d failures, %v", failures, err)
	}
	parts.Draining = false
	start()
	if err := draining.Reconciler.Ready(ctx); !errors.Is(err, stock.ErrSuperseded) {
		t.Errorf("the stock was taken over: %v", err)
	}
	failures, most = 0, give
	if err := releaseDrained(ctx, draining, 1, log); !errors.Is(err, stock.ErrSuperseded) {
		t.Errorf("%d failures, %v", failures, err)
	}
	failures, most = 0, 0
	if err := releaseDrained(ctx, draining, 1, log); err == nil {
		t.Error("the stock of another instance was given up")
	}
}

// onWarning is a log. It calls do before it returns from writing a line with the text.
type onWarning struct {
	text string
	do   func()
}

func (w *onWarning) Write(line []byte) (int, error) {
	if strings.Contains(string(line), w.text) {
		w.do()
	}
	return len(line), nil
}

// TestDrainQueued_NothingQueued drains while another strategy sells. The sale must go on.
func TestDrainQueued_NothingQueued(t *testing.T) {
	t.Parallel()
	args := migrated(t, mariaDBAndRedis.flags(t))
	api := serveHere(t, append([]string{"--strategy", "lua"}, args...)...)
	setStock(t, api.URL(), "q", 10)
	db := storetest.SQL(t, args[slices.Index(args, "--db")+1])
	owner := func() (generation int64, layout string) {
		t.Helper()
		if err := db.DB().Raw("SELECT generation, layout FROM ledger").Row().Scan(&generation, &layout); err != nil {
			t.Fatal(err)
		}
		return generation, layout
	}
	generation, layout := owner()
	var said bytes.Buffer
	if err := run(t.Context(), append([]string{"drain"}, args...), nil, &said, io.Discard); err != nil || !strings.Contains(said.String(), "nothing was changed") {
		t.Errorf("%s %v", &said, err)
	}
	if after, of := owner(); after != generation || of != layout {
		t.Errorf("generation %d of %q, before %d of %q", after, of, generation, layout)
	}
	mustCall(t, 201, "POST", api.URL()+"/orders", orderBody("u", "q", 1))
}

// TestDrainQueued_InProcess drains orders that are queued in the Redis of an instance's process.
// The drain must fail while the instance runs, and succeed once the instance and its queue have
// ended.
func TestDrainQueued_InProcess(t *testing.T) {
	t.Parallel()
	args := migrated(t, []string{"--db", testenv.SQLite(t)})
	first := serveHere(t, append([]string{"--strategy", "async"}, args...)...)
	setStock(t, first.URL(), "q", 10)
	id := decoded[placed](t, mustCall(t, 202, "POST", first.URL()+"/orders", orderBody("u", "q", 1))).ID
	drain := func() error { return run(t.Context(), append([]string{"drain"}, args...), nil, io.Discard, io.Discard) }
	if err := drain(); err == nil || !strings.Contains(err.Error(), "stop it first") {
		t.Errorf("drained beside the instance: %v", err)
	}
	waitStatus(t, first.URL(), id, "pending")
	first.Interrupt()
	first.Wait()
	if err := drain(); err != nil {
		t.Error(err)
	}
	second := serveHere(t, append([]string{"--strategy", "merged"}, args...)...)
	mustCall(t, 200, "GET", second.URL()+"/orders/"+id, "")
}

// TestDrainQueued_LostJournal drains a journal that Redis has lost.
func TestDrainQueued_LostJournal(t *testing.T) {
	t.Parallel()
	redis := testenv.OwnRedis(t)
	args := migrated(t, []string{"--db", testenv.MariaDB(t), "--redis", redis.URL()})
	first := startProcess(t, append([]string{"--strategy", "async"}, args...)...)
	setStock(t, first.URL(), "q", 10)
	release := storetest.LockRow(t, args[slices.Index(args, "--db")+1], "q")
	mustCall(t, 202, "POST", first.URL()+"/orders", orderBody("u", "q", 1))
	first.Kill()
	redis.Restart() // this Redis saves nothing
	release()
	var stdout bytes.Buffer
	if err := run(t.Context(), append([]string{"drain"}, args...), nil, &stdout, io.Discard); err != nil || !strings.Contains(stdout.String(), "0 orders were queued, none is left") {
		t.Errorf("%s %v", &stdout, err)
	}
	second := serveHere(t, append([]string{"--strategy", "lua"}, args...)...)
	mustCall(t, 201, "POST", second.URL()+"/orders", orderBody("u", "q", 1))
	if a := waitAtRest(t, second.URL(), "q"); a.Sold+a.LedgerAvailable != 10 || a.Sold > 2 { // the database may have received the COMMIT of the lost order
		t.Errorf("%+v", a)
	}
}

// TestQueueWarning checks that the service warns at startup if Redis may lose queued orders, and
// does not warn otherwise.
func TestQueueWarning(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		redis []string // arguments of the server
		says  string
	}{
		{"nothing is saved", nil, "a restart loses every order that is still queued"},
		{"every second", []string{"--appendonly", "yes"}, "appendfsync everysec"},
		{"always", []string{"--appendonly", "yes", "--appendfsync", "always"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			args := []string{"--migrate", "--db", testenv.SQLite(t), "--redis", testenv.OwnRedis(t, test.redis...).URL()}
			out := serveHere(t, append([]string{"--strategy", "async"}, args...)...).Output()
			if n := strings.Count(out, "--strategy async: "); test.says == "" && n != 0 || test.says != "" && n != 1 || !strings.Contains(out, test.says) {
				t.Errorf("%d warnings: %s", n, out)
			}
		})
	}
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		api := serveHere(t, "--strategy", "async")
		if out := api.Output(); strings.Count(out, "a 202 is as durable as the in-process Redis") != 1 {
			t.Errorf("it does not say what a 202 promises: %s", out)
		}
	})
}
