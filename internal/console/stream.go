package console

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// flushTimeout bounds the time that a reader may take for one message. It replaces the
// timeouts of the server, which are for a whole answer.
const flushTimeout = 5 * time.Second

// endTimeout bounds the time that a reader may take for the message under way when the
// stream ends, and then for the end of the answer.
const endTimeout = 2 * time.Second

// stream is one reader of the feed.
type stream struct {
	view     view
	shown    bool            // the view was sent once; guarded by feed.mu
	messages chan []byte     // at most maxWaiting
	ctx      context.Context // ends with the stream, or with its request
	cancel   context.CancelFunc

	conn *http.ResponseController
	mu   sync.Mutex // guards the write deadline, which is not extended after the end
}

func newStream(ctx context.Context, v view, conn *http.ResponseController) *stream {
	s := &stream{view: v, messages: make(chan []byte, maxWaiting), conn: conn}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

// end ends the stream. A write under way has endTimeout.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancel()
	s.limitEnd()
}

// limitEnd sets a write deadline of endTimeout.
func (s *stream) limitEnd() {
	_ = s.conn.SetWriteDeadline(time.Now().Add(endTimeout)) // if the connection has no deadlines, it ends with its client
}

// extend gives the reader time for one message. It reports false if the stream has
// ended.
func (s *stream) extend() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx.Err() != nil {
		return false
	}
	_ = s.conn.SetWriteDeadline(time.Now().Add(flushTimeout)) // see limitEnd
	return true
}

// serve handles GET /console/stream. The parameters sku and from choose the SKUs: those
// whose names begin with sku, beginning at from.
func (f *feed) serve(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	v := view{prefix: stock.SKU(query.Get("sku")), from: stock.SKU(query.Get("from"))}
	for _, sku := range []stock.SKU{v.prefix, v.from} {
		if sku != "" && !stock.ValidID(string(sku)) {
			WriteProblem(w, http.StatusUnprocessableEntity, "invalid", "Invalid request", "sku and from must be the beginning of a SKU.")
			return
		}
	}
	s := newStream(r.Context(), v, http.NewResponseController(w))
	defer s.cancel()
	if !f.open(s, r.Header.Get("Last-Event-ID")) {
		w.Header().Set("Retry-After", "5")
		WriteProblem(w, http.StatusServiceUnavailable, "busy", "Busy", "Too many consoles are open, or the service is stopping.")
		return
	}
	defer f.close(s)
	defer s.limitEnd() // set the deadline again: on a busy machine, end may have been called long before
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // nginx must not hold messages back
	h.Set("X-Content-Type-Options", "nosniff")
	for {
		select {
		case <-s.ctx.Done():
			return
		case message := <-s.messages:
			if !s.extend() {
				return
			}
			if _, err := w.Write(message); err != nil {
				return
			}
			if err := s.conn.Flush(); err != nil {
				return
			}
		}
	}
}
