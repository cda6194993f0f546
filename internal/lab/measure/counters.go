package measure

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// Counters reads the page of counters at a URL; see [ParseCounters].
func Counters(ctx context.Context, url string) (map[string]float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, text)
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", url, err)
	}
	return ParseCounters(string(text)), nil
}

// bound matches the label of a bucket of a histogram, which Prometheus prints last.
var bound = regexp.MustCompile(`\ble="[^"]*"}`)

// ParseCounters reads lines of a name and a number, as Prometheus and ZooKeeper print
// them. It adds up the counters that differ in their labels only, and skips all
// other lines. The buckets of a histogram keep their bound: name_bucket{le="0.5"}.
func ParseCounters(text string) map[string]float64 {
	counters := make(map[string]float64)
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 2 || strings.HasPrefix(line, "#") {
			continue
		}
		name, _, _ := strings.Cut(fields[0], "{")
		if le := bound.FindString(line); le != "" {
			name += "{" + le
		}
		if value, err := strconv.ParseFloat(fields[len(fields)-1], 64); err == nil { // labels may contain spaces
			counters[name] += value
		}
	}
	return counters
}
