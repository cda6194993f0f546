package main

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// waitStatus waits until the order has the status, and returns the answer.
func waitStatus(t *testing.T, url, id, want string) []byte {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for {
		answer := mustCall(t, 200, "GET", url+"/orders/"+id, "")
		if decoded[placed](t, answer).Status == want {
			return answer
		}
		if time.Now().After(deadline) {
			t.Fatalf("not %s within 15 s: %s", want, answer)
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
			if a := waitAtRest(t, url, "q", 5*time.Second); a.Sold != 1 {
				t.Errorf("%+v", a)
			}
			if says := string(mustCall(t, 200, "GET", url+"/strategies", "")); !strings.Contains(says, `"ack":"queued","promise":"a 202 is as durable as Redis`) {
				t.Errorf("%s", says)
			}
			metrics := string(mustCall(t, 200, "GET", url+"/metrics", ""))
			for _, name := range []string{`holdfast_orders_total{result="queued"} 2`, `holdfast_journal_ended_total{outcome="committed"} 2`, "holdfast_journal_orders 0", "holdfast_journal_oldest_seconds 0"} {
				if !strings.Contains(metrics, name) {
					t.Errorf("/metrics has no %s", name)
				}
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
			pending, refused := c.checkEnded(t, two.URL(), 20*time.Second)
			a := waitAtRest(t, two.URL(), "hot", 20*time.Second)
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
	pending, refused := c.checkEnded(t, one.URL(), 20*time.Second)
	a := waitAtRest(t, two.URL(), "hot", 20*time.Second)
	if pending+refused != c.count.Load() || a.Sold < pending || a.Sold > total {
		t.Errorf("%d acknowledged: %d pending, %d refused; %+v", c.count.Load(), pending, refused, a)
	}
	if pending <= 300 {
		t.Errorf("only %d orders are pending: nothing was sold after the restart", pending)
	}
}
