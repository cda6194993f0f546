// Package client calls a Holdfast service over HTTP. It needs nothing but the standard library.
//
//	c, err := client.New("http://127.0.0.1:8080")
//	if err != nil {
//		return err
//	}
//	placed, err := c.Place(ctx, client.OrderRequest{
//		BuyerID: "u-1",
//		Lines:   []client.Line{{SKU: "10001", Quantity: 1}},
//	})
//	switch {
//	case errors.Is(err, client.SoldOut):
//		// tell the buyer
//	case err != nil:
//		return err
//	}
//
// # Errors
//
// An error answer is a [*Problem], to be found with [errors.As]. [errors.Is] tests for one type of
// problem, such as [SoldOut] or [BuyerLimit].
//
// If it is unknown whether a change was made, because answers were lost or the service said so, the
// error is also an [*UnknownOutcome]. A later refusal, such as [SoldOut], does not change that: a
// request whose answer was lost may still arrive. Repeat the call to find out; an order with the
// same key.
//
// # Retries
//
// The client tries a call again, a bounded number of times, if its answer was lost. It does so also
// if the service was busy or could not reach its stores (503), asked the client to wait (429, 408,
// and 409 in-progress), or if a proxy failed (502, 504). The client honours Retry-After. The client
// does not retry after any other answer: sold out stays sold out. A call above the service's rate
// limit is therefore slowed down, and is the error [RateLimited] only if its last try is refused
// too.
//
// A retry changes nothing twice. [Client.Place] sends the same Idempotency-Key with every try, so a
// retry is never a second order. If the request has no key, Place generates one. [WithoutKeys]
// changes that. Repeating any other change of the contract has the effect of making it once.
package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// The defaults of the options.
const (
	defaultTries      = 4
	defaultTryTimeout = 15 * time.Second // the service answers within 10 s
	defaultMaxPause   = 10 * time.Second
	defaultPoll       = time.Second // the Retry-After of a 202
)

// Client calls one service. It does not change after [New], and is safe for concurrent use. It
// keeps idle connections, which CloseIdleConnections closes. Nothing else needs closing.
type Client struct {
	base       string // without a slash at the end
	http       *http.Client
	token      func(context.Context) (string, error) // nil: none
	tries      int
	tryTimeout time.Duration
	maxPause   time.Duration
	poll       time.Duration
	keyless    bool
}

// Option changes a setting of a new Client.
type Option func(*Client) error

// New returns a client of the service at baseURL, for example http://127.0.0.1:8080 or
// https://shop.example/holdfast. It makes no request.
func New(baseURL string, options ...Option) (*Client, error) {
	base, err := parseBase(baseURL)
	if err != nil {
		return nil, fmt.Errorf("holdfast: base URL: %w", err)
	}
	c := &Client{
		base: base, tries: defaultTries, tryTimeout: defaultTryTimeout, maxPause: defaultMaxPause, poll: defaultPoll,
	}
	for _, set := range options {
		if err := set(c); err != nil {
			return nil, fmt.Errorf("holdfast: %w", err)
		}
	}
	if c.http == nil {
		c.http = &http.Client{Transport: newTransport()}
	}
	if c.http.CheckRedirect == nil {
		// The service never redirects. A redirect by a proxy must not turn a POST into a GET, or
		// send the token to another host.
		own := *c.http
		own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		c.http = &own
	}
	return c, nil
}

// parseBase checks a base URL and removes the slash at its end. Its errors do not
// contain the URL, which may contain a password.
func parseBase(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "", errors.New("cannot be parsed")
	case u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("must begin with http:// or https://")
	case u.Host == "":
		return "", errors.New("has no host")
	case u.User != nil:
		return "", errors.New("must not contain a user: use WithToken")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return "", errors.New("must not have a query or a fragment")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// newTransport returns the default transport of package http with more idle connections. The
// default keeps two for each host, so concurrent calls would open new ones.
func newTransport() *http.Transport {
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second}
	if standard, ok := http.DefaultTransport.(*http.Transport); ok {
		t = standard.Clone()
	}
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 100, 100
	t.IdleConnTimeout = 60 * time.Second // the service's is 90 s
	return t
}

// WithHTTPClient sends requests with h, for example one with certificates of your own.
// Its Timeout, if set, bounds one try. If it has no CheckRedirect, redirects are errors.
func WithHTTPClient(h *http.Client) Option {
	return func(c *Client) error {
		if h == nil {
			return errors.New("WithHTTPClient: no client")
		}
		c.http = h
		return nil
	}
}

// WithToken sends the bearer token with every request: an administrator's, or a
// buyer's.
func WithToken(token string) Option {
	return func(c *Client) error {
		if token == "" {
			return errors.New("WithToken: the token is empty")
		}
		if err := checkHeader("token", token); err != nil {
			return fmt.Errorf("WithToken: %w", err)
		}
		c.token = func(context.Context) (string, error) { return token, nil }
		return nil
	}
}

// WithTokenFrom asks source for the bearer token of every call, with the context of the call. Use
// it for tokens that expire, or that differ from buyer to buyer. An empty token is not sent. If
// source returns an error, the call returns it. source must be safe for concurrent use.
func WithTokenFrom(source func(context.Context) (string, error)) Option {
	return func(c *Client) error {
		if source == nil {
			return errors.New("WithTokenFrom: no source")
		}
		c.token = func(ctx context.Context) (string, error) {
			token, err := source(ctx)
			if err == nil {
				err = checkHeader("token", token)
			}
			return token, err
		}
		return nil
	}
}

// WithTries sets how often a request is sent at most: 4 by default. 1 means no retries.
func WithTries(n int) Option {
	return func(c *Client) error {
		if n < 1 {
			return fmt.Errorf("WithTries: %d is less than 1", n)
		}
		c.tries = n
		return nil
	}
}

// WithTryTimeout sets how long one try may take, with its answer: 15 s by default. Then the answer
// counts as lost. The context of a call bounds all its tries. The service works on a request for at
// most 10 s. A shorter timeout abandons answers that are still to come.
func WithTryTimeout(d time.Duration) Option {
	return func(c *Client) error {
		if d <= 0 {
			return fmt.Errorf("WithTryTimeout: %v is not more than 0", d)
		}
		c.tryTimeout = d
		return nil
	}
}

// WithMaxPause sets the longest Retry-After that a call follows: 10 s by default, plus
// up to a quarter at random. A call that is asked to wait longer, or longer than its
// context allows, does not wait, and returns that answer.
func WithMaxPause(d time.Duration) Option {
	return func(c *Client) error {
		if d <= 0 {
			return fmt.Errorf("WithMaxPause: %v is not more than 0", d)
		}
		c.maxPause = d
		return nil
	}
}

// WithPoll sets how long [Client.Wait] pauses before it asks for a queued order: 1 s by
// default, as the service asks.
func WithPoll(d time.Duration) Option {
	return func(c *Client) error {
		if d <= 0 {
			return fmt.Errorf("WithPoll: %v is not more than 0", d)
		}
		c.poll = d
		return nil
	}
}

// WithoutKeys makes [Client.Place] send no Idempotency-Key with a request that has none.
// The service can then refuse an order for a sold-out SKU without asking its database.
// An order without a key is not tried again once its answer was lost, because a retry
// might be a second order.
func WithoutKeys() Option {
	return func(c *Client) error {
		c.keyless = true
		return nil
	}
}

// CloseIdleConnections closes the connections that no call uses. The client can still
// be used.
func (c *Client) CloseIdleConnections() { c.http.CloseIdleConnections() }
