package report

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/loadtest/results"
)

func read(t *testing.T) *results.Run {
	t.Helper()
	run, err := results.Read("../results/testdata/results.json")
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// search turns the run into a search with one broken promise.
func search(run *results.Run) *results.Run {
	highest := 700
	run.Flags["search"] = "true"
	for i := range run.Strategies {
		run.Strategies[i].Rate, run.Strategies[i].Highest = 700, &highest
	}
	run.Strategies[0].Verdict, run.Strategies[0].Faults = results.Broken, []string{"no order was accepted"}
	return run
}

// lifecycle turns the run into a lifecycle load with one oversold unit.
func lifecycle(run *results.Run) *results.Run {
	run.Flags["lifecycle"] = "true"
	for i := range run.Strategies {
		run.Strategies[i].Lifecycle = &results.Lifecycle{Orders: 100, Paid: 61, Cancelled: 12, Expired: 20, Refunded: 7, Revived: 5, Payments: 90, RefundsDue: 29}
	}
	run.Strategies[1].Oversold, run.Strategies[1].Lifecycle = 1, nil
	return run
}

func TestWriteTable(t *testing.T) {
	t.Parallel()
	checked, broken := read(t), read(t)
	checked.Strategies[0].History = &results.History{SKUs: 2, Linearizable: 1}
	broken.CutShort, broken.Strategies[1].Failures = true, map[string]int64{"503 busy": 2}
	broken.Strategies[0].Verdict, broken.Strategies[0].Load = results.Undecided, "rush, stopped"
	for _, test := range []struct {
		name   string
		run    *results.Run
		has    []string
		hasNot []string
	}{
		{"rush", read(t), []string{"accepted  oversold  undersold  failed  after kill -9", "13 of 13", "as promised"}, []string{"highest rate", "caught"}},
		{"search", search(read(t)), []string{"highest rate  accepted  failed  late  dropped", "promise broken", "none: no order was accepted\n"}, []string{"oversold", "undersold"}},
		{"history", checked, []string{"accepted  refused  failed  calls  linearizable  verdict", "1 of 2 SKUs"}, nil},
		{"broken and interrupted", broken, []string{"lua: failed: 2 503 busy\n", "none: rush, stopped\n", "The run was interrupted.\n"}, nil},
		{"lifecycle", lifecycle(read(t)), []string{"orders  paid  cancelled  expired  refunded  revived  refunds due  oversold  failed  verdict", "  61         12       20         7        5           29  ", "–"}, []string{"p99", "after kill -9"}},
	} {
		var out strings.Builder
		WriteTable(&out, test.run, false)
		for _, has := range test.has {
			if !strings.Contains(out.String(), has) {
				t.Errorf("%s: no %q in\n%s", test.name, has, out.String())
			}
		}
		for _, hasNot := range test.hasNot {
			if strings.Contains(out.String(), hasNot) {
				t.Errorf("%s: %q in\n%s", test.name, hasNot, out.String())
			}
		}
	}
}

// written returns the page of a run.
func written(t *testing.T, run *results.Run) string {
	t.Helper()
	var out strings.Builder
	if err := WritePage(&out, run); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestWritePage(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name        string
		run         *results.Run
		has, hasNot []string
	}{
		{"rush", read(t), []string{
			"One strategy sold what was not there", "一种策略卖出了不存在的库存", "13 of 13", "13 / 13", `id="oversold"`, ">&#43;32<", "52 sold of 20", `class="part over" style="width:61.54%"`,
			`id="stock"`, ">−32<", `id="latency"`, `id="cpu"`, "13 of 13", ">13 / 13<", "强杀后仍在", "符合承诺",
		}, []string{`id="pitfalls"`, `class="card faults"`, "ZgotmplZ"}},
		{"search", search(read(t)), []string{
			`class="hero alarm"`, `class="card alarm"><b>1 / 2`, "1 of 2 strategies broke their promise", "2 种策略中有 1 种违背了承诺", "The highest rate", "none</b>: no order was accepted", `class="card faults"`,
		}, []string{`id="oversold"`, `id="stock"`, "closed load"}},
		{"lifecycle", lifecycle(read(t)), []string{
			">refunds due<", ">待退<", "<span>61</span>", "<span>90</span>", "<span>29</span>", ">–<",
		}, []string{`id="oversold"`, `id="stock"`}},
		{"nothing measured", &results.Run{}, []string{"No strategy was measured", "没有测得任何结果"}, []string{`id="figures"`, `class="legend"`}},
		{"no figures", &results.Run{Strategies: []results.Result{{Strategy: "<b>", Sound: true}}}, []string{"&lt;b&gt;"}, []string{`id="latency"`, `id="cpu"`, "<b></span>"}},
	} {
		page := written(t, test.run)
		for _, has := range test.has {
			if !strings.Contains(page, has) {
				t.Errorf("%s: no %q", test.name, has)
			}
		}
		for _, hasNot := range test.hasNot {
			if strings.Contains(page, hasNot) {
				t.Errorf("%s: %q", test.name, hasNot)
			}
		}
	}
}

var (
	external = regexp.MustCompile(`(?i)(https?:)?//[a-z0-9]|@import|url\([^#]|\ssrc=|<iframe`)
	inline   = regexp.MustCompile(`(?i)<[^>]*\son[a-z]+=`)
	comment  = regexp.MustCompile(`(?m)^\s*// .*$`)
)

// TestPageNeedsNothing checks that the page loads nothing, and has no scripts in attributes.
func TestPageNeedsNothing(t *testing.T) {
	t.Parallel()
	run := read(t)
	run.Pitfalls = []results.Experiment{experiment()}
	page := written(t, run)
	if found := external.FindString(comment.ReplaceAllString(page, "")); found != "" {
		t.Errorf("the page refers to something outside: %q", found)
	}
	if found := inline.FindString(page); found != "" {
		t.Errorf("the page has a script in an attribute: %q", found)
	}
	if !strings.Contains(page, `http-equiv="Content-Security-Policy" content="default-src 'none';`) {
		t.Error("the page may load something")
	}
	const most = 100 << 10 // a run of all strategies, with all pitfalls, is four times as large
	if len(page) > most {
		t.Errorf("the page has %d bytes", len(page))
	}
}

// TestHeadline checks that unexpected outcomes come first, and that an expected one is not an
// alarm.
func TestHeadline(t *testing.T) {
	t.Parallel()
	words, err := readDictionary()
	if err != nil {
		t.Fatal(err)
	}
	var (
		sound    = results.Result{Strategy: "lua", Sound: true, Verdict: results.AsPromised}
		broken   = results.Result{Strategy: "none", Oversold: 7, Verdict: results.AsPromised}
		surprise = results.Result{Strategy: "merged", Sound: true, Oversold: 3, Verdict: results.Broken, Surprise: results.Oversell}
		crashed  = results.Result{Strategy: "lua", Sound: true, Verdict: results.Broken, Crash: &results.Result{Oversold: 1, Surprise: results.Oversell}}
		repeated = results.Result{Strategy: "lua", Sound: true, Verdict: results.Broken, Keys: &results.Result{Oversold: 1, Surprise: results.Oversell}}
		quiet    = results.Result{Strategy: "mutex", Verdict: results.Broken, Surprise: results.NoOversell}
		alone    = results.Result{Strategy: "mutex", Verdict: results.AsPromised} // a result with one instance
		uncaught = results.Result{Strategy: "none", Verdict: results.Broken, Surprise: results.NoCatch}
		lost     = results.Result{Strategy: "lua", Sound: true, Verdict: results.Broken}
		open     = results.Result{Strategy: "lua", Sound: true, Verdict: results.Undecided}
	)
	caught := int64(5)
	guarded := results.Result{Strategy: "none", Verdict: results.AsPromised, Caught: &caught}
	many := make([]results.Result, 13)
	for i := range many {
		many[i] = broken
	}
	for _, test := range []struct {
		strategies                     []results.Result
		english, chinese, lead, leadNo string
	}{
		{nil, "No strategy was measured", "没有测得任何结果", "", ""},
		{[]results.Result{sound, sound}, "No strategy sold what was not there", "没有策略卖出不存在的库存", "No broken strategy ran beside them", "expected"},
		{[]results.Result{sound, alone}, "No strategy sold what was not there", "没有策略卖出不存在的库存", "The broken strategies did not oversell either", "No broken"},
		{[]results.Result{sound, guarded}, "No strategy sold what was not there", "没有策略卖出不存在的库存", "refused 5 orders", "did not oversell"},
		{[]results.Result{broken, sound}, "One strategy sold what was not there", "一种策略卖出了不存在的库存", "The other one sold no unit", "broken strategy"},
		{[]results.Result{broken, sound, broken, broken, sound}, "Three strategies sold what was not there", "三种策略卖出了不存在的库存", "none, none and none are known to be broken", "findings"},
		{many, "13 strategies sold what was not there", "13种策略卖出了不存在的库存", "expected", "The other"},
		{[]results.Result{broken, surprise, quiet}, "merged must not oversell, and did", "merged 不应超卖，却超卖了", "findings", "This was expected"},
		{[]results.Result{broken, surprise, crashed}, "Two strategies that must not oversell did", "两种不应超卖的策略发生了超卖", "findings", ""},
		{[]results.Result{crashed}, "lua must not oversell, and did", "lua 不应超卖，却超卖了", "findings", ""},
		{[]results.Result{repeated}, "lua must not oversell, and did", "lua 不应超卖，却超卖了", "findings", ""},
		{[]results.Result{broken, quiet, sound}, "mutex should have oversold, and did not", "mutex 本应超卖，却没有超卖", "proves nothing", "This was expected"},
		{[]results.Result{quiet, quiet}, "Two broken strategies should have oversold, and did not", "两种有缺陷的策略本应超卖，却没有超卖", "proves nothing", ""},
		{[]results.Result{uncaught, sound}, "The guard caught nothing behind none", "none 的兜底什么都没有拦下", "findings", ""},
		{[]results.Result{broken, lost}, "1 of 2 strategies broke their promise", "2 种策略中有 1 种违背了承诺", "findings", ""},
		{[]results.Result{open, sound}, "No promise was broken; 1 of 2 strategies are undecided", "没有策略违背承诺；2 种策略中有 1 种未定", "before the stock was sold out", ""},
	} {
		run := &results.Run{Strategies: test.strategies}
		if got := words.headline(run); got != (text{test.english, test.chinese}) {
			t.Errorf("%+v, want %s, %s", got, test.english, test.chinese)
		}
		var lead string
		for _, sentence := range words.lead(run) {
			lead += sentence.English + " "
		}
		if !strings.Contains(lead, test.lead) || test.leadNo != "" && strings.Contains(lead, test.leadNo) {
			t.Errorf("%s: %q, want %q and not %q", test.english, lead, test.lead, test.leadNo)
		}
	}
}

// TestDictionary checks that both languages have exactly the texts that the page uses.
func TestDictionary(t *testing.T) {
	t.Parallel()
	words, err := readDictionary()
	if err != nil {
		t.Fatal(err)
	}
	place := regexp.MustCompile(`\{\d\}`)
	places := func(s string) []string {
		found := place.FindAllString(s, -1)
		slices.Sort(found)
		return found
	}
	for key, english := range words.english {
		chinese, ok := words.chinese[key]
		if !ok || chinese == "" || english == "" {
			t.Errorf("%s: %q, %q", key, english, chinese)
		}
		if !slices.Equal(places(english), places(chinese)) {
			t.Errorf("%s: the languages have different arguments: %q, %q", key, english, chinese)
		}
	}
	for key := range words.chinese {
		if _, ok := words.english[key]; !ok {
			t.Errorf("%s is missing in English", key)
		}
	}

	used := map[string]bool{}
	for _, pattern := range []string{"*.go", "page/page.html.tmpl"} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			source, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range regexp.MustCompile(`(?:\bt |say\(|counted\()"([^"]+)"([,)}])?`).FindAllStringSubmatch(string(source), -1) {
				if key := found[1]; strings.HasSuffix(key, ".") {
					continue // the other texts are titles of columns, or verdicts
				} else if strings.Contains(found[0], "counted(") {
					used[key+".1"], used[key+".n"] = true, true
				} else {
					used[key] = true
				}
			}
		}
	}
	for _, run := range []*results.Run{read(t), search(read(t)), lifecycle(read(t))} {
		for i := range run.Strategies {
			run.Strategies[i].Queued, run.Strategies[i].Caught = 1, new(int64)
		}
		for _, column := range columns(run) {
			used["column."+column.title] = true
		}
	}
	run := read(t)
	run.Flags["rate"] = "5"
	for _, column := range columns(run) {
		used["column."+column.title] = true
	}
	for _, key := range []string{"column.payments", "verdict." + results.AsPromised, "verdict." + results.Broken, "verdict." + results.Undecided} {
		used[key] = true
	}
	for key := range used {
		if _, ok := words.english[key]; !ok {
			t.Errorf("the dictionary has no %q", key)
		}
	}
	for key := range words.english {
		if !used[key] {
			t.Errorf("nothing uses %q", key)
		}
	}
}

func TestGrouped(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", -8995: "−8,995", 1234567: "1,234,567"} {
		if got := grouped(n); got != want {
			t.Errorf("%d: %s", n, got)
		}
	}
}

func TestReadable(t *testing.T) {
	t.Parallel()
	for figure, want := range map[string]string{
		"0": "0", "999": "999", "2017": "2,017", "≥ 200000": "≥ 200,000", "12345 of 1234567": "12,345 of 1,234,567", "999.99": "999.99", "2017.27": "2,017", "1999.50": "2,000", "–": "–",
	} {
		if got := readable(figure); got != want {
			t.Errorf("%s: %s, want %s", figure, got, want)
		}
	}
	if got := decimal(999.996); got != "1,000" {
		t.Error(got)
	}
}

// TestWritePageSpeaksBoth checks that stores, loads and faults are shown in both languages. An
// older report has them only in English.
func TestWritePageSpeaksBoth(t *testing.T) {
	t.Parallel()
	run := search(read(t))
	run.Stores, run.StoresChinese, run.Addresses = "MariaDB 10.11.14, Redis 7.0.15", "MariaDB 10.11.14、Redis 7.0.15", "MySQL at 127.0.0.1:21306"
	run.Strategies[0].LoadChinese, run.Strategies[0].FaultsChinese = "抢购，8 个客户端", []string{"没有订单被接受"}
	page := written(t, run)
	for _, has := range []string{run.StoresChinese, ">none: rush, 8 clients</span>", ">none：抢购，8 个客户端</span>", ">没有订单被接受</span>", ">lua：rush, 8 clients</span>"} {
		if !strings.Contains(page, has) {
			t.Errorf("no %q", has)
		}
	}
	if strings.Contains(page, "21306") {
		t.Error("the page has an address")
	}
}

// TestLatencyChart places the percentiles of two strategies.
func TestLatencyChart(t *testing.T) {
	t.Parallel()
	run := &results.Run{Strategies: []results.Result{
		{Strategy: "slow", Accepted: 1000, Percentiles: []results.Percentile{{Quantile: 0.5, Millis: 10}, {Quantile: 0.9, Millis: 50}, {Quantile: 0.9999, Millis: 1000}, {Quantile: 1, Millis: 1000}}},
		{Strategy: "fast", Sound: true, Accepted: 50, Refused: 50, Percentiles: []results.Percentile{{Quantile: 0.5, Millis: 1}, {Quantile: 1, Millis: 1000}}},
	}}
	l := latencyChart(run, legend(run))
	// From 1 ms to 1 s and to p99.9, three decades each.
	if got, want := l.Curves[0].Path, "M10.03 66.67L33.33 43.37L100 0"; got != want {
		t.Errorf("the path is %s, want %s", got, want)
	}
	if got, want := l.Curves[1].Path, "M10.03 100L66.67 0"; got != want { // 100 answers end at p99
		t.Errorf("the path is %s, want %s", got, want)
	}
	var labels []string
	for _, tick := range slices.Concat(l.X, l.Y) {
		labels = append(labels, tick.Label+" "+tick.At)
	}
	if got, want := strings.Join(labels, ", "), "p50 10.03, p90 33.33, p99 66.67, p99.9 100, 1 ms 100, 2 ms 89.97, 5 ms 76.7, 10 ms 66.67, 20 ms 56.63, "+
		"50 ms 43.37, 100 ms 33.33, 200 ms 23.3, 500 ms 10.03, 1 s 0"; got != want {
		t.Errorf("the ticks are %s, want %s", got, want)
	}
	if l.Curves[0].Tag != "0" || l.Curves[1].Tag != "4.3" {
		t.Errorf("the names are at %s and %s", l.Curves[0].Tag, l.Curves[1].Tag)
	}
	// The p99.99 of 1,000 answers would be the maximum again.
	if got, want := strings.Join(l.Columns, " "), "p50 p90 max"; got != want {
		t.Errorf("the columns are %s, want %s", got, want)
	}
	if got := strings.Join(l.Rows[1].Cells, " "); got != "1.00 – 1,000" {
		t.Error(got)
	}
}

// TestPanels draws the stock of a strategy that oversells.
func TestPanels(t *testing.T) {
	t.Parallel()
	run := &results.Run{Strategies: []results.Result{
		{Strategy: "none", Stock: 2, Sold: 3, Oversold: 1, Sales: []float64{0.1, 0.2, 0.4}},
		{Strategy: "nothing sold", Stock: 2},
	}}
	all, points := panels(run, legend(run))
	if len(all) != 1 || len(points) != 1 {
		t.Fatalf("%d panels", len(all))
	}
	p := all[0]
	if p.Path != "M0 50L0 0L25 25L50 50L100 75L100 50" {
		t.Errorf("%+v", p)
	}
	if p.End != "−1" || p.Zero != "0.20" || p.Seconds != "0.40" || p.Last != "0.40" || !p.Below {
		t.Errorf("%+v", p)
	}
	// A line of many sales includes the sale of the last unit, and ends at the bottom.
	for _, many := range []int{319, 2002, 7003} {
		long := results.Result{Stock: 1001, Sales: make([]float64, many)}
		for i := range long.Sales {
			long.Sales[i] = float64(i)
		}
		l, end := stockLevels(long), max(1001-int64(many), -1001)
		if len(l.Left) > maxPoints+3 || end < 0 && !slices.Contains(l.Left, 0) || l.Left[len(l.Left)-1] != end {
			t.Errorf("%d sales: %d points, the last %d", many, len(l.Left), l.Left[len(l.Left)-1])
		}
	}
}
