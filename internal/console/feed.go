package console

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// samplePause is the pause between two samples.
	samplePause = time.Second
	// maxStreams bounds the streams that are open at the same time.
	maxStreams = 32
	// maxWaiting bounds the messages that wait for one reader. The feed disconnects a reader that
	// is further behind. The page then connects again and gets the current state.
	maxWaiting = 64
	// maxHistory bounds the samples that a new stream gets. They cover three minutes.
	maxHistory = 180
	// jobsEvery is the number of samples between two readings of the jobs.
	jobsEvery = 5
)

// feed samples the service and passes the samples on to the streams. It is safe for
// concurrent use.
type feed struct {
	service []byte // JSON
	stock   *stockReader
	figures *figureReader
	log     *slog.Logger
	pause   time.Duration
	process string // names this run of the process in the IDs of events

	arrived chan struct{} // signals the sampler that a stream was opened

	mu      sync.Mutex
	ended   bool
	streams map[*stream]struct{}
	number  uint64   // number of the latest sample
	history []sample // the latest samples, the oldest first
	jobs    []byte   // the latest message about jobs; nil before the first
}

// sample is one encoded sample of figures.
type sample struct {
	number uint64
	data   []byte // JSON
}

func newFeed(c Config) *feed {
	return &feed{
		service: encoded(c.Service),
		stock:   newStockReader(c.Ledger, c.Gate),
		figures: newFigureReader(c.Metrics),
		log:     c.Log,
		pause:   cmp.Or(c.Pause, samplePause),
		process: uuid.NewString()[:8],
		arrived: make(chan struct{}, 1),
		streams: make(map[*stream]struct{}),
	}
}

// run samples while there are streams, until ctx ends. Then it ends all streams.
func (f *feed) run(ctx context.Context) {
	defer f.endAll()
	for {
		select {
		case <-ctx.Done():
			return
		case <-f.arrived:
			f.watch(ctx)
		}
	}
}

// watch samples until there are no more streams, or ctx ends.
func (f *feed) watch(ctx context.Context) {
	f.figures.before = nil // rates over a time without streams say nothing
	ticker := time.NewTicker(f.pause)
	defer ticker.Stop()
	f.tick(ctx, 0)
	for n := 1; f.watched() && ctx.Err() == nil; {
		select {
		case <-ctx.Done():
		case <-f.arrived:
			f.showStock(ctx, f.viewsOf(func(s *stream) bool { return !s.shown })) // the new streams
		case <-ticker.C:
			f.tick(ctx, n)
			n++
		}
	}
}

// tick takes one sample. n counts the ticks since the first stream was opened.
func (f *feed) tick(ctx context.Context, n int) {
	f.showFigures()
	f.showStock(ctx, f.views())
	if n%jobsEvery == 0 {
		f.showJobs(ctx)
	}
}

// showFigures sends a sample of the figures to all streams.
func (f *feed) showFigures() {
	figures, err := f.figures.read(time.Now())
	if err != nil {
		f.log.Warn("reading the metrics for the console failed", "error", err)
	}
	if figures == nil { // nothing to compare with yet
		return
	}
	data := encoded(figures)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.number++
	f.history = append(f.history, sample{f.number, data})
	if len(f.history) > maxHistory {
		f.history = append(f.history[:0:0], f.history[len(f.history)-maxHistory:]...)
	}
	message := message("sample", f.id(), data)
	for s := range f.streams {
		f.send(s, message)
	}
}

// showStock reads each of the views and sends it to the streams that show it.
func (f *feed) showStock(ctx context.Context, views []view) {
	for _, v := range views {
		page := f.stock.read(ctx, v, f.log)
		message := message("stock", "", encoded(page))
		f.mu.Lock()
		for s := range f.streams {
			if s.view == v {
				s.shown = true
				f.send(s, message)
			}
		}
		f.mu.Unlock()
	}
	f.stock.trim(len(f.views()))
}

// showJobs sends who holds the jobs to all streams.
func (f *feed) showJobs(ctx context.Context) {
	jobs, err := f.stock.jobs(ctx)
	if err != nil {
		return // showStock has sent already that the stores do not answer
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.jobs = message("jobs", "", encoded(jobs))
	for s := range f.streams {
		f.send(s, f.jobs)
	}
}

// publish sends an event of another part of the service to all streams.
func (f *feed) publish(name string, data any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.streams) == 0 {
		return
	}
	message := message(name, "", encoded(data))
	for s := range f.streams {
		f.send(s, message)
	}
}

// send queues a message for a stream. It ends a stream whose reader is too slow. The
// caller holds f.mu.
func (f *feed) send(s *stream, message []byte) {
	select {
	case s.messages <- message:
	default:
		delete(f.streams, s)
		s.end()
	}
}

// open adds a stream, and queues its first message. lastID is the ID of the latest event that the
// reader has. open reports false if there are too many streams, or if the feed has ended.
func (f *feed) open(s *stream, lastID string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended || len(f.streams) >= maxStreams {
		return false
	}
	f.streams[s] = struct{}{}
	f.send(s, f.hello(lastID))
	if f.jobs != nil {
		f.send(s, f.jobs)
	}
	select {
	case f.arrived <- struct{}{}:
	default: // the sampler has not seen the last signal yet
	}
	return true
}

// close removes a stream.
func (f *feed) close(s *stream) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.streams, s)
}

// hello returns the first message of a stream: the service, and the samples that the
// reader lacks. The caller holds f.mu.
func (f *feed) hello(lastID string) []byte {
	after, resumed := f.parseID(lastID)
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"service":%s,"resumed":%t,"pause_ms":%d,"samples":[`, f.service, resumed, f.pause.Milliseconds())
	comma := ""
	for _, s := range f.history {
		if s.number > after {
			b.WriteString(comma)
			b.Write(s.data)
			comma = ","
		}
	}
	b.WriteString("]}")
	return message("hello", f.id(), b.Bytes())
}

// id returns the ID of the latest sample. The caller holds f.mu.
func (f *feed) id() string { return f.process + "-" + strconv.FormatUint(f.number, 10) }

// parseID returns the number of the sample with this ID. ok is false if the ID belongs to another
// run of the process.
func (f *feed) parseID(id string) (number uint64, ok bool) {
	run, n, _ := strings.Cut(id, "-")
	number, err := strconv.ParseUint(n, 10, 64)
	if run != f.process || err != nil {
		return 0, false
	}
	return number, true
}

// watched reports whether there is a stream.
func (f *feed) watched() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.streams) > 0
}

// views returns what the streams show, each view once.
func (f *feed) views() []view { return f.viewsOf(func(*stream) bool { return true }) }

func (f *feed) viewsOf(wanted func(*stream) bool) []view {
	f.mu.Lock()
	defer f.mu.Unlock()
	var views []view
	seen := make(map[view]bool)
	for s := range f.streams {
		if wanted(s) && !seen[s.view] {
			seen[s.view] = true
			views = append(views, s.view)
		}
	}
	return views
}

// endAll ends all streams, and refuses new ones.
func (f *feed) endAll() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ended = true
	for s := range f.streams {
		delete(f.streams, s)
		s.end()
	}
}

// view is the part of the stock that a stream shows.
type view struct {
	prefix stock.SKU // prefix of the names of the SKUs
	from   stock.SKU // first SKU that the stream shows
}

// encoded returns v as JSON.
func encoded(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // a type that cannot be encoded is a mistake in the code
	}
	return data
}

// message returns an event as a stream has it. id may be empty.
func message(name, id string, data []byte) []byte {
	b := make([]byte, 0, len(name)+len(id)+len(data)+24)
	b = append(append(b, "event: "...), name...)
	if id != "" {
		b = append(append(b, "\nid: "...), id...)
	}
	b = append(append(b, "\ndata: "...), data...)
	return append(b, "\n\n"...)
}
