package main

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// waitStatus waits until the order has the status, and returns the answer.
func waitStatus(t *testing.T, url, id, want string) []byte {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		answer := mustCall(t, 200, "GET", url+"/orders/"+id, "")
		if decoded[placed](t, answer).Status == want {
			return answer
		}
		if time.Now().After(deadline) {
			t.Fatalf("not %s within a minute: %s", want, answer)
		}
		time.Sleep(5 * time.Millisecond) // between two polls
	}
}

// TestQueuedContract follows queued orders over HTTP on every kind of stores that can
// queue.
func TestQueuedContract(t *testing.T) {
	t.Parallel()
	embedded := pair{"embedded", func(*testing.T) []string { return nil }}
	for _, p := range []pair{embedded, postgresAndRedis, mariaDBAndSentinel} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			url := testenv.API(t, append(migrated(t, p.flags(t)), "--ack", "queued")...).URL()
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
			again() // although the stock has run out
			mustCall(t, 200, "POST", orders+"/"+last+"/pay", `{"payment_id":"q-1"}`)
			mustCall(t, 200, "POST", orders+"/"+o.ID+"/cancel", "")
			again()
			if a := waitAtRest(t, url, "q", time.Minute); a.Sold != 1 {
				t.Errorf("%+v", a)
			}
			if says := string(mustCall(t, 200, "GET", url+"/strategies", "")); !strings.Contains(says, `"ack":"queued","promise":"a 202 is as durable as `) {
				t.Errorf("%s", says)
			}
			for _, name := range []string{`holdfast_orders_total{result="queued"} 2`, `holdfast_journal_ended_total{outcome="committed"} 2`, "holdfast_journal_orders 0", "holdfast_journal_oldest_seconds 0"} {
				within(t, time.Minute, "/metrics has "+name, func() bool { // the journal is looked at every second
					return strings.Contains(string(mustCall(t, 200, "GET", url+"/metrics", "")), name)
				})
			}
		})
	}
}

// checkEnded checks that every acknowledged order comes to an end at the instance, and
// returns how many are pending and how many were refused.
func (c *crowd) checkEnded(t *testing.T, url string, within time.Duration) (pending, refused int64) {
	t.Helper()
	deadline := time.Now().Add(within)
	c.accepted.Range(func(id, _ any) bool {
		for {
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
			case !bytes.Contains(answer, []byte(`"status":"queued"`)) || time.Now().After(deadline):
				t.Errorf("acknowledged order %v: %s", id, answer)
				return true
			}
			time.Sleep(10 * time.Millisecond) // between two polls
		}
	})
	return pending, refused
}

// TestQueuedInstanceKilled kills an instance during a rush for queued orders. Every
// acknowledged order must be committed once, by the other instance if need be.
func TestQueuedInstanceKilled(t *testing.T) {
	t.Parallel()
	for _, p := range []pair{mariaDBAndRedis, postgresAndRedis} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			const total = 3000
			// Without the guard an order that is committed twice, or given back and
			// committed, oversells.
			args := append([]string{"--ack", "queued", "--guard", "off", "--take-deadline", "1s"}, migrated(t, p.flags(t))...)
			one, two := testenv.API(t, args...), testenv.API(t, args...)
			setStock(t, one.URL(), "hot", total)
			c := rush(t.Context(), 32, "hot", one.URL(), two.URL())
			c.waitForOrders(t, 500)
			one.Kill()
			c.wait()
			if c.failed.Load() == 0 {
				t.Error("no call failed although an instance was killed")
			}
			c.checkStatuses(t, http.StatusAccepted, http.StatusConflict, http.StatusServiceUnavailable)
			pending, refused := c.checkEnded(t, two.URL(), 2*time.Minute)
			a := waitAtRest(t, two.URL(), "hot", time.Minute)
			if pending != c.count.Load() || refused != 0 || a.Sold != total || pending > total {
				t.Errorf("%d acknowledged: %d pending, %d refused; %+v", c.count.Load(), pending, refused, a)
			}
			two.Interrupt()
			if code := two.Wait(); code != 0 {
				t.Errorf("exit code %d: %s", code, two.Output())
			}
		})
	}
}

// TestQueuedRedisKilled kills a Redis that saves every write, during a rush for queued
// orders, and restarts it. Every acknowledged order must come to one end.
func TestQueuedRedisKilled(t *testing.T) {
	t.Parallel()
	const total = 2000
	redis := testenv.OwnRedis(t, "--appendonly", "yes", "--appendfsync", "always")
	args := append([]string{"--ack", "queued", "--guard", "off"}, migrated(t, []string{"--db", testenv.MariaDB(t), "--redis", redis.URL()})...)
	one, two := testenv.API(t, args...), testenv.API(t, args...)
	setStock(t, one.URL(), "hot", total)
	c := rush(t.Context(), 16, "hot", one.URL(), two.URL())
	c.waitForOrders(t, 300)
	redis.Restart()
	c.wait()
	c.checkStatuses(t, http.StatusAccepted, http.StatusConflict, http.StatusServiceUnavailable)
	pending, refused := c.checkEnded(t, one.URL(), 2*time.Minute)
	a := waitAtRest(t, two.URL(), "hot", time.Minute)
	if pending+refused != c.count.Load() || a.Sold < pending || a.Sold > total {
		t.Errorf("%d acknowledged: %d pending, %d refused; %+v", c.count.Load(), pending, refused, a)
	}
	if pending <= 300 {
		t.Errorf("only %d orders are pending: nothing was sold after the restart", pending)
	}
}

// TestQueuedOrdersOutliveTheirStrategy kills an instance that has queued orders which it
// cannot commit. The next instance commits them, also if it does not queue orders, and if
// its strategy does not read the journal.
func TestQueuedOrdersOutliveTheirStrategy(t *testing.T) {
	t.Parallel()
	for _, next := range []string{"--strategy merged", "--strategy queue", "--ack committed"} {
		if next != "--strategy merged" && !testenv.Thorough() {
			continue
		}
		t.Run(next, func(t *testing.T) {
			t.Parallel()
			args := migrated(t, mariaDBAndRedis.flags(t))
			first := testenv.API(t, append([]string{"--ack", "queued"}, args...)...)
			setStock(t, first.URL(), "q", 10)
			release := lockRow(t, args, "q")
			var ids []string
			for range 3 {
				answer := mustCall(t, 202, "POST", first.URL()+"/orders", orderBody("u", "q", 1))
				ids = append(ids, decoded[placed](t, answer).ID)
			}
			first.Kill()
			release()
			second := testenv.API(t, append(strings.Fields(next), args...)...)
			for _, id := range ids {
				waitStatus(t, second.URL(), id, "pending")
			}
			mustCall(t, 201, "POST", second.URL()+"/orders", orderBody("u", "q", 1))
			if a := waitAtRest(t, second.URL(), "q", time.Minute); a.Sold != 4 || a.LedgerAvailable != 6 {
				t.Errorf("%+v", a)
			}
			if strings.Contains(second.Output(), "stay queued") || strings.Contains(second.Output(), "stay in Redis") {
				t.Errorf("it warns: %s", second.Output())
			}
		})
	}
}

// TestQueuedOrderIsSeenEverywhere runs two instances with different settings. Both show
// an order that one of them has queued, at once and after its commit.
func TestQueuedOrderIsSeenEverywhere(t *testing.T) {
	t.Parallel()
	for _, other := range []string{"--ack committed", "--strategy merged", "--strategy segment"} {
		t.Run(other, func(t *testing.T) {
			t.Parallel()
			args := migrated(t, mariaDBAndRedis.flags(t))
			second := testenv.API(t, append(strings.Fields(other), args...)...)
			first := testenv.API(t, append([]string{"--ack", "queued"}, args...)...) // takes over the stock
			setStock(t, first.URL(), "q", 10)
			release := lockRow(t, args, "q")
			answer := mustCall(t, 202, "POST", first.URL()+"/orders", orderBody("u", "q", 1))
			id := decoded[placed](t, answer).ID
			for _, i := range []*testenv.APIServer{first, second} {
				if found := decoded[placed](t, mustCall(t, 200, "GET", i.URL()+"/orders/"+id, "")); found.Status != "queued" || found.ID != id {
					t.Errorf("found %+v", found)
				}
				mustCall(t, 409, "POST", i.URL()+"/orders/"+id+"/pay", `{"payment_id":"p-1"}`)
				mustCall(t, 404, "GET", i.URL()+"/orders/00000000-0000-0000-0000-000000000000", "")
				if page := string(mustCall(t, 200, "GET", i.URL()+"/orders?buyer_id=u", "")); page != `{"orders":[],"next":null}` {
					t.Errorf("the list has a queued order: %s", page)
				}
			}
			release()
			for _, i := range []*testenv.APIServer{first, second} {
				waitStatus(t, i.URL(), id, "pending")
				if page := string(mustCall(t, 200, "GET", i.URL()+"/orders?buyer_id=u", "")); !strings.Contains(page, id) {
					t.Errorf("the list lacks a committed order: %s", page)
				}
			}
		})
	}
}

// lockRow locks the stock row of the SKU in the database that --db names, so that no
// order of the SKU is committed until release is called.
func lockRow(t *testing.T, args []string, sku string) (release func()) {
	t.Helper()
	return hold(t, args[slices.Index(args, "--db")+1], "SELECT available FROM stock WHERE sku = '"+sku+"' FOR UPDATE")
}

// TestQueueWarning checks that the start says what a 202 promises if Redis may lose
// it, and says nothing otherwise.
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
			out := testenv.API(t, append([]string{"--ack", "queued"}, args...)...).Output()
			if n := strings.Count(out, "--ack queued: "); test.says == "" && n != 0 || test.says != "" && n != 1 || !strings.Contains(out, test.says) {
				t.Errorf("%d warnings: %s", n, out)
			}
		})
	}
	t.Run("embedded", func(t *testing.T) {
		t.Parallel()
		api := testenv.API(t, "--ack", "queued")
		if out := api.Output(); strings.Count(out, inProcessPromise) != 1 {
			t.Errorf("it does not say what a 202 promises: %s", out)
		}
		if says := string(mustCall(t, 200, "GET", api.URL()+"/strategies", "")); !strings.Contains(says, inProcessPromise) {
			t.Errorf("GET /strategies does not say what a 202 promises: %s", says)
		}
	})
}

// unfinished is a journal whose orders are never committed. It may not answer either.
type unfinished struct {
	stock.QueuedOrders
	silent bool
}

func (u unfinished) Backlog(ctx context.Context) (int64, time.Duration, error) {
	if u.silent {
		<-ctx.Done()
	}
	return 1, 0, ctx.Err()
}

// TestStartDoesNotWaitForQueuedOrders checks that a start waits for the orders of another
// strategy no longer than it says, whatever becomes of them.
func TestStartDoesNotWaitForQueuedOrders(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			awaitQueued(t.Context(), unfinished{silent: silent}, slog.New(slog.DiscardHandler))
			if took := time.Since(start); took != finishLimit {
				t.Errorf("it took %v, want %v", took, finishLimit)
			}
		})
	}
}
