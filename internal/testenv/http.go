package testenv

import (
	"context"
	"io"
	"net/http"
	"strings"
)

// Answer is the answer to a request.
type Answer struct {
	Status int
	Proto  int // major version of HTTP
	Header http.Header
	Text   []byte // the whole body
}

// Call sends a request and returns the answer. The body is JSON unless the headers, each a name and a
// value, say otherwise.
func Call(ctx context.Context, c *http.Client, method, url, body string, headers ...string) (Answer, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return Answer{}, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := c.Do(r)
	if err != nil {
		return Answer{}, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return Answer{response.StatusCode, response.ProtoMajor, response.Header, text}, err
}

// Transport is a transport of a client that calls a function.
type Transport func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f Transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
