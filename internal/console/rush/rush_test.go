package rush

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	store.LogRedis(slog.New(slog.DiscardHandler))
	os.Exit(m.Run())
}

// bench is a Runner behind an HTTP server.
type bench struct {
	*Runner
	server *httptest.Server
	url    string
	client *http.Client
	events chan Progress
}

// newBench serves a Runner. Each function in change may change its options.
func newBench(t *testing.T, change ...func(*Options)) *bench {
	t.Helper()
	b := &bench{events: make(chan Progress, 10_000)}
	b.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { b.ServeHTTP(w, r) }))
	o := Options{Log: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&o)
	}
	b.url, b.client = b.server.URL+Path, b.server.Client()
	b.Runner = New(context.WithoutCancel(t.Context()), o)
	b.Notify(func(p Progress) { b.events <- p })
	t.Cleanup(func() {
		b.Close()
		b.server.Close()
	})
	return b
}

// call sends a request and returns its answer.
func (b *bench) call(t *testing.T, method, url, body string, headers ...string) (status int, answer string) {
	t.Helper()
	a, err := testenv.Call(t.Context(), b.client, method, url, body, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return a.Status, string(a.Text)
}

// start starts a run over HTTP.
func (b *bench) start(t *testing.T, s Settings) {
	t.Helper()
	body, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if status, answer := b.call(t, http.MethodPost, b.url, string(body)); status != http.StatusAccepted {
		t.Fatalf("starting %+v: %d %s", s, status, answer)
	}
}

// await returns the first notification that meets the condition.
func (b *bench) await(t *testing.T, what string, condition func(Progress) bool) Progress {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	for {
		select {
		case p := <-b.events:
			if condition(p) {
				return p
			}
		case <-ctx.Done():
			p, _ := b.progress()
			t.Fatalf("not %s: %+v", what, p)
		}
	}
}

func (b *bench) awaitEnd(t *testing.T) Progress {
	t.Helper()
	return b.await(t, "over", func(p Progress) bool { return p.State.final() })
}

var errNotStarted = errors.New("no run has started")

// TestNotificationsInOrder checks that no run begins before the last notification of the
// one before it has been delivered.
func TestNotificationsInOrder(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	again := Settings{Strategy: "lua", Clients: 1, Units: 1}
	var first, started atomic.Bool
	overlapped := make(chan bool, 1)
	b.Notify(func(p Progress) {
		if p.State.final() && !first.Swap(true) {
			go func() {
				if _, err := b.begin(again); err != nil {
					t.Errorf("the next run: %+v", err)
				}
				started.Store(true)
			}()
			overlapped <- nil == testenv.Poll(50*time.Millisecond, func() error {
				if !started.Load() {
					return errNotStarted
				}
				return nil
			})
		}
		b.events <- p
	})
	b.start(t, again)
	if <-overlapped {
		t.Error("a run began while the end of the one before was being notified")
	}
	one, two := b.awaitEnd(t), b.awaitEnd(t)
	if one.ID == two.ID {
		t.Errorf("one run ended twice: %s", one.ID)
	}
}

func selling(p Progress) bool { return p.State == Running && p.Accepted > 0 }

// TestStrategies runs every strategy. Unprotected strategies must oversell, and the others sell
// exactly the stock.
func TestStrategies(t *testing.T) {
	t.Parallel()
	// With one process, a mutex is enough.
	oversells := func(s assembly.Spec) bool { return !s.Sound && s.Name != "mutex" }
	for _, spec := range assembly.EmbeddedStrategies() {
		t.Run(spec.Name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			s := Settings{spec.Name, 16, 40}
			if spec.NeedsLock {
				s.Clients = 4 // more clients would wait too long for the lock
			}
			var (
				p     Progress
				tries int
			)
			for proves := false; !proves && tries < 8; tries++ { // on a busy machine, clients may get no answer, or not overlap
				b.start(t, s)
				p = b.awaitEnd(t)
				if p.State != Ended || p.Accepted > p.Sold || p.Available != s.Units-p.Sold { // must be true in every try
					t.Errorf("try %d: %+v", tries+1, p)
				}
				answered := p.Failed == 0 || spec.NeedsLock
				proves = answered && (!oversells(spec) || p.Oversold > 0) || !oversells(spec) && p.Oversold > 0
			}
			// On a busy machine a client may wait for a lock too long, and is answered busy. The
			// run may end before all units are sold, and Detail then has the reason.
			failed := !spec.NeedsLock && (p.Refused != int64(s.Clients) || p.Failed != 0 || p.Detail != "")
			if p.State != Ended || failed || p.Accepted != p.Sold || p.Available != s.Units-p.Sold ||
				p.P50MS <= 0 || p.P99MS < p.P50MS || p.OrdersPerSecond <= 0 {
				t.Errorf("%+v", p)
			}
			if oversells(spec) && (p.Oversold <= 0 || p.Available != -p.Oversold) || !oversells(spec) && (p.Oversold != 0 || p.Detail == "" && p.Sold != s.Units) {
				t.Errorf("sold %d of %d, oversold %d", p.Sold, s.Units, p.Oversold)
			}
		})
	}
}

// TestProgress checks the fields and the order of the notifications.
func TestProgress(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start(t, Settings{"lua", 4, 40})
	if first := <-b.events; first.State != Preparing || first.Available != 40 || first.ID == "" {
		t.Errorf("first: %+v", first)
	}
	last := b.awaitEnd(t)
	if p, ok := b.progress(); !ok || p != last {
		t.Errorf("afterwards: %+v, want %+v", p, last)
	}
	if len(b.events) > 0 {
		t.Errorf("after the end: %+v", <-b.events)
	}
	status, answer := b.call(t, http.MethodGet, b.url, "")
	var got struct {
		Available  bool
		Strategies []string
		Defaults   Settings
		Limits     map[string]int
		Current    map[string]any
	}
	if err := json.Unmarshal([]byte(answer), &got); err != nil || status != http.StatusOK {
		t.Fatal(status, answer, err)
	}
	if !got.Available || !slices.Equal(got.Strategies, strategies()) || got.Defaults != Defaults() ||
		!maps.Equal(got.Limits, map[string]int{"clients": 256, "units": 10000, "seconds": 30}) {
		t.Error(answer)
	}
	want := []string{"accepted", "available", "clients", "detail", "elapsed_ms", "failed", "id", "orders_per_second", "oversold",
		"p50_ms", "p99_ms", "refused", "sold", "state", "strategy", "units"}
	if fields := slices.Sorted(maps.Keys(got.Current)); !slices.Equal(fields, want) {
		t.Errorf("fields %v, want %v", fields, want)
	}
}

// long is a run that does not end by itself within a test. Its only client never waits for the
// lock, so it stops at once.
var long = Settings{"lock", 1, MaxUnits}

// TestOneAtATime checks that a second run is refused until the first is over.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.start(t, long)
	status, answer := b.call(t, http.MethodPost, b.url, `{}`)
	if status != http.StatusConflict || !strings.Contains(answer, "/problems/rush-running") {
		t.Errorf("a second run: %d %s", status, answer)
	}
	b.await(t, "selling", selling)
	if status, answer = b.call(t, http.MethodDelete, b.url, ""); status != http.StatusOK {
		t.Errorf("stopping: %d %s", status, answer)
	}
	var p Progress
	if err := json.Unmarshal([]byte(answer), &p); err != nil || p.State != Stopped || p.Sold == 0 || p.Sold != p.Accepted || p.Oversold != 0 {
		t.Errorf("%v: %s", err, answer)
	}
	if status, answer = b.call(t, http.MethodDelete, b.url, ""); status != http.StatusOK || !strings.Contains(answer, `"stopped"`) {
		t.Errorf("stopping again: %d %s", status, answer)
	}
	b.awaitEnd(t)
	b.start(t, Settings{"lua", 2, 5})
	if p := b.awaitEnd(t); p.Sold != 5 {
		t.Errorf("the next run: %+v", p)
	}
}

// TestBadRequests checks the answers to invalid requests.
func TestBadRequests(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	for _, test := range []struct {
		method, body string
		status       int
		says         string
	}{
		{"POST", `{"strategy":"magic"}`, 422, `"field":"strategy"`},
		{"POST", `{"clients":0}`, 422, `"field":"clients"`},
		{"POST", `{"clients":257}`, 422, "between 1 and 256"},
		{"POST", `{"units":10001}`, 422, "between 1 and 10000"},
		{"POST", `{"units":-1,"clients":-1}`, 422, `"field":"units"`},
		{"POST", `{"units":1.5}`, 422, `"field":"units"`},
		{"POST", `{"units":"many"}`, 422, "whole number"},
		{"POST", `{"speed":1}`, 422, `"field":"speed"`},
		{"POST", ``, 400, "malformed"},
		{"POST", `{} {}`, 400, "malformed"},
		{"POST", `[]`, 400, "malformed"},
		{"POST", `null`, 400, "malformed"},
		{"POST", `{"units":1,"units":2}`, 400, "malformed"},
		{"POST", `{"strategy":"` + strings.Repeat("x", maxBody) + `"}`, 413, "too-large"},
		{"PUT", `{}`, 405, "method-not-allowed"},
		{"DELETE", ``, 409, "no-rush"},
	} {
		status, answer := b.call(t, test.method, b.url, test.body)
		if status != test.status || !strings.Contains(answer, test.says) {
			t.Errorf("%s %.40s: %d %s", test.method, test.body, status, answer)
		}
	}
	if _, ok := b.progress(); ok {
		t.Error("one of them started a run")
	}
}

// TestUnavailable checks the answers of a service that runs no rushes.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	b := newBench(t, func(o *Options) { o.Unavailable = "the stores are servers" })
	if status, answer := b.call(t, http.MethodGet, b.url, ""); status != 200 || !strings.Contains(answer, `"available":false,"reason":"the stores are servers"`) ||
		!strings.Contains(answer, `"current":null`) {
		t.Errorf("%d %s", status, answer)
	}
	if status, answer := b.call(t, http.MethodPost, b.url, `{}`); status != 409 || !strings.Contains(answer, "the stores are servers") {
		t.Errorf("%d %s", status, answer)
	}
}

// TestLastOrder checks that a shop waits for the last order before the orders are counted.
func TestLastOrder(t *testing.T) {
	t.Parallel()
	entered, leave, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	s := &shop{}
	if err := s.serve(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		close(entered)
		<-leave
	})); err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = testenv.Call(t.Context(), http.DefaultClient, http.MethodPost, s.url, "") }() // its answer does not matter
	testenv.Receive(t, "an order is in the shop", entered)
	go func() { ended <- s.endOrders(t.Context()) }()
	testenv.Quiet(t, "the orders have ended, and one is in the shop", ended)
	close(leave)
	if err := testenv.Receive(t, "the orders have ended", ended); err != nil {
		t.Error(err)
	}
}

// TestSlowStranger checks that a shop waits only a limited time for a request that does not end. A
// run, and then the service, would not end before it.
func TestSlowStranger(t *testing.T) {
	t.Parallel()
	s := &shop{}
	if err := s.serve(http.NotFoundHandler()); err != nil {
		t.Fatal(err)
	}
	defer s.server.Close()
	if s.server.ReadTimeout == 0 || s.server.WriteTimeout == 0 {
		t.Errorf("reading may take %v, and writing %v", s.server.ReadTimeout, s.server.WriteTimeout)
	}
}

// TestFinish checks which count each answer goes to, and the last state of a run.
func TestFinish(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		clients, requests int
		err               error
		state             State
		detail            string
	}{
		{2, 7, nil, Ended, "503 busy: 3"},
		{3, 7, nil, Ended, "the limit of 30s was reached; 503 busy: 3"},
		{3, maxOrders, nil, Ended, "the limit of 100000 orders was reached; 503 busy: 3"},
		{2, 7, errNotStarted, Failed, errNotStarted.Error()},
	} {
		var last Progress
		r := newRun(t.Context(), Options{Log: slog.New(slog.DiscardHandler)}, func(p Progress) { last = p }, assembly.Spec{}, Settings{"none", test.clients, 5})
		soldOut, busy := load.Answer{Status: http.StatusConflict, Problem: client.SoldOut}, load.Answer{Status: http.StatusServiceUnavailable, Problem: client.Busy}
		for _, a := range []load.Answer{{Status: http.StatusCreated}, {Status: http.StatusAccepted}, soldOut, soldOut, busy, busy, busy} {
			r.record(a)
		}
		if p := r.progress(); p.Sold != p.Accepted || p.Available != 3 {
			t.Errorf("before the recount: %+v", p)
		}
		r.requests = test.requests
		if r.finish(9, test.err); r.next() != (test.requests < maxOrders) {
			t.Errorf("after %d orders, another one: %v", test.requests, !r.next())
		}
		want := Progress{ID: r.p.ID, Settings: r.p.Settings, State: test.state, Detail: test.detail, Accepted: 2, Refused: 2, Failed: 3, Sold: 9, Available: -4, Oversold: 4}
		if last != want {
			t.Errorf("%+v, want %+v", last, want)
		}
	}
}

// TestStop_GivesUp stops a run that does not end, for a client that does not wait for it.
func TestStop_GivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := New(t.Context(), Options{})
		r.last = newRun(r.ctx, Options{}, r.notify, assembly.Spec{}, Defaults())
		ctx, giveUp := context.WithCancel(t.Context())
		giveUp()
		if p, err := r.stop(ctx); err != nil || p.State != Preparing || r.last.ctx.Err() == nil {
			t.Errorf("%+v, %v", p, err)
		}
	})
}

// TestClose checks that Close ends a run soon, in any state, and leaves no goroutine and no file
// behind. A shop that cannot be opened must leave none either.
func TestClose(t *testing.T) {
	for _, state := range []State{Preparing, Running} {
		t.Run(string(state), func(t *testing.T) {
			folder := t.TempDir()
			t.Setenv("TMPDIR", folder)
			before := goleak.IgnoreCurrent()
			b := newBench(t)
			b.start(t, Settings{"lock", MaxClients, MaxUnits})
			b.await(t, string(state), func(p Progress) bool { return p.State == state })
			b.Close() // Close must not mark an ended run as stopped
			if p, _ := b.progress(); p.State != Stopped || p.Oversold != 0 {
				t.Errorf("%+v", p)
			}
			if status, answer := b.call(t, http.MethodPost, b.url, `{}`); status != http.StatusConflict || !strings.Contains(answer, "stopping") {
				t.Errorf("a run after Close: %d %s", status, answer)
			}
			spec, _ := assembly.FindStrategy("lua")
			if _, err := openShop(t.Context(), spec, -1); err == nil {
				t.Error("a shop has less than no units")
			}
			left, err := os.ReadDir(folder)
			if err != nil || len(left) > 0 {
				t.Errorf("left behind: %v %v", left, err)
			}
			b.server.Close()
			goleak.VerifyNone(t, before)
		})
	}
}
