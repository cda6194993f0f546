package testenv

import (
	"context"
	"io"
	"net/http"
	"strings"
)

// Call sends a request, and returns the answer with its whole body. The body of the request is JSON
// unless the headers, each a name and a value, say otherwise.
func Call(ctx context.Context, c *http.Client, method, url, body string, headers ...string) (response *http.Response, text []byte, err error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, nil, err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	if response, err = c.Do(r); err != nil {
		return nil, nil, err
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	return response, text, err
}

// Transport is a transport of a client that calls a function.
type Transport func(*http.Request) (*http.Response, error)

// RoundTrip calls the function.
func (f Transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
