package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/console"
	"github.com/holdfast-stock/holdfast/internal/console/rush"
	"github.com/holdfast-stock/holdfast/internal/httpapi"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

const (
	pause = 100 * time.Millisecond // pause between two samples
	// shortTimeout is shorter than a stream, and long enough for an answer of a busy
	// machine.
	shortTimeout = 4 * time.Second
)

// shop is a service with a console, on embedded stores, in this process.
type shop struct {
	t          testing.TB
	instance   *assembly.Instance
	registry   *prometheus.Registry
	console    *console.Console
	handler    http.Handler
	streams    atomic.Int32 // number of requested streams
	loseAnswer atomic.Bool  // the answer to the next order over HTTP is lost
	endStreams func()

	address  string // host:port of the server
	listener net.Listener
	server   *http.Server
	served   chan error
}

// option changes how a shop is opened.
type option func(*settings)

type settings struct {
	strategy string
	token    string
	embedded bool // whether the service reports embedded stores
}

// openShop opens a shop without stock. Its server has short timeouts.
func openShop(t testing.TB, options ...option) *shop {
	t.Helper()
	set := settings{strategy: "lua", embedded: true}
	for _, o := range options {
		o(&set)
	}
	spec, _ := assembly.FindStrategy(set.strategy)
	// This port is not one that the kernel could give to another process before the server is back.
	s := &shop{t: t, registry: prometheus.NewRegistry(), address: fmt.Sprintf("127.0.0.1:%d", testenv.Port(t))}
	s.listen()
	log := slog.New(slog.DiscardHandler)
	var err error
	s.instance, err = assembly.Open(t.Context(), assembly.Parts{Strategy: spec, Segments: 1, Slots: 1}, assembly.Options{
		TakeDeadline: time.Minute, PaymentWindow: time.Hour, Log: log, Metrics: s.registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.instance.Close() })
	if err := s.instance.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	config := console.Config{
		Service: console.Service{
			Version: "test", StartedAt: time.Now(), Instance: s.instance.Reconciler.Holder(), Embedded: set.embedded,
			Strategy: spec.Name, Gate: spec.Gate, Cutter: spec.Cutter, Sound: spec.Sound,
		},
		Ledger: s.instance.Ledger, Metrics: s.registry, Log: log, Pause: pause,
	}
	if spec.HasGate() {
		config.Gate = s.instance.Reconciler
	}
	ctx, stop := context.WithCancel(context.Background())
	runner := rush.New(ctx, rush.Options{Log: log})
	config.Rush = runner
	s.console = console.New(config)
	runner.Notify(func(p rush.Progress) { s.console.Publish("rush", p) })
	var running sync.WaitGroup
	running.Go(func() { s.console.Run(ctx) })
	running.Go(func() { s.instance.Reconciler.Run(ctx) })
	s.endStreams = func() {
		stop()
		running.Wait()
		runner.Close()
	}
	t.Cleanup(s.endStreams)
	api := httpapi.New(httpapi.Config{
		Orders: s.instance.Orders, Stock: s.instance.Stock, Ready: s.instance.Reconciler.Ready,
		AdminToken: set.token, Loopback: set.token == "", Metrics: http.NotFoundHandler(), Registry: s.registry, Console: s.console,
		Log: log, Draining: func() bool { return false }, RequestTimeout: 5 * time.Second,
	})
	s.handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/console/stream" {
			s.streams.Add(1)
		}
		if r.Method == http.MethodPost && r.URL.Path == "/orders" && s.loseAnswer.Swap(false) {
			api.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		api.ServeHTTP(w, r)
	})
	s.serve()
	t.Cleanup(s.close)
	return s
}

func withToken(token string) option { return func(s *settings) { s.token = token } }

func withStores(s *settings) { s.embedded = false }

func withStrategy(name string) option { return func(s *settings) { s.strategy = name } }

// listen listens on the address that the server had before.
func (s *shop) listen() {
	s.t.Helper()
	l, err := net.Listen("tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.listener, s.address = l, l.Addr().String()
}

// serve starts the server. listen must have been called.
func (s *shop) serve() {
	s.server = httpapi.NewServer(s.handler, time.Second, slog.New(slog.DiscardHandler))
	s.server.ReadTimeout, s.server.WriteTimeout = shortTimeout, shortTimeout
	s.served = make(chan error, 1)
	go func() { s.served <- s.server.Serve(s.listener) }()
}

// close stops the server, and breaks its connections.
func (s *shop) close() {
	_ = s.server.Close()
	if err := <-s.served; !errors.Is(err, http.ErrServerClosed) {
		s.t.Error(err)
	}
	s.served <- http.ErrServerClosed // value for the next close
}

func (s *shop) url() string { return "http://" + s.address + "/console/" }

// setStock sets the total of a SKU.
func (s *shop) setStock(sku stock.SKU, total int64) {
	s.t.Helper()
	if _, _, err := s.instance.Stock.SetStock(s.t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: total}); err != nil {
		s.t.Fatal(err)
	}
}

// place places an order of one unit.
func (s *shop) place(sku stock.SKU) (order.Order, error) {
	o, _, err := s.instance.Orders.Place(s.t.Context(), order.Request{Buyer: "u-1", Lines: []stock.Line{{SKU: sku, Quantity: 1}}})
	return o, err
}

// oversell sells more units of a SKU than there are. The shop's strategy must allow that.
func (s *shop) oversell() stock.SKU {
	s.t.Helper()
	const units = 5
	for try := range 50 {
		sku := stock.SKU(fmt.Sprintf("hot-%d", try))
		s.setStock(sku, units)
		var buyers sync.WaitGroup
		var sold atomic.Int32
		for range 32 {
			buyers.Go(func() {
				for range 2 * units {
					if _, err := s.place(sku); err == nil {
						sold.Add(1)
					}
				}
			})
		}
		buyers.Wait()
		if sold.Load() > units {
			return sku
		}
	}
	s.t.Fatal("nothing was oversold in 50 tries")
	return ""
}

// event is one event of a stream.
type event struct {
	name, id, data string
}

// reader reads a stream.
type reader struct {
	t      testing.TB
	body   *bufio.Reader
	status int
	close  func()
}

// open requests a stream.
func (s *shop) open(query string, header http.Header) *reader {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), 2*testenv.Patience)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url()+"stream"+query, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if header != nil {
		r.Header = header
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	stop := func() {
		cancel()
		_ = response.Body.Close()
	}
	s.t.Cleanup(stop)
	return &reader{s.t, bufio.NewReader(response.Body), response.StatusCode, stop}
}

// next returns the next event; ok is false at the end of the stream.
func (r *reader) next() (e event, ok bool) {
	for {
		line, err := r.body.ReadString('\n')
		line = strings.TrimSuffix(line, "\n")
		name, value, _ := strings.Cut(line, ": ")
		switch {
		case err != nil:
			return e, false
		case line == "" && e.name != "":
			return e, true
		case name == "event":
			e.name = value
		case name == "id":
			e.id = value
		case name == "data":
			e.data = value
		}
	}
}

// until returns the first event with the name for which want is true. The test fails if
// the stream ends before.
func (r *reader) until(name string, want func(data map[string]any) bool) event {
	r.t.Helper()
	for {
		e, ok := r.next()
		if !ok {
			r.t.Fatalf("the stream ended before an event %s as wanted", name)
		}
		if e.name != name {
			continue
		}
		var data map[string]any
		if err := json.Unmarshal([]byte(e.data), &data); err != nil {
			r.t.Fatalf("%s: %v", e.data, err)
		}
		if want(data) {
			return e
		}
	}
}

// anything is true for every event.
func anything(map[string]any) bool { return true }

// row returns the row of a SKU in the data of a "stock" event.
func row(data map[string]any, sku stock.SKU) map[string]any {
	for _, r := range data["rows"].([]any) {
		if r := r.(map[string]any); r["sku"] == string(sku) {
			return r
		}
	}
	return nil
}

// TestStream follows an order through the stream, for longer than the server's timeouts.
func TestStream(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	s.setStock("apple", 5)
	r := s.open("", nil)
	hello, _ := r.next()
	if hello.name != "hello" || !strings.Contains(hello.data, `"strategy":"lua"`) {
		t.Errorf("the first event is %+v", hello)
	}
	r.until("stock", func(d map[string]any) bool { return row(d, "apple")["gate"] == 5.0 })
	for range 2 {
		if _, err := s.place("apple"); err != nil {
			t.Fatal(err)
		}
	}
	r.until("stock", func(d map[string]any) bool {
		a := row(d, "apple")
		return a["sold"] == 2.0 && a["ledger"] == 3.0 && a["gate"] == 3.0 && a["in_flight"] == 0.0 && a["drift"] == 0.0 && a["oversold"] == 0.0
	})
	answer, err := http.Post("http://"+s.address+"/orders", "application/json", strings.NewReader(`{"buyer_id":"u-1","lines":[{"sku":"apple","quantity":1}]}`))
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	seen := make(map[string]bool) // an order may be placed between two samples
	r.until("sample", func(d map[string]any) bool {
		for _, name := range []string{"answer", "gate", "ledger", "group"} {
			seen[name] = seen[name] || d[name] != nil
		}
		seen["accepted"] = seen["accepted"] || d["orders"].(map[string]any)["accepted"] != nil
		return seen["answer"] && seen["gate"] && seen["ledger"] && seen["group"] && seen["accepted"]
	})
	for range 3 * shortTimeout / pause / 2 { // longer than the timeout
		r.until("sample", anything)
	}
	last := r.until("sample", anything)
	again := s.open("?sku=ap", http.Header{"Last-Event-Id": {last.id}})
	again.until("hello", func(d map[string]any) bool { return d["resumed"] == true })
	again.until("stock", func(d map[string]any) bool { return d["sku"] == "ap" && row(d, "apple") != nil })
	s.console.Publish("rush", map[string]int{"sold": 1})
	r.until("rush", func(d map[string]any) bool { return d["sold"] == 1.0 })
	if bad := s.open("?sku=%2F", nil); bad.status != http.StatusUnprocessableEntity {
		t.Errorf("a SKU that cannot be: %d", bad.status)
	}
	if foreign := s.open("", http.Header{"Sec-Fetch-Site": {"cross-site"}}); foreign.status != http.StatusForbidden {
		t.Errorf("a page of another origin: %d", foreign.status)
	}
}

// TestShutdown checks that streams end when the service stops, including one whose reader does not
// read.
func TestShutdown(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	silent, err := net.Dial("tcp", s.address)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	fmt.Fprintf(silent, "GET /console/stream HTTP/1.1\r\nHost: %s\r\n\r\n", s.address)
	reading := s.open("", nil)
	for s.streams.Load() < 2 {
		reading.until("sample", anything)
	}
	for range 10 { // more data than the buffers of a connection can hold
		s.console.Publish("large", map[string]string{"text": strings.Repeat("x", 2<<20)})
		reading.until("large", anything) // a stream with too many unread messages would end
	}
	s.server.RegisterOnShutdown(s.endStreams)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	if err := s.server.Shutdown(ctx); err != nil { // TestEndOfStream checks how long the end of a stream takes
		t.Fatal(err)
	}
}

// TestBounded checks that the service refuses streams above the limit, and accepts another one when
// one has ended.
func TestBounded(t *testing.T) {
	t.Parallel()
	s := openShop(t)
	var open []*reader
	for {
		r := s.open("", nil)
		if r.status == http.StatusServiceUnavailable {
			break
		}
		if open = append(open, r); len(open) > 100 {
			t.Fatal("100 streams are open")
		}
	}
	open[0].close()
	for { // wait until the service has noticed the end
		if r := s.open("", nil); r.status == http.StatusOK {
			break
		}
		open[1].until("sample", anything)
	}
}

// cpu returns the CPU time that this process has used.
func cpu(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// BenchmarkFeed measures the cost of a sample with one stream and a page of SKUs. %core is the
// share of a core that the whole process needs for one sample a second: the service, its background
// work and this reader.
func BenchmarkFeed(b *testing.B) {
	s := openShop(b)
	for n := range 60 {
		s.setStock(stock.SKU(fmt.Sprintf("sku-%02d", n)), 1000)
	}
	if _, err := s.place("sku-00"); err != nil {
		b.Fatal(err)
	}
	r := s.open("", nil)
	r.until("sample", anything)
	before := cpu(b)
	samples := 0
	for b.Loop() {
		r.until("sample", anything)
		samples++
	}
	cost := (cpu(b) - before) / time.Duration(samples)
	b.ReportMetric(100*cost.Seconds(), "%core")
}
