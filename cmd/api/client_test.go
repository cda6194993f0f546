package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	store.LogRedis(slog.New(slog.DiscardHandler))
	os.Exit(testenv.Main(m))
}

// client speaks the API as a stranger does: over HTTP, knowing nothing of the
// code behind it.
var client = &http.Client{
	Timeout:   20 * time.Second,
	Transport: &http.Transport{MaxIdleConnsPerHost: 100},
}

// call sends a request and returns the status and the body.
func call(ctx context.Context, method, url, body string, headers ...string) (status int, answer []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, nil, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	answer, err = io.ReadAll(response.Body)
	return response.StatusCode, answer, err
}

// mustCall sends a request that must be answered with the status.
func mustCall(t *testing.T, want int, method, url, body string, headers ...string) []byte {
	t.Helper()
	status, answer, err := call(t.Context(), method, url, body, headers...)
	if err != nil || status != want {
		t.Fatalf("%s %s: %d %s %v, want %d", method, url, status, answer, err, want)
	}
	return answer
}

func orderBody(buyer, sku string, quantity int) string {
	return fmt.Sprintf(`{"buyer_id":%q,"lines":[{"sku":%q,"quantity":%d}]}`, buyer, sku, quantity)
}

// audit is what GET /stock/{sku}/audit tells.
type audit struct {
	Total, Sold, Oversold, Drift int64
	GateAvailable                *int64 `json:"gate_available"`
	GateInFlight                 *int64 `json:"gate_in_flight"`
	LedgerAvailable              int64  `json:"ledger_available"`
}

func audited(ctx context.Context, url, sku string) (a audit, err error) {
	status, answer, err := call(ctx, http.MethodGet, url+"/stock/"+sku+"/audit", "")
	if err != nil || status != http.StatusOK {
		return a, fmt.Errorf("audit: %d %s %w", status, answer, err)
	}
	return a, json.Unmarshal(answer, &a)
}

// atRest reports whether everything adds up with nothing in flight.
func (a audit) atRest() bool {
	if a.Drift != 0 || a.Oversold != 0 || a.LedgerAvailable+a.Sold != a.Total {
		return false
	}
	return a.GateInFlight == nil || *a.GateInFlight == 0 && *a.GateAvailable == a.LedgerAvailable
}

// restful waits until the SKU is at rest, and returns its audit.
func restful(t *testing.T, url, sku string, within time.Duration) (a audit) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		a, err := audited(t.Context(), url, sku)
		if err == nil && a.atRest() {
			return a
		}
		if time.Now().After(deadline) {
			t.Fatalf("not at rest within %v: %+v, %v", within, a, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// crowd is a rush of clients over several instances.
type crowd struct {
	sku      string
	accepted sync.Map // order ID → true
	count    atomic.Int64
	statuses sync.Map // status → *atomic.Int64
	broken   atomic.Int64
	all      sync.WaitGroup
}

// rush lets clients buy units one by one, on the instances in turn, until each
// hears "sold out" or ctx ends. A client whose call fails, or hears 503, goes on
// with the next instance, under the same key.
func rush(ctx context.Context, clients int, sku string, urls ...string) *crowd {
	c := &crowd{sku: sku}
	for n := range clients {
		c.all.Go(func() { c.buy(ctx, n, urls) })
	}
	return c
}

func (c *crowd) buy(ctx context.Context, n int, urls []string) {
	const most = 5000 // a service that never sells out is stopped here
	for turn := n; ctx.Err() == nil && c.count.Load() < most; turn++ {
		key := fmt.Sprintf("%d-%d-%d", n, turn, rand.Int64())
		for try := 0; ctx.Err() == nil; try++ {
			url := urls[(n+try)%len(urls)]
			status, answer, err := call(ctx, http.MethodPost, url+"/orders", orderBody(fmt.Sprintf("u-%d", n), c.sku, 1), "Idempotency-Key", key)
			if err != nil {
				if ctx.Err() == nil {
					c.broken.Add(1)
					time.Sleep(10 * time.Millisecond)
				}
				continue
			}
			c.heard(status)
			if status == http.StatusCreated {
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
			time.Sleep(time.Duration(1+rand.IntN(20)) * time.Millisecond)
		}
	}
}

func (c *crowd) heard(status int) {
	n, _ := c.statuses.LoadOrStore(status, new(atomic.Int64))
	n.(*atomic.Int64).Add(1)
}

// wait waits until all clients are done.
func (c *crowd) wait() { c.all.Wait() }

// only asserts that no other status than these was answered.
func (c *crowd) only(t *testing.T, allowed ...int) {
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

// answers is how many answers had the status.
func (c *crowd) answers(status int) int64 {
	n, ok := c.statuses.Load(status)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}

// found asserts that every order that was accepted is found.
func (c *crowd) found(t *testing.T, url string) {
	t.Helper()
	c.accepted.Range(func(id, _ any) bool {
		status, answer, err := call(t.Context(), http.MethodGet, url+"/orders/"+id.(string), "")
		if err != nil || status != http.StatusOK || !bytes.Contains(answer, []byte(`"status":"pending"`)) {
			t.Errorf("order %v was accepted: %d %s %v", id, status, answer, err)
		}
		return true
	})
}

// lay puts units in.
func lay(t *testing.T, url, sku string, total int) {
	t.Helper()
	status, answer, err := call(t.Context(), http.MethodPut, url+"/stock/"+sku, fmt.Sprintf(`{"kind":"product","total":%d}`, total))
	if err != nil || status != http.StatusCreated && status != http.StatusOK {
		t.Fatalf("laying in %d of %s: %d %s %v", total, sku, status, answer, err)
	}
}

// whileSelling waits until the crowd has had its first so many orders.
func (c *crowd) whileSelling(t *testing.T, orders int64) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for c.count.Load() < orders {
		if time.Now().After(deadline) {
			t.Fatalf("only %d orders within 30 s", c.count.Load())
		}
		time.Sleep(time.Millisecond)
	}
}

var errNotReady = errors.New("not ready")

// ready waits until the instance says so.
func ready(t *testing.T, url string, within time.Duration) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		status, answer, err := call(t.Context(), http.MethodGet, url+"/readyz", "")
		if err == nil && status == http.StatusOK {
			return
		}
		if err == nil {
			err = fmt.Errorf("%w: %s", errNotReady, answer)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s after %v: %v", url, within, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
