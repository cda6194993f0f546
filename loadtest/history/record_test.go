package history_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/loadtest/history"
)

// TestRecorder makes every kind of call through a recorder, and reads the file.
func TestRecorder(t *testing.T) {
	t.Parallel()
	order := `{"id":"o-1","buyer_id":"u-1","status":"paid","lines":[{"sku":"a","quantity":2}],"created_at":"2026-01-01T00:00:00Z","expires_at":"2026-01-01T00:00:03Z","history":[{"status":"pending"},{"status":"paid"}]}`
	answers := []struct {
		status int
		text   string
	}{
		{201, order},
		{202, order},
		{409, `{"type":"/problems/sold-out","sku":"a"}`},
		{503, `{"type":"/problems/busy"}`},
		{503, `{"type":"/problems/unavailable"}`},
		{200, order},
		{409, `{"type":"/problems/wrong-status"}`},
		{200, order},
		{200, `{"sku":"a b","total":9}`},
		{409, `{"type":"/problems/below-sold"}`},
		{200, `{"sku":"a","total":9,"sold":2,"ledger_available":7,"gate_available":7,"gate_in_flight":0}`},
		{200, order},
		{404, `{"type":"/problems/unknown-order"}`},
		{200, `{"orders":[` + order + `],"next":null}`},
		{200, `{"orders":[],"next":"o-1"}`},
		{200, `{"orders":[],"next":null}`}, // of one status only
		{200, `{"status":"ready"}`},        // not a call that histories record
	}
	next := 0
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(answers[next].status)
		_, _ = io.WriteString(w, answers[next].text)
		next++
	}))
	defer service.Close()
	var file bytes.Buffer
	recorder := history.NewRecorder(&file)
	observed := func(transport http.RoundTripper) *load.Client {
		c := load.NewClient(transport)
		c.Observe(recorder.Observe)
		return c
	}
	c := observed(service.Client().Transport)
	s, err := c.At(service.URL)
	if err != nil {
		t.Fatal(err)
	}
	ctx := history.As(t.Context(), "client 7")
	request := client.OrderRequest{BuyerID: "u-1", Lines: []client.Line{{SKU: "a", Quantity: 2}}, Key: "k"}
	for range 5 {
		c.Place(ctx, service.URL, request)
	}
	_, _ = s.Pay(ctx, "o-1", "p-1")
	_, _ = s.Cancel(ctx, "o-1")
	_, _ = s.Refund(ctx, "o-1", true)
	_, _, _ = s.SetStock(ctx, "a b", client.Setting{Kind: client.Product, Total: 9})
	_, _, _ = s.SetStock(ctx, "a", client.Setting{Kind: client.Product, Total: 1})
	_, _ = s.Audit(ctx, "a")
	_, _ = s.Order(ctx, "o-1")
	_, _ = s.Order(ctx, "o-2")
	_, _ = s.ListOrders(ctx, client.OrderFilter{BuyerID: "u-1"})
	_, _ = s.ListOrders(ctx, client.OrderFilter{BuyerID: "u-1"})
	_, _ = s.ListOrders(ctx, client.OrderFilter{BuyerID: "u-1", Status: client.OrderPaid})
	_ = s.Ready(ctx)
	service.Close()
	c.Place(ctx, service.URL, request)
	for _, lost := range []testenv.Transport{
		func(*http.Request) (*http.Response, error) { return nil, context.DeadlineExceeded },
		func(*http.Request) (*http.Response, error) { // the answer is cut off
			return &http.Response{StatusCode: http.StatusCreated, Body: io.NopCloser(iotest.ErrReader(io.ErrUnexpectedEOF))}, nil
		},
	} {
		observed(lost).Place(ctx, service.URL, request)
	}
	unreadable, err := http.NewRequestWithContext(ctx, http.MethodPut, service.URL+"/stock/a", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	unreadable.GetBody = func() (io.ReadCloser, error) { return nil, io.ErrUnexpectedEOF }
	recorder.Observe(unreadable)(load.Answer{Problem: load.NoAnswer})
	recorder.Fault("it is pulled out", func() {})
	if err := recorder.Err(); err != nil {
		t.Fatal(err)
	}
	calls, err := history.Read(strings.NewReader(file.String()))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range calls {
		got = append(got, c.String()[strings.Index(c.String(), " ms ")+4:])
		if c.Call == history.Take && (c.Buyer != "u-1" || c.Key != "k" || !slices.Equal(c.Lines, request.Lines)) || c.Begin > c.End {
			t.Errorf("%+v", c)
		}
	}
	want := []string{
		"take by client 7 2 of a: accepted, order o-1",
		"take by client 7 2 of a: queued, order o-1",
		"take by client 7 2 of a: refused (sold-out)",
		"take by client 7 2 of a: nothing (busy)",
		"take by client 7 2 of a: unknown (unavailable)",
		"pay by client 7: accepted, order o-1",
		"cancel by client 7: nothing (wrong-status), order o-1",
		"refund by client 7: accepted, order o-1",
		"set by client 7 total 9: accepted",
		"set by client 7 total 1: refused (below-sold)",
		"audit by client 7 total 9, sold 2, 7 left in the ledger, 7 at the gate, 0 in flight: accepted",
		"order by client 7 2 of a: accepted, paid, order o-1",
		"order by client 7: nothing (unknown-order), order o-2",
		"orders by client 7: accepted",
		"orders by client 7: unknown",
		"take by client 7 2 of a: nothing (connection refused)",
		"take by client 7 2 of a: unknown",
		"take by client 7 2 of a: unknown",
		"set by client 7 total 0: unknown",
		"fault: accepted",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if c := calls[0]; c.Window != 3e9 {
		t.Errorf("window %d", c.Window)
	}
	if c := calls[2]; c.SKU != "a" {
		t.Errorf("refused for SKU %q", c.SKU)
	}
	if c := calls[7]; !c.Restock {
		t.Error("the refund is without restock")
	}
	if c := calls[8]; c.SKU != "a b" {
		t.Errorf("set SKU %q", c.SKU)
	}
	if c := calls[11]; !slices.Equal(c.Steps, []client.OrderStatus{client.OrderPending, client.OrderPaid}) {
		t.Errorf("steps %v", c.Steps)
	}
	if c := calls[13]; len(c.Found) != 1 {
		t.Errorf("found %v", c.Found)
	}
}

// TestRecorder_Incomplete checks that a recorder reports a missing call, even if later calls can be
// written.
func TestRecorder_Incomplete(t *testing.T) {
	t.Parallel()
	file := new(failsOnce)
	recorder := history.NewRecorder(file)
	for range 2 {
		recorder.Fault("it is pulled out", func() {})
		if err := recorder.Err(); !errors.Is(err, io.ErrShortWrite) {
			t.Errorf("after a failed write: %v", err)
		}
	}
	full := history.NewRecorder(io.Discard)
	full.AllButOne()
	for _, want := range []bool{false, true} {
		full.Fault("it is pulled out", func() {})
		if err := full.Err(); (err != nil) != want {
			t.Errorf("too many calls: %v; answered %v", want, err)
		}
	}
}

// failsOnce fails the first write.
type failsOnce struct{ written bool }

func (f *failsOnce) Write(b []byte) (int, error) {
	if f.written {
		return len(b), nil
	}
	f.written = true
	return 0, io.ErrShortWrite
}

// TestRead checks that an invalid history file is refused.
func TestRead(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		`{"call":"take","outcome":"nothing","begin":1,"end":2}` + "\n{": "call 2",
		`{"call":"take","outcome":"nothing","begin":3,"end":2}`:         "before it begins",
		`{"call":"taken","outcome":"accepted","begin":1,"end":2}`:       `"taken" with the outcome "accepted"`,
		`{"call":"take","outcome":"refuse","begin":1,"end":2}`:          `"take" with the outcome "refuse"`,
		strings.Repeat(" ", 1<<20):                                      "too long",
	} {
		if _, err := history.Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
