// Package server calls the servers under test over HTTP.
package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// Client calls servers. The zero value uses http.DefaultClient and no token. It is
// safe for concurrent use.
type Client struct {
	HTTP       *http.Client
	AdminToken string // bearer token for PutStock; empty: none
}

// GetJSON decodes an answer 200 into a value.
func (c Client) GetJSON(ctx context.Context, url string, into any) error {
	text, err := c.call(ctx, http.MethodGet, url, "", http.StatusOK)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(text, into); err != nil {
		return fmt.Errorf("reading the answer of %s: %w", url, err)
	}
	return nil
}

// Counters reads a page of counters; see [ParseCounters].
func (c Client) Counters(ctx context.Context, url string) (map[string]float64, error) {
	text, err := c.call(ctx, http.MethodGet, url, "", http.StatusOK)
	return ParseCounters(string(text)), err
}

// PutStock creates a SKU with these units. It fails if the SKU exists.
func (c Client) PutStock(ctx context.Context, url, sku string, units int64) error {
	_, err := c.call(ctx, http.MethodPut, url+"/stock/"+sku, fmt.Sprintf(`{"kind":"product","total":%d}`, units), http.StatusCreated)
	return err
}

// PutCoupon creates a coupon of which each buyer may hold limit units. It fails if the
// SKU exists.
func (c Client) PutCoupon(ctx context.Context, url, sku string, units, limit int64) error {
	_, err := c.call(ctx, http.MethodPut, url+"/stock/"+sku, fmt.Sprintf(`{"kind":"coupon","total":%d,"buyer_limit":%d}`, units, limit), http.StatusCreated)
	return err
}

// PostOrder orders one unit. It fails unless the order is accepted.
func (c Client) PostOrder(ctx context.Context, url, buyer, sku string) error {
	_, err := c.call(ctx, http.MethodPost, url+"/orders", fmt.Sprintf(`{"buyer_id":%q,"lines":[{"sku":%q,"quantity":1}]}`, buyer, sku), http.StatusCreated)
	return err
}

// call sends a request and returns the body of its answer. It fails unless the answer has
// the status want.
func (c Client) call(ctx context.Context, method, url, body string, want int) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		request.Header.Set("Content-Type", "application/json")
	}
	if c.AdminToken != "" && method == http.MethodPut {
		request.Header.Set("Authorization", "Bearer "+c.AdminToken)
	}
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, url, err)
	}
	if response.StatusCode != want {
		return nil, fmt.Errorf("%s %s: %s: %s", method, url, response.Status, text)
	}
	return text, nil
}

// ParseCounters reads lines of a name and a number, as Prometheus and ZooKeeper print
// them. It adds up the counters that differ in their labels only, and skips all
// other lines.
func ParseCounters(text string) map[string]float64 {
	counters := make(map[string]float64)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(line, "#") {
			continue
		}
		name, _, _ := strings.Cut(fields[0], "{")
		if value, err := strconv.ParseFloat(fields[len(fields)-1], 64); err == nil { // labels may contain spaces
			counters[name] += value
		}
	}
	return counters
}
