package main

import (
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lab/measure"
)

func TestParseResult(t *testing.T) {
	r, err := parseResult("Running 3s test\n  2 threads\n\nRESULT created=100 refused=3 other=2 broken=1 microseconds=2000000 p50=1500 p99=9000\n")
	want := result{Created: 100, Refused: 3, Other: 2, Broken: 1, Elapsed: 2 * time.Second, P50: 1500 * time.Microsecond, P99: 9 * time.Millisecond}
	if err != nil || r != want {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := parseResult("unable to connect"); err == nil {
		t.Error("no error without a result")
	}
}

func TestMedian(t *testing.T) {
	m := median([]sample{{perSecond: 3, app: 10}, {perSecond: 1, app: 30}, {perSecond: 2, app: 20}})
	if m.perSecond != 2 || m.app != 20 {
		t.Errorf("%+v", m)
	}
	if m := median([]sample{{perSecond: 3}, {fault: "oversold"}}); m.fault != "oversold" {
		t.Error("a failed run has figures")
	}
	good, failed := []sample{{perSecond: 50}, {perSecond: 60}}, []sample{{perSecond: 100}, {fault: "oversold 3"}}
	for _, theirs := range [][]sample{failed, good[:1]} {
		if ratio, ok := measure.Compared(good, theirs, rate); ok {
			t.Errorf("compared with %v: %v", theirs, ratio)
		}
	}
	if row := slotsRow(failed, good, time.Second); len(row) != 1 || row[0] != "failed: oversold 3" {
		t.Errorf("%v", row)
	}
}

// TestUnexpected checks which answers make a run fail.
func TestUnexpected(t *testing.T) {
	lua, soldOut, optimistic := variant{name: "lua", strategy: "lua"}, variant{name: "sold-out", strategy: "lua", soldOut: true}, variant{name: "optimistic", strategy: "optimistic"}
	for _, test := range []struct {
		v    variant
		r    result
		good bool
	}{
		{lua, result{Created: 5}, true},
		{lua, result{Created: 5, Refused: 1}, false},
		{lua, result{Created: 5, Other: 1}, false},
		{lua, result{Created: 5, Broken: 1}, false},
		{lua, result{}, false},
		{soldOut, result{Refused: 5}, true},
		{optimistic, result{Created: 5, Other: 1}, true},
		{optimistic, result{Created: 5, Broken: 1}, false},
		{soldOut, result{Refused: 5, Created: 1}, false},
	} {
		if fault := unexpected(test.v, test.r); (fault == "") != test.good {
			t.Errorf("%s %+v: %q", test.v.name, test.r, fault)
		}
	}
}

func TestVerdicts(t *testing.T) {
	var out strings.Builder
	writeVerdicts(&out, map[string][]sample{
		// The machine is slow in the second round, and lua is slow in the third.
		"b": {{perSecond: 100, app: 75}, {perSecond: 50, app: 75}, {perSecond: 100, app: 75}}, "c": {{perSecond: 50}, {perSecond: 25}, {perSecond: 50}},
		"d": {{p99: time.Millisecond}, {p99: 2 * time.Millisecond}, {p99: time.Millisecond}},
		"lua": {
			{perSecond: 60, app: 100, redis: 20, db: 30, p99: 3 * time.Millisecond},
			{perSecond: 30, app: 100, redis: 20, db: 30, p99: 6 * time.Millisecond},
			{perSecond: 1, app: 900, p99: time.Second},
		},
		"merged": {{fault: "oversold"}, {}, {}},
	})
	for _, line := range []string{"at least 0.58 × (b): 0.60, met", "at least 1.5 × (c): 1.20, MISSED", "at most 1.7 × (b): 2.00, MISSED", "at most 2 × (d): 3.00, MISSED"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("no %q in:\n%s", line, out.String())
		}
	}
	if strings.Contains(out.String(), "merged") {
		t.Error("there is a verdict on a variant without figures")
	}
}

func TestFlags(t *testing.T) {
	for _, args := range []string{"--only speed", "--only versions", "--against HEAD", "--db oracle", "--variants e", "--rounds 0", "--connections 1", "--nope",
		"--only slots --db mariadb", "--delays 101ms", "--delays -1ms", "--instances 0", "--instances 1,65"} {
		if _, err := parse(strings.Fields(args), io.Discard); !errors.As(err, new(commandline.UsageError)) {
			t.Errorf("%s: %v", args, err)
		}
	}
	if s, err := parse([]string{"--only", "spread,memory", "--variants", "a,lua"}, io.Discard); err != nil || len(s.chosen(false)) != 2 || len(s.chosen(true)) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := parse([]string{"--help"}, io.Discard); !errors.Is(err, commandline.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
}

// TestEvaluate checks the figures of one run.
func TestEvaluate(t *testing.T) {
	counters := func(retries, orders, groups float64) map[string]float64 {
		return map[string]float64{"holdfast_ledger_retries_total": retries, "holdfast_ledger_group_orders_sum": orders, "holdfast_ledger_group_orders_count": groups}
	}
	r := result{Created: 100, Elapsed: 2 * time.Second, P50: 1, P99: 2}
	before, after := usage{cpu{app: time.Second}, counters(5, 10, 10)}, usage{cpu{app: time.Second + time.Millisecond, redis: 2 * time.Millisecond}, counters(30, 110, 35)}
	if s := evaluate(variant{strategy: "lua"}, r, before, after); s != (sample{perSecond: 50, app: 10, redis: 20, p50: 1, p99: 2, retries: 0.25, grouped: 4}) {
		t.Errorf("%+v", s)
	}
	if s := evaluate(variant{program: "a"}, r, usage{}, usage{}); !math.IsNaN(s.retries) || !math.IsNaN(s.grouped) {
		t.Errorf("a reference program has groups: %+v", s)
	}
}

// TestTotal checks the sum of simultaneous results of several instances.
func TestTotal(t *testing.T) {
	got := total([]result{
		{Created: 1, Refused: 2, Other: 3, Broken: 4, Elapsed: 10, P50: 7, P99: 8},
		{Created: 10, Refused: 20, Other: 30, Broken: 40, Elapsed: 11, P50: 6, P99: 9},
	})
	if got != (result{Created: 11, Refused: 22, Other: 33, Broken: 44, Elapsed: 11, P50: 7, P99: 9}) {
		t.Errorf("%+v", got)
	}
}

// TestHeld checks the quantiles of a histogram that are read from the counters.
func TestHeld(t *testing.T) {
	counters := func(low, high, all float64) map[string]float64 {
		return map[string]float64{"h_bucket{le=\"0.01\"}": low, "h_bucket{le=\"0.002\"}": 0, "h_bucket{le=\"0.02\"}": high, "h_bucket{le=\"+Inf\"}": all, "h_count": all, "other_bucket{le=\"1\"}": 9}
	}
	if got := quantile("h", 0.75, counters(5, 5, 5), counters(10, 15, 15)); got.Round(time.Microsecond) != 15*time.Millisecond {
		t.Errorf("%v", got)
	}
	if got := quantile("h", 0.5, counters(5, 5, 5), counters(5, 5, 5)); got != 0 {
		t.Errorf("%v without observations", got)
	}
}
