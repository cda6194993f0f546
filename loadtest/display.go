package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// display shows the progress of a load. On a terminal it updates one line, elsewhere it prints
// plain lines.
type display struct {
	w    io.Writer
	live bool
}

func newDisplay(w io.Writer) *display { return &display{w: w, live: isTerminal(w)} }

// isTerminal reports whether w is a terminal that understands escape codes.
func isTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// show shows the progress of the record until hide is called.
func (d *display) show(name string, of int64, rec *record) (hide func()) {
	if !d.live {
		fmt.Fprintf(d.w, "%s: loading\n", name)
		return func() {}
	}
	var (
		hidden  = make(chan struct{})
		drawing sync.WaitGroup
	)
	drawing.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-hidden:
				fmt.Fprint(d.w, "\r\x1b[K")
				return
			case <-ticker.C:
				fmt.Fprintf(d.w, "\r\x1b[K%-13s %s %d accepted, %d refused, %d failed", name, bar(rec.acknowledged(), of),
					rec.acknowledged(), rec.refused.Load(), rec.failed.Load())
			}
		}
	})
	return func() {
		close(hidden)
		drawing.Wait()
	}
}

func bar(done, of int64) string {
	const width = 30
	full := int(min(done*width/max(of, 1), width))
	return "[" + strings.Repeat("#", full) + strings.Repeat(".", width-full) + "]"
}

// done prints the result of a load in one line. The table has all figures.
func (d *display) done(r *results.Result) {
	fmt.Fprintf(d.w, "%-13s %s: %d accepted of %d units, %d oversold, %d failed\n", r.Strategy, r.Verdict, r.Accepted, r.Stock, r.Oversold, r.Failed)
}
