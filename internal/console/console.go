// Package console is the web page of a running service. It serves the files of the page and the
// stream of figures that the page draws.
//
// One sampler serves all streams. It samples once a second, only while there is a stream, and reads
// a bounded number of SKUs. Its cost does not grow with the number of SKUs or orders.
package console

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Service has the facts about the service that the page shows and that do not change while
// the service runs. It must contain no passwords.
type Service struct {
	Version   string    `json:"version"`
	StartedAt time.Time `json:"started_at"`
	Instance  string    `json:"instance"` // as in Job.Holder
	Embedded  bool      `json:"embedded"`
	Strategy  string    `json:"strategy"`
	Gate      string    `json:"gate"` // empty: none
	Cutter    string    `json:"cutter"`
	Sound     bool      `json:"sound"`
	Guard     bool      `json:"guard"` // only with a gate
	Lock      string    `json:"lock"`  // empty: the strategy takes none
	Lease     string    `json:"lease"`
	Fence     bool      `json:"fence"`
	Segments  int       `json:"segments"` // 0: the strategy does not divide stock
	Slots     int       `json:"slots"`    // 0: the strategy has none
	// LedgerStore and GateStore are the URLs of the stores. Empty: embedded. GateStore
	// is also empty without a gate.
	LedgerStore string `json:"ledger_store"`
	GateStore   string `json:"gate_store"`
}

// Ledger is the part of the ledger that the console reads.
type Ledger interface {
	Row(ctx context.Context, sku stock.SKU) (ledger.StockRow, error)
	Rows(ctx context.Context, after stock.SKU, limit int) ([]ledger.StockRow, error)
	Recount(ctx context.Context, skus []stock.SKU) ([]ledger.Count, error)
	Jobs(ctx context.Context) ([]ledger.Job, error)
}

// Gate is what the console reads of the gate.
type Gate interface {
	Levels(ctx context.Context, rows []ledger.StockRow) ([]stock.Level, error)
}

// Config configures a Console. All fields but Gate and Pause must be set.
type Config struct {
	Service Service
	Ledger  Ledger
	Gate    Gate // nil if the strategy has none
	Metrics prometheus.Gatherer
	// Rush serves /console/rush.
	Rush http.Handler
	// Pause is the time between two samples. 0: a second.
	Pause time.Duration
	// Log gets a warning when the stores cannot be read.
	Log *slog.Logger
}

// Console serves the paths below /console/. It is safe for concurrent use.
type Console struct {
	mux  *http.ServeMux
	feed *feed
}

// New returns a Console. Its streams are silent until Run is called. It does not authenticate
// requests: the page and its assets have no secrets, and the caller must restrict all other paths
// to administrators.
func New(c Config) *Console {
	f := newFeed(c)
	mux := http.NewServeMux()
	serveAssets(mux)
	mux.HandleFunc("GET /console/stream", f.serve)
	mux.Handle("/console/rush", c.Rush)
	return &Console{mux: mux, feed: f}
}

// ServeHTTP serves the page and its stream.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) { c.mux.ServeHTTP(w, r) }

// Run samples for the streams until ctx ends. Then all streams end at once, and new
// ones are refused. Call it once.
func (c *Console) Run(ctx context.Context) { c.feed.run(ctx) }

// Publish sends an event to every stream that is open: its name, and data as JSON. The
// page knows the event "rush". Publish does not wait for readers.
func (c *Console) Publish(name string, data any) { c.feed.publish(name, data) }

// FieldError says what is wrong with one field of a request.
type FieldError struct {
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

// WriteProblem answers with a problem document as the API does.
func WriteProblem(w http.ResponseWriter, status int, name, title, detail string, wrong ...FieldError) {
	WriteJSON(w, status, "application/problem+json", struct {
		Type   string       `json:"type"`
		Title  string       `json:"title"`
		Status int          `json:"status"`
		Detail string       `json:"detail"`
		Errors []FieldError `json:"errors,omitempty"`
	}{"/problems/" + name, title, status, detail, wrong})
}

// WriteJSON answers with v, which must not be cached.
func WriteJSON(w http.ResponseWriter, status int, mediaType string, v any) {
	body := encoded(v)
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client may have gone
}
