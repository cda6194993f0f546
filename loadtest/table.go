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

// writeTable prints what every strategy did.
func writeTable(w io.Writer, r *Results, colors bool) {
	head := []string{"strategy", "inst.", "accepted", "oversold", "undersold", "failed"}
	if r.open { // stock in plenty: nothing can be oversold
		head = []string{"strategy", "inst.", r.rateTitle(), "accepted", "failed", "late", "dropped"}
	}
	guarded := r.guarded()
	if guarded {
		head = append(head, "caught")
	}
	head = append(head, "orders/s", "p50 ms", "p99 ms", "ms CPU/order: api", "redis", "db", "verdict")
	rows := [][]cell{}
	for _, s := range r.Strategies {
		row := []cell{
			{text: s.Strategy}, {text: fmt.Sprint(s.Instances)}, {text: fmt.Sprint(s.Accepted)},
			{text: fmt.Sprint(s.Oversold), alarm: s.Oversold > 0}, {text: fmt.Sprint(s.Undersold)}, {text: fmt.Sprint(s.Failed)},
		}
		if r.open {
			row = []cell{
				{text: s.Strategy}, {text: fmt.Sprint(s.Instances)}, {text: s.RateText()}, {text: fmt.Sprint(s.Accepted)},
				{text: fmt.Sprint(s.Failed)}, {text: fmt.Sprint(s.Late)}, {text: fmt.Sprint(s.Dropped)},
			}
		}
		if guarded {
			row = append(row, cell{text: number(s.Caught)})
		}
		row = append(row, cell{text: fmt.Sprintf("%.0f", s.PerSecond)}, figure(s.P50), figure(s.P99),
			figure(s.APICPU), figure(s.RedisCPU), figure(s.DatabaseCPU), cell{text: s.Verdict, alarm: s.Verdict == promise})
		rows = append(rows, row)
	}
	widths := make([]int, len(head))
	for i, title := range head {
		widths[i] = utf8.RuneCountInString(title)
		for _, row := range rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i].text))
		}
	}
	fmt.Fprintln(w)
	for i, title := range head {
		fmt.Fprint(w, pad(title, widths[i], i == 0 || i == len(head)-1), "  ")
	}
	fmt.Fprintln(w)
	for _, row := range rows {
		for i, c := range row {
			text := pad(c.text, widths[i], i == 0 || i == len(head)-1)
			if c.alarm && colors {
				text = red + text + plain
			}
			fmt.Fprint(w, text, "  ")
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w)
	for _, s := range r.Strategies {
		for _, fault := range s.Faults {
			fmt.Fprintf(w, "%s: %s\n", s.Strategy, fault)
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
	fmt.Fprintf(d.w, "%-13s %s: %d accepted of %d units, %d oversold, %d failed, %.0f orders/s\n",
		r.Strategy, r.Verdict, r.Accepted, r.Stock, r.Oversold, r.Failed, r.PerSecond)
}
