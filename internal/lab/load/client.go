// Package load puts services under load through the public client. In a closed crowd each client
// waits for its answer. In an open load orders arrive at a constant rate. It records each answer as
// it came over the wire, because the laboratory judges the service and not the client.
package load

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/client"
)

// Client calls services. It sends each request exactly once. It is safe for concurrent
// use.
type Client struct {
	http    *http.Client
	options []client.Option
	observe func(*http.Request) func(Answer)

	mu       sync.Mutex
	services map[string]*client.Client // by URL
}

// NewClient returns a client that sends requests over the transport. Options are those of
// the public client.
func NewClient(transport http.RoundTripper, options ...client.Option) *Client {
	c := &Client{services: make(map[string]*client.Client), observe: func(*http.Request) func(Answer) { return func(Answer) {} }}
	c.http = &http.Client{Transport: recorder{transport, c}}
	c.options = append([]client.Option{client.WithHTTPClient(c.http), client.WithTries(1), client.WithoutKeys()}, options...)
	return c
}

// Observe calls begin with each request before it is sent. It calls the function that begin
// returned when the answer has arrived or was given up. That answer has no Order and no Took. Call
// Observe before the first request.
func (c *Client) Observe(begin func(*http.Request) (end func(Answer))) { c.observe = begin }

// At returns the public client of the service at the URL.
func (c *Client) At(url string) (*client.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.services[url]; s != nil {
		return s, nil
	}
	s, err := client.New(url, c.options...)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", url, err)
	}
	c.services[url] = s
	return s, nil
}

// Send makes one call of the service at the URL that is answered with an order, and returns
// the answer as it came.
func (c *Client) Send(ctx context.Context, url string, call func(ctx context.Context, s *client.Client) (client.Order, error)) (a Answer) {
	start := time.Now()
	s, err := c.At(url)
	if err == nil {
		var o client.Order
		if o, err = call(context.WithValue(ctx, recordKey{}, &a), s); err == nil {
			a.Order = &o
		}
	}
	a.Took = time.Since(start)
	if a.Status == 0 && a.Problem == "" { // nothing was sent, for example because the URL is malformed
		a.Problem = NoAnswer
	}
	return a
}

// Place sends an order, with an Idempotency-Key unless its key is empty.
func (c *Client) Place(ctx context.Context, url string, r client.OrderRequest) Answer {
	return c.Send(ctx, url, func(ctx context.Context, s *client.Client) (client.Order, error) {
		p, err := s.Place(ctx, r)
		return p.Order, err
	})
}

// Create creates a SKU with these units. It fails if the SKU exists.
func (c *Client) Create(ctx context.Context, url, sku string, set client.Setting) error {
	s, err := c.At(url)
	if err != nil {
		return err
	}
	switch _, created, err := s.SetStock(ctx, sku, set); {
	case err != nil:
		return err
	case !created:
		return fmt.Errorf("creating SKU %s: it existed", sku)
	}
	return nil
}

// CloseIdleConnections closes the connections that no request uses.
func (c *Client) CloseIdleConnections() { c.http.CloseIdleConnections() }

// recordKey is the key of the *Answer in the context of a call that is recorded.
type recordKey struct{}

// recorder records the answer to each request: for the client's observer, and in the *Answer of the
// request's context if there is one.
type recorder struct {
	http.RoundTripper
	client *Client
}

// RoundTrip sends a request once.
func (r recorder) RoundTrip(request *http.Request) (*http.Response, error) {
	end := r.client.observe(request)
	var a Answer
	response, err := r.send(request, &a)
	if err != nil {
		a.Problem = causeOf(err)
	} else {
		a.readProblem()
	}
	end(a)
	if called, recorded := request.Context().Value(recordKey{}).(*Answer); recorded {
		*called = a
	}
	return response, err
}

// send sends a request once, and reads the whole answer.
func (r recorder) send(request *http.Request, a *Answer) (*http.Response, error) {
	if key := request.Header.Get("Idempotency-Key"); key != "" {
		// The name is in lower case. With the usual name, package http would repeat an unanswered
		// request by itself. The record would then have only the second answer: "connection
		// refused" for an order that was committed.
		own := *request
		own.Header = request.Header.Clone()
		own.Header.Del("Idempotency-Key")
		own.Header["idempotency-key"] = []string{key}
		request = &own
	}
	response, err := r.RoundTripper.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, err
	}
	a.Status, a.Body, a.Replayed = response.StatusCode, text, response.Header.Get("Idempotent-Replayed") == "true"
	response.Body = io.NopCloser(bytes.NewReader(text))
	return response, nil
}

// CloseIdleConnections closes the idle connections of the transport.
func (r recorder) CloseIdleConnections() {
	if t, ok := r.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		t.CloseIdleConnections()
	}
}
