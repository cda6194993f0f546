package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"mime"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode"
)

const (
	// maxAnswer is the largest answer that is read, in bytes. A page of 1,000 orders of
	// 20 lines has less than 3 MiB.
	maxAnswer = 8 << 20
	// firstPause is the longest pause before the second try, if the service does not ask for one.
	// The bound doubles with every further try.
	firstPause = 200 * time.Millisecond
)

var errTooLarge = fmt.Errorf("the answer has more than %d bytes", maxAnswer)

// call is one call of the contract.
type call struct {
	method string
	path   []string // the parts of the path, not escaped
	query  url.Values
	body   any // nil: none
	key    string
	once   bool // the call is not tried again
	twice  bool // repeating the call may have its effect twice
}

// changes reports whether the call changes something.
func (r call) changes() bool { return r.method != http.MethodGet }

// content is the body of an answer of the service.
type content interface {
	// complete reports whether the body has the fields that the service always sends. JSON from
	// another server, such as a proxy, decodes to a zero value.
	complete() bool
}

// answer holds the parts of an answer other than its body.
type answer struct {
	status   int
	replayed bool
}

// lost is the error of a try without a complete answer.
type lost struct {
	err  error
	sent bool // the service may have got the request
}

func (l *lost) Error() string { return l.err.Error() }
func (l *lost) Unwrap() error { return l.err }

// do makes a call, with retries, and decodes the answer into the value that into points
// to.
func (c *Client) do(ctx context.Context, r call, into content) (answer, error) {
	target, token, body, err := c.prepare(ctx, r)
	if err != nil {
		return answer{}, fmt.Errorf("holdfast: %w", err)
	}
	open := false // whether a try may have changed something
	for try := 1; ; try++ {
		a, err := c.try(ctx, r, target, token, body, into)
		if err == nil {
			return a, nil
		}
		switch effectOf(err, r) {
		case unknown:
			open = true
		case settled:
			open = false
		case none:
		}
		if !(open && r.twice) && c.wait(ctx, r, try, err) {
			continue
		}
		if ctx.Err() != nil && !errors.Is(err, ctx.Err()) {
			err = fmt.Errorf("%w, after: %w", ctx.Err(), err)
		}
		if open {
			err = &UnknownOutcome{Key: r.key, Err: err}
		}
		return answer{}, fmt.Errorf("holdfast: %s /%s: %w", r.method, strings.Join(r.path, "/"), err)
	}
}

// prepare returns what all tries of a call send.
func (c *Client) prepare(ctx context.Context, r call) (target, token string, body []byte, err error) {
	if target, err = c.target(r); err != nil {
		return "", "", nil, fmt.Errorf("%s: %w", r.method, err)
	}
	if r.body != nil {
		if body, err = json.Marshal(r.body); err != nil {
			return "", "", nil, fmt.Errorf("encoding the request: %w", err)
		}
	}
	if c.token != nil {
		if token, err = c.token(ctx); err != nil {
			return "", "", nil, fmt.Errorf("getting the token: %w", err)
		}
	}
	return target, token, body, nil
}

// target returns the URL of a call.
func (c *Client) target(r call) (string, error) {
	var u strings.Builder
	u.WriteString(c.base)
	for _, part := range r.path {
		// "." and ".." in a path would name another resource.
		if part == "" || part == "." || part == ".." {
			return "", fmt.Errorf("%q cannot be an ID or a SKU", part)
		}
		u.WriteByte('/')
		u.WriteString(url.PathEscape(part))
	}
	if len(r.query) > 0 {
		u.WriteByte('?')
		u.WriteString(r.query.Encode())
	}
	return u.String(), nil
}

// checkHeader refuses a value that package http does not send in a header, for example
// a token with the line break at the end of its file. The error does not contain the
// value.
func checkHeader(name, value string) error {
	if strings.ContainsFunc(value, unicode.IsControl) {
		return fmt.Errorf("the %s contains a control character, such as a line break", name)
	}
	return nil
}

// try sends a request once. Its error is a *Problem for an error answer, and *lost
// without a complete answer. Any other error is not worth a retry.
func (c *Client) try(ctx context.Context, r call, target, token string, body []byte, into content) (answer, error) {
	if err := ctx.Err(); err != nil {
		return answer{}, &lost{err, false}
	}
	ctx, cancel := context.WithTimeout(ctx, c.tryTimeout)
	defer cancel()
	// A transport that the caller has set may not call the trace. Then asked stays false, and the
	// request counts as sent.
	var asked, connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	request, err := http.NewRequestWithContext(traced, r.method, target, bytes.NewReader(body))
	if err != nil {
		return answer{}, err
	}
	setHeaders(request.Header, r, token)
	response, err := c.http.Do(request)
	if err != nil {
		if inner, ok := errors.AsType[*url.Error](err); ok {
			err = inner.Err // do adds the method and the path
		}
		return answer{}, &lost{err, connected.Load() || !asked.Load()}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer+1))
	switch {
	case err != nil:
		return answer{}, &lost{fmt.Errorf("reading the answer: %w", err), true}
	case len(text) > maxAnswer:
		return answer{}, errTooLarge
	case response.StatusCode/100 != 2:
		return answer{}, problemOf(response, text)
	}
	if err := json.Unmarshal(text, into); err != nil {
		return answer{}, fmt.Errorf("status %d, decoding the answer: %w", response.StatusCode, err)
	}
	if !into.complete() {
		return answer{}, fmt.Errorf("status %d: the answer is not one of the service", response.StatusCode)
	}
	return answer{response.StatusCode, response.Header.Get("Idempotent-Replayed") == "true"}, nil
}

func setHeaders(h http.Header, r call, token string) {
	h.Set("Accept", "application/json, application/problem+json")
	h.Set("User-Agent", "holdfast-client")
	if r.body != nil {
		h.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		h.Set("Idempotency-Key", r.key)
	}
	if token != "" {
		h.Set("Authorization", "Bearer "+token)
	}
}

// problemOf reads an error answer.
func problemOf(response *http.Response, text []byte) *Problem {
	var p Problem
	mediaType, _, _ := mime.ParseMediaType(response.Header.Get("Content-Type"))
	if mediaType != "application/problem+json" || json.Unmarshal(text, &p) != nil || p.Type == "" {
		p = Problem{
			Type: blank, Title: http.StatusText(response.StatusCode),
			Detail: "The answer is not a problem document, so it does not come from the service.",
		}
	}
	p.Status = response.StatusCode
	p.RetryAfter = retryAfter(response.Header.Get("Retry-After"))
	p.RequestID = response.Header.Get("X-Request-Id")
	return &p
}

// retryAfter reads the header Retry-After: seconds, or a date. It returns 0 if the header is
// missing or invalid, or the date is past.
func retryAfter(value string) time.Duration {
	// For a value out of range, ParseUint returns the largest one, which is longer than any caller
	// waits.
	if seconds, err := strconv.ParseUint(value, 10, 31); err == nil || errors.Is(err, strconv.ErrRange) {
		return time.Duration(seconds) * time.Second
	}
	if date, err := http.ParseTime(value); err == nil {
		return max(0, time.Until(date))
	}
	return 0
}

// effect is what a failed try means for the outcome of its call.
type effect int

const (
	unknown effect = iota // this try may have changed something
	none                  // this try has changed nothing; earlier ones may have, or may still do so
	settled               // the outcome of the call is known
)

// effectOf returns what the error of a try says about the outcome of its call.
func effectOf(err error, r call) effect {
	if !r.changes() {
		return settled
	}
	if l, ok := errors.AsType[*lost](err); ok && !l.sent {
		return none
	}
	p, ok := errors.AsType[*Problem](err)
	if !ok {
		return unknown
	}
	switch {
	case p.Type == InProgress && r.key != "":
		return unknown // another request places the order, for example an earlier try
	case p.Type == Busy, p.Type == Superseded, p.Type == InProgress:
		return none
	case p.Type == RefundDue: // the payment is recorded
		return settled
	case p.Status == http.StatusConflict, p.Type == UnknownSKU:
		return none // an earlier try may still arrive, and then find another stock or status
	case p.Status/100 != 4:
		return unknown
	case p.Type == blank, p.Status == http.StatusUnauthorized, p.Status == http.StatusForbidden,
		p.Status == http.StatusRequestTimeout, p.Status == http.StatusTooManyRequests:
		return none // refused before anything was looked up
	}
	return settled
}

// wait reports whether to try again, after the pause that the error asks for.
func (c *Client) wait(ctx context.Context, r call, try int, err error) bool {
	if r.once || try >= c.tries || !isTemporary(err) {
		return false
	}
	if p, ok := errors.AsType[*Problem](err); ok && p.RetryAfter > 0 {
		// Clients that are asked to wait for the same time should not return together.
		return p.RetryAfter <= c.maxPause && sleep(ctx, p.RetryAfter+rand.N(p.RetryAfter/4+1))
	}
	pause := min(firstPause<<min(try-1, 5), c.maxPause)
	return sleep(ctx, pause/2+rand.N(pause/2+1))
}

// isTemporary reports whether another try is safe and may get another answer.
func isTemporary(err error) bool {
	if _, ok := errors.AsType[*lost](err); ok {
		return true
	}
	p, ok := errors.AsType[*Problem](err)
	if !ok {
		return false
	}
	switch p.Status {
	case http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusRequestTimeout,
		http.StatusBadGateway, http.StatusGatewayTimeout:
		return true
	}
	return p.Type == InProgress
}

// sleep waits for d and reports whether it did. It does not wait if ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	if deadline, ok := ctx.Deadline(); ctx.Err() != nil || ok && time.Until(deadline) < d {
		return false
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
