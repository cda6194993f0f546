package main

import (
	"fmt"
	"io"
	"math"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/palette"
)

// The drawing is a box of 600 by 300 with labels beside it.
const (
	left, top, width, height = 70, 20, 600, 300
	lowest, highest          = 3, 6 // the vertical axis: 10^3 to 10^6 orders a second
)

// across returns the horizontal position of the n-th commit time.
func across(n int) float64 { return left + width*float64(n)/float64(len(commits)-1) }

// down returns the vertical position of a rate.
func down(perSecond float64) float64 {
	return top + height*(highest-math.Log10(perSecond))/(highest-lowest)
}

// draw draws the rates of [settings.slots] over the commit time, with the colours of the project's
// other drawings. The colours follow the viewer's choice of light or dark.
func (s settings) draw(w io.Writer) {
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13" class="plot">`+"\n", left+width+110, top+height+50)
	fmt.Fprintf(w, "<style>%ssvg{background:var(--surface)}text{fill:var(--ink)}.r1{color:var(--bad)}.r2{color:var(--muted)}.r4{color:var(--accent)}.r8{color:var(--good)}</style>\n", palette.CSS())
	fmt.Fprintln(w, `<title>Orders a second for one SKU over the time of a commit, in 1, 2, 4 and 8 rows, simulated</title>`)
	for power := lowest; power <= highest; power++ {
		y := down(math.Pow10(power))
		fmt.Fprintf(w, `<path class="grid" d="M%d %.1fH%d"/><text x="%d" y="%.1f" text-anchor="end">%.0f</text>`+"\n", left, y, left+width, left-6, y+4, math.Pow10(power))
	}
	for n, commit := range commits {
		fmt.Fprintf(w, `<text x="%.1f" y="%d" text-anchor="middle">%v</text>`+"\n", across(n), top+height+20, commit)
	}
	fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="middle">commit</text>`+"\n", left+width/2, top+height+40)
	for _, rows := range slots {
		var line []string
		y := 0.0
		for n, commit := range commits {
			y = down(s.simulate(inSlots(rows), far(8, commit)).perSecond)
			line = append(line, fmt.Sprintf("%.1f %.1f", across(n), y))
		}
		name := fmt.Sprintf("%d rows", rows)
		if rows == 1 {
			name = "1 row"
		}
		fmt.Fprintf(w, `<g class="r%d"><path class="line" d="M%s"/></g><text x="%d" y="%.1f">%s</text>`+"\n", rows, strings.Join(line, "L"), left+width+8, y+4, name)
	}
	fmt.Fprintln(w, "</svg>")
}
