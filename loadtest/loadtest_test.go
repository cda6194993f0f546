package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// runHere is run within the test, whose stores go on after it.
func runHere(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	s, code := parse(args, &out, &errs)
	if s != nil {
		broken, err := s.load(t.Context(), t, args, &out, &errs)
		code = exitCode(t.Context(), broken, err, &errs)
	}
	t.Logf("loadtest %s: exit code %d\n%s%s", strings.Join(redacted(args), " "), code, &out, &errs)
	return code, out.String(), errs.String()
}

func TestRead(t *testing.T) {
	problem := func(name string) string { return `{"type":"/problems/` + name + `"}` }
	for _, test := range []struct {
		status  int
		text    string
		outcome string
		failure string
		open    bool
	}{
		{201, `{"id":"1"}`, accepted, "", false},
		{409, problem("sold-out"), refused, "", false},
		{409, problem("in-progress"), failed, "409 in-progress", false},
		{409, "", failed, "409", false},
		{200, "{}", failed, "200", false},
		{404, problem("unknown-sku"), failed, "404 unknown-sku", false},
		{500, problem("internal"), failed, "500 internal", false},
		{503, problem("busy"), failed, "503 busy", false},
		{503, problem("unavailable"), failed, "503 unavailable", true},
		{502, "<html>", failed, "502", true},
		{0, "connect: connection refused", failed, "connection refused", false},
		{0, "Client.Timeout exceeded", failed, "timeout", true},
		{0, "EOF", failed, "no answer", true},
	} {
		var a answer
		a.read(test.status, []byte(test.text))
		if a.outcome != test.outcome || a.open() != test.open || a.outcome == failed && a.failure() != test.failure {
			t.Errorf("%d %s: %s, open %v, %q", test.status, test.text, a.outcome, a.open(), a.failure())
		}
	}
}

func TestAt(t *testing.T) {
	var times []time.Duration
	for i := range 100 {
		times = append(times, time.Duration(i+1)*time.Millisecond)
	}
	for quantile, want := range map[float64]float64{0: 1, 0.5: 51, 0.99: 100, 1: 100} {
		if got := at(times, quantile); got == nil || *got != want {
			t.Errorf("%v: %v, want %v", quantile, figure(got).text, want)
		}
	}
	if at(nil, 0.5) != nil || percentiles(nil) != nil {
		t.Error("nothing has a quantile")
	}
	points := percentiles(times)
	if len(points) != len(curve) || !slices.IsSortedFunc(points, func(a, b Percentile) int { return int(a.Millis - b.Millis) }) {
		t.Errorf("%v", points)
	}
}

func TestTimed(t *testing.T) {
	rec := newRecord()
	for i := range 10 {
		rec.add(answer{at: time.Duration(i+1) * 100 * time.Millisecond, took: time.Millisecond, outcome: accepted})
	}
	rec.add(answer{at: 5 * time.Second, took: 2 * time.Millisecond, outcome: refused})
	rec.add(answer{at: 9 * time.Second, took: 9 * time.Second, outcome: failed})
	var r Result
	r.timed(rec)
	if r.PerSecond != 10 || *r.P99 != 2 || len(r.Sales) != 10 {
		t.Errorf("%v orders/s, p99 %v, %d sales", r.PerSecond, *r.P99, len(r.Sales))
	}
}

func TestJudge(t *testing.T) {
	n := func(n int64) *int64 { return &n }
	var (
		sound      = terms{spec: strategy.Spec{Name: "lua", Sound: true}, maxFailures: 0.05}
		optimistic = terms{spec: strategy.Spec{Name: "optimistic", Cutter: "optimistic", Sound: true}, maxFailures: 0.05}
		broken     = terms{spec: strategy.Spec{Name: "none"}, mayOversell: true, mustOversell: true, maxFailures: 0.05}
		alone      = terms{spec: strategy.Spec{Name: "mutex"}, mayOversell: true, maxFailures: 0.05}
		guarded    = terms{spec: strategy.Spec{Name: "none"}, mustCatch: true, maxFailures: 0.05}
		exact      = Result{Instances: 2, Stock: 10, Accepted: 10, Sold: 10, Ledger: n(0), Gate: n(0), InFlight: n(0)}
	)
	ended := func(t terms, end ending) terms { t.ending, t.mustOversell = end, false; return t }
	with := func(change func(*Result)) Result {
		r := exact
		change(&r)
		return r
	}
	oversold := with(func(r *Result) { r.Accepted, r.Sold, r.Oversold = 12, 12, 2 })
	for _, test := range []struct {
		name    string
		result  Result
		terms   terms
		verdict string
		says    string
	}{
		{"all sold", exact, sound, asPromised, ""},
		{"sound oversells", oversold, sound, promise, "oversold 2 units"},
		{"sound oversells until the limit", oversold, ended(sound, atLimit), promise, "oversold 2 units"},
		{"sound oversells and is interrupted", oversold, ended(sound, interrupted), promise, "oversold 2 units"},
		{"broken oversells", with(func(r *Result) { *r = oversold; r.Ledger = nil }), broken, asPromised, ""},
		{"broken oversells until the limit", oversold, ended(broken, atLimit), asPromised, ""},
		{"broken does not", exact, broken, promise, "proves nothing"},
		{"broken does not before the limit", exact, ended(broken, atLimit), undecided, ""},
		{"broken, alone", exact, alone, asPromised, ""},
		{"broken, guarded", exact, guarded, asPromised, ""},
		{"broken, guarded, and something is caught", with(func(r *Result) { r.Caught = n(3) }), guarded, asPromised, ""},
		{"broken, guarded, and nothing is caught", with(func(r *Result) { r.Caught = n(0) }), guarded, promise, "caught nothing"},
		{"sound, guarded, and nothing is caught", with(func(r *Result) { r.Caught = n(0) }), sound, asPromised, ""},
		{"broken, guarded, oversells", oversold, guarded, promise, "oversold 2 units"},
		{"orders that are not there", with(func(r *Result) { r.Findings = []Finding{{missing, 1, "x"}} }), sound, promise, "1 orders answered 201 are not found (the first: x)"},
		{"fewer sold than accepted", with(func(r *Result) { r.Sold, r.Ledger, r.Gate = 9, n(1), n(1) }), sound, promise, "10 orders were answered 201, and 9 sold"},
		{"more sold than accepted", with(func(r *Result) { r.Accepted, r.Unknown = 8, 1 }), sound, promise, "8 orders were answered 201, 1 left open, and 10 sold"},
		{"as many sold as may be", with(func(r *Result) { r.Accepted, r.Unknown = 8, 2 }), sound, asPromised, ""},
		{"too many failures", with(func(r *Result) { r.Failed, r.Failures = 1, map[string]int64{"503 busy": 1} }), sound, promise, "9.09% of 11 orders failed, more than 5%: 1 503 busy"},
		{"optimistic is busy", with(func(r *Result) { r.Failed, r.Failures = 3, map[string]int64{"503 busy": 3} }), optimistic, asPromised, ""},
		{"optimistic fails", with(func(r *Result) { r.Failed, r.Failures = 3, map[string]int64{"503 busy": 2, "500 internal": 1} }), optimistic, promise, "1 500 internal"},
		{"refusals make no failure rarer", with(func(r *Result) { r.Refused, r.Failed, r.Failures = 1000, 1, map[string]int64{"503 busy": 1} }), sound, promise, "9.09% of 11"},
		{"few failures", with(func(r *Result) { r.Failed, r.Stock, r.Accepted, r.Sold = 5, 100, 100, 100 }), sound, asPromised, ""},
		{"units kept back", with(func(r *Result) { r.Accepted, r.Sold, r.Undersold, r.Ledger, r.Gate = 9, 9, 1, n(1), n(1) }), sound, promise, "1 units were left"},
		{"units not sold in time", with(func(r *Result) { r.Undersold = 1 }), ended(sound, atLimit), undecided, ""},
		{"nothing sold in time", with(func(r *Result) { r.Accepted, r.Sold = 0, 0 }), ended(sound, atLimit), promise, "no order was accepted"},
		{"interrupted", with(func(r *Result) { r.Accepted, r.Sold = 0, 0 }), ended(sound, interrupted), undecided, ""},
		{"stock row off", with(func(r *Result) { r.Ledger, r.Gate = n(3), n(3) }), sound, promise, "the stock row has 3"},
		{"gate off", with(func(r *Result) { r.Gate = n(4) }), sound, promise, "the gate has 4"},
		{"units left after a crash", with(func(r *Result) { r.Accepted, r.Sold, r.Undersold, r.Ledger, r.Gate = 9, 9, 1, n(1), n(1) }), ended(sound, crashed), asPromised, ""},
		{"stock row off after a crash", with(func(r *Result) { r.Ledger, r.Gate = n(3), n(3) }), ended(sound, crashed), promise, "the stock row has 3"},
		{"in flight after a crash", with(func(r *Result) { r.Accepted, r.Sold, r.Ledger, r.InFlight = 9, 9, n(1), n(1) }), ended(sound, crashed), promise, "left 1 units in flight"},
		{"nothing to ask", with(func(r *Result) { r.Ledger, r.Gate, r.InFlight = nil, nil, nil }), sound, asPromised, ""},
		{"arrivals in plenty", with(func(r *Result) { r.Stock, r.Undersold, r.Ledger, r.Gate, r.Rate = 100, 90, n(90), n(90), 10 }), sound, asPromised, ""},
	} {
		r := test.result
		r.judge(test.terms)
		if says := strings.Join(r.Faults, "; "); r.Verdict != test.verdict || !strings.Contains(says, test.says) {
			t.Errorf("%s: %s (%s), want %s (%s)", test.name, r.Verdict, says, test.verdict, test.says)
		}
	}
}

// TestTerms has each load say what is expected of it.
func TestTerms(t *testing.T) {
	sound, broken := strategy.Spec{Sound: true, Name: "lua"}, mustFind(t, "none")
	target := []string{"http://127.0.0.1:1"}
	for _, test := range []struct {
		name     string
		settings settings
		spec     strategy.Spec
		ending   ending
		want     terms
	}{
		{"sound", settings{instances: 2}, sound, soldOut, terms{}},
		{"broken", settings{instances: 2}, broken, soldOut, terms{mayOversell: true, mustOversell: true}},
		{"broken, not sold out", settings{instances: 2}, broken, atLimit, terms{mayOversell: true}},
		{"broken, alone", settings{instances: 1}, broken, soldOut, terms{mayOversell: true}},
		{"broken, guarded", settings{instances: 2, guard: "on"}, broken, soldOut, terms{mustCatch: true}},
		{"broken, guarded, alone", settings{instances: 1, guard: "on"}, broken, soldOut, terms{}},
		{"arrivals", settings{instances: 2, rate: 10}, broken, soldOut, terms{}},
		{"a broken target", settings{instances: 2, targets: target}, broken, soldOut, terms{}},
		{"a target that is to oversell", settings{targets: target, expectOversell: true}, broken, soldOut, terms{mayOversell: true, mustOversell: true}},
	} {
		l := &lab{settings: test.settings}
		got := l.terms(test.spec, test.ending)
		if got.spec.Name != test.spec.Name || got.mayOversell != test.want.mayOversell || got.mustOversell != test.want.mustOversell || got.mustCatch != test.want.mustCatch {
			t.Errorf("%s: %+v", test.name, got)
		}
	}
}

func mustFind(t *testing.T, name string) strategy.Spec {
	t.Helper()
	spec, ok := strategy.Find(name)
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
		{"clean", "--db"},
		{"--nonesuch", "--nonesuch"},
		{"contrast", "contrast"},
	} {
		var stdout, stderr bytes.Buffer
		if code := run(t.Context(), strings.Fields(test.args), &stdout, &stderr); code != exitUsage || !strings.Contains(stderr.String(), test.says) {
			t.Errorf("%s: exit code %d: %s", test.args, code, &stderr)
		}
	}
	var stdout, stderr bytes.Buffer
	if code := run(t.Context(), []string{"--help"}, &stdout, &stderr); code != exitOK || !strings.Contains(stdout.String(), "--strategies") {
		t.Errorf("--help: exit code %d: %s", code, &stdout)
	}
}

// shop is a service that sells this many of any SKU, and does nothing else right.
type shop struct {
	units  int
	runs   string        // its strategy; empty: lua
	forget bool          // orders are not found again
	fails  int           // so many of a hundred orders, with 503
	slow   time.Duration // each order takes so long
	clerks chan struct{} // holds as many orders as are served at once; nil: no limit

	mu     sync.Mutex
	bodies []string // the buyers, one after the other
	orders map[string]order
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.slow > 0 && r.URL.Path == "/orders" {
		if s.clerks != nil {
			s.clerks <- struct{}{}
			defer func() { <-s.clerks }()
		}
		time.Sleep(s.slow)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id, one := strings.CutPrefix(r.URL.Path, "/orders/")
	switch {
	case r.URL.Path == "/strategies":
		fmt.Fprintf(w, `{"running":%q}`, cmp.Or(s.runs, "lua"))
	case r.Method == http.MethodPut:
		w.WriteHeader(http.StatusCreated)
	case one && !s.forget:
		_ = json.NewEncoder(w).Encode(s.orders[id])
	case r.URL.Path == "/orders" && s.fails > 0 && rand.IntN(100) < s.fails:
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, `{"type":"/problems/busy"}`)
	case r.URL.Path == "/orders" && s.units > len(s.bodies):
		o := order{ID: fmt.Sprintf("o-%d", len(s.bodies)+1), Status: "pending"}
		_ = json.NewDecoder(r.Body).Decode(&o)
		s.bodies = append(s.bodies, o.Buyer)
		if s.orders == nil {
			s.orders = make(map[string]order)
		}
		s.orders[o.ID] = o
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(o)
	case r.URL.Path == "/orders":
		w.WriteHeader(http.StatusConflict)
		fmt.Fprint(w, `{"type":"/problems/sold-out"}`)
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// TestTargets loads services that are not this one's: one that is right, and
// some that are not.
func TestTargets(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name string
		shop *shop
		args string
		code int
		says string
	}{
		{"right", &shop{units: 20}, "", exitOK, asPromised},
		{"oversells", &shop{units: 23}, "", exitBroken, "oversold 3 units"},
		{"is known to oversell", &shop{units: 23, runs: "none"}, "", exitBroken, "oversold 3 units"},
		{"is to oversell", &shop{units: 23, runs: "none"}, "--expect-oversell", exitOK, asPromised},
		{"is to oversell and does not", &shop{units: 20, runs: "none"}, "--expect-oversell", exitBroken, "it should oversell and did not"},
		{"keeps units back", &shop{units: 19}, "", exitBroken, "1 units were left"},
		{"forgets", &shop{units: 20, forget: true}, "", exitBroken, "20 orders answered 201 are not found"},
		{"refuses all", &shop{}, "", exitBroken, "no order was accepted"},
		{"fails", &shop{units: 20, fails: 50}, "", exitBroken, "more than 5%"},
		{"may fail", &shop{units: 20, fails: 50}, "--max-failures 100%", exitOK, "503 busy"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(test.shop)
			defer server.Close()
			args := append([]string{"--target", server.URL + "/", "--stock", "20", "--clients", "4"}, strings.Fields(test.args)...)
			code, out, _ := runHere(t, args...)
			if code != test.code || !strings.Contains(out, test.says) {
				t.Errorf("exit code %d, want %d and %q", code, test.code, test.says)
			}
		})
	}
}

// TestSeed has two runs send the same orders in the same sequence, and another
// seed send others.
func TestSeed(t *testing.T) {
	t.Parallel()
	sent := func(seed string) []string {
		s := &shop{units: 50}
		server := httptest.NewServer(s)
		defer server.Close()
		if code, _, _ := runHere(t, "--target", server.URL, "--stock", "50", "--clients", "1", "--seed", seed); code != exitOK {
			t.Errorf("exit code %d", code)
		}
		return s.bodies
	}
	first, again, other := sent("7"), sent("7"), sent("8")
	if len(first) != 50 || !slices.Equal(first, again) {
		t.Errorf("the same seed: %v, then %v", first, again)
	}
	if slices.Equal(first, other) {
		t.Error("another seed sends the same")
	}
	if len(slices.Compact(slices.Sorted(slices.Values(first)))) != 50 {
		t.Errorf("buyers repeat: %v", first)
	}
}

// overlaid builds cmd/api with this text replaced in one of the module's files, and
// with files added: by their paths in the module, those that take their place.
func overlaid(t *testing.T, file, sound, mutated string, added map[string]string) (program string) {
	t.Helper()
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	file = filepath.Join(root, file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), sound); n != 1 {
		t.Fatalf("%q stands %d times in %s", sound, n, file)
	}
	folder := t.TempDir()
	changed, overlay := filepath.Join(folder, filepath.Base(file)), filepath.Join(folder, "overlay.json")
	replace := map[string]string{file: changed}
	for path, with := range added {
		replace[filepath.Join(root, path)] = filepath.Join(root, with)
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.WriteFile(changed, []byte(strings.Replace(string(text), sound, mutated, 1)), 0o600),
		os.WriteFile(overlay, list, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	return testenv.Build(t, "./cmd/api", "-overlay="+overlay)
}

// TestConvicts takes the gate's check out of the service and expects a verdict.
func TestConvicts(t *testing.T) {
	t.Parallel()
	api := overlaid(t, "internal/stock/gate/take.lua", "left[i] < units[l]", "false", nil)
	code, out, _ := runHere(t, "--api", api, "--strategies", "lua", "--stock", "20", "--limit", "2s", "--crash=false")
	if code != exitBroken || !strings.Contains(out, promise) || !strings.Contains(out, "lua: oversold ") {
		t.Errorf("exit code %d", code)
	}
}

// TestLiars loads services that commit what they should and answer something else.
func TestLiars(t *testing.T) {
	t.Parallel()
	api := overlaid(t, "internal/httpapi/handlers.go", "a.Orders.Place(ctx, req)", "a.lie(ctx, req)",
		map[string]string{"internal/httpapi/liar.go": "loadtest/testdata/liar.go"})
	for _, test := range []struct {
		liar string // the name of the program, which tells it how to lie
		code int
		says []kind
	}{
		{"honest", exitOK, nil},
		{"answers-before-the-commit", exitBroken, []kind{early}}, // and loses orders when it is killed
		{"gives-one-in-fifty-another-order", exitBroken, []kind{wrongAnswer, repeated}},
		{"gives-another-order-under-this-buyer", exitBroken, []kind{repeated}},
		{"is-busy-after-one-commit-in-ten", exitBroken, []kind{denied}},
		{"is-unavailable-after-one-commit-in-ten", exitBroken, nil},
		{"stores-all-under-another-buyer", exitBroken, []kind{otherBuyer}},
	} {
		t.Run(test.liar, func(t *testing.T) {
			link, folder := filepath.Join(t.TempDir(), test.liar), t.TempDir()
			if err := os.Symlink(api, link); err != nil {
				t.Fatal(err)
			}
			code, out, _ := runHere(t, "--api", link, "--strategies", "merged", "--stock", "300", "--out", folder, fmt.Sprintf("--crash=%v", test.says != nil && test.says[0] == early))
			if code != test.code || (code == exitOK) != strings.Contains(out, asPromised) {
				t.Errorf("exit code %d, want %d", code, test.code)
			}
			r := written(t, folder).Strategies[0]
			for _, says := range test.says {
				if !slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Kind == says }) || !strings.Contains(out, meanings[says]) {
					t.Errorf("it does not say %q", meanings[says])
				}
			}
			if r.Crash != nil && !strings.Contains(out, "after kill -9: ") {
				t.Error("it does not say what the crash cost")
			}
			if r.Sampled == 0 {
				t.Error("no order was looked up in mid-rush")
			}
			if strings.HasPrefix(test.liar, "is-unavailable") && !strings.Contains(out, "503 unavailable") {
				t.Error("it does not name the failures")
			}
		})
	}
}

// TestRealStores drives a strategy that oversells and two that do not.
func TestRealStores(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		instances int
		crash     bool
		stores    func(t *testing.T) (redis, db string)
	}{
		{"MariaDB and Redis", 2, true, func(t *testing.T) (string, string) { return testenv.Redis(t), testenv.MariaDB(t) }},
		{"PostgreSQL and Redis Cluster", 2, true, func(t *testing.T) (string, string) { return testenv.RedisCluster(t), testenv.Postgres(t) }},
		{"MariaDB and Redis, four instances", 4, false, func(t *testing.T) (string, string) { return testenv.Redis(t), testenv.MariaDB(t) }},
		{"PostgreSQL and Redis, four instances", 4, false, func(t *testing.T) (string, string) { return testenv.Redis(t), testenv.Postgres(t) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			redis, db := test.stores(t)
			folder := t.TempDir()
			code, out, _ := runHere(t, "--strategies", "none,lua,merged", "--instances", fmt.Sprint(test.instances),
				"--stock", "200", "--redis", redis, "--db", db, "--out", folder, fmt.Sprintf("--crash=%v", test.crash))
			if code != exitOK || strings.Contains(out, promise) || strings.Count(out, asPromised) != 3 {
				t.Errorf("exit code %d", code)
			}
			for _, r := range written(t, folder).Strategies {
				if r.Instances != test.instances || (r.Sold == 200) != r.Sound {
					t.Errorf("%s: %d instances, %d of 200 units sold", r.Strategy, r.Instances, r.Sold)
				}
				if killed := r.Crash != nil; killed != (test.crash && r.Sound) || killed && (r.Crash.Accepted == 0 || r.Crash.Verdict != asPromised) {
					t.Errorf("%s: after kill -9 %+v", r.Strategy, r.Crash)
				}
			}
			left(t, redis, db)
		})
	}
}

// left expects that a run has left nothing in the stores.
func left(t *testing.T, redis, db string) {
	t.Helper()
	sql, err := store.OpenSQL(t.Context(), db)
	if err != nil {
		t.Fatal(err)
	}
	defer sql.Close()
	for _, table := range []string{"stock", "orders", "order_lines", "outbox"} {
		var n int
		if err := sql.DB().Raw("SELECT COUNT(*) FROM " + table).Row().Scan(&n); err != nil || n != 0 {
			t.Errorf("%d rows are left in table %s (%v)", n, table, err)
		}
	}
	id, err := sql.LedgerID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	client, err := store.OpenRedis(t.Context(), redis)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, key := range []string{"count", "flight"} {
		if n, err := client.HLen(t.Context(), "holdfast:{"+id.String()+"}:"+key).Result(); err != nil || n != 0 {
			t.Errorf("%d fields are left in %s (%v)", n, key, err)
		}
	}
}

// TestKeep leaves the rows, and clean deletes them.
func TestKeep(t *testing.T) {
	t.Parallel()
	redis, db := testenv.Redis(t), testenv.MariaDB(t)
	code, _, says := runHere(t, "--strategies", "segment", "--stock", "40", "--crash=false", "--redis", redis, "--db", db, "--keep")
	if code != exitOK || !strings.Contains(says, "kept the orders") {
		t.Errorf("exit code %d", code)
	}
	code, _, says = runHere(t, "clean", "--redis", redis, "--db", db)
	if code != exitOK || !strings.Contains(says, "deleted 1 SKUs and 40 orders") {
		t.Errorf("exit code %d", code)
	}
	left(t, redis, db)
}

// TestCrash kills an instance that keeps its word.
func TestCrash(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	if code, _, _ := runHere(t, "--strategies", "lua", "--stock", "400", "--out", folder); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	crash := written(t, folder).Strategies[0].Crash
	if crash == nil || crash.Accepted < 200 || crash.Unknown == 0 || crash.InFlight == nil || *crash.InFlight != 0 {
		t.Errorf("%+v", crash)
	}
}

// TestOpenLoad has orders arrive by the clock, and reads what is written of it.
func TestOpenLoad(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "out")
	code, _, _ := runHere(t, "--strategies", "merged", "--rate", "50", "--duration", "1s", "--out", folder)
	if code != exitOK {
		t.Errorf("exit code %d", code)
	}
	results := written(t, folder)
	if r := results.Strategies[0]; r.Rate != 50 || r.Accepted != 50 || r.Dropped != 0 || r.Verdict != asPromised {
		t.Errorf("%+v", r)
	}
	page, err := os.ReadFile(filepath.Join(folder, "report.html"))
	if err != nil {
		t.Fatal(err)
	}
	for _, has := range []string{"<td>merged</td>", "<svg role=\"img\"", results.Commit} {
		if !bytes.Contains(page, []byte(has)) {
			t.Errorf("the report has no %s", has)
		}
	}
	if bytes.Contains(page, []byte("http://")) && bytes.Contains(page, []byte("src=")) {
		t.Error("the report asks the network for something")
	}
	for _, hasNot := range []string{"Stock over time", "Oversold units", "closed load"} {
		if bytes.Contains(page, []byte(hasNot)) {
			t.Errorf("the report of an open load has %q", hasNot)
		}
	}
}

// written is what --out has of a run.
func written(t *testing.T, folder string) (results Results) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &results); err != nil {
		t.Fatal(err)
	}
	return results
}

// TestSlowService does not slow the open load.
func TestSlowService(t *testing.T) {
	t.Parallel()
	// A shop that sells 20 a second, one by one, gets 50 a second for a second:
	// the last of them waits for all the others.
	server := httptest.NewServer(&shop{units: 1000, slow: 50 * time.Millisecond, clerks: make(chan struct{}, 1)})
	defer server.Close()
	folder := t.TempDir()
	if code, _, _ := runHere(t, "--target", server.URL, "--rate", "50", "--duration", "1s", "--out", folder); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	if r := written(t, folder).Strategies[0]; r.P99 == nil || *r.P99 < 1000 || r.Accepted != 50 {
		t.Errorf("p99 %s ms, %d accepted", figure(r.P99).text, r.Accepted)
	}
}

// TestSearch finds the rate of a shop whose rate is known.
func TestSearch(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		shop    *shop
		low     int // the highest rate is not below
		high    int // and not above
		says    string
		atLeast int64
	}{
		// One order in 6 ms: what comes in a second is served in 1.5 up to 250.
		{"in between", &shop{units: 100000, slow: 6 * time.Millisecond, clerks: make(chan struct{}, 1)}, 50, 260, "the lowest that does not", 50},
		{"none", &shop{units: 100000, slow: 600 * time.Millisecond}, 0, 0, "not even this holds a p99 of 500ms", 50},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(test.shop)
			defer server.Close()
			folder := t.TempDir()
			code, out, _ := runHere(t, "--target", server.URL, "--search", "--probes", "1", "--p99", "500ms", "--duration", "1s", "--out", folder)
			r := written(t, folder).Strategies[0]
			if code != exitOK || r.Highest == nil || *r.Highest < test.low || *r.Highest > test.high || r.Accepted < test.atLeast {
				t.Errorf("exit code %d: %+v", code, r)
			}
			if !strings.Contains(out, "highest rate") || !strings.Contains(out, test.says) {
				t.Errorf("it does not say %q", test.says)
			}
		})
	}
}

// TestGuard has a broken gate give the guard something to catch. Where there is
// no gate there is no guard.
func TestGuard(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	code, out, _ := runHere(t, "--strategies", "none,db-none,lua", "--guard", "on", "--stock", "200", "--limit", "2s", "--crash=false",
		"--redis", testenv.Redis(t), "--db", testenv.MariaDB(t), "--out", folder)
	if code != exitOK || !strings.Contains(out, "caught") {
		t.Errorf("exit code %d", code)
	}
	results := written(t, folder).Strategies
	if none := results[0]; none.Oversold != 0 || none.Caught == nil || *none.Caught == 0 {
		t.Errorf("none: %d oversold, %s caught", none.Oversold, number(none.Caught))
	}
	if without := results[1]; without.Oversold == 0 || without.Caught != nil {
		t.Errorf("db-none: %d oversold, %s caught", without.Oversold, number(without.Caught))
	}
	if lua := results[2]; lua.Oversold != 0 || lua.Caught == nil || *lua.Caught != 0 {
		t.Errorf("lua: %d oversold, %s caught", lua.Oversold, number(lua.Caught))
	}
}

// TestLocks has the strategies that lock do so where the flags say.
func TestLocks(t *testing.T) {
	t.Parallel()
	redis, db := testenv.Redis(t), testenv.MariaDB(t)
	for _, test := range []struct {
		lock, strategies string
		flags            func(t *testing.T) []string
	}{
		{"redis", "lock", func(*testing.T) []string { return nil }},
		{"zookeeper", "lock", func(t *testing.T) []string { return []string{"--zookeeper", testenv.ZooKeeper(t)} }},
		{"etcd", "segment-lock", func(t *testing.T) []string { return []string{"--etcd", testenv.Etcd(t)} }},
		{"redlock", "lock,segment-lock", func(t *testing.T) []string {
			var servers []string
			for range 3 {
				u, err := url.Parse(testenv.OwnRedis(t).URL())
				if err != nil {
					t.Fatal(err)
				}
				servers = append(servers, u.Host)
			}
			return []string{"--redlock", strings.Join(servers, ",")}
		}},
	} {
		t.Run(test.lock, func(t *testing.T) {
			args := append([]string{"--strategies", test.strategies, "--lock", test.lock, "--stock", "40", "--clients", "8", "--redis", redis, "--db", db, fmt.Sprintf("--crash=%v", test.lock == "redis")}, test.flags(t)...)
			code, out, _ := runHere(t, args...)
			if code != exitOK || strings.Contains(out, promise) || !strings.Contains(out, asPromised) {
				t.Errorf("exit code %d", code)
			}
			if test.lock != "redis" && !strings.Contains(out, "locks in "+test.lock) {
				t.Error("it does not say where the locks are")
			}
		})
	}
}

// running is the harness in a process of its own, with a temporary folder of its
// own, which its processes inherit and can be told by.
type running struct {
	*exec.Cmd
	temp           string
	stdout, stderr bytes.Buffer
	mu             sync.Mutex
}

func (r *running) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stderr.Write(p)
}

func (r *running) said() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stderr.String()
}

// startLoading starts the harness and waits until it says this.
func startLoading(t *testing.T, harness []string, says string, args ...string) *running {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	args = slices.Concat(harness[1:], []string{"--api", testenv.Build(t, "./cmd/api")}, args)
	r := &running{Cmd: exec.Command(harness[0], args...), temp: t.TempDir()}
	r.Env = append(os.Environ(), "TMPDIR="+r.temp)
	r.WaitDelay = time.Minute
	r.Stdout, r.Stderr = &r.stdout, r
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.Process.Kill() })
	within(t, time.Minute, "the load", func() bool { return strings.Contains(r.said(), says) })
	if n := len(r.processes()); n < 3 || len(r.folders()) == 0 {
		t.Fatalf("%d processes and the folders %v: nothing that could be left behind", n, r.folders())
	}
	return r
}

// processes are the IDs of the harness and of all that it started.
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

func within(t *testing.T, limit time.Duration, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, limit)
		}
	}
}

// TestKilled expects that what dies unprepared leaves nothing behind.
func TestKilled(t *testing.T) {
	t.Parallel()
	r := startLoading(t, []string{testenv.Build(t, "./loadtest")}, "lua: loading", "--strategies", "lua", "--stock", "1000000", "--limit", "1m")
	if err := r.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = r.Wait()
	within(t, 10*time.Second, "nothing is left of it", func() bool { return len(r.processes()) == 0 && len(r.folders()) == 0 })
}

// TestGoRunKilled kills the go command that runs the harness, which is not told.
func TestGoRunKilled(t *testing.T) {
	t.Parallel()
	parent := filepath.Join(t.TempDir(), "go") // by its name; the real one would build the harness once more
	if err := os.WriteFile(parent, []byte("#!/bin/sh\n\"$@\" &\nwait\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	r := startLoading(t, []string{parent, testenv.Build(t, "./loadtest")}, "lua: loading", "--strategies", "lua", "--stock", "1000000", "--limit", "1m")
	if err := r.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = r.Wait() // until the harness closes its output
	if !strings.Contains(r.said(), "cut short") {
		t.Errorf("it does not say that it was cut short: %s", r.said())
	}
	within(t, 10*time.Second, "nothing is left of it", func() bool { return len(r.processes()) == 0 && len(r.folders()) == 0 })
}

// TestInterrupted expects the table so far.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	r := startLoading(t, []string{testenv.Build(t, "./loadtest")}, "lua: loading", "--strategies", "merged,lua", "--stock", "1000000", "--limit", "1s", "--crash=false")
	if err := r.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	err := r.Wait()
	if code := r.ProcessState.ExitCode(); code != exitCut {
		t.Errorf("exit code %d: %v", code, err)
	}
	for _, has := range []string{"\nmerged ", "\nlua ", undecided, "The run was cut short."} {
		if !strings.Contains(r.stdout.String(), has) {
			t.Errorf("the table has no %q", has)
		}
	}
	if !strings.Contains(r.said(), "cut short") {
		t.Errorf("it does not say that it was cut short: %s", r.said())
	}
	if t.Failed() {
		t.Logf("%s%s", &r.stdout, r.said())
	}
	within(t, 5*time.Second, "nothing is left of it", func() bool { return len(r.processes()) == 0 && len(r.folders()) == 0 })
}

// TestExitCode has an interrupt outrank what was found until then.
func TestExitCode(t *testing.T) {
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		ctx    context.Context
		broken bool
		err    error
		want   int
	}{
		{t.Context(), false, nil, exitOK}, {t.Context(), true, nil, exitBroken}, {t.Context(), false, errors.New("x"), exitBroken},
		{cut, true, errors.New("x"), exitCut},
	} {
		if got := exitCode(test.ctx, test.broken, test.err, &bytes.Buffer{}); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
}

func TestRedacted(t *testing.T) {
	got := strings.Join(redacted([]string{"--admin-token", "s3cret", "--admin-token=s3cret", "--db", "mysql://u:s3cret@h/d", "--db=mysql://u:s3cret@h/d"}), " ")
	if strings.Contains(got, "s3cret") {
		t.Error(got)
	}
}
