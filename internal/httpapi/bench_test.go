package httpapi

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// instant answers every order immediately, with err if it is set.
type instant struct {
	*fakeOrders
	err error
}

func (i instant) Place(_ context.Context, r order.Request) (order.Order, bool, error) {
	return order.Order{
		ID: testID, Buyer: r.Buyer, Status: order.Pending, Lines: r.Lines,
		Strategy: "lua", CreatedAt: testTime,
	}, false, i.err
}

// discard is an http.ResponseWriter that discards the body.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// body is a request body that can be rewound and read again.
type body struct{ bytes.Reader }

func (*body) Close() error { return nil }

// placing returns a function that sends one order and returns the status. Every
// call sends the same order.
func placing(err error, key bool) func() int {
	h := New(testConfig(instant{new(fakeOrders), err}))
	r := httptest.NewRequest("POST", "/orders", nil)
	r.Header.Set("Content-Type", "application/json")
	if key {
		r.Header.Set("Idempotency-Key", "5f0d6f0e-cart-7")
	}
	text, b, w := []byte(oneLine), new(body), &discard{header: make(http.Header)}
	r.ContentLength = int64(len(text))
	return func() int {
		b.Reset(text)
		r.Body = b // set again, because the handler wraps the body
		clear(w.header)
		h.ServeHTTP(w, r)
		return w.status
	}
}

// BenchmarkPlace measures the cost of one order in this package and gin alone:
// the service answers immediately, and there is no connection.
func BenchmarkPlace(b *testing.B) {
	for _, bm := range []struct {
		name   string
		err    error
		key    bool
		status int
	}{
		{"accepted", nil, false, 201},
		{"accepted with a key", nil, true, 201},
		{"sold out", stock.Refuse("10001", stock.ErrSoldOut), false, 409},
	} {
		b.Run(bm.name, func(b *testing.B) {
			place := placing(bm.err, bm.key)
			b.ReportAllocs()
			for b.Loop() {
				if got := place(); got != bm.status {
					b.Fatal(got)
				}
			}
		})
	}
}

// BenchmarkServe measures one order with package http and a connection. Every order is the
// same, and so is the length of its answer.
func BenchmarkServe(b *testing.B) {
	listener := testenv.Listen(b)
	c := testConfig(instant{new(fakeOrders), nil})
	server := NewServer(New(c), c.RequestTimeout, c.Log)
	go func() { _ = server.Serve(listener) }()
	b.Cleanup(func() { _ = server.Close() })
	conn, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	text := fmt.Appendf(nil, "POST /orders HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", listener.Addr(), len(oneLine), oneLine)
	answer := make([]byte, 4096)
	order := func() (n int) {
		if _, err := conn.Write(text); err != nil {
			b.Fatal(err)
		}
		n, err := conn.Read(answer)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	length := order()
	if !bytes.HasPrefix(answer, []byte("HTTP/1.1 201 ")) {
		b.Fatalf("%s", answer[:length])
	}
	b.ReportAllocs()
	for b.Loop() {
		if n := order(); n != length {
			b.Fatalf("%s", answer[:n])
		}
	}
}

// TestPlaceAllocations bounds the allocations of placing an order.
func TestPlaceAllocations(t *testing.T) {
	const maxAllocations = 30
	place := placing(nil, true)
	if got := testing.AllocsPerRun(200, func() { place() }); got > maxAllocations {
		t.Errorf("an order allocates %v times, want at most %d", got, maxAllocations)
	}
}

var _ io.ReadCloser = (*body)(nil)
