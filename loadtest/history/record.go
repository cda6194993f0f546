package history

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
)

// MaxCalls bounds a history. Calls beyond it are not recorded, and Close reports that.
const MaxCalls = 1_000_000

// Recorder writes the calls that go through its transports. It is safe for concurrent use.
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

// Transport returns a transport that records the calls that it sends over next.
func (r *Recorder) Transport(next http.RoundTripper) http.RoundTripper { return &transport{r, next} }

type transport struct {
	*Recorder
	next http.RoundTripper
}

// RoundTrip sends a request once, and records it if it is a call of a history.
func (t *transport) RoundTrip(request *http.Request) (*http.Response, error) {
	c, recorded := asked(request)
	if !recorded {
		return t.next.RoundTrip(request)
	}
	c.Begin = t.Now()
	response, text, err := send(t.next, request)
	c.End = t.Now()
	if err != nil {
		if c.Outcome = Unknown; errors.Is(err, syscall.ECONNREFUSED) {
			c.Outcome, c.Problem = Nothing, load.NoConnection
		}
	} else {
		c.answered(response.StatusCode, text)
	}
	t.Add(c)
	return response, err
}

// CloseIdleConnections closes the idle connections of the wrapped transport.
func (t *transport) CloseIdleConnections() {
	if next, ok := t.next.(interface{ CloseIdleConnections() }); ok {
		next.CloseIdleConnections()
	}
}

// send sends a request and reads the whole answer.
func send(next http.RoundTripper, request *http.Request) (*http.Response, []byte, error) {
	response, err := next.RoundTrip(request)
	if err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, nil, err
	}
	response.Body = io.NopCloser(bytes.NewReader(text))
	return response, text, nil
}

// asked returns the call that the request makes. ok is false if histories do not record such calls.
func asked(request *http.Request) (c Call, ok bool) {
	c.Who, _ = request.Context().Value(nameKey{}).(string)
	path := pathOf(request.URL)
	switch method := request.Method; {
	case method == http.MethodPost && path.last(1) == "orders":
		c.Call, c.Key = Take, keyOf(request.Header)
	case method == http.MethodPost && path.last(3) == "orders":
		c.Call, c.OrderID = Kind(path.last(1)), path.last(2)
	case method == http.MethodPut && path.last(2) == "stock":
		c.Call, c.SKU = Set, path.last(1)
	case method == http.MethodGet && path.last(3) == "stock" && path.last(1) == "audit":
		c.Call, c.SKU = Audit, path.last(2)
	case method == http.MethodGet && path.last(2) == "orders":
		c.Call, c.OrderID = Order, path.last(1)
	case method == http.MethodGet && path.last(1) == "orders":
		query := request.URL.Query()
		if query.Has("status") || query.Has("after") { // such a list does not prove that an order is missing
			return c, false
		}
		c.Call, c.Buyer = Orders, query.Get("buyer_id")
	default:
		return c, false
	}
	c.readRequest(request)
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

// keyOf returns the Idempotency-Key of a request, or "". Header.Get would not find it, because
// [load.Client] writes the name in lower case.
func keyOf(header http.Header) string {
	for name, values := range header {
		if strings.EqualFold(name, "Idempotency-Key") && len(values) > 0 {
			return values[0]
		}
	}
	return ""
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
func (c *Call) answered(status int, text []byte) {
	c.Status = status
	switch {
	case status == http.StatusAccepted:
		c.Outcome = Queued
	case status/100 == 2:
		c.Outcome = Accepted
	default:
		c.readProblem(text)
		return
	}
	c.readAnswer(text)
}

// readProblem reads an error answer.
func (c *Call) readProblem(text []byte) {
	var p client.Problem
	_ = json.Unmarshal(text, &p) // an answer that is not JSON has no problem type
	c.Problem = string(p.Type[strings.LastIndexByte(string(p.Type), '/')+1:])
	switch {
	case c.Problem == load.SoldOut:
		c.Outcome, c.SKU = Refused, p.SKU
	case c.Problem == belowSold:
		c.Outcome = Refused
	case load.Answer{Status: c.Status, Problem: c.Problem}.Unknown():
		c.Outcome = Unknown
	default:
		c.Outcome = Nothing
	}
}

const belowSold = "below-sold"

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
		if json.Unmarshal(text, &page) == nil && page.Next == nil { // a list with further pages does not prove that an order is missing
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
