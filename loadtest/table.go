package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

const (
	red   = "\x1b[31;1m"
	plain = "\x1b[0m"
)

// cell is one field of the table. alarm puts it in red.
type cell struct {
	text  string
	alarm bool
}

// column is one column of the table.
type column struct {
	title string
	cell  func(Result) cell
}

// text is a cell without alarm.
func text(title string, value func(Result) any) column {
	return column{title, func(s Result) cell { return cell{text: fmt.Sprint(value(s))} }}
}

// columns are those that the load has figures for.
func (r *Results) columns() []column {
	all := []column{
		text("strategy", func(s Result) any { return s.Strategy }),
		text("inst.", func(s Result) any { return s.Instances }),
	}
	if r.open { // stock in plenty: nothing can be oversold
		all = append(all,
			text(r.rateTitle(), func(s Result) any { return s.RateText() }),
			text("accepted", func(s Result) any { return s.Accepted }),
			text("failed", func(s Result) any { return s.Failed }),
			text("late", func(s Result) any { return s.Late }),
			text("dropped", func(s Result) any { return s.Dropped }))
	} else {
		all = append(all,
			text("accepted", func(s Result) any { return s.Accepted }),
			column{"oversold", func(s Result) cell { return cell{fmt.Sprint(s.Oversold), s.Oversold > 0} }},
			text("undersold", func(s Result) any { return s.Undersold }),
			text("failed", func(s Result) any { return s.Failed }))
	}
	if r.killed() {
		all = append(all, column{"after kill -9", func(s Result) cell { return cell{s.Kept(), s.Crash != nil && s.Crash.Verdict == promise} }})
	}
	if r.guarded() {
		all = append(all, text("caught", func(s Result) any { return number(s.Caught) }))
	}
	return append(all,
		text("orders/s", func(s Result) any { return fmt.Sprintf("%.0f", s.PerSecond) }),
		column{"p50 ms", func(s Result) cell { return figure(s.P50) }},
		column{"p99 ms", func(s Result) cell { return figure(s.P99) }},
		column{"ms CPU/order: api", func(s Result) cell { return figure(s.APICPU) }},
		column{"redis", func(s Result) cell { return figure(s.RedisCPU) }},
		column{"db", func(s Result) cell { return figure(s.DatabaseCPU) }},
		column{"verdict", func(s Result) cell { return cell{s.Verdict, s.Verdict == promise} }})
}

// writeTable prints what every strategy did.
func writeTable(w io.Writer, r *Results, colors bool) {
	columns := r.columns()
	head := make([]cell, len(columns))
	for i, column := range columns {
		head[i].text = column.title
	}
	rows := [][]cell{head}
	for _, s := range r.Strategies {
		row := make([]cell, len(columns))
		for i, column := range columns {
			row[i] = column.cell(s)
		}
		rows = append(rows, row)
	}
	fmt.Fprintln(w)
	writeGrid(w, rows, colors)
	fmt.Fprintln(w)
	r.writeNotes(w)
}

// writeGrid prints rows of the same length. The first and the last column are
// aligned on the left.
func writeGrid(w io.Writer, rows [][]cell, colors bool) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, c := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(c.text))
		}
	}
	for _, row := range rows {
		for i, c := range row {
			text := pad(c.text, widths[i], i == 0 || i == len(row)-1)
			if c.alarm && colors {
				text = red + text + plain
			}
			fmt.Fprint(w, text, "  ")
		}
		fmt.Fprintln(w)
	}
}

// writeNotes prints what has no column.
func (r *Results) writeNotes(w io.Writer) {
	for _, s := range r.Strategies {
		for _, fault := range s.Faults {
			fmt.Fprintf(w, "%s: %s\n", s.Strategy, fault)
		}
		if s.Failed > 0 {
			fmt.Fprintf(w, "%s: failed: %s\n", s.Strategy, s.FailuresText())
		}
		if s.Verdict == undecided || s.Highest != nil {
			fmt.Fprintf(w, "%s: %s\n", s.Strategy, s.Load)
		}
	}
	if r.CutShort {
		fmt.Fprintln(w, "The run was cut short.")
	}
	fmt.Fprintf(w, "On %s; stores: %s; seed %d, commit %s.\n", r.Machine, r.Stores, r.Seed, r.Commit)
}

// rateTitle is what the rates of an open load are.
func (r *Results) rateTitle() string {
	if r.search {
		return "highest rate"
	}
	return "rate"
}

// RateText is the rate of an open load: of a search, the highest that held.
func (r Result) RateText() string {
	switch {
	case r.Highest != nil && *r.Highest == 0:
		return fmt.Sprintf("< %d", r.Rate)
	case r.Highest != nil && *r.Highest == highestRate:
		return fmt.Sprintf("≥ %d", r.Rate)
	}
	return fmt.Sprint(r.Rate)
}

// number prints "–" for what could not be had.
func number(value *int64) string {
	if value == nil {
		return "–"
	}
	return fmt.Sprint(*value)
}

// figure prints "–" for what could not be had.
func figure(value *float64) cell {
	if value == nil {
		return cell{text: "–"}
	}
	return cell{text: fmt.Sprintf("%.2f", *value)}
}

func pad(text string, width int, left bool) string {
	fill := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
	if left {
		return text + fill
	}
	return fill + text
}

// display tells people how far a load is: in one changing line on a terminal,
// and in plain lines elsewhere.
type display struct {
	w    io.Writer
	live bool
}

func newDisplay(w io.Writer) *display { return &display{w: w, live: terminal(w)} }

// terminal reports whether somebody sees what is written there.
func terminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// show follows the record until stop is called.
func (d *display) show(name string, of int64, rec *record) (stop func()) {
	if !d.live {
		fmt.Fprintf(d.w, "%s: loading\n", name)
		return func() {}
	}
	var (
		done = make(chan struct{})
		over sync.WaitGroup
	)
	over.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-done:
				fmt.Fprint(d.w, "\r\x1b[K")
				return
			case <-ticker.C:
				fmt.Fprintf(d.w, "\r\x1b[K%-13s %s %d accepted, %d refused, %d failed", name, bar(rec.accepted.Load(), of),
					rec.accepted.Load(), rec.refused.Load(), rec.failed.Load())
			}
		}
	})
	return func() {
		close(done)
		over.Wait()
	}
}

func bar(done, of int64) string {
	const width = 30
	full := int(min(done*width/max(of, 1), width))
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "]"
}

// done says what came of a load.
func (d *display) done(r Result) {
	if r.Rate > 0 {
		fmt.Fprintf(d.w, "%-13s %s: %s\n", r.Strategy, r.Verdict, r.borne())
		return
	}
	killed := ""
	if r.Crash != nil {
		killed = fmt.Sprintf(", %s kept after kill -9", r.Kept())
	}
	fmt.Fprintf(d.w, "%-13s %s: %d accepted of %d units, %d oversold, %d failed, %.0f orders/s%s\n",
		r.Strategy, r.Verdict, r.Accepted, r.Stock, r.Oversold, r.Failed, r.PerSecond, killed)
}
