// Package report presents a load test to people.
package report

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"regexp"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

//go:embed page.html.tmpl
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"figure":   figure,
	"number":   func(v *int64) string { return table.Optional("%d", v) },
	"chinese":  func(verdict string) string { return verdictsChinese[verdict] },
	"timeline": timeline,
}).Parse(pageText))

var verdictsChinese = map[string]string{
	results.AsPromised: "符合承诺",
	results.Broken:     "违背承诺",
	results.Undecided:  "未定",
}

// drawing is a chart for a desktop and for a phone.
type drawing struct{ Desktop, Phone template.HTML }

// WritePage writes the report as one HTML page that needs no network.
func WritePage(w io.Writer, run *results.Run) error {
	data := struct {
		*results.Run
		Loads                    string
		Heading, HeadingChinese  string
		Throughput, Latency      drawing
		Oversold, StockRemaining *drawing // nil: not drawn for this load
		Measured                 bool     // the page shows a load
	}{Run: run, Loads: loads(run), Measured: len(run.Strategies) > 0 || len(run.Pitfalls) == 0}
	data.Heading, data.HeadingChinese = headings(run)
	var err error
	if data.Throughput, err = drawn(run, throughputChart); err != nil {
		return err
	}
	if data.Latency, err = drawn(run, latencyChart); err != nil {
		return err
	}
	if !run.Open() && !run.Lifecycle() { // an open load has more stock than orders; in a lifecycle load, units return
		oversold, err := drawn(run, oversoldChart)
		if err != nil {
			return err
		}
		remaining, err := drawn(run, stockChart)
		if err != nil {
			return err
		}
		data.Oversold, data.StockRemaining = &oversold, &remaining
	}
	return page.Execute(w, data)
}

// drawn draws a chart in both formats.
func drawn(run *results.Run, chart func(*results.Run, format) (*plot.Plot, error)) (d drawing, err error) {
	for _, each := range []struct {
		format
		into *template.HTML
	}{{desktop, &d.Desktop}, {phone, &d.Phone}} {
		p, err := chart(run, each.format)
		if err != nil {
			return d, err
		}
		if *each.into, err = svg(p, each.format); err != nil {
			return d, err
		}
	}
	return d, nil
}

// size matches the fixed size of a drawing. Without it, the drawing is as wide as the
// page.
var size = regexp.MustCompile(`<svg width="[^"]*" height="[^"]*"`)

// svg draws a chart as an element of the page.
func svg(p *plot.Plot, f format) (template.HTML, error) {
	canvas := vgsvg.New(f.width, f.height)
	p.Draw(draw.New(canvas))
	var text bytes.Buffer
	if _, err := canvas.WriteTo(&text); err != nil {
		return "", err
	}
	element := text.Bytes()
	if at := bytes.Index(element, []byte("<svg")); at > 0 {
		element = element[at:] // cuts off the XML declaration, which HTML forbids
	}
	return template.HTML(size.ReplaceAll(element, []byte(`<svg role="img"`))), nil // drawn above from numbers and strategy names, so it needs no escaping
}

// loads says how the strategies were loaded, in one sentence if all loads are alike.
func loads(run *results.Run) string {
	var each []string
	alike := true
	for _, s := range run.Strategies {
		each = append(each, s.Strategy+": "+s.Load+".")
		alike = alike && s.Load == run.Strategies[0].Load
	}
	if alike && len(each) > 0 {
		return "Each strategy: " + run.Strategies[0].Load + "."
	}
	return strings.Join(each, " ")
}

// headings states the outcome of the run in one sentence.
func headings(run *results.Run) (english, chinese string) {
	all, broken, undecided := len(run.Strategies), run.Count(results.Broken), run.Count(results.Undecided)
	switch {
	case all == 0 && len(run.Pitfalls) > 0:
		return pitfallHeadings(run.Pitfalls)
	case all == 0:
		return "No strategy was measured", "没有测得任何结果"
	case broken > 0:
		return fmt.Sprintf("%d of %d strategies broke their promise", broken, all), fmt.Sprintf("%d 个策略中有 %d 个违背了承诺", all, broken)
	case undecided > 0:
		return fmt.Sprintf("No promise was broken; %d of %d strategies are undecided", undecided, all),
			fmt.Sprintf("没有策略违背承诺；%d 个策略中有 %d 个未定", all, undecided)
	case run.Search():
		return "The highest rate that each strategy sustains", "每个策略能承受的最高到达率"
	case run.Open():
		return fmt.Sprintf("Waiting times at %d orders a second", run.Strategies[0].Rate),
			fmt.Sprintf("每秒 %d 单时的等待时间", run.Strategies[0].Rate)
	}
	return "Every strategy kept its promise", "每个策略都符合其承诺"
}

// pitfallHeadings states the outcome of the experiments in one sentence.
func pitfallHeadings(all []results.Experiment) (english, chinese string) {
	ran, failed, notRun := tally(all)
	switch {
	case failed > 0:
		return fmt.Sprintf("%d of %d experiments did not turn out as expected", failed, ran), fmt.Sprintf("%d 个实验中有 %d 个不符合预期", ran, failed)
	case len(notRun) > 0:
		return fmt.Sprintf("%d experiments turned out as expected; %d did not run", ran, len(notRun)), fmt.Sprintf("%d 个实验符合预期；%d 个没有运行", ran, len(notRun))
	}
	return "Every flaw did its damage, and every fix held", "每种错误写法都造成了损失，每种改法都守住了"
}
