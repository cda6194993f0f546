package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// series identifies a strategy in all charts of the page.
type series struct {
	Index int // index in Run.Strategies
	Name  string
	Color int // number of the class c0, c1, … in the style sheet
}

// soundColors is the number of colours for strategies that promise not to oversell. brokenColors is
// the number of reds, which follow them in the style sheet.
const soundColors, brokenColors = 9, 3

// legend returns the series of the strategies.
func legend(run *results.Run) []series {
	all := make([]series, len(run.Strategies))
	sound, broken := 0, 0
	for i, r := range run.Strategies {
		all[i] = series{Index: i, Name: r.Strategy}
		if r.Sound {
			all[i].Color = sound % soundColors
			sound++
		} else {
			all[i].Color = soundColors + broken%brokenColors
			broken++
		}
	}
	return all
}

// bar is a row with one bar, which has several parts.
type bar struct {
	series
	Parts  []part
	Mark   string // place of a mark on the bar in percent; empty: none
	Tip    []text // shown under the pointer
	Figure string
	Alarm  bool
	Note   text // shown below the figure
}

type part struct {
	Class   string
	Percent string
}

// percent returns a share of the whole in percent.
func percent(value, whole float64) string {
	if whole <= 0 {
		return "0"
	}
	return number(value / whole * 100)
}

// number returns a number with at most two digits after the point.
func number(v float64) string { return strconv.FormatFloat(math.Round(v*100)/100, 'f', -1, 64) }

// oversoldBars returns the units that each strategy sold, those that oversold most first.
func (d dictionary) oversoldBars(run *results.Run, legend []series) (bars []bar) {
	var most int64
	for _, r := range run.Strategies {
		most = max(most, r.Sold, r.Stock)
	}
	for i, r := range run.Strategies {
		b := bar{series: legend[i], Mark: percent(float64(r.Stock), float64(most)), Figure: "0", Note: d.say("oversold.sold", r.Sold, r.Stock)}
		b.Parts = []part{{"within", percent(float64(min(r.Sold, r.Stock)), float64(most))}}
		b.Tip = []text{d.say("oversold.tip", r.Accepted), b.Note}
		if r.Sold == r.Stock {
			b.Note = text{}
		}
		if r.Oversold > 0 {
			b.Alarm, b.Figure = true, "+"+grouped(r.Oversold)
			b.Parts = append(b.Parts, part{"over", percent(float64(r.Oversold), float64(most))})
			b.Tip = append(b.Tip, d.say("oversold.tip.over", r.Oversold))
		}
		bars = append(bars, b)
	}
	slices.SortStableFunc(bars, func(a, b bar) int {
		return cmp.Compare(run.Strategies[b.Index].Oversold, run.Strategies[a.Index].Oversold)
	})
	return bars
}

// throughputBars returns orders a second, or the highest rates of a search.
func throughputBars(run *results.Run, legend []series) (bars []bar) {
	rates, most := make([]float64, len(run.Strategies)), 0.0
	for i, r := range run.Strategies {
		rates[i] = r.PerSecond
		if run.Search() {
			rates[i] = 0
			if r.Highest != nil {
				rates[i] = float64(*r.Highest)
			}
		}
		most = max(most, rates[i])
	}
	for i, r := range run.Strategies {
		b := bar{series: legend[i], Figure: grouped(int64(math.Round(rates[i]))), Alarm: r.Oversold > 0}
		if run.Search() {
			b.Figure = readable(r.RateText())
		}
		class := "plain-bar"
		if b.Alarm {
			class = "over"
		}
		b.Parts = []part{{class, percent(rates[i], most)}}
		bars = append(bars, b)
	}
	return bars
}

// process is a kind of process whose CPU time is a part of a bar.
type process struct {
	Class string
	Name  text
	cpu   func(results.Result) *float64
}

func (d dictionary) processes() []process {
	return []process{
		{"api", d.say("cpu.api"), func(r results.Result) *float64 { return r.APICPU }},
		{"redis", d.say("cpu.redis"), func(r results.Result) *float64 { return r.RedisCPU }},
		{"database", d.say("cpu.database"), func(r results.Result) *float64 { return r.DatabaseCPU }},
		{"gateway", d.say("cpu.gateway"), func(r results.Result) *float64 { return r.GatewayCPU }},
	}
}

// cpuBars returns the CPU time per order, and the processes whose time was measured.
func (d dictionary) cpuBars(run *results.Run, legend []series) (bars []bar, measured []process) {
	most, totals := 0.0, make([]float64, len(run.Strategies))
	for _, p := range d.processes() {
		known := false
		for i, r := range run.Strategies {
			if cpu := p.cpu(r); cpu != nil {
				known = true
				totals[i] += *cpu
				most = max(most, totals[i])
			}
		}
		if known {
			measured = append(measured, p)
		}
	}
	if len(measured) == 0 {
		return nil, nil
	}
	for i, r := range run.Strategies {
		b := bar{series: legend[i], Figure: decimal(totals[i])}
		for _, p := range measured {
			if cpu := p.cpu(r); cpu != nil {
				b.Parts = append(b.Parts, part{p.Class, percent(*cpu, most)})
				b.Tip = append(b.Tip, d.say("cpu.tip", p.Name, decimal(*cpu)))
			}
		}
		if len(b.Parts) == 0 {
			b.Figure = "–"
		}
		bars = append(bars, b)
	}
	return bars, measured
}

// panel is the chart of one strategy's stock over time. Its height is twice the stock:
// the zero line is in the middle.
type panel struct {
	series
	Path                                string
	Top, End, Sold, Zero, Seconds, Last string
	Below                               bool
}

// levels are the points of a panel.
type levels struct {
	Seconds []float64 `json:"seconds"`
	Left    []int64   `json:"left"`
}

// maxPoints bounds the points of one line.
const maxPoints = 160

// stockLevels returns the units left after each sale, or after some of the sales if there are many.
// It always includes the sale of the last unit, and ends when the stock has been sold twice.
func stockLevels(r results.Result) levels {
	l := levels{[]float64{0}, []int64{r.Stock}}
	sales := r.Sales[:min(int64(len(r.Sales)), 2*r.Stock)]
	step := len(sales)/maxPoints + 1
	for i, at := range sales {
		if (i+1)%step == 0 || i == len(sales)-1 || int64(i+1) == r.Stock {
			l.Seconds, l.Left = append(l.Seconds, math.Round(at*1e4)/1e4), append(l.Left, r.Stock-int64(i+1))
		}
	}
	return l
}

// panels returns the panels, and their points by the index of the strategy.
func panels(run *results.Run, legend []series) (all []panel, points map[int]levels) {
	points = make(map[int]levels)
	for i, r := range run.Strategies {
		if len(r.Sales) == 0 || r.Stock <= 0 {
			continue
		}
		l, last := stockLevels(r), r.Sales[len(r.Sales)-1]
		points[i] = l
		seconds := l.Seconds[len(l.Seconds)-1]
		var line path
		line.to(0, 50)
		for j, at := range l.Seconds {
			line.to(at/max(seconds, 1e-9)*100, 50*(1-float64(l.Left[j])/float64(r.Stock)))
		}
		line.to(100, 50)
		p := panel{
			series: legend[i], Path: line.String(), Top: grouped(r.Stock), End: grouped(r.Stock - r.Sold), Sold: grouped(r.Sold), Zero: "–",
			Below: r.Oversold > 0, Seconds: decimal(seconds), Last: decimal(last),
		}
		if r.Stock <= int64(len(r.Sales)) {
			p.Zero = decimal(r.Sales[r.Stock-1])
		}
		all = append(all, p)
	}
	return all, points
}

// path is a line of a drawing. The drawing is a square of 100 by 100, which the page
// stretches.
type path []string

func (p *path) to(x, y float64) { *p = append(*p, number(x)+" "+number(y)) }

func (p path) String() string { return "M" + strings.Join(p, "L") }

// latency is the chart of the latency by percentile, with its table. Both of its scales are
// logarithmic. x is the logarithm of the number of answers for each one that takes longer.
type latency struct {
	X, Y    []tick
	Curves  []curve
	Columns []string
	Rows    []latencyRow
	stops   []stop
}

type tick struct {
	At    string // place on the axis in percent
	Label string
	Minor bool
}

type curve struct {
	series
	Path   string
	Tag    string // place of the name beside the chart, in percent
	Leader string // line from the end of the curve to its name
	end    point
	tag    float64
}

// point is a place in percent of the drawing.
type point struct{ x, y float64 }

type latencyRow struct {
	series
	Cells []string
}

// stop is a percentile that the reader of the page can choose, with its figures.
type stop struct {
	Name   string     `json:"name"`
	At     float64    `json:"at"`     // from 0 to 1
	Millis []*float64 `json:"millis"` // values by the index of the strategy
}

const (
	leastMillis = 0.01 // lower bound of the scale
	// tagGap is the distance of names beside the chart, in percent of its height.
	tagGap = 4.3
)

// nines returns the place of a quantile on the axis: 1 for p90, 2 for p99. The maximum has
// the place of the last answer. ok is false if there are too few answers to tell the
// quantile from the maximum.
func nines(quantile float64, answers int64) (place float64, ok bool) {
	last := math.Log10(float64(max(answers, 1)))
	if quantile >= 1 {
		return last, true
	}
	place = -math.Log10(1 - quantile)
	return place, place < last*0.999
}

// answers counts the answers that have a latency.
func answers(r results.Result) int64 { return r.Accepted + r.TurnedDown + r.Refused }

// latencyChart returns the chart of the run's latencies, or nil if none was measured.
func latencyChart(run *results.Run, legend []series) *latency {
	least, most, width := math.Inf(1), math.Inf(-1), 2.0
	for _, r := range run.Strategies {
		for _, p := range r.Percentiles {
			least, most = min(least, p.Millis), max(most, p.Millis)
			if at, ok := nines(p.Quantile, answers(r)); ok {
				width = max(width, at)
			}
		}
	}
	if math.IsInf(least, 1) {
		return nil
	}
	l := &latency{}
	var low, high float64
	l.Y, low, high = millisTicks(max(least, leastMillis), max(most, leastMillis))
	y := func(millis float64) float64 {
		return (high - math.Log10(max(millis, leastMillis))) / (high - low)
	}
	for _, name := range []string{"50", "90", "99", "99.9", "99.99", "99.999"} {
		quantile, _ := strconv.ParseFloat(name, 64)
		if at := -math.Log10(1 - quantile/100); at <= width*1.001 {
			l.X = append(l.X, tick{At: percent(at, width), Label: "p" + name})
		}
	}
	for i, r := range run.Strategies {
		if len(r.Percentiles) == 0 {
			continue
		}
		var line path
		c := curve{series: legend[i]}
		for _, p := range r.Percentiles {
			if at, ok := nines(p.Quantile, answers(r)); ok {
				c.end = point{at / width * 100, y(p.Millis) * 100}
				line.to(c.end.x, c.end.y)
			}
		}
		c.Path = line.String()
		l.Curves = append(l.Curves, c)
	}
	placeTags(l.Curves)
	l.addFigures(run, legend, width)
	return l
}

// millisTicks returns ticks at 1, 2 and 5 of every power of ten. It also returns the logarithms of
// the first and the last tick, between which all values are.
func millisTicks(least, most float64) (ticks []tick, low, high float64) {
	var values []float64
	for power := math.Floor(math.Log10(least)); power <= math.Ceil(math.Log10(most))+1; power++ {
		for _, step := range []float64{1, 2, 5} {
			values = append(values, step*math.Pow(10, power))
		}
	}
	first, last := 0, len(values)-1
	for first+1 < len(values) && values[first+1] <= least*1.0001 {
		first++
	}
	for last-1 > first+1 && values[last-1] >= most*0.9999 {
		last--
	}
	low, high = math.Log10(values[first]), math.Log10(values[last])
	for i, v := range values[first : last+1] {
		at := (high - math.Log10(v)) / (high - low)
		t := tick{At: percent(at, 1), Minor: (first+i)%3 != 0}
		if v >= 1000 {
			t.Label = fmt.Sprintf("%g s", math.Round(v)/1000)
		} else {
			t.Label = fmt.Sprintf("%.4g ms", v)
		}
		ticks = append(ticks, t)
	}
	return ticks, low, high
}

// placeTags places the names beside the ends of their curves, without overlaps.
func placeTags(curves []curve) {
	order := make([]*curve, len(curves))
	for i := range curves {
		order[i] = &curves[i]
	}
	slices.SortStableFunc(order, func(a, b *curve) int { return cmp.Compare(a.end.y, b.end.y) })
	next := 0.0
	for _, c := range order {
		c.tag = max(c.end.y, next)
		next = c.tag + tagGap
	}
	next = 100
	for _, c := range slices.Backward(order) {
		c.tag = min(c.tag, next)
		next = c.tag - tagGap
		var leader path
		leader.to(c.end.x, c.end.y)
		leader.to(100, c.tag)
		c.Tag, c.Leader = number(c.tag), leader.String()
	}
}

// addFigures adds the stops of the pointer, and the table.
func (l *latency) addFigures(run *results.Run, legend []series, width float64) {
	byQuantile := make(map[float64][]*float64)
	for i, r := range run.Strategies {
		for _, p := range r.Percentiles {
			if byQuantile[p.Quantile] == nil {
				byQuantile[p.Quantile] = make([]*float64, len(run.Strategies))
			}
			if _, ok := nines(p.Quantile, answers(r)); ok {
				millis := math.Round(p.Millis*100) / 100
				byQuantile[p.Quantile][i] = &millis
			}
		}
	}
	quantiles := make([]float64, 0, len(byQuantile))
	for q, millis := range byQuantile {
		if slices.ContainsFunc(millis, func(m *float64) bool { return m != nil }) {
			quantiles = append(quantiles, q)
		}
	}
	slices.Sort(quantiles)
	rows := make([]latencyRow, len(legend))
	for i := range legend {
		rows[i].series = legend[i]
	}
	for _, q := range quantiles {
		s := stop{Name: "max", At: 1, Millis: byQuantile[q]}
		if q < 1 {
			s.Name = "p" + strconv.FormatFloat(math.Round(q*1e7)/1e5, 'f', -1, 64)
			at, _ := nines(q, math.MaxInt64)
			s.At = math.Round(at/width*1e4) / 1e4
		}
		l.stops = append(l.stops, s)
		if !slices.Contains([]string{"p50", "p90", "p95", "p99", "p99.9", "p99.99", "max"}, s.Name) {
			continue
		}
		l.Columns = append(l.Columns, s.Name)
		for i := range rows {
			cell := "–"
			if s.Millis[i] != nil {
				cell = decimal(*s.Millis[i])
			}
			rows[i].Cells = append(rows[i].Cells, cell)
		}
	}
	l.Rows = rows
}
