package httpapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

func TestChecksComeInOrder(t *testing.T) {
	// The first request fails every check. Each later request passes one more check.
	requests := []struct {
		call
		want problem
	}{
		{call{"PUT", "/nowhere", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Content-Type": {"text/plain"}, "Idempotency-Key": {""}}, strings.Repeat("x", 70_000)}, notFound},
		{call{"PUT", "/orders", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Content-Type": {"text/plain"}, "Idempotency-Key": {""}}, strings.Repeat("x", 70_000)}, methodNotAllowed},
		{call{"POST", "/orders", http.Header{"Sec-Fetch-Site": {"cross-site"}, "Content-Type": {"text/plain"}, "Idempotency-Key": {""}}, strings.Repeat("x", 70_000)}, crossOrigin},
		{call{"PUT", "/stock/1", http.Header{"Via": {"1.1 x"}, "Content-Type": {"text/plain"}}, strings.Repeat("x", 70_000)}, unauthorized},
		{call{"POST", "/payments/-/refunded", http.Header{"Via": {"1.1 x"}, "Content-Type": {"text/plain"}}, strings.Repeat("x", 70_000)}, unauthorized},
		{call{"POST", "/payments/-/refunded", http.Header{"Content-Type": {"text/plain"}}, strings.Repeat("x", 70_000)}, notJSON},
		{call{"POST", "/payments/-/refunded", nil, strings.Repeat("x", 70_000)}, tooLarge},
		{call{"POST", "/payments/-/refunded", nil, `{"x":1} x`}, malformed},
		{call{"POST", "/payments/-/refunded", nil, `{"x":1}`}, invalid},
		{call{"POST", "/payments/-/refunded", nil, `{}`}, unknownPayment},
		{call{"POST", "/orders", http.Header{"Content-Type": {"text/plain"}, "Idempotency-Key": {""}}, strings.Repeat("x", 70_000)}, notJSON},
		{call{"POST", "/orders", http.Header{"Idempotency-Key": {""}}, strings.Repeat("x", 70_000)}, malformed},
		{call{"POST", "/orders", nil, strings.Repeat("x", 70_000)}, tooLarge},
		{call{"POST", "/orders", nil, `{"buyer_id":1} x`}, malformed},
		{call{"POST", "/orders", nil, `{"buyer_id":1}`}, invalid},
		{call{"POST", "/orders", nil, oneLine}, soldOut},
	}
	h := newAPI(t, &fakeOrders{err: stock.Refuse("10001", stock.ErrSoldOut)})
	for _, r := range requests {
		if body := do(h, r.call).Body.String(); !strings.Contains(body, `"/problems/`+string(r.want)+`"`) {
			t.Errorf("want %s, got %s", r.want, body)
		}
	}
}

func TestRequestID(t *testing.T) {
	log := new(logBuffer)
	h := newAPI(t, new(fakeOrders), loggingTo(log, slog.LevelDebug))
	ask := func(ids ...string) string {
		return do(h, call{method: "GET", path: "/healthz", header: http.Header{"X-Request-Id": ids}}).Header().Get("X-Request-ID")
	}
	for _, own := range []string{"a", "7f3a-91:/?=", strings.Repeat("~", 128)} {
		if got := ask(own); got != own {
			t.Errorf("X-Request-ID %q was answered with %q", own, got)
		}
		if len(log.lines("request_id="+own)) == 0 && !strings.Contains(own, "=") {
			t.Errorf("%q is not in the log: %s", own, log)
		}
	}
	seen := make(map[string]bool)
	for _, ids := range [][]string{nil, {""}, {"a b"}, {"é"}, {"a\tb"}, {strings.Repeat("a", 129)}, {"a", "b"}} {
		got := ask(ids...)
		if len(got) != 32 || seen[got] {
			t.Errorf("for %q the ID is %q", ids, got)
		}
		seen[got] = true
	}
}

func TestLogHandler(t *testing.T) {
	log := new(logBuffer)
	text := slog.NewTextHandler(log, nil)
	l := slog.New(LogHandler(LogHandler(text))).With("part", "x").WithGroup("group")
	ctx := &identified{context.Background(), "req-9"}
	l.InfoContext(ctx, "inside")
	l.InfoContext(context.WithoutCancel(ctx), "detached")
	l.Info("outside")
	for _, word := range []string{"inside", "detached"} {
		if line := log.lines(word); len(line) != 1 || strings.Count(line[0], "request_id=req-9") != 1 || !strings.Contains(line[0], "part=x") {
			t.Errorf("%s: %q", word, line)
		}
	}
	if line := log.lines("outside"); len(line) != 1 || strings.Contains(line[0], "request_id") {
		t.Errorf("outside: %q", line)
	}
	// Another handler may have a copy of the record, which shares its attributes.
	record := slog.NewRecord(time.Time{}, slog.LevelInfo, "copied", 0)
	for _, name := range strings.Split("abcdefgh", "") {
		record.AddAttrs(slog.Bool(name, true))
	}
	for range 2 {
		if err := LogHandler(text).Handle(ctx, record); err != nil {
			t.Error(err)
		}
	}
	if line := log.lines("copied"); len(line) != 2 || line[0] != line[1] {
		t.Errorf("a record that was handled twice: %q", line)
	}
	if got := RequestID(context.Background()); got != "" {
		t.Errorf("a context without a request has the ID %q", got)
	}
}

func TestLogLevels(t *testing.T) {
	for _, tt := range []struct {
		name  string
		err   error
		wants []string // texts that each line must contain
	}{
		{"accepted", nil, []string{"level=DEBUG msg=request"}},
		{"refused", stock.Refuse("10001", stock.ErrSoldOut), []string{"level=DEBUG msg=request"}},
		{"busy", fmt.Errorf("%w: the queue is full", stock.ErrBusy), []string{`level=WARN msg="refusing requests as busy"`, "level=DEBUG msg=request"}},
		{"superseded", fmt.Errorf("%w: the queue is full", stock.ErrSuperseded), []string{`level=WARN msg="refusing requests as superseded"`, "level=DEBUG msg=request"}},
		{"unknown", errors.New("the queue is full"), []string{"level=ERROR msg=request"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log := new(logBuffer)
			do(newAPI(t, &fakeOrders{err: tt.err}, loggingTo(log, slog.LevelDebug)), call{method: "POST", path: "/orders", body: oneLine})
			found := log.lines("")
			if len(found) != len(tt.wants) {
				t.Fatalf("%d lines:\n%s", len(found), log)
			}
			for n, line := range found {
				if !strings.Contains(line, tt.wants[n]) || !strings.Contains(line, "request_id=req-1") {
					t.Errorf("line %d is %s, want %s", n, line, tt.wants[n])
				}
				if tt.name == "refused" && strings.Contains(line, "error=") {
					t.Errorf("a refusal is logged as a failure: %s", line)
				}
				if !strings.Contains(line, "DEBUG") && !strings.Contains(line, "the queue is full") {
					t.Errorf("the line has no cause: %s", line)
				}
				if strings.Contains(line, "msg=request") && !regexp.MustCompile(` seconds=[0-9.e-]+ `).MatchString(line) {
					t.Errorf("the line has no seconds: %s", line)
				}
			}
		})
	}
	t.Run("an answer to a client that is gone is no error", func(t *testing.T) {
		log := new(logBuffer)
		c := testConfig(&fakeOrders{page: manyStock(100)})
		loggingTo(log, slog.LevelDebug)(&c)
		New(c).ServeHTTP(gone{httptest.NewRecorder()}, call{method: "GET", path: "/stock"}.request())
		if found := log.lines("level=DEBUG msg=request"); len(found) != 1 || !strings.Contains(found[0], net.ErrClosed.Error()) {
			t.Error(log)
		}
	})
	t.Run("the cause of not being ready", func(t *testing.T) {
		for _, err := range []error{errors.New("a store is unreachable"), fmt.Errorf("%w: a store is unreachable", stock.ErrSuperseded)} {
			log := new(logBuffer)
			do(newAPI(t, &fakeOrders{err: err}, loggingTo(log, slog.LevelInfo)), call{method: "GET", path: "/readyz"})
			if found := log.lines(`level=WARN msg="not ready"`); len(found) != 1 || !strings.Contains(found[0], "a store is unreachable") || !strings.Contains(found[0], "request_id=req-1") {
				t.Errorf("%v: %s", err, log)
			}
		}
	})
	t.Run("readyz while draining is not logged", func(t *testing.T) {
		log := new(logBuffer)
		h := newAPI(t, new(fakeOrders), loggingTo(log, slog.LevelInfo), func(c *Config) { c.Draining = func() bool { return true } })
		do(h, call{method: "GET", path: "/readyz"})
		if log.String() != "" {
			t.Error(log)
		}
	})
}

// gone is the http.ResponseWriter of a disconnected client.
type gone struct{ http.ResponseWriter }

func (gone) Write([]byte) (int, error) { return 0, net.ErrClosed }

func TestLogKeepsSecrets(t *testing.T) {
	log := new(logBuffer)
	secrets := http.Header{"Authorization": {"Bearer t0ken"}, "Idempotency-Key": {"k3y"}, "Cookie": {"c00kie"}}
	body := `{"buyer_id":"bu7er","lines":[{"sku":"10001","quantity":1}],"x":"b0dy"}`
	for _, err := range []error{nil, stock.ErrBusy, errors.New("cause")} {
		orders := &fakeOrders{err: err}
		h := newAPI(t, orders, loggingTo(log, slog.LevelDebug), func(c *Config) { c.AdminToken = "s3cret" })
		do(h, call{"POST", "/orders?q=qu3ry", secrets, body})
		do(h, call{"POST", "/orders?q=qu3ry", secrets, strings.Replace(body, `,"x":"b0dy"`, "", 1)})
		do(h, call{"PUT", "/stock/10001", secrets, `{"kind":"b0dy"}`})
		do(h, call{"PUT", "/stock/10001", http.Header{"Authorization": {"Bearer s3cret"}}, `{"kind":"b0dy"}`})
		orders.place = func(context.Context, order.Request) (order.Order, bool, error) { panic("at the disco") }
		do(h, call{"POST", "/orders?q=qu3ry", secrets, strings.Replace(body, `,"x":"b0dy"`, "", 1)})
	}
	if len(log.lines("level")) < 9 {
		t.Errorf("fewer than 9 lines were logged:\n%s", log)
	}
	for _, secret := range []string{"t0ken", "k3y", "c00kie", "bu7er", "b0dy", "qu3ry", "s3cret"} {
		if found := log.lines(secret); len(found) > 0 {
			t.Errorf("the log contains %s: %s", secret, found[0])
		}
	}
}

func TestPanic(t *testing.T) {
	log := new(logBuffer)
	orders := new(fakeOrders)
	orders.place = func(_ context.Context, r order.Request) (order.Order, bool, error) {
		if r.Buyer == "u-1" {
			panic(errors.New("password=hunter2"))
		}
		return order.Order{ID: testID, Buyer: r.Buyer, Status: order.Pending, Lines: r.Lines, Strategy: "lua", CreatedAt: testTime}, false, nil
	}
	h := newAPI(t, orders, loggingTo(log, slog.LevelInfo))
	rec := do(h, call{method: "POST", path: "/orders", body: oneLine})
	if rec.Code != 500 {
		t.Errorf("status %d", rec.Code)
	}
	checkProblem(t, rec, internal, nil)
	found := log.lines("panicked")
	if len(found) != 1 || !strings.Contains(found[0], "hunter2") || !strings.Contains(found[0], "TestPanic") || !strings.Contains(found[0], "request_id=req-1") {
		t.Errorf("the log says %q", found)
	}
	if rec := do(h, call{method: "POST", path: "/orders", body: strings.Replace(oneLine, "u-1", "u-2", 1)}); rec.Code != 201 {
		t.Errorf("after the panic the answer is %d", rec.Code)
	}
}

func TestPanicTooLate(t *testing.T) {
	c := testConfig(new(fakeOrders))
	half := strings.Repeat("half an answer\n", 1000)
	c.Metrics = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "identity")
		if half != "" {
			_, _ = io.WriteString(w, half)
		}
		panic("bug")
	})
	h := New(c)
	s := httptest.NewServer(h)
	defer s.Close()
	r, err := http.Get(s.URL + "/metrics")
	if err == nil {
		_, err = io.ReadAll(r.Body)
		_ = r.Body.Close()
	}
	if err == nil {
		t.Error("a truncated answer looks complete")
	}
	half = "" // an answer that has not begun is replaced, with its headers
	rec := serveRequest(h, httptest.NewRequest("GET", "/metrics", nil))
	checkProblem(t, rec, internal, nil)
	if rec.Header().Get("Content-Encoding") != "" {
		t.Errorf("the headers are %v", rec.Header())
	}
}

func TestDisconnect(t *testing.T) {
	t.Run("PlaceContinues", func(t *testing.T) {
		ctx, disconnect := context.WithCancel(context.Background())
		orders := new(fakeOrders)
		var during error
		orders.place = func(ctx context.Context, r order.Request) (order.Order, bool, error) {
			disconnect()
			during = ctx.Err()
			return order.Order{}, false, stock.ErrBusy
		}
		log := new(logBuffer)
		h := newAPI(t, orders, loggingTo(log, slog.LevelInfo))
		r := call{method: "POST", path: "/orders", body: oneLine}.request().WithContext(ctx)
		h.ServeHTTP(httptest.NewRecorder(), r)
		if during != nil {
			t.Errorf("the context of the order ended: %v", during)
		}
		if log.String() != "" {
			t.Errorf("the disconnect was logged: %s", log)
		}
	})
	t.Run("ABugIsLogged", func(t *testing.T) {
		ctx, disconnect := context.WithCancel(context.Background())
		disconnect()
		log := new(logBuffer)
		h := newAPI(t, &fakeOrders{err: errors.New("a bug")}, loggingTo(log, slog.LevelInfo))
		h.ServeHTTP(httptest.NewRecorder(), call{method: "POST", path: "/orders", body: oneLine}.request().WithContext(ctx))
		if len(log.lines("a bug")) != 1 {
			t.Errorf("the log says %q", log)
		}
	})
	t.Run("ReadingStops", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			ctx, disconnect := context.WithCancel(context.Background())
			disconnect()
			log := new(logBuffer)
			c := testConfig(&fakeOrders{blocks: true})
			loggingTo(log, slog.LevelInfo)(&c)
			h := judged(t, New(c))
			start := time.Now()
			for _, path := range []string{"/orders/" + testID.String(), "/orders?buyer_id=u-1", "/payments", "/stock", "/stock/1", "/stock/1/audit", "/readyz"} {
				h.ServeHTTP(httptest.NewRecorder(), call{method: "GET", path: path}.request().WithContext(ctx))
			}
			if took := time.Since(start); took != 0 {
				t.Errorf("the requests went on for %v", took)
			}
			if log.String() != "" {
				t.Errorf("the disconnect was logged: %s", log)
			}
		})
	})
}

func TestTimeout(t *testing.T) {
	c := testConfig(&fakeOrders{blocks: true})
	c.RequestTimeout = time.Millisecond
	h := judged(t, New(c))
	for _, r := range []call{
		{method: "POST", path: "/orders", body: oneLine},
		{method: "PUT", path: "/stock/1", body: goodStock},
		{method: "GET", path: "/orders/" + testID.String()},
		{method: "GET", path: "/orders?buyer_id=u-1"},
		{method: "POST", path: "/orders/" + testID.String() + "/pay", body: goodPayment},
		{method: "POST", path: "/orders/" + testID.String() + "/cancel"},
		{method: "POST", path: "/orders/" + testID.String() + "/refund", body: goodRefund},
		{method: "GET", path: "/payments"},
		{method: "POST", path: "/payments/p-1/refunded"},
		{method: "GET", path: "/stock"},
		{method: "GET", path: "/stock/1"},
		{method: "GET", path: "/stock/1/audit"},
		{method: "GET", path: "/readyz"},
	} {
		if rec := do(h, r); rec.Code != 503 {
			t.Errorf("%s %s: %d", r.method, r.path, rec.Code)
		}
	}
}

// TestReadyAnswersInTime checks that /readyz does not wait for RequestTimeout while the stores
// hang.
func TestReadyAnswersInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := testConfig(&fakeOrders{blocks: true})
		c.RequestTimeout = 20 * time.Second
		start := time.Now()
		if rec := do(judged(t, New(c)), call{method: "GET", path: "/readyz"}); rec.Code != 503 {
			t.Errorf("%d", rec.Code)
		}
		if took := time.Since(start); took != readyTimeout {
			t.Errorf("answered after %v", took)
		}
	})
}

// TestConcurrentRequests checks that concurrent requests do not share a buffer.
func TestConcurrentRequests(t *testing.T) {
	h := newAPI(t, new(fakeOrders))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 15 {
				buyer := fmt.Sprintf("b%d-%d", i, j)
				body := fmt.Sprintf(`{"buyer_id":"%s","lines":[{"sku":"%s","quantity":%d}]}`, buyer, buyer, j+1)
				rec := do(h, call{method: "POST", path: "/orders", body: body})
				want := fmt.Sprintf(`"buyer_id":"%s","status":"pending","lines":[{"sku":"%s","quantity":%d}]`, buyer, buyer, j+1)
				if !strings.Contains(rec.Body.String(), want) {
					t.Errorf("want %s in %s", want, rec.Body)
				}
				if rec := do(h, call{method: "POST", path: "/orders", body: `{"` + buyer + `":1}`}); !strings.Contains(rec.Body.String(), `"field":"`+buyer+`"`) {
					t.Errorf("want %s in %s", buyer, rec.Body)
				}
			}
		})
	}
	wg.Wait()
}
