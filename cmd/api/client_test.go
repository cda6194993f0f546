package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// asAPI is the variable that makes the test program run as cmd/api.
const asAPI = "HOLDFAST_TEST_AS_API"

func TestMain(m *testing.M) {
	if os.Getenv(asAPI) != "" {
		main()
		return
	}
	if err := os.Setenv(asAPI, "1"); err != nil { // set for the processes that the tests start
		panic(err)
	}
	debug.SetGCPercent(gcPercent) // as main does
	uuid.EnableRandPool()
	store.LogRedis(slog.New(slog.DiscardHandler))
	os.Exit(testenv.Main(m))
}

// client calls the API over HTTP. The tests use the running service only through it.
var client = &http.Client{
	Timeout: testenv.Patience,
	Transport: &http.Transport{
		MaxIdleConnsPerHost: 100,
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true}, // TestTLS verifies
		DisableCompression:  true,                                  // metrics are long, and compressing them takes time
	},
}

// call sends a request and returns the status and the body.
func call(ctx context.Context, method, url, body string, headers ...string) (status int, answer []byte, err error) {
	a, err := testenv.Call(ctx, client, method, url, body, headers...)
	return a.Status, a.Text, err
}

// mustCall sends a request and fails the test unless the answer has the status. It repeats a
// request that is refused as busy, or whose outcome is unknown, as every client should: on a busy
// machine, a store may take longer than the service waits. A repeated order needs a key.
func mustCall(t *testing.T, want int, method, url, body string, headers ...string) (answer []byte) {
	t.Helper()
	harmless := !strings.HasSuffix(url, "/orders") || slices.Contains(headers, "Idempotency-Key")
	testenv.AwaitSuccess(t, method+" "+url, func() (err error) {
		var status int
		status, answer, err = call(t.Context(), method, url, body, headers...)
		if err == nil && status == want {
			return nil
		}
		again := bytes.Contains(answer, []byte("/problems/busy")) || harmless && bytes.Contains(answer, []byte("/problems/unavailable"))
		if status != http.StatusServiceUnavailable || !again {
			t.Fatalf("%s %s: %d %s %v, want %d", method, url, status, answer, err, want)
		}
		t.Logf("%s %s: %s", method, url, answer)
		return errNotReady
	})
	return answer
}

// orderBody returns the body of an order with one line.
func orderBody(buyer, sku string, quantity int) string {
	return fmt.Sprintf(`{"buyer_id":%q,"lines":[{"sku":%q,"quantity":%d}]}`, buyer, sku, quantity)
}

// audit is the answer to GET /stock/{sku}/audit.
type audit struct {
	Total, Sold, Oversold, Drift int64
	GateAvailable                *int64 `json:"gate_available"`
	GateInFlight                 *int64 `json:"gate_in_flight"`
	LedgerAvailable              int64  `json:"ledger_available"`
}

// audited returns an instance's audit of the SKU.
func audited(ctx context.Context, url, sku string) (a audit, err error) {
	status, answer, err := call(ctx, http.MethodGet, url+"/stock/"+sku+"/audit", "")
	if err != nil || status != http.StatusOK {
		return a, fmt.Errorf("audit: %d %s %w", status, answer, err)
	}
	return a, json.Unmarshal(answer, &a)
}

// atRest reports whether all counts agree and nothing is in flight.
func (a audit) atRest() bool {
	if a.Drift != 0 || a.Oversold != 0 || a.LedgerAvailable+a.Sold != a.Total {
		return false
	}
	return a.GateInFlight == nil || *a.GateInFlight == 0 && *a.GateAvailable == a.LedgerAvailable
}

// waitAtRest waits until the SKU is at rest and returns its audit.
func waitAtRest(t *testing.T, url, sku string) (a audit) {
	t.Helper()
	testenv.AwaitSuccess(t, sku+" is at rest", func() (err error) {
		if a, err = audited(t.Context(), url, sku); err == nil && !a.atRest() {
			err = fmt.Errorf("%w: %+v", errNotReady, a)
		}
		return err
	})
	return a
}

// crowd is a number of clients that buy one SKU at the same time, from several instances.
type crowd struct {
	maxOrders int64 // number of orders after which clients stop
	sku       string
	accepted  sync.Map // true by order ID
	count     atomic.Int64
	statuses  sync.Map     // *atomic.Int64 by status
	failed    atomic.Int64 // calls without an answer
	all       sync.WaitGroup
}

// rush starts clients that buy units one by one, until each is answered "sold
// out" or ctx ends. After a failed call or a 503, a client repeats the request at
// the next instance with the same key.
func rush(ctx context.Context, clients int, sku string, urls ...string) *crowd {
	return rushUpTo(ctx, 5000, clients, sku, urls...)
}

// rushUpTo is rush that also ends once the given number of orders is accepted. This stops a rush at
// a service that never sells out.
func rushUpTo(ctx context.Context, maxOrders int64, clients int, sku string, urls ...string) *crowd {
	c := &crowd{sku: sku, maxOrders: maxOrders}
	for n := range clients {
		c.all.Go(func() { c.buy(ctx, n, urls) })
	}
	return c
}

// buy runs one client.
func (c *crowd) buy(ctx context.Context, n int, urls []string) {
	for turn := n; ctx.Err() == nil && c.count.Load() < c.maxOrders; turn++ {
		key := fmt.Sprintf("%d-%d-%d", n, turn, rand.Int64())
		for try := 0; ctx.Err() == nil; try++ {
			url := urls[(n+try)%len(urls)]
			status, answer, err := call(ctx, http.MethodPost, url+"/orders", orderBody(fmt.Sprintf("u-%d", n), c.sku, 1), "Idempotency-Key", key)
			if err != nil {
				if ctx.Err() == nil {
					c.failed.Add(1)
					pause(try)
				}
				continue
			}
			c.countStatus(status)
			if status == http.StatusCreated || status == http.StatusAccepted {
				var o struct{ ID string }
				if json.Unmarshal(answer, &o) == nil {
					if _, twice := c.accepted.LoadOrStore(o.ID, true); !twice {
						c.count.Add(1)
					}
				}
				break
			}
			if status == http.StatusConflict && bytes.Contains(answer, []byte("/problems/sold-out")) {
				return
			}
			if status != http.StatusServiceUnavailable && !bytes.Contains(answer, []byte("/problems/in-progress")) {
				return
			}
			pause(try)
		}
	}
}

// pause is the pause of a client after this number of refusals of the same order. It grows, because
// clients that retry constantly while a store is down take most of the machine.
func pause(refusals int) {
	for range min(1+refusals, 10) {
		testenv.Dither()
	}
}

func (c *crowd) countStatus(status int) {
	n, _ := c.statuses.LoadOrStore(status, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

// wait waits until all clients have ended.
func (c *crowd) wait() { c.all.Wait() }

// checkStatuses checks that every answer had one of these statuses.
func (c *crowd) checkStatuses(t *testing.T, allowed ...int) {
	t.Helper()
	c.statuses.Range(func(status, n any) bool {
		for _, a := range allowed {
			if a == status {
				return true
			}
		}
		t.Errorf("%d answers of status %d", n.(*atomic.Int64).Load(), status)
		return true
	})
}

// answers returns the number of answers with the status.
func (c *crowd) answers(status int) int64 {
	n, ok := c.statuses.Load(status)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

// checkFound checks that the instance finds every accepted order.
func (c *crowd) checkFound(t *testing.T, url string) {
	t.Helper()
	c.accepted.Range(func(id, _ any) bool {
		status, answer, err := call(t.Context(), http.MethodGet, url+"/orders/"+id.(string), "")
		if err != nil || status != http.StatusOK || !bytes.Contains(answer, []byte(`"status":"pending"`)) {
			t.Errorf("accepted order %v: %d %s %v", id, status, answer, err)
		}
		return true
	})
}

// setStock sets the total of a product.
func setStock(t *testing.T, url, sku string, total int) {
	t.Helper()
	testenv.Await(t, fmt.Sprintf("the stock of %s is %d", sku, total), func() bool {
		status, answer, err := call(t.Context(), http.MethodPut, url+"/stock/"+sku, fmt.Sprintf(`{"kind":"product","total":%d}`, total))
		if err != nil || status != http.StatusCreated && status != http.StatusOK && status != http.StatusServiceUnavailable {
			t.Fatalf("setting the stock of %[2]s to %[1]d: %[3]d %[4]s %[5]v", total, sku, status, answer, err)
		}
		return status != http.StatusServiceUnavailable
	})
}

// waitForOrders waits until this many orders of the crowd have been accepted.
func (c *crowd) waitForOrders(t *testing.T, orders int64) {
	t.Helper()
	for n := range orders {
		testenv.Await(t, fmt.Sprintf("order %d is accepted", n+1), func() bool { return c.count.Load() > n })
	}
}

var errNotReady = errors.New("not ready")

// waitReady waits until /readyz of the instance is 200. On a busy machine, the service may give up
// waiting for its stores.
func waitReady(t *testing.T, url string) {
	t.Helper()
	testenv.AwaitSuccess(t, url+" is ready", func() error {
		status, answer, err := call(t.Context(), http.MethodGet, url+"/readyz", "")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%w: %s", errNotReady, answer)
		}
		return err
	})
}
