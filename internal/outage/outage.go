// Package outage keeps a log readable while something fails again and again.
//
// While a store is away, each refused request and each failed sweep has the
// same cause. Its Handler writes the first warning of a kind, counts those that
// follow, writes one summary every few seconds, and one line when they have
// ended:
//
//	WARN refusing requests as busy  error="taking: dial tcp …: connection refused"
//	WARN refusing requests as busy  error="…" count=1432 since=2026-11-21T19:40:18Z
//	INFO over: refusing requests as busy  count=4290 since=2026-11-21T19:40:18Z seconds=12.3
package outage

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// every is the time between two summaries, and how long a failure must not
// have been reported to be over.
const every = 10 * time.Second

// NewHandler returns a handler that writes to h and counts repeated warnings.
//
// A record is counted if its level is slog.LevelWarn and it has an attribute
// "error". Two records are of one kind if they have the same message, so a
// message must be constant. All other records, errors among them, pass through
// to h unchanged.
//
// Handlers derived from one another count together. Close ends the counting.
func NewHandler(h slog.Handler) *Handler {
	return &Handler{Handler: h, outages: &outages{every: every, open: make(map[string]*outage)}}
}

// Handler is a slog.Handler. It is safe for concurrent use.
type Handler struct {
	slog.Handler
	outages *outages
}

// outages are those under way, by message.
type outages struct {
	every time.Duration

	mu     sync.Mutex
	open   map[string]*outage
	closed bool
}

// outage is one kind of failure that goes on.
type outage struct {
	to       slog.Handler // writes the summaries
	since    time.Time    // the first record's time
	last     slog.Record  // the latest one
	total    int
	unsaid   int // records since the latest line
	nextLine *time.Timer
}

// Handle implements slog.Handler.
func (h *Handler) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn && hasError(r) && h.outages.count(h.Handler, r) {
		return nil
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{Handler: h.Handler.WithAttrs(attrs), outages: h.outages}
}

// WithGroup implements slog.Handler.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{Handler: h.Handler.WithGroup(name), outages: h.outages}
}

// Close writes the last summaries. Records handled after Close are written as
// they come.
func (h *Handler) Close() {
	o := h.outages
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	for message, of := range o.open {
		of.nextLine.Stop()
		of.summarize()
		delete(o.open, message)
	}
}

func hasError(r slog.Record) (found bool) {
	r.Attrs(func(a slog.Attr) bool {
		found = a.Key == "error"
		return !found
	})
	return found
}

// count reports whether r is of a kind that is under way, and counts it then.
// Otherwise it begins an outage, unless the outages are closed.
func (o *outages) count(to slog.Handler, r slog.Record) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if of := o.open[r.Message]; of != nil {
		of.last = r.Clone()
		of.total++
		of.unsaid++
		return true
	}
	if !o.closed {
		of := &outage{to: to, since: r.Time, last: r.Clone(), total: 1}
		of.nextLine = time.AfterFunc(o.every, func() { o.tick(r.Message, of) })
		o.open[r.Message] = of
	}
	return false
}

// tick writes a summary, or ends an outage of which nothing was heard.
func (o *outages) tick(message string, of *outage) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.open[message] != of: // closed meanwhile
	case of.unsaid == 0:
		o.end(message, of)
	default:
		of.summarize()
		of.nextLine.Reset(o.every)
	}
}

// summarize writes the latest record and the number of those that were not
// written, if there are any.
func (of *outage) summarize() {
	if of.unsaid == 0 {
		return
	}
	line := of.last.Clone()
	line.AddAttrs(slog.Int("count", of.unsaid), slog.Time("since", of.since))
	_ = of.to.Handle(context.Background(), line)
	of.unsaid = 0
}

// end forgets an outage, and says that it is over if it was more than one
// record.
func (o *outages) end(message string, of *outage) {
	delete(o.open, message)
	ctx := context.Background()
	if of.total == 1 || !of.to.Enabled(ctx, slog.LevelInfo) {
		return
	}
	line := slog.NewRecord(time.Now(), slog.LevelInfo, "over: "+message, 0)
	line.AddAttrs(slog.Int("count", of.total), slog.Time("since", of.since),
		slog.Float64("seconds", of.last.Time.Sub(of.since).Seconds()))
	_ = of.to.Handle(ctx, line)
}
