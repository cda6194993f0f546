package deploy

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/VictoriaMetrics/metricsql"
	"github.com/goccy/go-yaml"
	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

const (
	rulesFile     = "deploy/prometheus/holdfast.rules.yml"
	ruleTestsFile = "deploy/prometheus/holdfast.rules.test.yml"
	dashboardFile = "deploy/grafana/holdfast.json"
)

// alert is a rule of rulesFile.
type alert struct {
	Alert       string
	Expr        string
	Labels      map[string]string
	Annotations map[string]string
}

func alerts(t *testing.T) (all []alert) {
	t.Helper()
	var rules struct{ Groups []struct{ Rules []alert } }
	if err := yaml.Unmarshal([]byte(read(t, rulesFile)), &rules); err != nil {
		t.Fatal(err)
	}
	for _, g := range rules.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 10 {
		t.Fatalf("found only %d alerts", len(all))
	}
	return all
}

// panel is a panel of the dashboard.
type panel struct {
	Title   string
	Targets []struct{ Expr string }
}

// variables are the dashboard's variables, with possible values.
var variables = strings.NewReplacer("$__rate_interval", "1m", "$job", "holdfast", "$instance", ".*")

// queries returns the queries of the dashboard by the panel's title, with values for
// its variables.
func queries(t *testing.T) map[string][]string {
	t.Helper()
	var dashboard struct{ Panels []panel }
	if err := json.Unmarshal([]byte(read(t, dashboardFile)), &dashboard); err != nil {
		t.Fatal(err)
	}
	found := make(map[string][]string)
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			found[p.Title] = append(found[p.Title], variables.Replace(target.Expr))
		}
	}
	if len(found) < 20 {
		t.Fatalf("found only %d panels", len(found))
	}
	return found
}

// exposed has the values of each label of each metric.
type exposed map[string]map[string]map[string]bool

// scrape adds the metrics of a running service.
func (e exposed) scrape(t *testing.T, url string) {
	t.Helper()
	// Metrics are long, and compressing them takes time.
	plain := http.Client{Transport: &http.Transport{DisableCompression: true}}
	defer plain.CloseIdleConnections()
	response, err := plain.Get(url + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	for name, family := range families {
		names := []string{name}
		if family.GetType().String() == "HISTOGRAM" {
			names = []string{name + "_bucket", name + "_sum", name + "_count"}
		}
		for _, name := range names {
			if e[name] == nil {
				e[name] = map[string]map[string]bool{"job": nil, "instance": nil}
			}
			if strings.HasSuffix(name, "_bucket") {
				e[name]["le"] = nil
			}
			for _, m := range family.GetMetric() {
				for _, l := range m.GetLabel() {
					if e[name][l.GetName()] == nil {
						e[name][l.GetName()] = make(map[string]bool)
					}
					e[name][l.GetName()][l.GetValue()] = true
				}
			}
		}
	}
}

// check returns the metrics, labels and label values in a query that do not exist. Prometheus
// itself adds the metric up, and the labels job and instance, which may have any value.
func (e exposed) check(query string) error {
	expr, err := metricsql.Parse(query)
	if err != nil {
		return err
	}
	var (
		errs   []error
		known  = map[string]bool{} // labels of the query's metrics
		groups []string            // labels that the query groups by
	)
	metricsql.VisitAll(expr, func(part metricsql.Expr) {
		switch part := part.(type) {
		case *metricsql.AggrFuncExpr:
			groups = append(groups, part.Modifier.Args...)
		case *metricsql.MetricExpr:
			for _, filters := range part.LabelFilterss {
				errs = append(errs, e.checkSelector(filters, known))
			}
		}
	})
	for _, label := range groups {
		if !known[label] {
			errs = append(errs, fmt.Errorf("no metric of the query has the label %s", label))
		}
	}
	return errors.Join(errs...)
}

// checkSelector checks the selector of one metric, and records the metric's labels.
func (e exposed) checkSelector(filters []metricsql.LabelFilter, known map[string]bool) error {
	name := filters[0].Value
	labels, found := e[name]
	switch {
	case filters[0].Label != "__name__":
		return errors.New("a selector without the name of a metric")
	case name == "up":
		known["job"], known["instance"] = true, true
		return nil
	case !found:
		return fmt.Errorf("there is no metric %s", name)
	}
	for label := range labels {
		known[label] = true
	}
	for _, f := range filters[1:] {
		values, found := labels[f.Label]
		if !found {
			return fmt.Errorf("%s has no label %s", name, f.Label)
		}
		if values == nil { // the label may have any value
			continue
		}
		matches := func(value string) bool { return value == f.Value }
		if f.IsRegexp {
			pattern, err := regexp.Compile("^(?:" + f.Value + ")$")
			if err != nil {
				return err
			}
			matches = pattern.MatchString
		}
		if !slices.ContainsFunc(slices.Collect(maps.Keys(values)), matches) {
			return fmt.Errorf("no %s of %s is %q", f.Label, name, f.Value)
		}
	}
	return nil
}

// TestMonitoredMetricsExist checks that every metric, label and label value in the alerts and the
// dashboard exists in a running service. The dashboard must show every histogram of the service.
func TestMonitoredMetricsExist(t *testing.T) {
	t.Parallel()
	e := make(exposed)
	for _, flags := range [][]string{nil, {"--strategy", "lock"}, {"--strategy", "async"}} {
		e.scrape(t, testenv.API(t, flags...).URL())
	}
	for _, a := range alerts(t) {
		if err := e.check(a.Expr); err != nil {
			t.Errorf("%s: %v", a.Alert, err)
		}
	}
	var shown strings.Builder
	for title, queries := range queries(t) {
		for _, query := range queries {
			shown.WriteString(query)
			if err := e.check(query); err != nil {
				t.Errorf("panel %q: %s: %v", title, query, err)
			}
		}
	}
	for name := range e {
		if strings.HasPrefix(name, "holdfast_") && strings.HasSuffix(name, "_bucket") && !strings.Contains(shown.String(), name+"{") {
			t.Errorf("no panel shows %s", name)
		}
	}
	for _, wrong := range []string{
		"max(holdfast_oversold)", `holdfast_orders_total{outcome="accepted"}`, `holdfast_orders_total{result="acepted"}`,
		`holdfast_orders_total{result=~"acepted|bought"}`, "sum by (sku) (holdfast_oversold_units)", "holdfast_gate_take_seconds > 1",
		`rate(holdfast_http_requests_total{status="999"}[5m])`, "max(", `{job="holdfast"}`,
	} {
		if e.check(wrong) == nil {
			t.Errorf("%s is accepted", wrong)
		}
	}
}

// TestDashboardSchema checks the dashboard strictly against Grafana's own schema: unknown members,
// and missing members that Grafana requires, are errors.
func TestDashboardSchema(t *testing.T) {
	t.Parallel()
	known := cog.NewRuntime() // the only data source of the dashboard's panels
	known.RegisterPanelcfgVariant(stat.VariantConfig())
	known.RegisterPanelcfgVariant(timeseries.VariantConfig())
	known.RegisterDataqueryVariant(prometheus.VariantConfig())
	check := func(text string) error {
		var d dashboard.Dashboard
		return errors.Join(d.UnmarshalJSONStrict([]byte(text)), d.Validate())
	}
	text := read(t, dashboardFile)
	if err := check(text); err != nil {
		t.Error(err)
	}
	for _, change := range [][2]string{
		{`"showLegend": true`, `"showLegends": true`}, {`"legendFormat"`, `"legend"`}, {`"lineWidth": 1`, `"lineWidth": "1"`},
		{`"reduceOptions"`, `"reduce"`}, {`"gridPos"`, `"grid"`}, {`"calcs"`, `"calc"`},
	} {
		broken := strings.Replace(text, change[0], change[1], 1)
		if broken == text {
			t.Errorf("the dashboard has no %s", change[0])
		} else if check(broken) == nil {
			t.Errorf("%s instead of %s is accepted", change[1], change[0])
		}
	}
}

// promtool runs promtool in the folder of the rules.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	program, err := exec.LookPath("promtool")
	if err != nil {
		t.Fatal("promtool is not installed; make servers installs it")
	}
	command := exec.CommandContext(t.Context(), program, args...)
	command.Dir = filepath.Join(root, filepath.Dir(rulesFile))
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}

// TestPromtool checks the rules, their unit tests, the example of a configuration, and
// the syntax of the dashboard's queries with Prometheus's own tool.
func TestPromtool(t *testing.T) {
	t.Parallel()
	promtool(t, "check", "config", "prometheus.yml")
	promtool(t, "check", "rules", filepath.Base(rulesFile))
	promtool(t, "test", "rules", filepath.Base(ruleTestsFile))

	var records []map[string]string
	for _, queries := range queries(t) {
		for _, query := range queries {
			records = append(records, map[string]string{"record": fmt.Sprintf("query:%d", len(records)), "expr": query})
		}
	}
	file := filepath.Join(t.TempDir(), "queries.json") // JSON is YAML
	text, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": records}}})
	if err == nil {
		err = os.WriteFile(file, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", file)
}

// TestEveryAlert checks that every alert has a severity, a summary, a unit test in which it fires,
// and a link to an entry in the runbook of each language. The runbooks must have no other entries.
func TestEveryAlert(t *testing.T) {
	t.Parallel()
	const link = "https://github.com/holdfast-stock/holdfast/blob/main/docs/runbook.md#"
	all := alerts(t)
	tests := read(t, ruleTestsFile)
	var names []string
	for _, a := range all {
		names = append(names, a.Alert)
		if s := a.Labels["severity"]; s != "critical" && s != "warning" {
			t.Errorf("%s has the severity %q", a.Alert, s)
		}
		if a.Annotations["summary"] == "" {
			t.Errorf("%s has no summary", a.Alert)
		}
		if got := a.Annotations["runbook_url"]; got != link+strings.ToLower(a.Alert) {
			t.Errorf("%s links to %q", a.Alert, got)
		}
		if !strings.Contains(tests, `alertname="`+a.Alert+`"`) {
			t.Errorf("%s has no test in which it fires", a.Alert)
		}
	}
	for _, runbook := range []string{"docs/runbook.md", "docs/runbook.zh-CN.md"} {
		var entries []string
		for _, m := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(read(t, runbook), -1) {
			entries = append(entries, m[1])
		}
		if !slices.Equal(entries, names) {
			t.Errorf("%s has the entries %v, want %v", runbook, entries, names)
		}
		for _, a := range all {
			_, entry, _ := strings.Cut(read(t, runbook), "## "+a.Alert+"\n")
			if first, _, _ := strings.Cut(strings.ToLower(strings.TrimSpace(entry)), "\n"); !strings.HasPrefix(first, "**"+a.Labels["severity"]) {
				t.Errorf("%s: the entry of %s does not begin with its severity, %s", runbook, a.Alert, a.Labels["severity"])
			}
		}
	}
}
