package main

import (
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/commandline"
)

var a, b, other = holder{0, 0}, holder{0, 1}, holder{1, 0}

const second = int64(time.Second)

func TestEvaluate(t *testing.T) {
	w := window{1 * second, 3 * second}
	s := evaluate([]record{
		// Not sorted by time: each process reports all its grants at once.
		{other, 0, 2*second + 40, 2*second + 50},
		{a, 0, second - 20, second - 10}, // a grant before the window, because the first counted grant is a hand-off from its holder
		{a, second, second + 20, second + 30},
		{b, 0, second, second + 10},
		{a, second + 30, second + 40, 2 * second},
		{b, 2 * second, 0, 0},                             // never granted
		{other, 2*second + 50, 3 * second, 3*second + 10}, // after the window
	}, w, 4)
	if s.fault != "" {
		t.Error(s.fault)
	}
	if s.grants != 2 || s.handOffs != 1.5 || s.between != 0.5 {
		t.Errorf("%v grants, %v hand-offs, %v between processes", s.grants, s.handOffs, s.between)
	}
	if s.fewest != 0 || s.most != 2 { // the fourth contender has no record at all
		t.Errorf("%v to %v", s.fewest, s.most)
	}
	if s.longest != 2*time.Second+40 {
		t.Errorf("longest wait %v", s.longest)
	}
	// b: 1 s, a: 20, a: 10, other: 2 s + 40. The grants before and after the window do not count.
	if s.wait50 != 20 || s.wait99 != 2*time.Second+40 {
		t.Errorf("waits: p50 %v, p99 %v", s.wait50, s.wait99)
	}
	// b after a: 10, a after b: 10, a after a: 10, other after a: 40
	if s.p50 != 10 || s.p99 != 40 {
		t.Errorf("p50 %v, p99 %v", s.p50, s.p99)
	}
	if s := evaluate(nil, w, 2); s.grants != 0 || s.fewest != 0 || s.longest != 0 || s.wait99 != 0 || s.p99 != 0 {
		t.Errorf("without records: %+v", s)
	}
}

// TestLongestWait checks the longest wait, including requests without a grant.
func TestLongestWait(t *testing.T) {
	w := window{100, 200}
	for _, test := range []struct {
		r    record
		want time.Duration
	}{
		{record{a, 10, 90, 95}, 0},     // ends before the window
		{record{a, 10, 110, 120}, 100}, // granted within the window
		{record{a, 150, 0, 0}, 50},     // never granted
		{record{a, 150, 260, 270}, 50}, // granted after the window
	} {
		if got := longestWait([]record{test.r}, w); got != test.want {
			t.Errorf("%+v: %v, want %v", test.r, got, test.want)
		}
	}
}

func TestOverlap(t *testing.T) {
	for _, test := range []struct {
		name   string
		grants []record
		fault  string
	}{
		{"one after the other", []record{{a, 0, 10, 20}, {b, 0, 20, 30}, {other, 0, 31, 40}}, ""},
		{"too early", []record{{a, 0, 10, 20}, {other, 0, 19, 30}}, "1 times"},
		{"within a long one", []record{{a, 0, 10, 90}, {b, 0, 20, 30}, {other, 0, 40, 50}}, "2 times"},
		{"after the end", []record{{a, 0, 10, 200}, {other, 0, 100, 110}}, ""},
	} {
		got := overlap(test.grants, 100)
		if (got == "") != (test.fault == "") || !strings.Contains(got, test.fault) {
			t.Errorf("%s: %q", test.name, got)
		}
	}
}

func TestMedian(t *testing.T) {
	m := median([]sample{{grants: 3, wait50: 5, wait99: 1, longest: 1, failed: 1}, {grants: 1, wait50: 4, wait99: 3, longest: 3}, {grants: 2, wait50: 6, wait99: 2, longest: 2, failed: 1}})
	if m.grants != 2 || m.wait50 != 5 || m.wait99 != 2 || m.longest != 2 || m.failed != 2 {
		t.Errorf("%+v", m)
	}
	if m := median([]sample{{grants: 3}, {fault: "two holders"}}); m.fault == "" {
		t.Error("a failed run has figures")
	}
}

func TestRecord(t *testing.T) {
	var (
		l    log
		line [recordSize]byte
	)
	for i := range int64(2*pieceSize + 1) {
		l.add(record{asked: i})
	}
	if got := slices.Concat(l...); len(got) != 2*pieceSize+1 || got[2*pieceSize].asked != 2*pieceSize {
		t.Errorf("%d of %d records", len(got), 2*pieceSize+1)
	}
	want := record{holder{3, 7}, 1, math.MaxInt64, 5}
	want.encode(line[:], want.goroutine)
	if got := decode(line[:], 3); got != want {
		t.Errorf("%+v", got)
	}
}

func TestCounters(t *testing.T) {
	c := addCommands(map[string]string{
		"cmdstat_evalsha": "calls=10,usec=5", "cmdstat_set": "calls=7,usec=1", "cmdstat_client|id": "calls=100,usec=1", "cmdstat_script|load": "calls=1,usec=1",
	}, []string{"evalsha"})
	if c.requests != 10 || c.commands != 18 {
		t.Errorf("%+v", c)
	}
	if got := known(map[string]float64{"x": 12}, "x"); got != 12 {
		t.Error(got)
	}
	if got := known(nil, "x"); !math.IsNaN(got) {
		t.Error(got)
	}
	var s sample
	s.perGrant(counters{10, math.NaN()}, counters{20, math.NaN()}, []record{{granted: 1}, {granted: 2}, {}})
	if s.requests != 5 || !math.IsNaN(s.commands) {
		t.Errorf("%+v", s)
	}
}

// TestWriteTable checks that each time is below its title.
func TestWriteTable(t *testing.T) {
	c := cell{arrangements[0], contestant{backend: "local", name: ours}}
	m := sample{wait50: time.Millisecond, wait99: 2 * time.Millisecond, longest: 3 * time.Millisecond, p50: 4 * time.Millisecond, p99: 5 * time.Millisecond}
	var out strings.Builder
	writeTable(&out, []cell{c}, map[string]sample{c.key(): m})
	var rows [][]string
	for line := range strings.Lines(out.String()) {
		if strings.HasPrefix(line, "|") {
			var cells []string
			for text := range strings.SplitSeq(line, "|") {
				cells = append(cells, strings.TrimSpace(text))
			}
			rows = append(rows, cells)
		}
	}
	if len(rows) != 3 || len(rows[0]) != len(rows[2]) {
		t.Fatalf("%s", &out)
	}
	want := []string{"request to grant ms: p50", "p99", "longest wait ms", "unlock to grant ms: p50", "p99"}
	at := slices.Index(rows[0], want[0])
	if at < 0 || !slices.Equal(rows[0][at:at+5], want) || !slices.Equal(rows[2][at:at+5], []string{"1.000", "2.000", "3.0", "4.000", "5.000"}) {
		t.Errorf("%s", &out)
	}
}

func TestVerdicts(t *testing.T) {
	var out strings.Builder
	writeVerdicts(&out, map[string][]sample{
		"redis 4x8 " + ours:          {{handOffs: 30, longest: 2}},
		"redis 4x8 redsync":          {{handOffs: 10, longest: 10}},
		"etcd 4x8 " + ours:           {{handOffs: 1}},
		"etcd 4x8 concurrency.Mutex": {{fault: "two holders"}},
		"zookeeper 4x8 another":      {{}},
	})
	want := "- redis, 4x8: hand-offs/s at least 3 × (redsync): 3.00, met\n- redis, 4x8: longest wait at most 0.1 × (redsync): 0.20, MISSED\n"
	if out.String() != want {
		t.Errorf("%s", out.String())
	}
}

// TestTargets checks that the contestants and arrangements of all targets exist.
func TestTargets(t *testing.T) {
	for _, target := range targets {
		for _, name := range []string{ours, target.Against} {
			if _, ok := findContestant(target.backend, name); !ok {
				t.Errorf("there is no %s, %s", target.backend, name)
			}
		}
		if !slices.ContainsFunc(arrangements, func(a arrangement) bool { return a.name == target.arrangement }) {
			t.Errorf("there is no arrangement %s", target.arrangement)
		}
	}
}

func TestParse(t *testing.T) {
	if _, err := parse([]string{"--help"}, io.Discard); !errors.Is(err, commandline.ErrHelp) {
		t.Error(err)
	}
	for _, wrong := range []string{"--backends=consul", "--arrangements=2x2", "--rounds=0", "--seconds=0", "--nonsense"} {
		if _, err := parse([]string{wrong}, io.Discard); !errors.As(err, new(commandline.UsageError)) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	s, err := parse([]string{"--backends=local,redis", "--arrangements=4x8,alone"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, c := range s.cells() {
		keys = append(keys, c.key())
	}
	// The order is that of the flags. local is not measured between processes.
	if len(keys) != 11 || keys[0] != "local alone "+ours || keys[1] != "redis 4x8 "+ours || keys[10] != "redis alone bsm/redislock" {
		t.Errorf("%q", keys)
	}
}

// TestTurns checks that the contestants of one table run in turns.
func TestTurns(t *testing.T) {
	s, err := parse([]string{"--backends=local,etcd", "--arrangements=4x8,alone", "--rounds=2"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var tables []string
	for _, c := range s.turns() {
		tables = append(tables, c.contestant.backend+" "+c.arrangement.name)
	}
	want := append(slices.Repeat([]string{"local alone"}, 3), append(slices.Repeat([]string{"etcd 4x8"}, 6), slices.Repeat([]string{"etcd alone"}, 6)...)...)
	if !slices.Equal(tables, want) {
		t.Errorf("%q, want %q", tables, want)
	}
}
