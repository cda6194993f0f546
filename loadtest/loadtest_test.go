package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/loadtest/liar"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

func TestMain(m *testing.M) {
	if os.Getenv(asLoadTest) != "" {
		main()
		return
	}
	os.Exit(testenv.Main(m))
}

// runHere runs a load test within the test, so that its stores stay open.
func runHere(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runWith(t, func(*settings) {}, args...)
}

// runWith is runHere with settings that the command line does not allow.
func runWith(t *testing.T, change func(*settings), args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	s, err := parse(args, &out)
	if err == nil {
		change(s)
		err = s.load(t.Context(), t, args, &out, &errs)
	}
	code = command.ExitCode(t.Context(), "loadtest", err, &errs)
	t.Logf("loadtest %s: exit code %d\n%s%s", strings.Join(redacted(args), " "), code, &out, &errs)
	return code, out.String(), errs.String()
}

// patient is a limit for a rush that normally ends sooner, even on a busy machine.
const patient = "--limit=2m"

// TestTarget_Other checks the laboratory's errors for services that it cannot load.
func TestTarget_Other(t *testing.T) {
	page := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
	defer page.Close()
	var shops []string
	for _, strategies := range []string{`{"running":"lua"}`, `{"running":"merged"}`, `{"running":"lua","guard":true}`, `{"running":"nonesuch"}`} {
		shop := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, strategies) }))
		defer shop.Close()
		shops = append(shops, shop.URL)
	}
	for _, test := range []struct {
		targets []string
		says    string
	}{
		{[]string{page.URL}, page.URL + "/strategies"},
		{[]string{"http://127.0.0.1:1"}, "http://127.0.0.1:1/strategies"},
		{shops[:2], shops[1] + " runs merged: services that share stores must run one strategy"},
		{[]string{shops[0], shops[2]}, shops[2] + " differ in --guard"},
		{shops[3:], `runs the unknown strategy "nonesuch"`},
	} {
		code, _, says := runHere(t, "--target", strings.Join(test.targets, ","))
		if code != command.ExitFailed || !strings.HasPrefix(says, "loadtest: --target: ") || !strings.Contains(says, test.says) {
			t.Errorf("exit code %d, %s", code, says)
		}
	}
}

func TestPercentiles(t *testing.T) {
	var times []time.Duration
	for i := range 100 {
		times = append(times, time.Duration(i+1)*time.Millisecond)
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(times, q); got == nil || *got != want {
			t.Errorf("%v: %s, want %v", q, table.Optional("%v", got), want)
		}
	}
	if quantile(nil, 0.5) != nil || percentiles(nil) != nil {
		t.Error("there is a quantile of no times")
	}
	points := percentiles(times)
	if len(points) != len(curve) || !slices.IsSortedFunc(points, func(a, b results.Percentile) int { return int(a.Millis - b.Millis) }) {
		t.Errorf("%v", points)
	}
}

func TestAddTimes(t *testing.T) {
	rec := newRecord()
	for i := range 10 {
		rec.add(answer{Answer: load.Answer{Took: time.Millisecond}, at: time.Duration(i+1) * 100 * time.Millisecond, outcome: accepted})
	}
	rec.add(answer{Answer: load.Answer{Took: 2 * time.Millisecond}, at: 5 * time.Second, outcome: refused})
	rec.add(answer{Answer: load.Answer{Took: 9 * time.Second}, at: 9 * time.Second, outcome: failed})
	var r results.Result
	addTimes(&r, rec)
	if r.PerSecond != 10 || *r.P99 != 2 || len(r.Sales) != 10 {
		t.Errorf("%v orders/s, p99 %v, %d sales", r.PerSecond, *r.P99, len(r.Sales))
	}
}

func TestJudge(t *testing.T) {
	n := func(n int64) *int64 { return &n }
	var (
		sound      = terms{spec: assembly.Spec{Name: "lua", Sound: true}, maxFailures: 0.05}
		optimistic = terms{spec: assembly.Spec{Name: "optimistic", Cutter: "optimistic", Sound: true}, maxFailures: 0.05}
		broken     = terms{spec: assembly.Spec{Name: "none"}, mayOversell: true, mustOversell: true, maxFailures: 0.05}
		single     = terms{spec: assembly.Spec{Name: "mutex"}, mayOversell: true, maxFailures: 0.05}
		guarded    = terms{spec: assembly.Spec{Name: "none"}, mustCatch: true, maxFailures: 0.05}
		plenty     = terms{spec: sound.spec, plenty: true, maxFailures: 0.05}
		gated      = terms{spec: sound.spec, gated: true, maxFailures: 0.05}
		exact      = results.Result{Instances: 2, Stock: 10, Accepted: 10, Sold: 10, Ledger: n(0), Gate: n(0), InFlight: n(0)}
	)
	faulty := func(t terms) terms { t.faulty = true; return t }
	ended := func(t terms, end ending) terms { t.ending, t.mustOversell = end, false; return t }
	with := func(change func(*results.Result)) results.Result {
		r := exact
		change(&r)
		return r
	}
	oversold := with(func(r *results.Result) { r.Accepted, r.Sold, r.Oversold = 12, 12, 2 })
	surprises := map[string]results.Surprise{"oversold 2 units": results.Oversell, "proves nothing": results.NoOversell, "caught nothing": results.NoCatch}
	for _, test := range []struct {
		name    string
		result  results.Result
		terms   terms
		verdict string
		says    string
	}{
		{"all sold", exact, sound, results.AsPromised, ""},
		{"sound oversells", oversold, sound, results.Broken, "oversold 2 units"},
		{"sound oversells until the limit", oversold, ended(sound, atLimit), results.Broken, "oversold 2 units"},
		{"sound oversells and is interrupted", oversold, ended(sound, interrupted), results.Broken, "oversold 2 units"},
		{"broken oversells", with(func(r *results.Result) { *r = oversold; r.Ledger = nil }), broken, results.AsPromised, ""},
		{"broken oversells until the limit", oversold, ended(broken, atLimit), results.AsPromised, ""},
		{"broken does not oversell", exact, broken, results.Broken, "proves nothing"},
		{"broken does not oversell, and an order is not found", with(func(r *results.Result) { r.Findings = []results.Finding{{Kind: results.Missing, Count: 1}} }), broken, results.Broken, "proves nothing"},
		{"broken does not oversell before the limit", exact, ended(broken, atLimit), results.Undecided, ""},
		{"broken, one instance", exact, single, results.AsPromised, ""},
		{"broken, guarded", exact, guarded, results.AsPromised, ""},
		{"broken, guarded, and something is caught", with(func(r *results.Result) { r.Caught = n(3) }), guarded, results.AsPromised, ""},
		{"broken, guarded, and nothing is caught", with(func(r *results.Result) { r.Caught = n(0) }), guarded, results.Broken, "caught nothing"},
		{"sound, guarded, and nothing is caught", with(func(r *results.Result) { r.Caught = n(0) }), sound, results.AsPromised, ""},
		{"broken, guarded, oversells", oversold, guarded, results.Broken, "oversold 2 units"},
		{"an order is not found", with(func(r *results.Result) { r.Findings = []results.Finding{{Kind: results.Missing, Count: 1, First: "x"}} }), sound, results.Broken, "1 accepted orders are not found (the first: x)"},
		{"fewer sold than accepted", with(func(r *results.Result) { r.Sold, r.Ledger, r.Gate = 9, n(1), n(1) }), sound, results.Broken, "10 orders were accepted, and 9 sold"},
		{"more sold than accepted", with(func(r *results.Result) { r.Accepted, r.Unknown = 8, 1 }), sound, results.Broken, "8 orders were accepted, 1 have an unknown outcome, and 10 sold"},
		{"sold with an unknown outcome", with(func(r *results.Result) { r.Accepted, r.Unknown = 8, 2 }), sound, results.AsPromised, ""},
		{"too many failures", with(func(r *results.Result) { r.Failed, r.Failures = 1, map[string]int64{"503 busy": 1} }), sound, results.Broken, "9.09% of 11 orders and repeats failed, more than 5%: 1 503 busy"},
		{"optimistic is busy", with(func(r *results.Result) { r.Failed, r.Failures = 3, map[string]int64{"503 busy": 3} }), optimistic, results.AsPromised, ""},
		{"optimistic fails", with(func(r *results.Result) { r.Failed, r.Failures = 3, map[string]int64{"503 busy": 2, "500 internal": 1} }), optimistic, results.Broken, "1 500 internal"},
		{"failures among many refusals", with(func(r *results.Result) { r.Refused, r.Failed, r.Failures = 1000, 1, map[string]int64{"503 busy": 1} }), sound, results.Broken, "9.09% of 11"},
		{"too many failed repeats", with(func(r *results.Result) {
			r.Repeats, r.RepeatsFailed, r.Failures = 10, 2, map[string]int64{"repeat: 503 busy": 2}
		}), sound, results.Broken, "10% of 20 orders and repeats failed, more than 5%: 2 repeat: 503 busy"},
		{"repeats of optimistic are busy", with(func(r *results.Result) {
			r.Repeats, r.RepeatsFailed, r.Failures = 10, 2, map[string]int64{"repeat: 503 busy": 2}
		}), optimistic, results.AsPromised, ""},
		{"about no outcome is unknown", with(func(r *results.Result) { r.Requests, r.Uncertain = 1001, 2 }), sound, results.AsPromised, ""},
		{"outcomes are unknown", with(func(r *results.Result) { r.Requests, r.Uncertain = 1000, 2 }), sound, results.Broken, "2 of 1000 requests have an unknown outcome, more than 1, and nothing was killed"},
		{"outcomes are unknown after a crash", with(func(r *results.Result) { r.Requests, r.Uncertain = 1000, 20 }), faulty(sound), results.AsPromised, ""},
		{"the gate was repaired", with(func(r *results.Result) { r.Excess = 1 }), sound, results.Broken, "the gate had 1 units more than the ledger"},
		{"the gate was repaired after a crash", with(func(r *results.Result) { r.Excess = 1 }), faulty(sound), results.AsPromised, ""},
		{"the gate of a broken strategy was repaired", with(func(r *results.Result) { *r = oversold; r.Excess = 1 }), broken, results.AsPromised, ""},
		{"sound, guarded, and something is caught", with(func(r *results.Result) { r.Caught = n(3) }), sound, results.Broken, "the guard refused 3 orders"},
		{"few failures", with(func(r *results.Result) { r.Failed, r.Stock, r.Accepted, r.Sold = 5, 100, 100, 100 }), sound, results.AsPromised, ""},
		{"units left", with(func(r *results.Result) { r.Accepted, r.Sold, r.Undersold, r.Ledger, r.Gate = 9, 9, 1, n(1), n(1) }), sound, results.Broken, "1 units were left"},
		{"units left at the limit", with(func(r *results.Result) { r.Undersold = 1 }), ended(sound, atLimit), results.Undecided, ""},
		{"nothing sold at the limit", with(func(r *results.Result) { r.Accepted, r.Sold = 0, 0 }), ended(sound, atLimit), results.Broken, "no order was accepted"},
		{"interrupted", with(func(r *results.Result) { r.Accepted, r.Sold = 0, 0 }), ended(sound, interrupted), results.Undecided, ""},
		{"stock row differs from the orders", with(func(r *results.Result) { r.Ledger, r.Gate = n(3), n(3) }), sound, results.Broken, "the stock row has 3"},
		{"gate differs from the stock row", with(func(r *results.Result) { r.Gate = n(4) }), sound, results.Broken, "the gate has 4"},
		{"units left after a crash", with(func(r *results.Result) { r.Accepted, r.Sold, r.Undersold, r.Ledger, r.Gate = 9, 9, 1, n(1), n(1) }), ended(sound, crashed), results.AsPromised, ""},
		{"stock row differs after a crash", with(func(r *results.Result) { r.Ledger, r.Gate = n(3), n(3) }), ended(sound, crashed), results.Broken, "the stock row has 3"},
		{"in flight after a crash", with(func(r *results.Result) { r.Accepted, r.Sold, r.Ledger, r.InFlight = 9, 9, n(1), n(1) }), ended(sound, crashed), results.Broken, "left 1 units in flight"},
		{"in flight", with(func(r *results.Result) { r.Accepted, r.Sold, r.Ledger, r.InFlight = 9, 9, n(1), n(1) }), sound, results.AsPromised, ""},
		{"counts unknown", with(func(r *results.Result) { r.Ledger, r.Gate, r.InFlight = nil, nil, nil }), sound, results.AsPromised, ""},
		{"no count at the gate", with(func(r *results.Result) { r.Gate, r.InFlight = nil, nil }), gated, results.Broken, "no count at the gate"},
		{"no count at the gate after a fault", with(func(r *results.Result) { r.Gate, r.InFlight = nil, nil }), faulty(gated), results.AsPromised, ""},
		{"more stock than arrivals", with(func(r *results.Result) { r.Stock, r.Ledger, r.Gate = 100, n(90), n(90) }), plenty, results.AsPromised, ""},
		{"more stock than arrivals, and refused", with(func(r *results.Result) { r.Stock, r.Refused, r.Ledger, r.Gate = 100, 1, n(90), n(90) }), plenty, results.Broken, "1 orders were refused"},
		{"more stock than arrivals, and a broken strategy refuses", with(func(r *results.Result) { r.Refused = 1 }), terms{spec: single.spec, plenty: true, maxFailures: 0.05}, results.AsPromised, ""},
		{"more stock than arrivals, and turned down", with(func(r *results.Result) { r.Stock, r.TurnedDown, r.Ledger, r.Gate = 100, 1, n(90), n(90) }), plenty, results.Broken, "1 orders were refused"},
	} {
		r := test.result
		conclusive := judge(&r, test.terms)
		if limited := strings.Contains(r.Load, "stopped at the limit"); limited != (test.terms.ending == atLimit) {
			t.Errorf("%s: %q", test.name, r.Load)
		}
		if want := surprises[test.says]; r.Surprise != want {
			t.Errorf("%s: surprise %q, want %q", test.name, r.Surprise, want)
		}
		if says := strings.Join(r.Faults, "; "); r.Verdict != test.verdict || !strings.Contains(says, test.says) {
			t.Errorf("%s: %s (%s), want %s (%s)", test.name, r.Verdict, says, test.verdict, test.says)
		}
		if proof := !strings.Contains(test.says, "proves nothing") && !strings.Contains(test.says, "caught nothing"); conclusive != (proof || len(r.Findings) > 0) {
			t.Errorf("%s: conclusive %v", test.name, conclusive)
		}
	}
}

// TestTerms checks the requirements of each load on a strategy.
func TestTerms(t *testing.T) {
	sound, broken := assembly.Spec{Sound: true, Name: "lua"}, mustFind(t, "none")
	target := []string{"http://127.0.0.1:1"}
	for _, test := range []struct {
		name     string
		settings settings
		spec     assembly.Spec
		ending   ending
		want     terms
	}{
		{"sound", settings{Instances: 2}, sound, soldOut, terms{}},
		{"broken", settings{Instances: 2}, broken, soldOut, terms{mayOversell: true, mustOversell: true}},
		{"broken, not sold out", settings{Instances: 2}, broken, atLimit, terms{mayOversell: true}},
		{"broken, one instance", settings{Instances: 1}, broken, soldOut, terms{mayOversell: true}},
		{"broken, guarded", settings{Instances: 2, Guard: true}, broken, soldOut, terms{mustCatch: true}},
		{"broken, guarded, one instance", settings{Instances: 1, Guard: true}, broken, soldOut, terms{}},
		{"open load", settings{Instances: 2, Rate: 10}, broken, soldOut, terms{plenty: true}},
		{"open load with faults", settings{Instances: 2, Rate: 10, Faults: true}, sound, soldOut, terms{faulty: true}},
		{"an instance was killed", settings{Instances: 2}, sound, crashed, terms{faulty: true, maxFailures: 1}},
		{"interrupted", settings{Instances: 2}, sound, interrupted, terms{faulty: true, maxFailures: 1}},
		{"search", settings{Instances: 2, Search: true}, sound, soldOut, terms{faulty: true, plenty: true, maxFailures: 1}},
		{"with faults", settings{Instances: 2, Faults: true}, sound, soldOut, terms{faulty: true}},
		{"a broken target", settings{Instances: 2, Targets: target}, broken, soldOut, terms{}},
		{"a broken target, guarded", settings{Targets: target, Guard: true}, broken, soldOut, terms{}},
		{"two broken targets, guarded", settings{Targets: slices.Repeat(target, 2), Guard: true}, broken, soldOut, terms{mustCatch: true}},
		{"broken, guarded, not sold out", settings{Instances: 2, Guard: true}, broken, atLimit, terms{}},
		{"broken without a gate, guarded", settings{Instances: 2, Guard: true}, mustFind(t, "db-none"), soldOut, terms{mayOversell: true, mustOversell: true}},
		{"a target with --expect-oversell", settings{Targets: target, ExpectOversell: true}, broken, soldOut, terms{mayOversell: true, mustOversell: true}},
	} {
		l := &lab{settings: test.settings}
		got := l.terms(test.spec, test.ending)
		if got.spec.Name != test.spec.Name || got.mayOversell != test.want.mayOversell || got.mustOversell != test.want.mustOversell || got.mustCatch != test.want.mustCatch || got.plenty != test.want.plenty || got.faulty != test.want.faulty || got.maxFailures != test.want.maxFailures {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
	withRedis := &lab{redis: redis.NewClient(&redis.Options{})} // this client does not connect
	defer withRedis.redis.Close()
	for _, test := range []struct {
		lab      *lab
		strategy string
		gated    bool
	}{{withRedis, "lua", true}, {withRedis, "merged", false}, {&lab{}, "lua", false}} {
		if got := test.lab.terms(mustFind(t, test.strategy), soldOut); got.gated != test.gated {
			t.Errorf("%s, with Redis %v: gated %v", test.strategy, test.lab.redis != nil, got.gated)
		}
	}
}

// TestFlags_History checks that the instances of a history refuse nothing from memory, because the
// check assumes that no refusal is old.
func TestFlags_History(t *testing.T) {
	for file, want := range map[string]bool{"": false, "history.jsonl": true} {
		l := &lab{settings: settings{History: file}}
		flags := strings.Join(l.flags(mustFind(t, "merged")), " ")
		if strings.Contains(flags, "--sold-out-memory 0s") != want {
			t.Errorf("--history %q: %s", file, flags)
		}
	}
}

func mustFind(t *testing.T, name string) assembly.Spec {
	t.Helper()
	spec, ok := assembly.FindStrategy(name)
	if !ok {
		t.Fatalf("there is no strategy %s", name)
	}
	return spec
}

func TestUsage(t *testing.T) {
	for _, test := range []struct{ args, says string }{
		{"--strategies nonesuch", "--strategies"},
		{"--instances 0", "--instances"},
		{"--stock 0", "--stock"},
		{"--stock many", "--stock"},
		{"--clients 1001", "--clients"},
		{"--guard maybe", "--guard"},
		{"--strategies lua,async --lifecycle", "async has queued"},
		{"--strategies async --redis redis+cluster://127.0.0.1:1 --db sqlite:///x", "Redis Cluster"},
		{"--limit 1ms", "--limit"},
		{"--rate -1", "--rate"},
		{"--rate 5 --search", "--search"},
		{"--rate 5 --duration 1ms", "--duration"},
		{"--search --p99 0s", "--p99"},
		{"--p99 10ms", "--p99"},
		{"--duration 2s", "--duration"},
		{"--rate 5 --clients 2", "--clients"},
		{"--search --limit 2s", "--limit"},
		{"--lock nonesuch", "--lock"},
		{"--lock zookeeper", "--zookeeper"},
		{"--lock etcd --redlock 127.0.0.1:1", "--redlock"},
		{"--lock mysql", "--lock"},
		{"--lock postgres --redis redis://127.0.0.1:1/0 --db mysql://h/n", "--lock"},
		{"--target http://127.0.0.1:1 --guard on", "--guard"},
		{"--redis redis://127.0.0.1:1/0", "--db"},
		{"--db sqlite:///x", "--redis"},
		{"--target http://127.0.0.1:1 --strategies lua", "--strategies"},
		{"--target http://127.0.0.1:1 --api x", "--api"},
		{"--target http://127.0.0.1:1 --redis redis://127.0.0.1:1/0", "--redis"},
		{"--target 127.0.0.1:1", "--target"},
		{"--target ftp://127.0.0.1:1", "--target"},
		{"--target http://", "--target"},
		{"--target http://127.0.0.1:1?x=y", "--target"},
		{"--target http://127.0.0.1:1 --crash", "--crash"},
		{"--rate 5 --crash", "--crash"},
		{"--keep", "--keep"},
		{"--expect-oversell", "--expect-oversell"},
		{"--max-failures 101%", "--max-failures"},
		{"--max-failures few", "--max-failures"},
		{"--search --max-failures 5%", "--max-failures"},
		{"--probes 1", "--probes"},
		{"--search --probes 2", "--probes"},
		{"--rate 1000000 --duration 1m", "--duration"},
		{"--db shop --redis redis://127.0.0.1:1/0", "--db"},
		{"--db mongo://127.0.0.1:1/shop --redis redis://127.0.0.1:1/0", "--db"},
		{"--target http://127.0.0.1:1 --db mysql://127.0.0.1", "--db"},
		{"--target http://127.0.0.1:1 --out /dev/null/folder", "--out"},
		{"--target http://127.0.0.1:1 --out /dev/null", "--out"},
		{"--lock etcd --etcd nowhere", "--etcd"},
		{"--lifecycle --rate 5", "--lifecycle"},
		{"--lifecycle --target http://127.0.0.1:1", "--lifecycle"},
		{"--lifecycle --strategies lua,none", "none oversells"},
		{"--lifecycle --crash", "--crash"},
		{"--lifecycle --limit 2s", "--limit"},
		{"--lifecycle --payment-window 10ms", "--payment-window"},
		{"--payment-window 2s", "--payment-window"},
		{"clean", "--db"},
		{"--nonesuch", "--nonesuch"},
		{"contrast", "contrast"},
	} {
		err := run(t.Context(), strings.Fields(test.args), io.Discard, io.Discard)
		if !errors.As(err, new(commandline.UsageError)) || !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s: %v", test.args, err)
		}
	}
	var stdout bytes.Buffer
	if err := run(t.Context(), []string{"--help"}, &stdout, io.Discard); !errors.Is(err, commandline.ErrHelp) || !strings.Contains(stdout.String(), "--strategies") {
		t.Errorf("--help: %v: %s", err, &stdout)
	}
}

// shop imitates the service well enough for a load test.
type shop struct {
	units   int           // units to sell, of each SKU
	runs    string        // strategy that the shop reports; empty: lua
	forget  bool          // GET does not find orders
	fails   int           // percentage of orders that the shop answers 503
	problem string        // problem of these answers; empty: busy
	forgets bool          // the shop ignores keys
	slow    time.Duration // duration of each order
	workers chan struct{} // the capacity bounds the orders under way; nil: no bound

	mu     sync.Mutex
	buyers []string // buyers, in the order of their orders
	orders map[string]order
	sold   map[string]int    // units sold, by SKU
	keys   map[string][]byte // first answers, by key
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.slow > 0 && r.URL.Path == "/orders" {
		if s.workers != nil {
			s.workers <- struct{}{}
			defer func() { <-s.workers }()
		}
		time.Sleep(s.slow) // the duration of an order is what the tests of open loads measure
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id, single := strings.CutPrefix(r.URL.Path, "/orders/")
	switch {
	case r.URL.Path == "/strategies":
		fmt.Fprintf(w, `{"running":%q}`, cmp.Or(s.runs, "lua"))
	case r.Method == http.MethodPut:
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, `{"sku":"any"}`)
	case single && !s.forget:
		_ = json.NewEncoder(w).Encode(s.orders[id])
	case r.URL.Path == "/orders" && s.fails > 0 && rand.IntN(100) < s.fails:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprintf(w, `{"type":"/problems/%s"}`, cmp.Or(s.problem, "busy"))
	case r.URL.Path == "/orders":
		s.order(w, r)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// order places an order, unless its key is known.
func (s *shop) order(w http.ResponseWriter, r *http.Request) {
	if s.orders == nil {
		s.orders, s.sold, s.keys = make(map[string]order), make(map[string]int), make(map[string][]byte)
	}
	key := r.Header.Get("Idempotency-Key")
	if first, known := s.keys[key]; known {
		w.Header().Set("Idempotent-Replayed", "true")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(first)
		return
	}
	o := order{ID: fmt.Sprintf("o-%d", len(s.buyers)+1), Status: "pending"}
	_ = json.NewDecoder(r.Body).Decode(&o)
	sku := o.Lines[0].SKU
	if s.sold[sku] >= s.units {
		w.WriteHeader(http.StatusConflict)
		fmt.Fprint(w, `{"type":"/problems/sold-out"}`)
		return
	}
	s.sold[sku]++
	s.buyers, s.orders[o.ID] = append(s.buyers, o.BuyerID), o
	answer, _ := json.Marshal(o) // cannot fail, because o was just decoded
	if key != "" && !s.forgets {
		s.keys[key] = answer
	}
	w.WriteHeader(http.StatusCreated)
	_, _ = w.Write(answer)
}

// TestTargets loads imitations of the service: a correct one, and some with a fault.
func TestTargets(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		shop *shop
		args string
		code int
		says string
	}{
		{"correct", &shop{units: 20}, "", command.ExitOK, results.AsPromised},
		{"oversells", &shop{units: 23}, "", command.ExitFailed, "oversold 3 units"},
		{"runs a broken strategy", &shop{units: 23, runs: "none"}, "", command.ExitFailed, "oversold 3 units"},
		{"must oversell", &shop{units: 23, runs: "none"}, "--expect-oversell", command.ExitOK, results.AsPromised},
		{"must oversell and does not", &shop{units: 20, runs: "none"}, "--expect-oversell", command.ExitFailed, "it should oversell and did not"},
		{"refuses while units are left", &shop{units: 19}, "", command.ExitFailed, "1 units were left"},
		{"loses orders", &shop{units: 20, forget: true}, "", command.ExitFailed, "20 accepted orders are not found"},
		{"forgets keys", &shop{units: 20, forgets: true}, "", command.ExitFailed, results.OtherReplay.String()},
		{"refuses every order", &shop{}, "", command.ExitFailed, "no order was accepted"},
		{"fails", &shop{units: 20, fails: 50}, "", command.ExitFailed, "more than 5%"},
		{"is allowed to fail", &shop{units: 20, fails: 50}, "--max-failures 100%", command.ExitOK, "503 busy"},
		{"does not know", &shop{units: 20, fails: 50, problem: "unavailable"}, "--max-failures 100%", command.ExitFailed, "have an unknown outcome, more than 1, and nothing was killed"},
		{"is allowed not to know", &shop{units: 20, fails: 50, problem: "unavailable"}, "--max-failures 100% --faults", command.ExitOK, "503 unavailable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(test.shop)
			defer server.Close()
			args := append([]string{"--target", server.URL + "/", "--stock", "20", "--clients", "4"}, strings.Fields(test.args)...)
			code, out, errs := runHere(t, args...)
			if code != test.code || !strings.Contains(out, test.says) {
				t.Errorf("exit code %d, want %d and %q", code, test.code, test.says)
			}
			if code == command.ExitFailed && !strings.Contains(errs, test.says) {
				t.Errorf("the last line does not say %q", test.says)
			}
		})
	}
}

// TestSeed checks that two runs with one seed send the same orders in the same
// sequence, and that another seed sends others.
func TestSeed(t *testing.T) {
	t.Parallel()
	sent := func(seed string) []string {
		s := &shop{units: 50}
		server := httptest.NewServer(s)
		defer server.Close()
		if code, _, _ := runHere(t, "--target", server.URL, "--stock", "50", "--clients", "1", "--seed", seed); code != command.ExitOK {
			t.Errorf("exit code %d", code)
		}
		return s.buyers
	}
	first, second, other := sent("7"), sent("7"), sent("8")
	if len(first) != 100 || !slices.Equal(first, second) { // the rush, and the rush with repeated keys
		t.Errorf("the same seed: %v, then %v", first, second)
	}
	if slices.Equal(first, other) {
		t.Error("another seed sends the same orders")
	}
	if len(slices.Compact(slices.Sorted(slices.Values(first[:50])))) != 50 {
		t.Errorf("buyers repeat: %v", first)
	}
}

// services are instances that the laboratory has started on embedded stores, for several
// loads.
type services struct {
	*lab
	fleet *fleet
}

// startServices starts the instances of a load with these arguments, for the first of its
// strategies.
func startServices(t *testing.T, args ...string) *services {
	t.Helper()
	s, err := parse(args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	l, err := newLab(t.Context(), t, *s, args, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	f := l.startFleet(l.chosen()[0])
	t.Cleanup(l.client.CloseIdleConnections) // closed before the instances end, which would wait for its connections
	return &services{l, f}
}

// tell puts a liar in front of the instances, and returns the liar with the URLs to load.
func (s *services) tell(t *testing.T, lie string) (l *liar.Liar, urls []string) {
	t.Helper()
	l = &liar.Liar{Lie: lie, Change: func(statements ...liar.Statement) { s.falsify(t, statements) }, AddToGate: func(sku string) { s.addToGate(t, sku) }}
	for _, url := range s.fleet.urls {
		urls = append(urls, l.Serve(t, url))
	}
	return l, urls
}

// arguments returns the arguments of a load test at the URLs, with the stores of the services.
func (s *services) arguments(urls []string, more ...string) []string {
	args := []string{"--db", s.DB, "--redis", s.Redis}
	for _, url := range urls {
		args = append(args, "--target", url)
	}
	return append(args, more...)
}

// falsify changes the ledger in one transaction.
func (s *services) falsify(t *testing.T, statements []liar.Statement) {
	tx := s.sql.DB().Begin()
	for _, statement := range statements {
		for i, arg := range statement.Args {
			if id, ok := arg.(uuid.UUID); ok {
				statement.Args[i] = s.column(id)
			}
		}
		if err := tx.Exec(statement.Text, statement.Args...).Error; err != nil {
			t.Errorf("%s: %v", statement.Text, err)
		}
	}
	if err := tx.Commit().Error; err != nil {
		t.Error(err)
	}
}

// addToGate adds a unit to the gate's count of the SKU.
func (s *services) addToGate(t *testing.T, sku string) {
	id, err := s.sql.LedgerID(t.Context())
	if err != nil {
		t.Error(err)
	}
	const script = `local epoch, available, rest = string.match(redis.call('HGET', KEYS[1], ARGV[1]), '^(%d+) (%-?%d+) (.*)$')
		return redis.call('HSET', KEYS[1], ARGV[1], string.format('%s %d %s', epoch, available + 1, rest))`
	if err := s.redis.Eval(t.Context(), script, []string{"holdfast:{" + id.String() + "}:count"}, sku).Err(); err != nil {
		t.Error(err)
	}
}

// maxTriesToLie bounds the loads until a liar has lied. On a machine that pauses, a load of some
// seconds may give it no opportunity.
const maxTriesToLie = 10

// TestLiars loads services whose answers differ from the data that they commit. All liars stand in
// front of the same instances. TestCheckAnswers and TestRepeat have the other findings.
func TestLiars(t *testing.T) {
	t.Parallel()
	const (
		stock  = 100
		broken = command.ExitFailed
	)
	whole, running := t, map[string]*services{}
	for _, test := range []struct {
		strategy, liar string
		code           int
		says           []results.Kind
		args           string
	}{
		{"async", "is-honest-about-queued-orders", command.ExitOK, nil, ""},
		{"merged", "tells-the-truth", command.ExitOK, nil, "--keep"},
		{"merged", "answers-before-the-commit", broken, []results.Kind{results.Early}, ""},
		{"merged", "makes-a-second-order-of-one-replay-in-ten", broken, []results.Kind{results.Doubled}, ""},
		{"merged", "stores-all-under-another-buyer", broken, []results.Kind{results.OtherBuyer}, ""},
	} {
		t.Run(test.liar, func(t *testing.T) {
			if running[test.strategy] == nil {
				instances := "1"
				if test.strategy == "async" { // each instance must know the orders that the other has queued
					instances = "2"
				}
				running[test.strategy] = startServices(whole, "--strategies", test.strategy, "--crash=false", "--instances", instances)
			}
			services := running[test.strategy]
			folder := t.TempDir()
			honest := test.code == command.ExitOK
			liar, urls := services.tell(t, test.liar)
			args := services.arguments(urls, append(strings.Fields(test.args), "--stock", fmt.Sprint(stock), "--out", folder, patient, "--clients", "8")...)
			if honest { // on a busy machine, calls of the stores may time out
				args = append(args, "--faults", "--max-failures", "100%")
			}
			code, out, says := runHere(t, args...)
			for try := 1; try < maxTriesToLie && !honest && liar.Told() == 0; try++ {
				code, out, says = runHere(t, args...)
			}
			if code != test.code || honest != strings.Contains(out, results.AsPromised) || honest != (liar.Told() == 0) {
				t.Errorf("exit code %d, want %d, after %d lies", code, test.code, liar.Told())
			}
			r := written(t, folder).Strategies[0]
			findings := r.Findings
			if r.Keys != nil {
				findings = append(findings, r.Keys.Findings...)
			}
			for _, says := range test.says {
				if !slices.ContainsFunc(findings, func(f results.Finding) bool { return f.Kind == says }) || !strings.Contains(out, says.String()) {
					t.Errorf("no finding that %v", says)
				}
			}
			if queues := test.strategy == "async"; queues != (r.Queued > 0 && r.Queued == r.Accepted) {
				t.Errorf("%d queued and %d accepted", r.Queued, r.Accepted)
			}
			if r.Sampled == 0 {
				t.Error("no order was looked up during the rush")
			}
			if sent := r.Repeats + r.RepeatsFailed; sent == 0 || r.Keys == nil || r.Keys.Repeats < stock/3 {
				t.Errorf("%d repeats of orders, and in the rush with repeated keys %+v", sent, r.Keys)
			}
			if !strings.Contains(says, "kept the orders") && (!honest || test.args == "--keep") {
				t.Error("the output does not say that the orders were kept")
			}
			if !honest || test.args != "--keep" {
				return
			}
			expectCleaned(t, services, 2*stock)
		})
	}
}

func TestProduct(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		engine store.Engine
		want   string
	}{
		{store.Engine{Name: "MariaDB", Version: "10.11.14-MariaDB-0+deb12u2"}, "MariaDB 10.11.14"},
		{store.Engine{Name: "MySQL", Version: "8.4.3"}, "MySQL 8.4.3"},
		{store.Engine{Name: "PostgreSQL", Version: "15.14 (Debian 15.14-0+deb12u1)"}, "PostgreSQL 15.14"},
		{store.Engine{Name: "unknown"}, "unknown"},
	} {
		if got := product(test.engine); got != test.want {
			t.Errorf("%+v: %q, want %q", test.engine, got, test.want)
		}
	}
}

// TestRealStores loads strategies that oversell and others that do not, with the guard and without
// it. The guard catches orders that a broken gate admits. A strategy without a gate has no guard.
// An instance of lua is killed. Thorough runs add more strategies with more instances, and a second
// pair of stores.
func TestRealStores(t *testing.T) {
	t.Parallel()
	const stock = 60
	for _, test := range []struct {
		name       string
		strategies string
		guard      bool
		crash      bool
		stores     func(t *testing.T) (redis, db string)
	}{
		{"MariaDB and Redis", "none,lua", true, true, func(t *testing.T) (string, string) { return testenv.Redis(t), testenv.MariaDB(t) }},
		{"PostgreSQL and Redis Cluster", "merged", false, false, func(t *testing.T) (string, string) { return testenv.RedisCluster(t), testenv.Postgres(t) }},
	} {
		if !test.guard && !testenv.Thorough() {
			continue
		}
		t.Run(test.name, func(t *testing.T) {
			redis, db := test.stores(t)
			folder, instances, guard := t.TempDir(), 2, "off"
			if testenv.Thorough() {
				test.strategies, instances = "none,db-none,lua,merged", 3
			}
			if test.guard {
				guard = "on"
			}
			code, out, _ := runHere(t, "--strategies", test.strategies, "--instances", fmt.Sprint(instances), "--guard", guard,
				"--stock", fmt.Sprint(stock), patient, "--redis", redis, "--db", db, "--out", folder, fmt.Sprintf("--crash=%v", test.crash),
				"--faults", "--max-failures", "100%") // on a busy machine, calls of the stores may time out
			if code != command.ExitOK || strings.Contains(out, results.Broken) || strings.Count(out, results.AsPromised) != 1+strings.Count(test.strategies, ",") || strings.Contains(out, "caught") != test.guard {
				t.Errorf("exit code %d", code)
			}
			run := written(t, folder)
			if product, _, _ := strings.Cut(test.name, " "); !strings.HasPrefix(run.Stores, product+" 1") || !strings.Contains(run.Stores, ", Redis ") || run.Addresses == "" {
				t.Errorf("the stores are %q at %q", run.Stores, run.Addresses)
			}
			for _, r := range run.Strategies {
				guarded := test.guard && mustFind(t, r.Strategy).HasGate()
				if r.Instances != instances || (r.Sold == stock) != (r.Sound || guarded) || r.Oversold != r.Sold-stock {
					t.Errorf("%s: %d instances, %d of %d units sold", r.Strategy, r.Instances, r.Sold, stock)
				}
				if (r.Caught != nil) != guarded || guarded && (*r.Caught == 0) != r.Sound {
					t.Errorf("%s: %s caught", r.Strategy, table.Optional("%d", r.Caught))
				}
				if r.LoadChinese == "" || len(r.Faults) != len(r.FaultsChinese) {
					t.Errorf("%s: load %q, faults %q in Chinese", r.Strategy, r.LoadChinese, r.FaultsChinese)
				}
				if killed := r.Crash != nil; killed != (test.crash && r.Sound) || killed && (r.Crash.Accepted < stock/2 || r.Crash.Verdict != results.AsPromised) {
					t.Errorf("%s: after kill -9 %+v", r.Strategy, r.Crash)
				}
			}
			expectEmpty(t, redis, db)
		})
	}
}

// expectEmpty fails the test if a run has left anything in the stores.
func expectEmpty(t *testing.T, redis, db string) {
	t.Helper()
	sql := storetest.SQL(t, db)
	for _, table := range []string{"stock", "orders", "order_lines", "outbox", "order_history", "payments", "claims"} {
		var n int
		if err := sql.DB().Raw("SELECT COUNT(*) FROM " + table).Row().Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows are left in table %s (%v)", n, table, err)
		}
	}
	id, err := sql.LedgerID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client := storetest.Redis(t, redis)
	for _, key := range []string{"count", "flight"} {
		if n, err := client.HLen(t.Context(), "holdfast:{"+id.String()+"}:"+key).Result(); err != nil || n != 0 {
			t.Errorf("%d fields are left in %s (%v)", n, key, err)
		}
	}
}

// expectCleaned fails the test unless clean deletes the two SKUs of a rush that kept its
// orders, and then nothing is left.
func expectCleaned(t *testing.T, s *services, orders int) {
	t.Helper()
	code, _, says := runHere(t, "clean", "--redis", s.Redis, "--db", s.DB)
	if code != command.ExitOK || !strings.Contains(says, fmt.Sprintf("deleted 2 SKUs and %d orders", orders)) {
		t.Errorf("exit code %d", code)
	}
	expectEmpty(t, s.Redis, s.DB)
}

// TestCrash kills an instance that answers before the commit and so loses orders. TestRealStores
// kills a correct one.
func TestCrash(t *testing.T) {
	t.Parallel()
	const stock = 200
	s := startServices(t, "--strategies", "lua", "--stock", fmt.Sprint(stock), patient)
	_, s.fleet.urls = s.tell(t, "answers-before-the-commit")
	crash, err := s.crashRush(t.Context(), s.chosen()[0], s.fleet)
	if err != nil {
		t.Fatal(err)
	}
	if crash.Unknown == 0 {
		t.Error("no request met the killed instance")
	}
	r := results.Result{Verdict: results.AsPromised}
	judgeCrash(&r, crash)
	if r.Verdict != results.Broken || !slices.ContainsFunc(r.Faults, func(fault string) bool { return strings.HasPrefix(fault, "after kill -9: ") }) {
		t.Errorf("%+v", r)
	}
}

// TestOpenLoad sends orders at a fixed rate, and reads the report.
func TestOpenLoad(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "out")
	s := startServices(t, "--strategies", "merged", "--instances", "1", "--rate", "50")
	var run *results.Run
	for range 10 { // a load that ends while the machine pauses drops the last orders
		if code, _, _ := runHere(t, s.arguments(s.fleet.urls, "--rate", "50", "--duration", "1s", "--out", folder)...); code != command.ExitOK {
			t.Errorf("exit code %d", code)
		}
		if run = written(t, folder); run.Strategies[0].Dropped == 0 {
			break
		}
	}
	r := run.Strategies[0]
	if r.Rate != 50 || r.Accepted != 50 || r.Dropped != 0 || r.Repeats < 10 || r.Requests != 50+r.Repeats || r.Verdict != results.AsPromised {
		t.Errorf("%+v", r)
	}
	if runtime.GOOS == "linux" && (r.APICPU == nil || r.GatewayCPU != nil) { // identified by the name of the process that listens at --target
		t.Errorf("CPU of the service %v, of a gateway %v", r.APICPU, r.GatewayCPU)
	}
	page, err := os.ReadFile(filepath.Join(folder, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, has := range []string{">merged</span>", "Waiting times at 50 orders a second", run.Commit} {
		if !bytes.Contains(page, []byte(has)) {
			t.Errorf("the report does not contain %s", has)
		}
	}
	for _, hasNot := range []string{`id="stock"`, `id="oversold"`, "closed load"} {
		if bytes.Contains(page, []byte(hasNot)) {
			t.Errorf("the report of an open load contains %q", hasNot)
		}
	}
}

// TestAudit_Fails checks that no load succeeds if its audit fails or its report cannot be written.
func TestAudit_Fails(t *testing.T) {
	t.Parallel()
	empty, folder := "sqlite://"+filepath.Join(t.TempDir(), "empty.db"), t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "results.json"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ args, says string }{
		{"--stock 60 --clients 4 --db " + empty, "reading the stock row"},
		{"--rate 50 --duration 1s --db " + empty, "reading the stock row"},
		{"--search --probes 1 --duration 1s --db " + empty, "reading the stock row"},
		{"--stock 60 --clients 4 --out " + folder, "--out: "},
	} {
		server := httptest.NewServer(&shop{units: 60})
		defer server.Close()
		code, _, says := runHere(t, append(strings.Fields(test.args), "--target", server.URL)...)
		if code != command.ExitFailed || !strings.Contains(says, test.says) {
			t.Errorf("%s: exit code %d", test.args, code)
		}
	}
}

// openLoad returns a lab that loads a service without a network, so that it can run in a bubble.
func openLoad(service http.Handler, s settings) (*lab, *fleet) {
	c := load.NewClient(testenv.Transport(func(r *http.Request) (*http.Response, error) {
		for name, values := range r.Header { // as a server reads them
			r.Header[http.CanonicalHeaderKey(name)] = values
		}
		w := httptest.NewRecorder()
		service.ServeHTTP(w, r)
		return w.Result(), nil
	}))
	s.Targets = []string{"http://shop"}
	return &lab{client: c, admin: c, stderr: io.Discard, settings: s}, &fleet{urls: s.Targets}
}

// TestShowProgress checks that a long load reports its orders while it runs.
func TestShowProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var says bytes.Buffer
		l := &loading{lab: &lab{stderr: &says}, rec: newRecord()}
		l.rec.add(answered(numbered(1), accepted, 201, ""))
		stop := l.showProgress("lua")
		time.Sleep(3*progressEvery - 1)
		stop()
		time.Sleep(progressEvery)
		if want := "lua: loading\n" + strings.Repeat("lua: 1 accepted, 0 refused, 0 failed so far\n", 2); says.String() != want {
			t.Errorf("%s", says.String())
		}
	})
}

// TestSearch_Refused searches for the highest rate of a shop. At the second rate that the search
// tries, the shop refuses orders although there is more stock. It serves 1000 orders a second, so
// that a search that does not notice the refusals ends soon.
func TestSearch_Refused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := &shop{units: minRate + 1, slow: time.Millisecond, workers: make(chan struct{}, 1)}
		l, f := openLoad(slow, settings{Search: true, Probes: 1, P99: 100 * time.Millisecond, Duration: time.Second})
		r, err := l.highest(t.Context(), mustFind(t, "lua"), f)
		if err != nil || r.Verdict != results.Broken || r.Rate != 2*minRate || len(r.Probes) != 1 {
			t.Errorf("%v, %+v", err, r)
		}
	})
}

// interrupting returns a service that interrupts the run at the second SKU that the run creates. From
// then on, it answers nothing but 503.
func interrupting(service http.Handler, interrupt context.CancelFunc) http.Handler {
	created := 0
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			created++
		}
		if created == 2 {
			interrupt()
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		service.ServeHTTP(w, r)
	})
}

// TestSearch_Interrupted interrupts a search while it creates the SKU of the second rate.
func TestSearch_Interrupted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		l, f := openLoad(interrupting(&shop{units: 1000}, cancel), settings{Search: true, Probes: 1, P99: time.Minute, Duration: time.Second})
		r, err := l.highest(ctx, mustFind(t, "lua"), f)
		if err == nil || r.Verdict != results.Undecided || r.Rate != minRate || len(r.Probes) != 1 {
			t.Errorf("%v, %+v", err, r)
		}
	})
}

// TestLateArrivals sends 1000 orders a second for 4 s, and each takes 3 s. So 2048 are under way
// before the first answer, later ones wait for answers, and the last are dropped.
func TestLateArrivals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, f := openLoad(&shop{units: 10_000, slow: 3 * time.Second}, settings{Duration: 4 * time.Second})
		r, err := l.arrive(t.Context(), mustFind(t, "lua"), f, 1000)
		if err != nil || r.Verdict != results.AsPromised {
			t.Fatalf("%v, %s: %q", err, r.Verdict, r.Faults)
		}
		if r.Accepted+r.Dropped != 4000 || r.Accepted <= maxUnderWay || r.Dropped == 0 || r.Late != r.Accepted-maxUnderWay {
			t.Errorf("%d accepted, %d late, %d dropped", r.Accepted, r.Late, r.Dropped)
		}
		if *r.P99 < 3800 { // the wait before an order is sent counts
			t.Errorf("p99 %v ms", *r.P99)
		}
	})
}

// TestInterruptedLoads interrupts a rush, an open load and a history at the first order. None is
// decided, and only the history is not judged.
func TestInterruptedLoads(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]settings{"rush": {}, "open load": {Rate: 50}, "history": {History: "not written"}} {
		ctx, cancel := context.WithCancel(t.Context())
		shop := &shop{units: 1000}
		s.Instances, s.Stock, s.Clients, s.Limit, s.Duration = 1, 1000, 2, time.Minute, time.Minute
		l, f := openLoad(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if shop.ServeHTTP(w, r); r.URL.Path == "/orders" {
				cancel()
			}
		}), s)
		r, err := l.loadFleet(ctx, mustFind(t, "lua"), f)
		if unjudged := s.History != ""; errors.Is(err, context.Canceled) != unjudged || (r.History != nil) != unjudged || r.Verdict != results.Undecided || r.Accepted == 0 {
			t.Errorf("%s: %v, %+v", name, err, r)
		}
	}
}

// TestInterruptedBetweenLoads interrupts a run while it creates the SKU of the rush with repeated
// keys. The rush before it has no findings, but it does not decide alone.
func TestInterruptedBetweenLoads(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	l, _ := openLoad(interrupting(&shop{units: 100}, cancel), settings{Stock: 100, Clients: 2, Limit: time.Minute, Out: t.TempDir()})
	l.stdout = io.Discard
	if err := l.run(ctx); err != nil {
		t.Error(err)
	}
	run := written(t, l.Out)
	if r := run.Strategies[0]; r.Verdict != results.Undecided || r.Accepted != 100 || len(r.Faults) > 0 || !run.CutShort {
		t.Errorf("%+v", r)
	}
}

// written reads the results of a run from the folder of --out.
func written(t *testing.T, folder string) *results.Run {
	t.Helper()
	run, err := results.Read(filepath.Join(folder, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	return run
}

// TestOpenLoad_Queued checks that an open load follows queued orders to their end.
func TestOpenLoad_Queued(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		shop := &shop{units: 1000}
		l, f := openLoad(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			of := httptest.NewRecorder()
			if shop.ServeHTTP(of, r); r.URL.Path == "/orders" {
				of.Code, of.Body = http.StatusAccepted, bytes.NewBufferString(strings.Replace(of.Body.String(), "pending", "queued", 1))
			}
			maps.Copy(w.Header(), of.Header())
			w.WriteHeader(of.Code)
			_, _ = of.Body.WriteTo(w)
		}), settings{Duration: time.Second})
		r, err := l.arrive(t.Context(), mustFind(t, "async"), f, 50)
		if err != nil || r.Verdict != results.AsPromised || r.Queued != 50 || r.Accepted != 50 {
			t.Errorf("%v: %+v", err, r)
		}
	})
}

// TestSearch searches for the highest rate of a shop whose rate is known.
func TestSearch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		slow    time.Duration // duration of each order
		workers int           // orders that the shop serves at a time
		p99     time.Duration
		highest int
		says    string
	}{
		{"in between", 20 * time.Millisecond, 1, 2 * time.Second, 150, "the lowest that misses it: 156 a second"}, // 150 orders of a second take 3 s
		{"none", 600 * time.Millisecond, 1000, 500 * time.Millisecond, 0, "even this rate misses a p99 of 500ms"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				l, f := openLoad(&shop{units: 100_000, slow: test.slow, workers: make(chan struct{}, test.workers)}, settings{Search: true, Probes: 1, P99: test.p99, Duration: time.Second})
				r, err := l.loadFleet(t.Context(), mustFind(t, "lua"), f)
				if err != nil || r.Highest == nil || *r.Highest != test.highest || r.Accepted != int64(r.Rate) || !strings.Contains(r.Load, test.says) {
					t.Errorf("%v: %+v", err, r)
				}
			})
		})
	}
}

// TestLocks runs a strategy with locks on separate lock servers.
func TestLocks(t *testing.T) {
	t.Parallel()
	code, out, _ := runHere(t, "--strategies", "lock", "--lock", "redlock", "--redlock", testenv.OwnRedlock(t),
		"--instances", "1", "--stock", "20", patient, "--clients", "4", "--max-failures", "100%", "--crash=false")
	if code != command.ExitOK || strings.Contains(out, results.Broken) || !strings.Contains(out, results.AsPromised) {
		t.Errorf("exit code %d", code)
	}
	if !strings.Contains(out, "locks in redlock") {
		t.Error("the output does not name the lock backend")
	}
}

// asLoadTest is the environment variable that makes the test program a load test.
const asLoadTest = "HOLDFAST_TEST_AS_LOADTEST"

// running is a load test in its own process. Its temporary folder identifies all
// processes that it starts, which inherit the variable TMPDIR.
type running struct {
	*exec.Cmd
	temp   string
	stdout bytes.Buffer
	stderr testenv.Buffer
}

// startLoading starts a load test, by the command parent, and waits until its standard error
// contains says.
func startLoading(t *testing.T, parent []string, says string, args ...string) *running {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := slices.Concat(parent, []string{program, "--api", testenv.Build(t, "./cmd/api")}, args)
	r := &running{Cmd: exec.Command(command[0], command[1:]...), temp: t.TempDir()}
	r.Env = append(os.Environ(), "TMPDIR="+r.temp, asLoadTest+"=1")
	r.WaitDelay = testenv.Patience
	r.Stdout, r.Stderr = &r.stdout, &r.stderr
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Process.Kill() })
	testenv.Await(t, says, func() bool { return strings.Contains(r.stderr.String(), says) })
	if n := len(r.processes()); n < 3 || len(r.folders()) == 0 {
		t.Fatalf("%d processes and the folders %v: the test needs something that could be left behind", n, r.folders())
	}
	return r
}

// processes returns the IDs of the load test and of all processes that it started.
func (r *running) processes() (ids []string) {
	found, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range found {
		if text, err := os.ReadFile(file); err == nil && bytes.Contains(text, []byte("TMPDIR="+r.temp+"\x00")) {
			ids = append(ids, filepath.Base(filepath.Dir(file)))
		}
	}
	return ids
}

func (r *running) folders() []string {
	found, _ := filepath.Glob(filepath.Join(r.temp, "*"))
	return found
}

// TestSearch_CommandLine checks what a search prints that finds no rate.
func TestSearch_CommandLine(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(&shop{units: 100_000, slow: 600 * time.Millisecond, workers: make(chan struct{}, 1000)})
	defer server.Close()
	folder := t.TempDir()
	code, out, _ := runHere(t, "--target", server.URL, "--search", "--probes", "1", "--p99", "500ms", "--duration", "1s", "--out", folder)
	r := written(t, folder).Strategies[0]
	if code != command.ExitOK || r.Highest == nil || *r.Highest != 0 || r.Accepted < minRate {
		t.Errorf("exit code %d: %+v", code, r)
	}
	if !strings.Contains(out, "highest rate") || !strings.Contains(out, "even this rate misses a p99 of 500ms") {
		t.Errorf("printed %s", out)
	}
}

// TestGoRunKilled kills the go run that started the load test. The load test receives no
// signal.
func TestGoRunKilled(t *testing.T) {
	t.Parallel()
	parent := filepath.Join(t.TempDir(), "go") // the name makes the child look like go; the real go would build the load test once more
	if err := os.WriteFile(parent, []byte("#!/bin/sh\n\"$@\" &\nwait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := startLoading(t, []string{parent}, "lua: loading", "--strategies", "lua", "--instances", "1", "--clients", "1", "--stock", "1000000", "--limit", "1m")
	if err := r.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = r.Wait() // wait until the load test closes its output
	if !strings.Contains(r.stderr.String(), "loadtest: interrupted") {
		t.Errorf("the output does not say that the run was interrupted: %s", r.stderr.String())
	}
	testenv.Await(t, "all processes and folders are gone", func() bool { return len(r.processes()) == 0 && len(r.folders()) == 0 })
}

// TestInterrupted checks that the table of the results so far is printed.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	r := startLoading(t, nil, "lua: loading", "--strategies", "merged,lua", "--instances", "1", "--clients", "1", "--stock", "1000000", "--limit", "1s", "--crash=false")
	if err := r.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := r.Wait()
	if code := r.ProcessState.ExitCode(); code != command.ExitInterrupted {
		t.Errorf("exit code %d: %v", code, err)
	}
	for _, has := range []string{"\nmerged ", "\nlua ", results.Undecided, "The run was interrupted."} {
		if !strings.Contains(r.stdout.String(), has) {
			t.Errorf("the table does not contain %q", has)
		}
	}
	if !strings.Contains(r.stderr.String(), "loadtest: interrupted") {
		t.Errorf("the output does not say that the run was interrupted: %s", r.stderr.String())
	}
	if t.Failed() {
		t.Logf("%s%s", &r.stdout, r.stderr.String())
	}
	testenv.Await(t, "all processes and folders are gone", func() bool { return len(r.processes()) == 0 && len(r.folders()) == 0 })
}

func TestRedacted(t *testing.T) {
	got := strings.Join(redacted([]string{
		"--admin-token", "s3cret", "--admin-token=s3cret", "--db", "mysql://u:s3cret@h/d", "--db=mysql://u:s3cret@h/d",
		"--zookeeper", "u:s3cret@h:1", "--zookeeper=u:s3cret@h:1", "--etcd", "u:s3cret=s3cret@h:2,h:3",
	}), " ")
	if strings.Contains(got, "s3cret") || strings.Count(got, "@h:1") != 2 || !strings.HasSuffix(got, "@h:2,h:3") {
		t.Error(got)
	}
}
