// Package report presents the results of a load test on a page and on a terminal.
package report

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/internal/palette"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

//go:embed page
var files embed.FS

// view has the contents of the page for a run.
type view struct {
	*results.Run
	Measured bool // the page shows a load
	Headline text
	Lead     text
	Tone     string // CSS class of the headline
	Facts    []text
	Faults   []fault
	Failures []fault
	Tiles    []tile
	Legend   []series

	Oversold     []bar // empty for an open load, which has more stock than orders, and for a lifecycle load, in which units return
	OversoldNote text
	Panels       []panel
	Latency      *latency

	Throughput                      []bar
	ThroughputTitle, ThroughputNote text
	CPU                             []bar
	Processes                       []process

	Columns []text
	Rows    []row
	Notes   []text
	Loads   []text
	Method  []text
	Data    data
}

type fault struct {
	Strategy string
	Fault    text
}

// tile is a figure with a few words.
type tile struct {
	Figure string
	What   text
	Tone   string
}

type row struct {
	series
	Cells []cell
}

type cell struct {
	Title, Text text
	Alarm       bool
}

// data are the figures that the page shows under the pointer.
type data struct {
	Stock   map[int]levels `json:"stock"`
	Latency []stop         `json:"latency"`
	Left    text           `json:"left"`
}

// WritePage writes the report as one HTML page that needs no network.
func WritePage(w io.Writer, run *results.Run) error {
	words, err := readDictionary()
	if err != nil {
		return err
	}
	page, err := template.New("page.html.tmpl").Funcs(template.FuncMap{
		"t": func(key string) (template.HTML, error) {
			if _, ok := words.english[key]; !ok {
				return "", fmt.Errorf("the dictionary has no %q", key)
			}
			return spans(words.say(key)), nil
		},
		"text":     spans,
		"both":     func(english, chinese string) template.HTML { return spans(pair(english, chinese)) },
		"readable": readable,
		"timeline": timeline,
		"style": func() (template.CSS, error) {
			css, err := files.ReadFile("page/style.css")
			return template.CSS(palette.CSS() + string(css)), err
		},
		"script": func(name string) (template.JS, error) {
			script, err := files.ReadFile("page/" + name)
			return template.JS(script), err
		},
	}).ParseFS(files, "page/page.html.tmpl")
	if err != nil {
		return err
	}
	return page.Execute(w, words.view(run))
}

// view prepares the page.
func (d dictionary) view(run *results.Run) *view {
	v := &view{Run: run, Measured: len(run.Strategies) > 0, Headline: d.headline(run), Lead: joined(d.lead(run)), Facts: d.facts(run), Legend: legend(run), Tone: "plain"}
	if run.Count(results.Broken) > 0 || slices.ContainsFunc(run.Pitfalls, func(e results.Experiment) bool { return !e.AsExpected() }) {
		v.Tone = "alarm"
	}
	v.Data.Left = d.say("stock.left")
	if !v.Measured {
		return v
	}
	v.Tiles = d.tiles(run)
	for _, r := range run.Strategies {
		for i, english := range r.Faults {
			f := fault{r.Strategy, same(english)}
			if i < len(r.FaultsChinese) {
				f.Fault.Chinese = r.FaultsChinese[i]
			}
			v.Faults = append(v.Faults, f)
		}
		if r.Failed > 0 {
			v.Failures = append(v.Failures, fault{r.Strategy, same(r.FailuresText())})
		}
	}
	if !run.Open() && !run.Lifecycle() {
		v.Oversold, v.OversoldNote = d.oversoldBars(run, v.Legend), d.say("oversold.note", run.Strategies[0].Stock)
		v.Panels, v.Data.Stock = panels(run, v.Legend)
	}
	if v.Latency = latencyChart(run, v.Legend); v.Latency != nil {
		v.Data.Latency = v.Latency.stops
	}
	v.Throughput = throughputBars(run, v.Legend)
	v.ThroughputTitle, v.ThroughputNote = d.throughputWords(run)
	v.CPU, v.Processes = d.cpuBars(run, v.Legend)
	v.addTable(d)
	v.Notes, v.Loads, v.Method = d.notes(run), loads(run), d.method(run)
	return v
}

// facts are the circumstances that the reader needs first.
func (d dictionary) facts(run *results.Run) (all []text) {
	if len(run.Strategies) == 0 {
		return nil
	}
	first := run.Strategies[0]
	if !run.Open() && !run.Lifecycle() {
		all = append(all, d.say("fact.stock", first.Stock))
	}
	if clients := run.Flags["clients"]; clients != "" && !run.Open() {
		all = append(all, d.say("fact.clients", readable(clients)))
	}
	if first.Instances == 1 {
		all = append(all, d.say("fact.instances.1"))
	} else {
		all = append(all, d.say("fact.instances", first.Instances))
	}
	if run.Guarded() {
		all = append(all, d.say("fact.guard"))
	}
	return append(all, pair(run.Stores, run.StoresChinese), same(run.When.UTC().Format("2006-01-02 15:04 UTC")))
}

// tiles are the figures that sum up the run.
func (d dictionary) tiles(run *results.Run) (all []tile) {
	var oversold, found, accepted, orders, payments int64
	for i := range run.Strategies {
		r := &run.Strategies[i]
		oversold += r.Oversold
		if r.Crash != nil {
			found, accepted = found+r.KeptOrders(), accepted+r.Crash.Accepted
		}
		if r.Lifecycle != nil {
			orders, payments = orders+r.Lifecycle.Orders, payments+r.Lifecycle.Payments
		}
	}
	if !run.Open() {
		all = append(all, tile{grouped(oversold), d.say("tile.oversold"), alarmUnless(oversold == 0)})
	}
	kept := run.Count(results.AsPromised)
	all = append(all, tile{fmt.Sprintf("%d / %d", kept, len(run.Strategies)), d.say("tile.kept"), alarmUnless(kept == len(run.Strategies)-run.Count(results.Undecided))})
	if accepted > 0 {
		all = append(all, tile{grouped(found) + " / " + grouped(accepted), d.say("tile.crash"), alarmUnless(found == accepted)})
	}
	if orders > 0 {
		all = append(all, tile{Figure: grouped(orders), What: d.say("tile.orders")}, tile{Figure: grouped(payments), What: d.say("tile.payments")})
	}
	return append(all, d.bestTile(run)...)
}

func alarmUnless(fine bool) string {
	if fine {
		return "good"
	}
	return "alarm"
}

// bestTile names the strategy with the best figure of those that did what they promise and did not
// oversell. It returns no tile for a lifecycle load, which does not measure speed.
func (d dictionary) bestTile(run *results.Run) []tile {
	better := func(a, b results.Result) bool { return a.PerSecond > b.PerSecond }
	show := func(r results.Result) tile {
		return tile{Figure: grouped(int64(r.PerSecond + 0.5)), What: d.say("tile.fastest", r.Strategy)}
	}
	fit := func(r results.Result) bool { return r.Sound }
	switch {
	case run.Lifecycle():
		return nil
	case run.Search():
		fit = func(r results.Result) bool { return r.Highest != nil }
		better = func(a, b results.Result) bool { return *a.Highest > *b.Highest }
		show = func(r results.Result) tile {
			return tile{Figure: readable(r.RateText()), What: d.say("tile.highest", r.Strategy)}
		}
	case run.Open():
		fit = func(r results.Result) bool { return r.P99 != nil }
		better = func(a, b results.Result) bool { return *a.P99 < *b.P99 }
		show = func(r results.Result) tile {
			return tile{Figure: decimal(*r.P99), What: d.say("tile.p99", r.Strategy)}
		}
	}
	var best *results.Result
	for i, r := range run.Strategies {
		if r.Verdict == results.AsPromised && r.Oversold == 0 && fit(r) && (best == nil || better(r, *best)) {
			best = &run.Strategies[i]
		}
	}
	if best == nil {
		return nil
	}
	return []tile{show(*best)}
}

// throughputWords returns the title of the chart of throughput, and its note.
func (d dictionary) throughputWords(run *results.Run) (title, note text) {
	switch {
	case run.Search():
		return d.say("throughput.search"), d.say("throughput.note.search")
	case run.Open():
		return d.say("throughput"), d.say("throughput.note.open")
	case run.Lifecycle():
		return d.say("throughput"), d.say("throughput.note.lifecycle")
	}
	return d.say("throughput"), d.say("throughput.note")
}

// addTable adds the columns of the terminal's table.
func (v *view) addTable(d dictionary) {
	columns := columns(v.Run)[1:] // the first column has the names
	if v.Lifecycle() {
		at := slices.IndexFunc(columns, func(c column) bool { return c.title == "refunds due" })
		columns = slices.Insert(slices.Clone(columns), at, ended("payments", func(l *results.Lifecycle) int64 { return l.Payments }))
	}
	columns = slices.DeleteFunc(slices.Clone(columns), func(c column) bool { // nothing was measured
		return !slices.ContainsFunc(v.Strategies, func(r results.Result) bool { return c.cell(&r) != table.Unknown })
	})
	v.Columns = []text{d.say("column.strategy")}
	for _, column := range columns {
		v.Columns = append(v.Columns, d.say("column."+column.title))
	}
	for i := range v.Strategies {
		r := row{series: v.Legend[i]}
		for j, column := range columns {
			r.Cells = append(r.Cells, d.cell(v.Columns[j+1], column.cell(&v.Strategies[i])))
		}
		v.Rows = append(v.Rows, r)
	}
}

// cell formats a value of the terminal's table for the page.
func (d dictionary) cell(title text, value any) cell {
	c := cell{Title: title}
	figures := fmt.Sprint(value)
	if value, ok := value.(table.Cell); ok {
		figures, c.Alarm = value.Text, value.Alarm
	}
	figures = readable(figures)
	c.Text = same(figures)
	if verdict := "verdict." + figures; d.english[verdict] != "" {
		c.Text = d.say(verdict)
	}
	if part, whole, ok := strings.Cut(figures, " of "); ok {
		c.Text = d.say("part", part, whole)
	}
	return c
}

// notes explain columns of the table.
func (d dictionary) notes(run *results.Run) (all []text) {
	if run.Queued() {
		all = append(all, d.say("note.queued"))
	}
	if run.Killed() {
		all = append(all, d.say("note.killed"))
	}
	if run.Open() {
		all = append(all, d.say("note.open"))
	}
	return all
}

// method explains what the figures of a rush do not show.
func (d dictionary) method(run *results.Run) []text {
	if run.Open() || run.Lifecycle() {
		return nil
	}
	return []text{d.say("method.oversold"), d.say("method.closed")}
}

// loads describes the load of the strategies, and names the strategies with another load.
func loads(run *results.Run) (all []text) {
	names := make(map[text][]string)
	for _, r := range run.Strategies {
		load := pair(r.Load, r.LoadChinese)
		if names[load] == nil {
			all = append(all, load)
		}
		names[load] = append(names[load], r.Strategy)
	}
	if len(all) < 2 {
		return all
	}
	for i, load := range all {
		all[i] = text{strings.Join(names[load], ", ") + ": " + load.English, strings.Join(names[load], "、") + "：" + load.Chinese}
	}
	return all
}
