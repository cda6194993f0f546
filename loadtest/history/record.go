package history

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
)

// MaxCalls bounds a history. Calls beyond it are not recorded, and Close reports that.
const MaxCalls = 1_000_000

// Recorder writes the calls of the clients that it observes. It is safe for concurrent use.
type Recorder struct {
	start time.Time

	mu    sync.Mutex
	to    *json.Encoder
	calls int
	err   error // the first error
}

// NewRecorder returns a recorder that writes to w. The history starts now.
func NewRecorder(w io.Writer) *Recorder { return &Recorder{start: time.Now(), to: json.NewEncoder(w)} }

// errFull means that a history is incomplete.
var errFull = errors.New("recording the history: it has too many calls")

// Now returns the time since the start.
func (r *Recorder) Now() int64 { return int64(time.Since(r.start)) }

// Add writes a call.
func (r *Recorder) Add(c Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls == MaxCalls {
		r.err = errFull
		return
	}
	r.calls++
	r.err = r.to.Encode(c) // after a failed write, every later one fails
}

// Err returns why the history is incomplete, or nil.
func (r *Recorder) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Fault records what fail does as a fault.
func (r *Recorder) Fault(what string, fail func()) {
	begin := r.Now()
	fail()
	r.Add(Call{Call: Fault, Begin: begin, End: r.Now(), Outcome: Accepted, What: what})
}

// nameKey is the key of a client's name in a context.
type nameKey struct{}

// As returns a context in which calls are recorded as those of the client with this name.
func As(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, nameKey{}, name)
}

// Observe records the calls of a client, see [load.Client.Observe].
func (r *Recorder) Observe(request *http.Request) (end func(load.Answer)) {
	c, recorded := asked(request)
	if !recorded {
		return func(load.Answer) {}
	}
	c.Begin = r.Now()
	return func(a load.Answer) {
		c.End = r.Now()
		c.answered(a)
		r.Add(c)
	}
}

// asked returns the call that the request makes. ok is false if histories do not record such calls.
func asked(request *http.Request) (c Call, ok bool) {
	c.Who, _ = request.Context().Value(nameKey{}).(string)
	path := pathOf(request.URL)
	switch method := request.Method; {
	case method == http.MethodPost && path.last(1) == "orders":
		c.Call, c.Key = Take, request.Header.Get("Idempotency-Key")
	case method == http.MethodPost && path.last(3) == "orders":
		c.Call, c.OrderID = Kind(path.last(1)), path.last(2)
	case method == http.MethodPut && path.last(2) == "stock":
		c.Call, c.SKU = Set, path.last(1)
	case method == http.MethodGet && path.last(3) == "stock" && path.last(1) == "audit":
		c.Call, c.SKU = Audit, path.last(2)
	case method == http.MethodGet && path.last(2) == "orders":
		c.Call, c.OrderID = Order, path.last(1)
	case method == http.MethodGet && path.last(1) == "orders":
		return c.askedList(request.URL.Query())
	default:
		return c, false
	}
	c.readRequest(request)
	return c, true
}

// askedList returns the call that a request for a list makes. A list of one status, or a later
// page, does not prove that an order is missing.
func (c Call) askedList(query url.Values) (call Call, ok bool) {
	if query.Has("status") || query.Has("after") {
		return c, false
	}
	c.Call, c.Buyer = Orders, query.Get("buyer_id")
	return c, true
}

// parts are the parts of a URL's path between the slashes.
type parts []string

func pathOf(u *url.URL) parts {
	path := strings.Split(strings.Trim(u.EscapedPath(), "/"), "/")
	for i := range path {
		path[i], _ = url.PathUnescape(path[i])
	}
	return path
}

// last returns the n-th part from the end, or "" if there are fewer.
func (p parts) last(n int) string {
	if n > len(p) {
		return ""
	}
	return p[len(p)-n]
}

// readRequest reads the body of a request.
func (c *Call) readRequest(request *http.Request) {
	if request.GetBody == nil {
		return
	}
	body, err := request.GetBody()
	if err != nil {
		return
	}
	defer body.Close()
	var sent struct {
		Buyer   string        `json:"buyer_id"`
		Lines   []client.Line `json:"lines"`
		Restock bool          `json:"restock"`
		Total   int64         `json:"total"`
	}
	if json.NewDecoder(body).Decode(&sent) == nil && (c.Call == Take || c.Call == Refund || c.Call == Set) {
		c.Lines, c.Restock, c.Total = sent.Lines, sent.Restock, sent.Total
		if c.Call == Take {
			c.Buyer = sent.Buyer
		}
	}
}

// answered reads the answer to the call.
func (c *Call) answered(a load.Answer) {
	c.Status = a.Status
	if a.Status != 0 || a.Problem == load.NoConnection {
		c.Problem = a.ProblemName()
	}
	switch {
	case a.Status == http.StatusAccepted:
		c.Outcome = Queued
		c.readAnswer(a.Body)
	case a.Status/100 == 2:
		c.Outcome = Accepted
		c.readAnswer(a.Body)
	case a.Problem == client.SoldOut:
		var p client.Problem
		_ = json.Unmarshal(a.Body, &p) // a problem without a SKU refuses none
		c.Outcome, c.SKU = Refused, p.SKU
	case a.Problem == client.BelowSold:
		c.Outcome = Refused
	case a.Unknown():
		c.Outcome = Unknown
	default:
		c.Outcome = Nothing
	}
}

// readAnswer reads the body of a 2xx. An unreadable body leaves its fields empty, and the check
// reports what is missing.
func (c *Call) readAnswer(text []byte) {
	switch c.Call {
	case Take:
		var o client.Order
		_ = json.Unmarshal(text, &o)
		c.OrderID = o.ID
		if o.ExpiresAt != nil {
			c.Window = int64(o.ExpiresAt.Sub(o.CreatedAt))
		}
	case Order:
		var o client.OrderWithHistory
		_ = json.Unmarshal(text, &o)
		c.Buyer, c.Lines, c.OrderStatus = o.BuyerID, o.Lines, o.Status
		for _, step := range o.History {
			c.Steps = append(c.Steps, step.Status)
		}
	case Orders:
		var page client.OrderPage
		// A list with further pages does not prove that an order is missing.
		if json.Unmarshal(text, &page) == nil && page.Next == nil {
			c.Found = page.Orders
		} else {
			c.Outcome = Unknown
		}
	case Audit:
		var counts client.Audit
		if json.Unmarshal(text, &counts) == nil {
			c.Counts = &counts
		}
	}
}
