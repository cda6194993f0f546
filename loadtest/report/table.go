package report

import (
	"fmt"
	"io"

	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// column is one column of the table. A cell is a table.Cell or a value that fmt prints.
type column struct {
	title string
	cell  func(*results.Result) any
}

// The columns that several kinds of load share.
var (
	acceptedColumn = column{"accepted", func(s *results.Result) any { return s.Accepted }}
	oversoldColumn = column{"oversold", func(s *results.Result) any { return table.Cell{Text: fmt.Sprint(s.Oversold), Alarm: s.Oversold > 0} }}
	failedColumn   = column{"failed", func(s *results.Result) any { return s.Failed }}
	verdictColumn  = column{"verdict", func(s *results.Result) any { return table.Cell{Text: s.Verdict, Alarm: s.Verdict == results.Broken} }}
)

// columns returns the columns that the run has figures for.
func columns(run *results.Run) []column {
	all := []column{
		{"strategy", func(s *results.Result) any { return s.Strategy }},
		{"inst.", func(s *results.Result) any { return s.Instances }},
	}
	switch {
	case run.Lifecycle():
		return append(all, lifecycleColumns...)
	case run.History():
		return append(all, historyColumns...)
	case run.Open():
		all = append(all, openColumns(run)...)
	default:
		all = append(all, rushColumns...)
	}
	if run.Queued() {
		all = append(all, queuedColumns...)
	}
	if run.Killed() {
		all = append(all, column{"after kill -9", func(s *results.Result) any {
			return table.Cell{Text: s.Kept(), Alarm: s.Crash != nil && s.Crash.Verdict == results.Broken}
		}})
	}
	if run.Guarded() {
		all = append(all, column{"caught", func(s *results.Result) any { return table.Optional("%d", s.Caught) }})
	}
	return append(all, costColumns...)
}

// openColumns returns the columns of an open load, which has more stock than orders.
func openColumns(run *results.Run) []column {
	rate := "rate"
	if run.Search() {
		rate = "highest rate"
	}
	return []column{
		{rate, func(s *results.Result) any { return s.RateText() }},
		acceptedColumn,
		failedColumn,
		{"late", func(s *results.Result) any { return s.Late }},
		{"dropped", func(s *results.Result) any { return s.Dropped }},
	}
}

var rushColumns = []column{
	acceptedColumn,
	oversoldColumn,
	{"undersold", func(s *results.Result) any { return s.Undersold }},
	failedColumn,
}

// queuedColumns are the columns about orders that were answered 202.
var queuedColumns = []column{
	{"queued", func(s *results.Result) any { return s.Queued }},
	{"turned down", func(s *results.Result) any { return s.TurnedDown }},
}

// lifecycleColumns are the columns of a lifecycle load.
var lifecycleColumns = []column{
	ended("orders", func(l *results.Lifecycle) int64 { return l.Orders }),
	ended("paid", func(l *results.Lifecycle) int64 { return l.Paid }),
	ended("cancelled", func(l *results.Lifecycle) int64 { return l.Cancelled }),
	ended("expired", func(l *results.Lifecycle) int64 { return l.Expired }),
	ended("refunded", func(l *results.Lifecycle) int64 { return l.Refunded }),
	ended("revived", func(l *results.Lifecycle) int64 { return l.Revived }),
	ended("refunds due", func(l *results.Lifecycle) int64 { return l.RefundsDue }),
	oversoldColumn,
	failedColumn,
	verdictColumn,
}

// historyColumns are the columns of a history.
var historyColumns = []column{
	acceptedColumn,
	{"refused", func(s *results.Result) any { return s.Refused }},
	failedColumn,
	{"calls", func(s *results.Result) any { return history(s).Calls }},
	{"linearizable", func(s *results.Result) any {
		return fmt.Sprintf("%d of %d SKUs", history(s).Linearizable, history(s).SKUs)
	}},
	verdictColumn,
}

func history(s *results.Result) results.History {
	if s.History == nil {
		return results.History{}
	}
	return *s.History
}

// ended returns a column with the number of orders that ended in one way.
func ended(title string, count func(*results.Lifecycle) int64) column {
	return column{title, func(s *results.Result) any {
		if s.Lifecycle == nil {
			return table.Unknown
		}
		return count(s.Lifecycle)
	}}
}

var costColumns = []column{
	{"orders/s", func(s *results.Result) any { return fmt.Sprintf("%.0f", s.PerSecond) }},
	{"p50 ms", func(s *results.Result) any { return figure(s.P50) }},
	{"p99 ms", func(s *results.Result) any { return figure(s.P99) }},
	{"ms CPU/order: api", func(s *results.Result) any { return figure(s.APICPU) }},
	{"redis", func(s *results.Result) any { return figure(s.RedisCPU) }},
	{"db", func(s *results.Result) any { return figure(s.DatabaseCPU) }},
	verdictColumn,
}

func figure(value *float64) string { return table.Optional("%.2f", value) }

// WriteTable writes the table for a terminal, followed by notes.
func WriteTable(w io.Writer, run *results.Run, colors bool) {
	columns := columns(run)
	titles := make([]string, len(columns))
	for i, column := range columns {
		titles[i] = column.title
	}
	rows := table.New(titles...)
	for i := range run.Strategies {
		cells := make([]any, len(columns))
		for j, column := range columns {
			cells[j] = column.cell(&run.Strategies[i])
		}
		rows.Add(cells...)
	}
	fmt.Fprintln(w)
	rows.WriteText(w, colors)
	fmt.Fprintln(w)
	writeNotes(w, run)
}

// writeNotes writes faults, failures and the circumstances of the run.
func writeNotes(w io.Writer, run *results.Run) {
	for _, s := range run.Strategies {
		for _, fault := range s.Faults {
			fmt.Fprintf(w, "%s: %s\n", s.Strategy, fault)
		}
		if len(s.Failures) > 0 {
			fmt.Fprintf(w, "%s: failed: %s\n", s.Strategy, s.FailuresText())
		}
		if s.Verdict == results.Undecided || s.Highest != nil {
			fmt.Fprintf(w, "%s: %s\n", s.Strategy, s.Load)
		}
	}
	if run.CutShort {
		fmt.Fprintln(w, "The run was interrupted.")
	}
	fmt.Fprintf(w, "On %s; stores: %s; seed %d, commit %s.\n", run.Machine, run.Stores, run.Seed, run.Commit)
}
