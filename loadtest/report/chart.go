package report

import (
	"image/color"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// format is the size of a chart and of what it contains. The page scales the chart to
// its own width.
type format struct {
	width, height vg.Length
	bar           vg.Length
	letters       vg.Length
	tilt          float64 // angle of the strategy names, in radians
}

var (
	desktop = format{width: 22 * vg.Centimeter, height: 11 * vg.Centimeter, bar: vg.Points(24), letters: vg.Points(12), tilt: math.Pi / 6}
	phone   = format{width: 10 * vg.Centimeter, height: 10 * vg.Centimeter, bar: vg.Points(12), letters: vg.Points(8.5), tilt: math.Pi / 3}
)

// palette is the palette of Okabe and Ito, which colour-blind readers can tell apart.
var palette = []color.RGBA{
	{0, 114, 178, 255}, {230, 159, 0, 255}, {0, 158, 115, 255}, {204, 121, 167, 255},
	{86, 180, 233, 255}, {213, 94, 0, 255}, {120, 120, 120, 255}, {0, 0, 0, 255},
}

var alarmColor = color.RGBA{200, 30, 30, 255}

// ticks are the default ticks, with labels without trailing zeros.
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

// newChart returns an empty chart with this label on its y axis.
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

// bars draws one bar for each strategy. Bars with an alarm are red.
func bars(run *results.Run, f format, y string, value func(results.Result) float64, alarm func(results.Result) bool) (*plot.Plot, error) {
	p := newChart(f, y)
	var names []string
	for i, s := range run.Strategies {
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
	if len(names) > 0 { // NominalX panics without names
		p.NominalX(names...)
	}
	p.X.Min, p.X.Max, p.Y.Min = -0.5, float64(len(names))-0.5, 0
	if p.Y.Max <= 0 || math.IsInf(p.Y.Max, 0) {
		p.Y.Max = 1
	}
	p.X.Tick.Label.Rotation = f.tilt
	p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = draw.XRight, draw.YTop
	p.X.Padding = vg.Points(6)
	return p, nil
}

func throughputChart(run *results.Run, f format) (*plot.Plot, error) {
	if run.Search() {
		return bars(run, f, "arrivals a second", func(s results.Result) float64 {
			if s.Highest == nil {
				return 0
			}
			return float64(*s.Highest)
		}, func(results.Result) bool { return false })
	}
	return bars(run, f, "orders a second", func(s results.Result) float64 { return s.PerSecond }, func(s results.Result) bool { return s.Oversold > 0 })
}

func oversoldChart(run *results.Run, f format) (*plot.Plot, error) {
	return bars(run, f, "units oversold", func(s results.Result) float64 { return float64(s.Oversold) }, func(results.Result) bool { return true })
}

// lines draws one line for each strategy.
func lines(run *results.Run, p *plot.Plot, points func(results.Result) plotter.XYs) (*plot.Plot, error) {
	for i, s := range run.Strategies {
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
		p.Legend.Add(s.Strategy+"\u00a0\u00a0", line) // separates the name from the line; browsers drop plain spaces
	}
	return p, nil
}

func latencyChart(run *results.Run, f format) (*plot.Plot, error) {
	p := newChart(f, "milliseconds")
	p.X.Label.Text = "share of the answers, %"
	p.Legend.Left = true
	return lines(run, p, func(s results.Result) (xys plotter.XYs) {
		for _, point := range s.Percentiles {
			if point.Quantile < 1 { // leaves out the maximum, which is a single answer
				xys = append(xys, plotter.XY{X: point.Quantile * 100, Y: point.Millis})
			}
		}
		return xys
	})
}

// maxPoints bounds the points of one line.
const maxPoints = 200

func stockChart(run *results.Run, f format) (*plot.Plot, error) {
	p := newChart(f, "units left to sell")
	p.X.Label.Text = "seconds"
	return lines(run, p, func(s results.Result) plotter.XYs {
		xys := plotter.XYs{{X: 0, Y: float64(s.Stock)}}
		step := max(1, len(s.Sales)/maxPoints)
		for i := step - 1; i < len(s.Sales); i += step {
			left := float64(s.Stock) - float64(i+1)
			if left < -float64(s.Stock)/2 {
				break // a strategy that oversells a lot would flatten the other lines
			}
			xys = append(xys, plotter.XY{X: s.Sales[i], Y: left})
		}
		return xys
	})
}
