package console

import (
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
	shown    bool        // the view was sent once; guarded by feed.mu
	messages chan []byte // at most maxWaiting
	done     chan struct{}

	conn  *http.ResponseController
	mu    sync.Mutex // guards ended, and the write deadline
	ended bool
}

func newStream(v view, conn *http.ResponseController) *stream {
	return &stream{view: v, messages: make(chan []byte, maxWaiting), done: make(chan struct{}), conn: conn}
}

// end ends the stream. A write under way has endTimeout.
func (s *stream) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	s.ended = true
	close(s.done)
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
	if !s.ended {
		_ = s.conn.SetWriteDeadline(time.Now().Add(flushTimeout)) // see limitEnd
	}
	return !s.ended
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
	s := newStream(v, http.NewResponseController(w))
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
		case <-r.Context().Done():
			return
		case <-s.done:
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
