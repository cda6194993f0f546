package console

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// shelf is a ledger with these rows, in memory. It counts the reads.
type shelf struct {
	rows     []ledger.StockRow
	held     map[stock.SKU]int64 // units in orders
	readings atomic.Int32
	recounts [][]stock.SKU
	err      error
	rowErr   error         // error of Row
	takes    time.Duration // duration of a recount
	silent   bool          // reads get no answer until their context ends
}

func (s *shelf) Row(_ context.Context, sku stock.SKU) (ledger.StockRow, error) {
	for _, row := range s.rows {
		if row.SKU == sku {
			return row, errors.Join(s.err, s.rowErr)
		}
	}
	return ledger.StockRow{}, stock.Refuse(sku, stock.ErrUnknownSKU)
}

func (s *shelf) Rows(ctx context.Context, after stock.SKU, limit int) (page []ledger.StockRow, err error) {
	s.readings.Add(1)
	if s.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	for _, row := range s.rows {
		if row.SKU > after && len(page) < limit {
			page = append(page, row)
		}
	}
	return page, s.err
}

func (s *shelf) Recount(ctx context.Context, skus []stock.SKU) (counts []ledger.Count, err error) {
	s.recounts = append(s.recounts, skus)
	select {
	case <-time.After(s.takes): // in a bubble
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for _, row := range s.rows {
		for _, sku := range skus {
			if row.SKU == sku {
				counts = append(counts, ledger.Count{StockRow: row, Held: s.held[sku]})
			}
		}
	}
	return counts, s.err
}

func (s *shelf) Jobs(ctx context.Context) ([]ledger.Job, error) {
	if s.silent {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return []ledger.Job{{Name: "drift", Holder: "host/1/x"}}, s.err
}

// gathered counts the calls of Gather.
type gathered struct {
	prometheus.Gatherer
	calls atomic.Int32
}

func (g *gathered) Gather() ([]*dto.MetricFamily, error) {
	g.calls.Add(1)
	return g.Gatherer.Gather()
}

func testFeed(l Ledger, g prometheus.Gatherer) *feed {
	return newFeed(Config{Ledger: l, Metrics: g, Log: slog.New(slog.DiscardHandler)})
}

func testStream(v view) *stream {
	return newStream(context.Background(), v, http.NewResponseController(httptest.NewRecorder()))
}

// names returns the names of the messages that wait for the stream.
func (s *stream) names() (names []string) {
	for {
		select {
		case m := <-s.messages:
			name, _, _ := strings.Cut(strings.TrimPrefix(string(m), "event: "), "\n")
			names = append(names, name)
		default:
			return names
		}
	}
}

// TestSamplerSleeps checks that nothing is read while there is no stream, and that two streams cost
// as many reads as one.
func TestSamplerSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, g := new(shelf), &gathered{Gatherer: prometheus.NewRegistry()}
		f := testFeed(l, g)
		ctx, stop := context.WithCancel(t.Context())
		go f.run(ctx)
		time.Sleep(time.Minute)
		synctest.Wait()
		if g.calls.Load()+l.readings.Load() != 0 {
			t.Errorf("%d and %d readings without a stream", g.calls.Load(), l.readings.Load())
		}
		one, two := testStream(view{}), testStream(view{})
		f.open(one, "")
		f.open(two, "")
		time.Sleep(10*time.Second + 500*time.Millisecond)
		synctest.Wait()
		if g.calls.Load() != 11 || l.readings.Load() > 12 {
			t.Errorf("%d and %d readings in 10 s with two streams", g.calls.Load(), l.readings.Load())
		}
		for _, s := range []*stream{one, two} {
			if names := strings.Join(s.names(), " "); strings.Count(names, "sample") != 10 || strings.Count(names, "stock") < 10 || strings.Count(names, "jobs") != 3 || !strings.HasPrefix(names, "hello") {
				t.Errorf("a stream got %s", names)
			}
		}
		f.close(one)
		f.close(two)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		calls := g.calls.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := g.calls.Load() - calls; n != 0 {
			t.Errorf("%d readings after the last stream was closed", n)
		}
		late := testStream(view{})
		f.open(late, "")
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		if names := strings.Join(late.names(), " "); names != "hello jobs stock jobs" {
			t.Errorf("after a pause, a stream first got %s", names)
		}
		stop()
		synctest.Wait()
		if late.ctx.Err() == nil || f.open(testStream(view{}), "") {
			t.Error("a stream goes on after the end")
		}
	})
}

// TestStreamsAreBounded checks that the number of open streams is bounded, and that a stream whose
// reader is too slow is ended.
func TestStreamsAreBounded(t *testing.T) {
	t.Parallel()
	f := testFeed(new(shelf), prometheus.NewRegistry())
	var streams []*stream
	for range maxStreams {
		s := testStream(view{})
		streams = append(streams, s)
		if !f.open(s, "") {
			t.Fatal("refused")
		}
	}
	refused := httptest.NewRecorder()
	gone, leave := context.WithCancel(t.Context())
	leave() // so that a stream would end at once
	request := httptest.NewRequestWithContext(gone, http.MethodGet, "/console/stream", nil)
	f.serve(refused, request)
	if h := refused.Header(); refused.Code != http.StatusServiceUnavailable || h.Get("Retry-After") == "" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("one stream too many is answered %d with %v", refused.Code, h)
	}
	for range maxWaiting {
		f.publish("rush", "x")
		for _, s := range streams[1:] {
			<-s.messages
		}
	}
	if slow, other := streams[0].ctx.Err(), streams[1].ctx.Err(); slow == nil || other != nil {
		t.Errorf("ended: the slow stream %v, another %v", slow, other)
	}
	if f.serve(httptest.NewRecorder(), request); len(f.streams) != maxStreams-1 {
		t.Errorf("%d streams are open after the end of two, want %d", len(f.streams), maxStreams-1)
	}
	if !f.open(testStream(view{}), "") {
		t.Error("refused although a stream has ended")
	}
	if streams[0].extend() || !streams[1].extend() {
		t.Error("a stream that has ended gets more time for a message, or another one gets none")
	}
	if len(streams[0].messages) > maxWaiting {
		t.Errorf("%d messages wait", len(streams[0].messages))
	}
}

// slowReader is a connection whose reader takes some time for each message.
type slowReader struct {
	*httptest.ResponseRecorder
	takes    time.Duration
	deadline atomic.Pointer[time.Time]
}

func (r *slowReader) Write(b []byte) (int, error) {
	time.Sleep(r.takes) // in a bubble
	return r.ResponseRecorder.Write(b)
}

func (r *slowReader) SetWriteDeadline(at time.Time) error {
	r.deadline.Store(&at)
	return nil
}

// TestEndOfStream checks that an ending stream gets time to finish its write, and then time to end
// the answer, even if the write took long.
func TestEndOfStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := testFeed(new(shelf), prometheus.NewRegistry())
		r := &slowReader{ResponseRecorder: httptest.NewRecorder(), takes: endTimeout - time.Millisecond}
		served := make(chan struct{})
		go func() {
			defer close(served)
			f.serve(r, httptest.NewRequest(http.MethodGet, "/console/stream", nil))
		}()
		synctest.Wait() // wait until the stream writes
		f.endAll()
		if left := time.Until(*r.deadline.Load()); left != endTimeout {
			t.Errorf("the message under way has %v, want %v", left, endTimeout)
		}
		<-served
		if left := time.Until(*r.deadline.Load()); left != endTimeout {
			t.Errorf("the end of the answer has %v, want %v", left, endTimeout)
		}
		if body := r.Body.String(); !strings.HasPrefix(body, "event: hello") || !strings.HasSuffix(body, "\n\n") {
			t.Errorf("the stream is %q", body)
		}
	})
}

// TestHello checks that a stream that connects again gets only the samples that it lacks. From
// another process it gets all of them.
func TestHello(t *testing.T) {
	t.Parallel()
	f := testFeed(new(shelf), prometheus.NewRegistry())
	for range maxHistory + 10 {
		f.showFigures()
	}
	count := func(hello []byte) int { return strings.Count(string(hello), `"t":`) }
	if n := count(f.hello("")); n != maxHistory {
		t.Errorf("a new stream gets %d samples, want %d", n, maxHistory)
	}
	id := f.id()
	f.showFigures()
	f.showFigures()
	if hello := f.hello(id); count(hello) != 2 || !strings.Contains(string(hello), `"resumed":true`) {
		t.Errorf("a stream that lacks two samples gets %d", count(hello))
	}
	if hello := f.hello("0" + id); count(hello) != maxHistory || !strings.Contains(string(hello), `"resumed":false`) {
		t.Errorf("a stream of another process gets %d samples", count(hello))
	}
}

// TestStockPage checks the rows of a view.
func TestStockPage(t *testing.T) {
	t.Parallel()
	l := new(shelf)
	for _, prefix := range []string{"a", "b"} {
		for n := range 60 {
			sku := stock.SKU(prefix + string(rune('0'+n/10)) + string(rune('0'+n%10)))
			l.rows = append(l.rows, ledger.StockRow{SKU: sku, Total: 10, Available: 10})
		}
	}
	for _, test := range []struct {
		view              view
		first, last, next stock.SKU
		n                 int
	}{
		{view{}, "a00", "a49", "a50", 50},
		{view{from: "a50"}, "a50", "b39", "b40", 50},
		{view{from: "b40"}, "b40", "b59", "", 20},
		{view{prefix: "b"}, "b00", "b49", "b50", 50},
		{view{prefix: "b", from: "b50"}, "b50", "b59", "", 10},
		{view{prefix: "a5"}, "a50", "a59", "", 10},
		{view{prefix: "a07"}, "a07", "a07", "", 1},
		{view{prefix: "c"}, "", "", "", 0},
	} {
		page := newStockReader(l, nil).read(t.Context(), test.view, slog.New(slog.DiscardHandler))
		var first, last stock.SKU
		if n := len(page.Rows); n > 0 {
			first, last = page.Rows[0].SKU, page.Rows[n-1].SKU
		}
		if len(page.Rows) != test.n || first != test.first || last != test.last || page.Next != test.next || page.Failed {
			t.Errorf("%+v: %d rows, %s to %s, next %s", test.view, len(page.Rows), first, last, page.Next)
		}
	}
	l.rowErr = errors.New("unreachable")
	if page := newStockReader(l, nil).read(t.Context(), view{from: "a50"}, slog.New(slog.DiscardHandler)); !page.Failed {
		t.Error("the page does not say that its first row is missing")
	}
	l.err = errors.New("unreachable")
	if page := newStockReader(l, nil).read(t.Context(), view{}, slog.New(slog.DiscardHandler)); !page.Failed {
		t.Error("the page does not say that the ledger is unreachable")
	}
	f := testFeed(l, prometheus.NewRegistry())
	if f.showJobs(t.Context()); f.jobs != nil {
		t.Errorf("jobs that could not be read are shown: %s", f.jobs)
	}
}

// TestSilentLedger reads the stock from a ledger that does not answer. The page must show the
// failure within bounded time, but not if the service stops.
func TestSilentLedger(t *testing.T) {
	t.Parallel()
	for _, stopped := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var log testenv.Buffer
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if stopped {
				stop()
			}
			r := newStockReader(&shelf{silent: true}, nil)
			page := r.read(ctx, view{}, slog.New(slog.NewTextHandler(&log, nil)))
			if page.Failed == stopped || (log.String() == "") != stopped {
				t.Errorf("the service stops: %t, the page has failed: %t, the log has %q", stopped, page.Failed, log.String())
			}
			if _, err := r.jobs(ctx); err == nil {
				t.Error("the jobs were read")
			}
		})
	}
}

// levels is a gate that answers with these counts.
type levels struct {
	counts []stock.Level
	err    error
}

func (l levels) Levels(context.Context, []ledger.StockRow) ([]stock.Level, error) {
	return l.counts, l.err
}

// TestLevels checks that a page shows only counts of the gate that could be read, and says if some
// could not.
func TestLevels(t *testing.T) {
	t.Parallel()
	l := &shelf{held: map[stock.SKU]int64{"failed": 5, "filled": 3, "missing": 5}} // two rows have lost updates
	for _, sku := range []stock.SKU{"failed", "filled", "missing"} {
		l.rows = append(l.rows, ledger.StockRow{SKU: sku, Total: 10, Available: 7})
	}
	unreadable := errors.New("unreadable")
	gate := levels{[]stock.Level{{Err: unreadable, Filled: true, Available: 1}, {Filled: true, Available: 5, InFlight: 1}, {}}, unreadable}
	page := newStockReader(l, gate).read(t.Context(), view{}, slog.New(slog.DiscardHandler))
	if !page.Failed || len(page.Rows) != 3 {
		t.Fatalf("%+v", page)
	}
	for i, row := range page.Rows {
		if i != 1 {
			if row.Gate != nil || row.InFlight != nil || row.Drift != 0 {
				t.Errorf("%s: the gate has %v and %v, and the drift is %d; want none", row.SKU, row.Gate, row.InFlight, row.Drift)
			}
		} else if row.Gate == nil || *row.Gate != 5 || row.InFlight == nil || *row.InFlight != 1 || row.Drift != -1 {
			t.Errorf("%+v", row)
		}
	}
}

// TestRecount checks that lost updates of a stock row show as oversold, and that recounts
// take a hundredth of the time.
func TestRecount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &shelf{takes: 20 * time.Millisecond, held: map[stock.SKU]int64{"lost": 12, "sold": 4}, rows: []ledger.StockRow{
			{SKU: "below", Total: 10, Available: -2},
			{SKU: "large", Total: maxRecounted + 1, Available: 5},
			{SKU: "lost", Total: 10, Available: 3},
			{SKU: "sold", Total: 10, Available: 6},
		}}
		l.held["below"] = 12
		r := newStockReader(l, nil)
		page := r.read(t.Context(), view{}, slog.New(slog.DiscardHandler))
		for i, want := range []stockRow{
			{SKU: "below", Sold: 12, Oversold: 2, Recounted: true},
			{SKU: "large", Sold: maxRecounted - 4},
			{SKU: "lost", Sold: 12, Oversold: 2, Drift: 5, Recounted: true},
			{SKU: "sold", Sold: 4, Recounted: true},
		} {
			got := page.Rows[i]
			got.Total, got.Ledger = 0, 0
			if got != want {
				t.Errorf("%+v, want %+v", got, want)
			}
		}
		for range 10 {
			time.Sleep(time.Second)
			r.read(t.Context(), view{}, slog.New(slog.DiscardHandler))
		}
		if n := len(l.recounts); n != 1+5 {
			t.Errorf("%d recounts of 20 ms in 10 s, want 6", n)
		}
		time.Sleep(time.Minute) // until the next recount may begin
		l.takes = time.Hour
		asked := time.Now()
		page = r.read(t.Context(), view{}, slog.New(slog.DiscardHandler))
		if took := time.Since(asked); page.Failed || took != recountTimeout {
			t.Errorf("with an endless recount, the page has failed: %t, and took %v", page.Failed, took)
		}
	})
}

// TestRecountsInTurn checks the order in which SKUs are recounted: first those that have changed,
// and among these the one that was recounted longest ago. What is remembered of them is bounded.
func TestRecountsInTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := new(shelf)
		for _, sku := range []stock.SKU{"a", "b", "c", "d", "e", "f"} {
			l.rows = append(l.rows, ledger.StockRow{SKU: sku, Total: 10, Available: 10})
		}
		f := testFeed(l, prometheus.NewRegistry())
		for _, round := range []struct{ changed, recounted string }{
			{"", "abcd"}, {"abcd", "efab"}, {"", "cdab"}, {"", "efab"}, {"f", "fcda"},
		} {
			for i := range l.rows {
				if strings.Contains(round.changed, string(l.rows[i].SKU)) {
					l.rows[i].Available--
				}
			}
			l.recounts = nil
			f.showStock(t.Context(), []view{{}})
			var recounted string
			for _, sku := range slices.Concat(l.recounts...) {
				recounted += string(sku)
			}
			if recounted != round.recounted {
				t.Errorf("after a change of %q, %q were recounted, want %q", round.changed, recounted, round.recounted)
			}
			time.Sleep(time.Second)
		}
		for i := range 2 * maxRows {
			f.stock.recounts[stock.SKU(strconv.Itoa(i))] = recount{}
		}
		if f.showStock(t.Context(), nil); len(f.stock.recounts) != 0 {
			t.Errorf("%d recounts are remembered", len(f.stock.recounts))
		}
	})
}

// TestFigures checks which metric each figure shows. A metric that cannot be read must not hide the
// others.
func TestFigures(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	requests := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: requestMetric, Buckets: []float64{1, 2}}, []string{"route"})
	registry.MustRegister(requests)
	for i, name := range []string{retriesMetric, refillsMetric, guardMetric, recoveriesMetric} {
		c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name}, []string{"reason"})
		c.WithLabelValues("one").Add(float64(1 + i))
		c.WithLabelValues("two").Add(10)
		registry.MustRegister(c)
	}
	for i, name := range []string{waitingMetric, journalMetric} {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: name})
		g.Set(float64(15 + i))
		registry.MustRegister(g)
	}
	var log testenv.Buffer
	f := newFeed(Config{Ledger: new(shelf), Log: slog.New(slog.NewTextHandler(&log, nil)), Metrics: prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, _ := registry.Gather()
		return families, errors.New("unreadable")
	})})
	f.showFigures()
	requests.WithLabelValues(ordersRoute).Observe(0.5)
	for range 100 {
		requests.WithLabelValues("GET /orders").Observe(1.5)
	}
	f.showFigures()
	if len(f.history) != 1 || !strings.Contains(log.String(), "error=unreadable") {
		t.Fatalf("%d samples, and the log has %q", len(f.history), log.String())
	}
	var got figures
	if err := json.Unmarshal(f.history[0].data, &got); err != nil {
		t.Fatal(err)
	}
	if counts := []float64{got.Retries, got.Refills, got.Guard, got.Recoveries, got.Waiting, got.Journal}; !slices.Equal(counts, []float64{11, 12, 13, 14, 15, 16}) {
		t.Errorf("the counts are %v", counts)
	}
	if got.Answer == nil || got.Answer.P99 > 1000 {
		t.Errorf("the answers to orders took %+v, want less than a second", got.Answer)
	}
}

// TestQuantile compares estimates with the observations.
func TestQuantile(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: ledgerMetric, Buckets: []float64{0.001, 0.002, 0.004, 0.008}})
	registry.MustRegister(h)
	r := newFigureReader(registry)
	start := time.Now()
	h.Observe(5) // observed before the first sample, so the value must not count
	if f, err := r.read(start); f != nil || err != nil {
		t.Fatal("a sample without an earlier one", err)
	}
	for range 90 {
		h.Observe(0.0015)
	}
	for range 10 {
		h.Observe(0.003)
	}
	f, err := r.read(start.Add(2 * time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if p := f.Ledger; p == nil || p.P50 < 1 || p.P50 > 2 || p.P99 < 2 || p.P99 > 4 {
		t.Errorf("%+v", p)
	}
	if f.Gate != nil || f.Group != nil {
		t.Errorf("percentiles of nothing: %+v, %v", f.Gate, f.Group)
	}
	h.Observe(100)
	if f, _ := r.read(start.Add(3 * time.Second)); f.Ledger.P99 != 8 {
		t.Errorf("above all bounds: %+v", f.Ledger)
	}
}
