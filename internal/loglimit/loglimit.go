// Package loglimit limits repeated warnings in a log.
//
// While a store is unavailable, every refused request and every failed sweep
// logs a warning with the same cause. The Handler of this package writes the
// first warning of a kind and counts those that follow. It writes one summary
// every few seconds, and one line when the outage has ended:
//
//	WARN refusing requests as busy  error="taking: dial tcp …: connection refused"
//	WARN refusing requests as busy  error="…" count=1432 since=2026-11-21T19:40:18Z
//	INFO over: refusing requests as busy  count=4290 since=2026-11-21T19:40:18Z seconds=12.3
package loglimit

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// summaryInterval is the time between two summaries. An outage has ended when
// no record of its kind arrived during one interval.
const summaryInterval = 10 * time.Second

// NewHandler returns a handler that writes to h and counts repeated warnings.
//
// A record is counted if its level is slog.LevelWarn and it has an attribute
// "error". Two records are of one kind if they have the same message, so a
// message must be constant. All other records, errors among them, pass through
// to h unchanged.
//
// Handlers derived from one another count together. Close ends the counting.
func NewHandler(h slog.Handler) *Handler {
	return &Handler{Handler: h, tracker: &tracker{interval: summaryInterval, open: make(map[string]*outage)}}
}

// Handler is a slog.Handler. It is safe for concurrent use.
type Handler struct {
	slog.Handler
	tracker *tracker
}

// tracker holds the current outages. Handlers derived from one another share it.
type tracker struct {
	interval time.Duration

	mu     sync.Mutex
	open   map[string]*outage // open outages by message
	closed bool
}

// outage is one kind of failure that has not ended.
type outage struct {
	to         slog.Handler // writes the summaries
	since      time.Time    // time of the first record
	last       slog.Record
	total      int
	unreported int // records since the last summary
	summary    *time.Timer
}

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn && hasError(r) && h.tracker.count(h.Handler, r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{Handler: h.Handler.WithAttrs(attrs), tracker: h.tracker}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{Handler: h.Handler.WithGroup(name), tracker: h.tracker}
}

// Close writes the last summaries. After Close the handler writes every record
// and counts none.
func (h *Handler) Close() {
	t := h.tracker
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for message, o := range t.open {
		o.summarize()
		delete(t.open, message)
	}
}

func hasError(r slog.Record) (found bool) {
	r.Attrs(func(a slog.Attr) bool {
		found = a.Key == "error"
		return !found
	})
	return found
}

// count counts r and returns true if an outage of its kind is open. Otherwise it
// opens one, unless the handler is closed, and returns false: r must be written.
func (t *tracker) count(to slog.Handler, r slog.Record) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if o := t.open[r.Message]; o != nil {
		o.last = r.Clone()
		o.total++
		o.unreported++
		return true
	}
	if !t.closed {
		o := &outage{to: to, since: r.Time, last: r.Clone(), total: 1}
		o.summary = time.AfterFunc(t.interval, func() { t.report(r.Message, o) })
		t.open[r.Message] = o
	}
	return false
}

// report writes a summary of the outage, or ends it if no record has arrived
// since the last one.
func (t *tracker) report(message string, o *outage) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.open[message] != o: // Close has ended the outage already
	case o.unreported == 0:
		t.end(message, o)
	default:
		o.summarize()
		o.summary.Reset(t.interval)
	}
}

// summarize writes the last record with the number of records since the last
// summary. It writes nothing if there are none.
func (o *outage) summarize() {
	if o.unreported == 0 {
		return
	}
	line := o.last.Clone()
	line.AddAttrs(slog.Int("count", o.unreported), slog.Time("since", o.since))
	_ = o.to.Handle(context.Background(), line)
	o.unreported = 0
}

// end removes the outage. It writes that the outage is over if it had more than
// one record. The caller holds mu.
func (t *tracker) end(message string, o *outage) {
	delete(t.open, message)
	ctx := context.Background()
	if o.total == 1 || !o.to.Enabled(ctx, slog.LevelInfo) {
		return
	}
	line := slog.NewRecord(time.Now(), slog.LevelInfo, "over: "+message, 0)
	line.AddAttrs(slog.Int("count", o.total), slog.Time("since", o.since),
		slog.Float64("seconds", o.last.Time.Sub(o.since).Seconds()))
	_ = o.to.Handle(ctx, line)
}
