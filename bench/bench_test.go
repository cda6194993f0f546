package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
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

func TestParseMetrics(t *testing.T) {
	got := parseMetrics("# HELP x y\nholdfast_ledger_retries_total 12\nholdfast_orders_total{result=\"accepted\"} 5\nbig 1.5e+06\n")
	if got["holdfast_ledger_retries_total"] != 12 || got["big"] != 1.5e6 {
		t.Errorf("%v", got)
	}
}

func TestMedian(t *testing.T) {
	m := median([]sample{{perSecond: 3, app: 10}, {perSecond: 1, app: 30}, {perSecond: 2, app: 20}})
	if m.perSecond != 2 || m.app != 20 {
		t.Errorf("%+v", m)
	}
	if m := median([]sample{{perSecond: 3}, {fault: "oversold"}}); m.fault != "oversold" {
		t.Error("a run that failed its audit has figures")
	}
}

// TestExpected: a run with wrong answers has no figures.
func TestExpected(t *testing.T) {
	lua, _ := findVariant("lua")
	soldOut, _ := findVariant("sold-out")
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
		{soldOut, result{Refused: 5, Created: 1}, false},
	} {
		if fault := expected(test.v, test.r); (fault == "") != test.good {
			t.Errorf("%s %+v: %q", test.v.name, test.r, fault)
		}
	}
}

func TestVerdicts(t *testing.T) {
	var out strings.Builder
	writeVerdicts(&out, map[string][]sample{
		// The machine was slow in the second round, and all of the third went wrong for lua.
		"b": {{perSecond: 100}, {perSecond: 50}, {perSecond: 100}}, "c": {{perSecond: 50}, {perSecond: 25}, {perSecond: 50}},
		"d": {{p99: time.Millisecond}, {p99: 2 * time.Millisecond}, {p99: time.Millisecond}},
		"lua": {
			{perSecond: 60, app: 100, redis: 20, db: 30, p99: 3 * time.Millisecond},
			{perSecond: 30, app: 100, redis: 20, db: 30, p99: 6 * time.Millisecond},
			{perSecond: 1, app: 900, p99: time.Second},
		},
		"merged": {{fault: "oversold"}, {}, {}},
	})
	for _, line := range []string{"at least 0.5 × (b): 0.60, met", "at least 1.5 × (c): 1.20, MISSED", "at most 140: 150.00, MISSED", "at most 2 × (d): 3.00, MISSED"} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("does not say %q:\n%s", line, out.String())
		}
	}
	if strings.Contains(out.String(), "merged") {
		t.Error("a verdict on what was not measured")
	}
}

func TestFlags(t *testing.T) {
	for _, args := range []string{"--only speed", "--db oracle", "--variants e", "--rounds 0", "--nope"} {
		if _, err := parse(strings.Fields(args)); !errors.Is(err, errUsage) {
			t.Errorf("%s: %v", args, err)
		}
	}
	if s, err := parse([]string{"--only", "spread,memory", "--variants", "a,lua"}); err != nil || len(s.chosen(false)) != 2 || len(s.chosen(true)) != 1 {
		t.Errorf("%+v, %v", s, err)
	}
	if _, err := parse([]string{"--help"}); !errors.Is(err, pflag.ErrHelp) {
		t.Errorf("--help: %v", err)
	}
}
