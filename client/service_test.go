package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/httpapi"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// adminToken is the token of every service of these tests.
const adminToken = "an-administrators-token"

// shop is the whole service on embedded stores, with 10 units of product 10001 and a proxy that can
// break requests and answers.
type shop struct {
	server  *httptest.Server
	service http.Handler
	close   []func()

	mu     sync.Mutex
	faults []fault
	seen   []seen
}

// seen is a request that has arrived at the proxy.
type seen struct{ method, path, key string }

// fault answers one request instead of the service. It may call the service.
type fault func(w http.ResponseWriter, r *http.Request, service http.Handler)

// open starts a shop. If queue is set, it queues orders; Commit then commits them.
func open(queue bool) (*shop, error) {
	ctx := context.Background()
	spec, _ := assembly.FindStrategy(assembly.DefaultStrategy)
	if queue {
		spec = assembly.Queueing()
	}
	instance, err := assembly.Open(ctx, assembly.Parts{Strategy: spec, Guard: true}, assembly.Options{
		TakeDeadline: time.Minute, PaymentWindow: time.Hour,
		Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		return nil, err
	}
	s := &shop{close: []func(){func() { _ = instance.Close() }}}
	if err := instance.Start(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	if queue {
		s.close = append(s.close, instance.RunBeside(ctx))
	}
	if _, _, err := instance.Stock.SetStock(ctx, stock.Setting{SKU: "10001", Kind: stock.Product, Total: 10}); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.service = httpapi.New(httpapi.Config{
		Orders: instance.Orders, Stock: instance.Stock, Ready: instance.Reconciler.Ready,
		Strategies: httpapi.Strategies{Running: spec.Name, Guard: true, All: []httpapi.Strategy{{Name: spec.Name, Gate: &spec.Gate, Cutter: spec.Cutter, Sound: spec.Sound, Detail: spec.Detail, Promise: spec.Promise}}},
		AdminToken: adminToken, Loopback: true, Metrics: http.NotFoundHandler(), Registry: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
		Draining: func() bool { return false }, RequestTimeout: 10 * time.Second,
	})
	s.server = httptest.NewUnstartedServer(s)
	s.server.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.server.Start()
	s.close = append(s.close, s.server.Close)
	return s, nil
}

// Close stops the shop.
func (s *shop) Close() error {
	for _, f := range slices.Backward(s.close) {
		f()
	}
	return nil
}

// ServeHTTP lets the next fault answer. Without a fault, the service answers.
func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, seen{r.Method, r.URL.Path, r.Header.Get("Idempotency-Key")})
	var f fault
	if len(s.faults) > 0 {
		f, s.faults = s.faults[0], s.faults[1:]
	}
	s.mu.Unlock()
	if f == nil {
		s.service.ServeHTTP(w, r)
		return
	}
	f(w, r, s.service)
}

// fail sets the faults of the next requests, and forgets the requests so far.
func (s *shop) fail(faults ...fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.seen = faults, nil
}

// requests returns the requests since fail.
func (s *shop) requests() []seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.seen)
}

// newShop starts a shop for one test.
func newShop(t *testing.T, queue bool) *shop {
	t.Helper()
	s, err := open(queue)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// client returns a client of the shop with the administrator's token.
func (s *shop) client(t *testing.T, options ...client.Option) *client.Client {
	t.Helper()
	return newClient(t, s.server.URL, append([]client.Option{client.WithToken(adminToken)}, options...)...)
}

func newClient(t *testing.T, url string, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.New(url, options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// refused answers with a problem, and does not call the service.
func refused(status int, name, retryAfter string) fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		answerProblem(w, status, name, retryAfter)
	}
}

// says answers 200 instead of the service, like another program at its address.
func says(mediaType, text string) fault {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header().Set("Content-Type", mediaType)
		_, _ = io.WriteString(w, text)
	}
}

// unsure calls the service, and answers that the outcome is unknown.
func unsure(retryAfter string) fault {
	return func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		service.ServeHTTP(httptest.NewRecorder(), r)
		answerProblem(w, 503, "unavailable", retryAfter)
	}
}

func answerProblem(w http.ResponseWriter, status int, name, retryAfter string) {
	w.Header().Set("Content-Type", "application/problem+json")
	if retryAfter != "" {
		w.Header().Set("Retry-After", retryAfter)
	}
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"type":"/problems/%s","title":"A fault","status":%d,"detail":"A fault."}`, name, status)
}

// Requests and answers that are lost.
var (
	// requestLost closes the connection before the service sees the request.
	requestLost fault = func(http.ResponseWriter, *http.Request, http.Handler) { panic(http.ErrAbortHandler) }
	// answerLost closes the connection after the service has done its work.
	answerLost fault = func(_ http.ResponseWriter, r *http.Request, service http.Handler) {
		service.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}
	// answerCut closes the connection in the middle of the answer.
	answerCut fault = func(w http.ResponseWriter, r *http.Request, service http.Handler) {
		rec := httptest.NewRecorder()
		service.ServeHTTP(rec, r)
		for name, values := range rec.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(rec.Code)
		_, _ = w.Write(rec.Body.Bytes()[:rec.Body.Len()/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
	// answerHeld calls the service, even if the client gives up meanwhile, and does not answer.
	answerHeld fault = func(_ http.ResponseWriter, r *http.Request, service http.Handler) {
		service.ServeHTTP(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(r.Context())))
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
)
