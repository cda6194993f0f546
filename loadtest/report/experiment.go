package report

import (
	"fmt"
	"html"
	"html/template"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// WriteExperiment writes the timelines of an experiment for a terminal.
func WriteExperiment(w io.Writer, e results.Experiment, colors bool) {
	fmt.Fprintf(w, "%s: %s\n", e.Name, e.Title)
	for _, v := range e.Versions {
		fmt.Fprintf(w, "\n  %s: %s\n", kind(v), v.Title)
		if v.NotRun != "" {
			fmt.Fprintf(w, "  not run: %s\n", v.NotRun)
			continue
		}
		width := 0
		for _, actor := range v.Actors() {
			width = max(width, utf8.RuneCountInString(actor))
		}
		for _, event := range v.Events {
			fmt.Fprintf(w, "  %6.0f ms  %-*s  %s\n", event.Millis, width, event.Actor, event.Text)
		}
		fmt.Fprintf(w, "  damage: %s\n", table.Paint(damage(v), v.Damage != "" && colors))
		if v.Fault != "" {
			fmt.Fprintf(w, "  %s\n", table.Paint("FAILED: "+v.Fault, colors))
		}
	}
	fmt.Fprintln(w)
}

// WriteSummary writes how many experiments turned out as expected, and what did not run.
func WriteSummary(w io.Writer, all []results.Experiment) {
	ran, failed, notRun := tally(all)
	fmt.Fprintf(w, "ran %d of %d versions; %d were not as expected\n", ran, ran+len(notRun), failed)
	for _, line := range notRun {
		fmt.Fprintf(w, "not run: %s\n", line)
	}
}

// tally counts the versions that ran and those that did not turn out as expected, and
// lists those that did not run.
func tally(all []results.Experiment) (ran, failed int, notRun []string) {
	for _, e := range all {
		for _, v := range e.Versions {
			switch {
			case v.NotRun != "":
				notRun = append(notRun, fmt.Sprintf("%s (%s) %s", e.Name, v.Title, v.NotRun))
				continue
			case v.Fault != "":
				failed++
			}
			ran++
		}
	}
	return ran, failed, notRun
}

func kind(v results.Version) string {
	if v.Flawed {
		return "flawed"
	}
	return "mended"
}

func damage(v results.Version) string {
	if v.Damage == "" {
		return "none"
	}
	return v.Damage
}

// The measures of a drawn timeline, in pixels of its own scale, and the width of its
// texts in letters.
const (
	timelineWidth = 460
	rowHeight     = 20
	lineHeight    = 15
	laneWidth     = 16
	firstLane     = 74
	textLetters   = 62
)

// timeline draws a version: time runs downwards, and each actor has a lane.
func timeline(v results.Version) template.HTML {
	var (
		out    strings.Builder
		lanes  = make(map[string]int)
		top    = make([]int, 0, len(v.Events))
		actors = v.Actors()
		y      = rowHeight
	)
	for i, actor := range actors {
		lanes[actor] = i
	}
	texts := make([][]string, len(v.Events))
	for i, e := range v.Events {
		texts[i] = wrap(e.Actor+"  "+e.Text, textLetters-3*len(actors))
		top = append(top, y)
		y += rowHeight + lineHeight*(len(texts[i])-1)
	}
	fmt.Fprintf(&out, `<svg role="img" viewBox="0 0 %d %d" font-size="12" fill="#1a1a1a">`, timelineWidth, y)
	for i, actor := range actors {
		first, last := -1, 0
		for j, e := range v.Events {
			if e.Actor == actor {
				if first < 0 {
					first = top[j]
				}
				last = top[j]
			}
		}
		x := firstLane + i*laneWidth
		fmt.Fprintf(&out, `<line x1="%d" y1="%d" x2="%d" y2="%d" stroke="%s" stroke-width="2"/>`, x, first, x, last, laneColor(i))
	}
	left := firstLane + len(actors)*laneWidth
	for i, e := range v.Events {
		lane := lanes[e.Actor]
		fmt.Fprintf(&out, `<text x="%d" y="%d" text-anchor="end" fill="#555">%.0f ms</text>`, firstLane-12, top[i]+4, e.Millis)
		fmt.Fprintf(&out, `<circle cx="%d" cy="%d" r="5" fill="%s"/>`, firstLane+lane*laneWidth, top[i], laneColor(lane))
		for line, text := range texts[i] {
			text = html.EscapeString(text)
			if line == 0 {
				actor := html.EscapeString(e.Actor)
				text = fmt.Sprintf(`<tspan font-weight="bold" fill="%s">%s</tspan> %s`, laneColor(lane), actor, strings.TrimPrefix(text, actor+"  "))
			}
			fmt.Fprintf(&out, `<text x="%d" y="%d">%s</text>`, left, top[i]+4+line*lineHeight, text)
		}
	}
	out.WriteString("</svg>")
	return template.HTML(out.String()) // names and texts are escaped above
}

// laneColor returns the colour of a lane.
func laneColor(lane int) string {
	c := palette[lane%len(palette)]
	return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B)
}

// wrap divides a text into lines of at most this many letters, at spaces.
func wrap(text string, letters int) (lines []string) {
	line := ""
	for word := range strings.SplitSeq(text, " ") {
		if line != "" && utf8.RuneCountInString(line+" "+word) > letters {
			lines = append(lines, line)
			line = word
			continue
		}
		if line != "" {
			line += " "
		}
		line += word
	}
	return append(lines, line)
}
