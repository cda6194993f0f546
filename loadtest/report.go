package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

//go:embed report.html.tmpl
var reportPage string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"figure": func(v *float64) string { return figure(v).text },
	"number": number,
}).Parse(reportPage))

// format is what a chart is drawn for; it scales with the page's width.
type format struct {
	width, height vg.Length
	bar           vg.Length
	letters       vg.Length
	tilt          float64 // of the strategies' names, in radians
}

var (
	desktop = format{width: 22 * vg.Centimeter, height: 11 * vg.Centimeter, bar: vg.Points(24), letters: vg.Points(12), tilt: math.Pi / 6}
	phone   = format{width: 10 * vg.Centimeter, height: 10 * vg.Centimeter, bar: vg.Points(12), letters: vg.Points(8.5), tilt: math.Pi / 3}
)

// palette tells strategies apart, for colour-blind readers too (Okabe and Ito).
var palette = []color.RGBA{
	{0, 114, 178, 255}, {230, 159, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255},
	{86, 180, 233, 255}, {213, 94, 0, 255}, {120, 120, 120, 255}, {0, 0, 0, 255},
}

var alarmColor = color.RGBA{200, 30, 30, 255}

// report writes one page with everything in it: it needs no network.
func (r *Results) report(w io.Writer) error {
	data := struct {
		*Results
		Killed, Guard, Open, Search          bool
		Throughput, Latency, Oversold, Sales []template.HTML // for a desktop, and for a phone
	}{Results: r, Killed: r.killed(), Guard: r.guarded(), Open: r.open, Search: r.search}
	for _, chart := range []struct {
		into *[]template.HTML
		draw func(format) (*plot.Plot, error)
	}{
		{&data.Throughput, r.throughputChart}, {&data.Oversold, r.oversoldChart},
		{&data.Latency, r.latencyChart}, {&data.Sales, r.salesChart},
	} {
		if r.open && (chart.into == &data.Oversold || chart.into == &data.Sales) {
			continue // there was stock in plenty
		}
		for _, f := range []format{desktop, phone} {
			p, err := chart.draw(f)
			if err != nil {
				return err
			}
			drawing, err := svg(p, f)
			if err != nil {
				return err
			}
			*chart.into = append(*chart.into, drawing)
		}
	}
	return page.Execute(w, data)
}

// size is the fixed size of a drawing, which the page's width takes the place of.
var size = regexp.MustCompile(`<svg width="[^"]*" height="[^"]*"`)

// svg draws the chart as part of a page.
func svg(p *plot.Plot, f format) (template.HTML, error) {
	canvas := vgsvg.New(f.width, f.height)
	p.Draw(draw.New(canvas))
	var text bytes.Buffer
	if _, err := canvas.WriteTo(&text); err != nil {
		return "", err
	}
	drawing := text.Bytes()
	if at := bytes.Index(drawing, []byte("<svg")); at > 0 {
		drawing = drawing[at:] // without the declaration, which has no place in a page
	}
	return template.HTML(size.ReplaceAll(drawing, []byte(`<svg role="img"`))), nil // drawn here, so it needs no escaping
}

// ticks are the usual ones, their numbers written without idle digits.
type ticks struct{}

func (ticks) Ticks(lowest, highest float64) []plot.Tick {
	all := plot.DefaultTicks{}.Ticks(lowest, highest)
	for i := range all {
		if all[i].Label != "" {
			all[i].Label = strconv.FormatFloat(math.Round(all[i].Value*1000)/1000, 'f', -1, 64)
		}
	}
	return all
}

func newChart(f format, y string) *plot.Plot {
	p := plot.New()
	p.Y.Label.Text = y
	for _, text := range []*draw.TextStyle{
		&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle,
	} {
		text.Font.Size = f.letters
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = ticks{}, ticks{}
	p.Legend.Top = true
	p.Legend.Padding = vg.Points(3)
	p.Add(plotter.NewGrid())
	return p
}

// bars is one bar a strategy; alarming ones are red.
func (r *Results) bars(f format, y string, value func(Result) float64, alarm func(Result) bool) (*plot.Plot, error) {
	p := newChart(f, y)
	var names []string
	for i, s := range r.Strategies {
		names = append(names, s.Strategy)
		one, err := plotter.NewBarChart(plotter.Values{value(s)}, f.bar)
		if err != nil {
			return nil, err
		}
		one.XMin, one.LineStyle.Width, one.Color = float64(i), 0, palette[0]
		if alarm(s) {
			one.Color = alarmColor
		}
		p.Add(one)
	}
	p.NominalX(names...)
	p.X.Min, p.X.Max, p.Y.Min = -0.5, float64(len(names))-0.5, 0
	if p.Y.Max <= 0 || math.IsInf(p.Y.Max, 0) {
		p.Y.Max = 1
	}
	p.X.Tick.Label.Rotation = f.tilt
	p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = draw.XRight, draw.YTop
	p.X.Padding = vg.Points(6)
	return p, nil
}

func (r *Results) throughputChart(f format) (*plot.Plot, error) {
	if r.search {
		return r.bars(f, "arrivals a second", func(s Result) float64 {
			if s.Highest == nil {
				return 0
			}
			return float64(*s.Highest)
		}, func(Result) bool { return false })
	}
	return r.bars(f, "orders a second", func(s Result) float64 { return s.PerSecond }, func(s Result) bool { return s.Oversold > 0 })
}

func (r *Results) oversoldChart(f format) (*plot.Plot, error) {
	return r.bars(f, "units oversold", func(s Result) float64 { return float64(s.Oversold) }, func(Result) bool { return true })
}

// lines draws one line a strategy.
func (r *Results) lines(p *plot.Plot, points func(Result) plotter.XYs) (*plot.Plot, error) {
	for i, s := range r.Strategies {
		xys := points(s)
		if len(xys) == 0 {
			continue
		}
		line, err := plotter.NewLine(xys)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = palette[i%len(palette)], vg.Points(1.8)
		if i >= len(palette) {
			line.Dashes = []vg.Length{vg.Points(5), vg.Points(3)}
		}
		p.Add(line)
		p.Legend.Add(s.Strategy+"\u00a0\u00a0", line) // room between name and line on the right, where a browser drops spaces
	}
	return p, nil
}

func (r *Results) latencyChart(f format) (*plot.Plot, error) {
	p := newChart(f, "milliseconds")
	p.X.Label.Text = "share of the answers, %"
	p.Legend.Left = true
	return r.lines(p, func(s Result) (xys plotter.XYs) {
		for _, point := range s.Percentiles {
			if point.Quantile < 1 { // the slowest of all is one answer's fate
				xys = append(xys, plotter.XY{X: point.Quantile * 100, Y: point.Millis})
			}
		}
		return xys
	})
}

// mostPoints bounds the points of one line.
const mostPoints = 200

func (r *Results) salesChart(f format) (*plot.Plot, error) {
	p := newChart(f, "units left to sell")
	p.X.Label.Text = "seconds"
	return r.lines(p, func(s Result) plotter.XYs {
		xys := plotter.XYs{{X: 0, Y: float64(s.Stock)}}
		step := max(1, len(s.Sales)/mostPoints)
		for i := step - 1; i < len(s.Sales); i += step {
			left := float64(s.Stock) - float64(i+1)
			if left < -float64(s.Stock)/2 {
				break // what oversells a great deal would flatten all the rest
			}
			xys = append(xys, plotter.XY{X: s.Sales[i], Y: left})
		}
		return xys
	})
}

// Loads says how the strategies were loaded, in one sentence if all alike.
func (r *Results) Loads() string {
	var each []string
	alike := true
	for _, s := range r.Strategies {
		each = append(each, s.Strategy+": "+s.Load+".")
		alike = alike && s.Load == r.Strategies[0].Load
	}
	if alike && len(each) > 0 {
		return "Each strategy: " + r.Strategies[0].Load + "."
	}
	return strings.Join(each, " ")
}

// Verdicts in Chinese, for the page.
func (r Result) VerdictChinese() string {
	switch r.Verdict {
	case asPromised:
		return "符合承诺"
	case promise:
		return "违背承诺"
	}
	return "未定"
}

// Heading says in one sentence what came of the run.
func (r *Results) Heading() string {
	english, _ := r.headings()
	return english
}

// HeadingChinese is Heading in Chinese.
func (r *Results) HeadingChinese() string {
	_, chinese := r.headings()
	return chinese
}

func (r *Results) headings() (english, chinese string) {
	all, broken, undecided := len(r.Strategies), r.Broken(), r.undecided()
	switch {
	case all == 0:
		return "Nothing was measured", "没有测得任何结果"
	case broken > 0:
		return fmt.Sprintf("%d of %d strategies broke their promise", broken, all), fmt.Sprintf("%d 个策略中有 %d 个违背了承诺", all, broken)
	case undecided > 0:
		return fmt.Sprintf("No promise was broken; %d of %d strategies are undecided", undecided, all),
			fmt.Sprintf("没有违背承诺；%d 个策略中有 %d 个未定", all, undecided)
	case r.search:
		return "The highest rate that each strategy holds", "每个策略能承受的最高到达率"
	case r.open:
		return fmt.Sprintf("How long one waits at %d orders a second", r.Strategies[0].Rate),
			fmt.Sprintf("每秒 %d 单时要等多久", r.Strategies[0].Rate)
	}
	return "Every strategy did as it promises", "每个策略都符合其承诺"
}
