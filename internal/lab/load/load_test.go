package load

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

var oneUnit = client.OrderRequest{BuyerID: "b", Lines: []client.Line{{SKU: "s", Quantity: 1}}}

// serve returns a client and the URL of a service with this handler.
func serve(t *testing.T, handler http.HandlerFunc) (c *Client, url string) {
	t.Helper()
	service := httptest.NewServer(handler)
	t.Cleanup(service.Close)
	return NewClient(service.Client().Transport), service.URL
}

// TestAnswers checks the outcome of every kind of answer to an order, whatever the public client
// returns for it.
func TestAnswers(t *testing.T) {
	t.Parallel()
	problem := func(name string) string { return `{"type":"/problems/` + name + `"}` }
	for _, test := range []struct {
		status  int
		text    string
		outcome string
		failure string
		unknown bool
	}{
		{201, `{"id":"1"}`, Accepted, "", false},
		{201, `{}`, Accepted, "", false}, // the audit reports an order without an ID
		{202, "{}", Queued, "", false},
		{409, problem("sold-out"), Refused, "", false},
		{409, problem("buyer-limit"), Refused, "", false},
		{409, problem("in-progress"), Failed, "409 in-progress", false},
		{409, "", Failed, "409", false},
		{200, "{}", Failed, "200", false},
		{404, problem("unknown-sku"), Failed, "404 unknown-sku", false},
		{500, problem("internal"), Failed, "500 internal", false},
		{500, problem("sold-out"), Failed, "500 sold-out", false},
		{503, problem("busy"), Failed, "503 busy", false},
		{503, problem("unavailable"), Failed, "503 unavailable", true},
		{502, "<html>", Failed, "502", true},
	} {
		c, url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, test.text)
		})
		a := c.Place(t.Context(), url, oneUnit)
		if a.Status != test.status || string(a.Body) != test.text || a.Outcome() != test.outcome {
			t.Errorf("%d %s: %+v is %s", test.status, test.text, a, a.Outcome())
		}
		if found := a.Order != nil; found != strings.Contains(test.text, `"id"`) {
			t.Errorf("%d %s: an order was found: %v", test.status, test.text, found)
		}
		if test.outcome == Failed && (a.Unknown() != test.unknown || a.Failure() != test.failure) {
			t.Errorf("%d %s: unknown outcome %v, %q", test.status, test.text, a.Unknown(), a.Failure())
		}
	}
}

// cut is a body that ends with an error.
type cut struct{}

func (cut) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }
func (cut) Close() error             { return nil }

// TestNoAnswer checks the cause if there is no answer.
func TestNoAnswer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err     error
		failure client.ProblemType
		unknown bool
	}{
		{os.NewSyscallError("connect", syscall.ECONNREFUSED), NoConnection, false},
		{context.DeadlineExceeded, TimedOut, true},
		{io.EOF, NoAnswer, true},
		{nil, NoAnswer, true}, // the answer is cut off
	} {
		c := NewClient(testenv.Transport(func(*http.Request) (*http.Response, error) {
			if test.err != nil {
				return nil, test.err
			}
			return &http.Response{StatusCode: http.StatusCreated, Header: http.Header{}, Body: cut{}}, nil
		}))
		if a := c.Place(t.Context(), "http://127.0.0.1", oneUnit); a.Status != 0 || a.Failure() != string(test.failure) || a.Unknown() != test.unknown {
			t.Errorf("%v: %+v, unknown outcome %v", test.err, a, a.Unknown())
		}
	}
	if a := NewClient(http.DefaultTransport).Place(t.Context(), "shop", oneUnit); a.Outcome() != Failed || a.Failure() != string(NoAnswer) {
		t.Errorf("without a URL: %+v", a)
	}
}

// TestSendsOnce kills the connection of a request with a key. Package http and the public client
// would both send the request again by themselves.
func TestSendsOnce(t *testing.T) {
	t.Parallel()
	var requests atomic.Int64
	c, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") == "warm" {
			w.Header().Set("Idempotent-Replayed", "true")
			return // the next request then uses an old connection
		}
		requests.Add(1)
		panic(http.ErrAbortHandler)
	})
	order := oneUnit
	order.Key = "warm"
	if a := c.Place(t.Context(), url, order); a.Status != http.StatusOK || !a.Replayed {
		t.Fatalf("%+v", a)
	}
	for _, order.Key = range []string{"k", ""} {
		requests.Store(0)
		if a := c.Place(t.Context(), url, order); a.Status != 0 || requests.Load() != 1 {
			t.Errorf("key %q: %d requests: %+v", order.Key, requests.Load(), a)
		}
	}
}

// TestCreate creates a new SKU, and one that exists.
func TestCreate(t *testing.T) {
	t.Parallel()
	answer, set := http.StatusCreated, ""
	c, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		set = r.URL.Path + " " + string(text)
		w.WriteHeader(answer)
		_, _ = io.WriteString(w, `{"sku":"s"}`)
	})
	setting := client.Setting{Kind: client.Coupon, Total: 7, BuyerLimit: new(int64(2))}
	if err := c.Create(t.Context(), url, "s", setting); err != nil || set != `/stock/s {"buyer_limit":2,"kind":"coupon","total":7}` {
		t.Errorf("%v: %s", err, set)
	}
	for status, says := range map[int]string{http.StatusOK: "it existed", http.StatusConflict: "409"} {
		answer = status
		if err := c.Create(t.Context(), url, "s", setting); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%d: %v", status, err)
		}
	}
}

// TestCrowd checks that each client ends when act returns false, and the last one when the context
// ends.
func TestCrowd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), 45*time.Millisecond)
		defer stop()
		var (
			mu   sync.Mutex
			acts [3]int
		)
		<-Crowd(ctx, len(acts), func(client, n int) (time.Duration, bool) {
			mu.Lock()
			defer mu.Unlock()
			if n != acts[client] {
				t.Errorf("client %d: act %d instead of %d", client, n, acts[client])
			}
			acts[client]++
			return FailurePause, client == 2 || n < client
		})
		if want := [3]int{1, 2, 5}; acts != want { // the third client acts at 0, 10, … 40 ms
			t.Errorf("%v, want %v", acts, want)
		}
	})
}

// TestArrivals checks that requests are sent at a constant rate, whatever the answers take, until
// too many are under way. Requests that wait too long must be dropped.
func TestArrivals(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, test := range []struct {
		name string
		took time.Duration // duration of each request
		most int           // maximum number of requests under way
		want []time.Duration
	}{
		{"at once", 0, 1, []time.Duration{0, 10 * ms, 20 * ms, 30 * ms}},
		{"slow answers", time.Hour, 9, []time.Duration{0, 10 * ms, 20 * ms, 30 * ms}},
		{"too many under way", 25 * ms, 1, []time.Duration{0, 25 * ms}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var (
					mu   sync.Mutex
					sent []time.Duration
				)
				start := time.Now()
				Arrivals{Rate: 100, Count: 4, Limit: 45 * ms, MaxUnderWay: test.most}.Drive(t.Context(), start, func(n int) func(time.Duration) {
					return func(due time.Duration) {
						mu.Lock()
						sent = append(sent, time.Since(start))
						mu.Unlock()
						if due != time.Duration(n)*10*ms {
							t.Errorf("arrival %d was due after %v", n, due)
						}
						time.Sleep(test.took)
					}
				})
				if !slices.Equal(sent, test.want) {
					t.Errorf("sent after %s, want %s", fmt.Sprint(sent), fmt.Sprint(test.want))
				}
			})
		})
	}
}
