package main

import (
	"maps"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/redis/go-redis/v9"
)

// scrape returns the metrics of a running service by name. query can select some of them.
func scrape(t *testing.T, url, query string) map[string]*dto.MetricFamily {
	t.Helper()
	text := string(mustCall(t, http.StatusOK, http.MethodGet, url+"/metrics"+query, ""))
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("promlint: %s: %s", p.Metric, p.Text)
	}
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// labels returns the labels of a metric, as the table in docs/operations.md writes
// them: sorted, separated by commas.
func labels(family *dto.MetricFamily) string {
	names := make(map[string]bool)
	for _, m := range family.GetMetric() {
		for _, label := range m.GetLabel() {
			names[label.GetName()] = true
		}
	}
	return strings.Join(slices.Sorted(maps.Keys(names)), ",")
}

// documented matches a metric in the first column of the table: name{labels}. The name may end with
// *, which stands for any ending.
var documented = regexp.MustCompile("`([a-z_]+\\*?)(?:\\{([a-z_,]+)\\})?`")

// documentedMetrics returns the labels of the metrics in the table of
// docs/operations.md, by name.
func documentedMetrics(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "| metric | meaning |")
	table, _, _ = strings.Cut(table, "\n\n")
	found := make(map[string]string)
	for line := range strings.Lines(table) {
		column, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), " |")
		for _, m := range documented.FindAllStringSubmatch(column, -1) {
			names := strings.Split(m[2], ",")
			slices.Sort(names)
			found[m[1]] = strings.Join(names, ",")
		}
	}
	return found
}

// TestMetricsAreDocumented checks the metrics of running services with promlint. Every metric must
// be in the table of docs/operations.md with its labels, and every metric in the table must exist.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	table, seen := documentedMetrics(t), make(map[string]bool)
	for _, flags := range [][]string{nil, {"--strategy", "lock"}, {"--strategy", "merged"}, {"--strategy", "async"}} {
		for name, family := range scrape(t, serveHere(t, flags...).URL(), "") {
			entry := name
			if _, exact := table[name]; !exact {
				for pattern := range table {
					if matches, _ := path.Match(pattern, name); matches {
						entry = pattern
					}
				}
			}
			want, known := table[entry]
			switch {
			case !known:
				t.Errorf("%v: %s is not in docs/operations.md", flags, name)
			case entry == name && labels(family) != want:
				t.Errorf("%v: %s has the labels %s; docs/operations.md says %s", flags, name, labels(family), want)
			}
			seen[entry] = true
		}
	}
	for name := range table {
		if !seen[name] {
			t.Errorf("docs/operations.md has %s, which does not exist", name)
		}
	}
}

// TestRedisPool checks that each metric of the pool has the figure that its name says.
func TestRedisPool(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	registerRedisPool(registry, func() *redis.PoolStats {
		return &redis.PoolStats{Hits: 1, Misses: 2, Timeouts: 3, WaitCount: 4, WaitDurationNs: 5e9, StaleConns: 6, TotalConns: 7, IdleConns: 8}
	})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		m := f.GetMetric()[0]
		got[strings.TrimPrefix(f.GetName(), "holdfast_redis_pool_")] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
	}
	want := map[string]float64{
		"hits_total": 1, "misses_total": 2, "timeouts_total": 3, "waits_total": 4, "wait_seconds_total": 5,
		"stale_connections_total": 6, "connections": 7, "idle_connections": 8,
	}
	if !maps.Equal(got, want) {
		t.Errorf("the pool has %v, want %v", got, want)
	}
}
