// Package liar serves false answers, to test that the load generators detect them. A liar stands
// between the clients and correct services. It changes requests, answers, or the stores.
package liar

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// Liar answers falsely in one way. With an unknown name it forwards everything unchanged. It is
// safe for concurrent use.
type Liar struct {
	Lie string
	// Change makes changes in the ledger behind the service's back, in one transaction. Its
	// arguments are texts, numbers and UUIDs. Only lies about stored data need it.
	Change func(statements ...Statement)
	// AddToGate adds a unit to the gate's count of the SKU. Only the lie
	// returns-units-twice-at-the-gate needs it.
	AddToGate func(sku string)

	told, replays, called, cancels, pending atomic.Int64

	waiting sync.WaitGroup // waits for orders that were answered before their commit
}

// Statement is an SQL statement with its arguments.
type Statement struct {
	Text string
	Args []any
}

// Told returns the number of lies so far.
func (l *Liar) Told() int64 { return l.told.Load() }

// Serve serves the lie in front of the service at the URL until the test ends, and returns
// the URL to load. A liar may stand in front of several services.
func (l *Liar) Serve(t testenv.T, service string) (url string) {
	transport := &http.Transport{MaxIdleConnsPerHost: 256}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		l.answer(call{transport: transport, service: service, r: r, text: text}).write(w)
	}))
	t.Cleanup(func() {
		l.waiting.Wait()
		transport.CloseIdleConnections() // otherwise the service waits for the idle connections when it stops
		server.Close()
	})
	return server.URL
}

// call is a request of a client.
type call struct {
	transport *http.Transport
	service   string
	r         *http.Request
	text      []byte
}

// answer is an answer of the service, or what a client gets instead.
type answer struct {
	status int
	header http.Header
	text   []byte
}

func (a answer) write(w http.ResponseWriter) {
	for name, values := range a.header {
		if name != "Content-Length" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.text) // the client may have disconnected
}

// promises reports whether the answer names an order that was placed.
func (a answer) promises() bool {
	return a.status == http.StatusCreated || a.status == http.StatusAccepted
}

func (a answer) replayed() bool { return a.header.Get("Idempotent-Replayed") == "true" }

// problem is the answer with a problem of this type.
func problem(status int, of client.ProblemType) answer {
	return answer{status, http.Header{"Content-Type": {"application/problem+json"}}, fmt.Appendf(nil, `{"type":%q,"title":"a lie","status":%d}`, of, status)}
}

// object is a JSON object.
type object map[string]any

func (a answer) object() (o object) { return parse(a.text) }

func parse(text []byte) (o object) {
	numbers := json.NewDecoder(bytes.NewReader(text))
	numbers.UseNumber()
	_ = numbers.Decode(&o) // an answer that is not an object has no members
	return o
}

func (o object) text(member string) string {
	text, _ := o[member].(string)
	return text
}

// skus returns the SKU of each line of an order.
func (o object) skus() (skus []string) {
	lines, _ := o["lines"].([]any)
	for _, line := range lines {
		if line, ok := line.(map[string]any); ok {
			skus = append(skus, object(line).text("sku"))
		}
	}
	return skus
}

// with returns the answer with these members of its object added or replaced.
func (a answer) with(members object) answer {
	o := a.object()
	for member, value := range members {
		o[member] = value
	}
	a.text, _ = json.Marshal(o) // cannot fail: o was decoded from JSON
	return a
}

// forward sends the request to the service. If the service does not answer, the client gets
// no answer either.
func (c call) forward() answer { return c.send(c.r.Method, c.r.URL.Path, c.text, c.r.Header) }

// try is send for a request that the client does not wait for. If the service does not answer, it
// returns an empty answer.
func (c call) try(method, path string, text []byte, header http.Header) (a answer, err error) {
	ctx := context.WithoutCancel(c.r.Context())
	request, err := http.NewRequestWithContext(ctx, method, c.service+path+query(c.r), bytes.NewReader(text))
	if err != nil {
		return a, err
	}
	request.Header = header.Clone()
	got, err := c.transport.RoundTrip(request)
	if err != nil {
		return a, err
	}
	defer got.Body.Close()
	a.status, a.header = got.StatusCode, got.Header
	a.text, err = io.ReadAll(got.Body)
	return a, err
}

func query(r *http.Request) string {
	if r.URL.RawQuery == "" {
		return ""
	}
	return "?" + r.URL.RawQuery
}

func (c call) send(method, path string, text []byte, header http.Header) answer {
	a, err := c.try(method, path, text, header)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	return a
}

// get sends a GET to the service.
func (c call) get(path string) object {
	return c.send(http.MethodGet, path, nil, http.Header{}).object()
}

// lie counts a lie and returns it.
func (l *Liar) lie(a answer) answer {
	l.told.Add(1)
	return a
}

// answer answers a call.
func (l *Liar) answer(c call) answer {
	switch {
	case c.r.Method != http.MethodPost:
		return c.forward()
	case c.r.URL.Path == "/orders":
		return l.place(c)
	}
	return l.change(c)
}

// place places an order, or answers with the lie instead.
func (l *Liar) place(c call) answer {
	request := parse(c.text)
	switch l.Lie {
	case "answers-before-the-commit":
		return l.answerFirst(c, request)
	case "refuses-every-order":
		return l.lie(problem(http.StatusConflict, client.SoldOut))
	case "stores-all-under-another-buyer":
		return l.placeForAnother(c, request)
	}
	a := c.forward()
	if !a.promises() {
		return a
	}
	switch l.Lie {
	case "answers-that-orders-expire-an-hour-later":
		if expires, err := time.Parse(time.RFC3339, a.object().text("expires_at")); err == nil {
			return l.lie(a.with(object{"expires_at": expires.Add(time.Hour)}))
		}
	case "adds-a-space-to-replays":
		if a.replayed() {
			a.text = append(a.text, ' ')
			return l.lie(a)
		}
	case "makes-a-second-order-of-one-replay-in-ten", "answers-one-replay-in-ten-with-a-second-order":
		return l.double(c, a)
	}
	return a
}

// placeForAnother places the order for another buyer.
func (l *Liar) placeForAnother(c call, request object) answer {
	buyer := request["buyer_id"]
	request["buyer_id"] = "another"
	c.text, _ = json.Marshal(request) // cannot fail: it comes from JSON
	a := c.forward()
	if !a.promises() {
		return a
	}
	return l.lie(a.with(object{"buyer_id": buyer}))
}

// double places a second order for the first of ten replays. It answers with the second order if
// the lie requires that.
func (l *Liar) double(c call, first answer) answer {
	if !first.replayed() || l.replays.Add(1)%10 != 1 {
		return first
	}
	header := c.r.Header.Clone()
	header.Set("Idempotency-Key", header.Get("Idempotency-Key")+"-second")
	second := c.send(c.r.Method, c.r.URL.Path, c.text, header)
	if !second.promises() {
		l.replays.Add(-1) // try again with the next replay
		return first
	}
	if strings.HasPrefix(l.Lie, "makes") {
		return l.lie(first)
	}
	second.header.Set("Idempotent-Replayed", "true")
	return l.lie(second)
}

// fewLeft is the stock below which answerFirst answers truthfully. Otherwise it would
// promise units that other orders are about to take.
const fewLeft = 64

// answerFirst answers at once with an ID of its own, before the order is committed. After the
// commit it changes the order's ID to that one.
func (l *Liar) answerFirst(c call, request object) answer {
	left, _ := c.get("/stock/" + request.skus()[0])["available"].(json.Number)
	if n, err := left.Int64(); err != nil || n-l.pending.Load() < fewLeft {
		return c.forward()
	}
	id := uuid.New()
	promise, _ := json.Marshal(object{ // cannot fail
		"id": id, "buyer_id": request["buyer_id"], "status": "pending", "lines": request["lines"], "created_at": time.Now(),
	})
	l.pending.Add(1)
	l.waiting.Go(func() {
		defer l.pending.Add(-1)
		a, err := c.try(c.r.Method, c.r.URL.Path, c.text, c.r.Header)
		if err != nil || !a.promises() || a.replayed() {
			return // the order was lost
		}
		placed := uuid.MustParse(a.object().text("id"))
		l.Change(
			Statement{"UPDATE order_lines SET order_id = ? WHERE order_id = ?", []any{id, placed}},
			Statement{"UPDATE orders SET id = ? WHERE id = ?", []any{id, placed}},
		)
	})
	return l.lie(answer{http.StatusCreated, http.Header{"Content-Type": {"application/json"}}, promise})
}

// change changes an order: it pays, cancels or refunds it.
func (l *Liar) change(c call) answer {
	a := c.forward()
	if a.status != http.StatusOK {
		return a
	}
	o := a.object()
	cancelled := o.text("status") == "cancelled"
	switch {
	case l.Lie == "is-unavailable-after-every-fifth-call" && l.called.Add(1)%5 == 0:
		return l.lie(problem(http.StatusServiceUnavailable, client.Unavailable))
	case l.Lie == "returns-units-twice" && cancelled:
		l.Change(Statement{"UPDATE stock SET available = available + 1 WHERE sku = ?", []any{o.skus()[0]}})
		return l.lie(a)
	case l.Lie == "returns-units-twice-at-the-gate" && cancelled && l.cancels.Add(1) == 2:
		l.AddToGate(o.skus()[0])
		return l.lie(a)
	}
	return a
}
