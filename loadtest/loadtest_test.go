package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

func TestOutcomeOf(t *testing.T) {
	for status, want := range map[int]string{
		201: accepted, 409: refused, 0: failed, 200: failed, 404: failed, 429: failed, 500: failed, 503: failed,
	} {
		if got := outcomeOf(status); got != want {
			t.Errorf("%d: %s, want %s", status, got, want)
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
		sound  = strategy.Spec{Name: "lua", Sound: true}
		broken = strategy.Spec{Name: "none"}
		exact  = Result{Instances: 2, Stock: 10, Accepted: 10, Sold: 10, Ledger: n(0), Gate: n(0), InFlight: n(0)}
	)
	with := func(change func(*Result)) Result {
		r := exact
		change(&r)
		return r
	}
	oversold := with(func(r *Result) { r.Accepted, r.Sold, r.Oversold = 12, 12, 2 })
	for _, test := range []struct {
		name    string
		result  Result
		spec    strategy.Spec
		ending  ending
		guarded bool
		verdict string
		says    string
	}{
		{"all sold", exact, sound, soldOut, false, asPromised, ""},
		{"sound oversells", oversold, sound, soldOut, false, promise, "oversold 2 units"},
		{"sound oversells until the limit", oversold, sound, atLimit, false, promise, "oversold 2 units"},
		{"sound oversells and is interrupted", oversold, sound, interrupted, false, promise, "oversold 2 units"},
		{"broken oversells", oversold, broken, soldOut, false, asPromised, ""},
		{"broken oversells until the limit", oversold, broken, atLimit, false, asPromised, ""},
		{"broken does not", exact, broken, soldOut, false, promise, "proves nothing"},
		{"broken does not before the limit", exact, broken, atLimit, false, undecided, ""},
		{"broken, alone", with(func(r *Result) { r.Instances = 1 }), broken, soldOut, false, asPromised, ""},
		{"broken, guarded", exact, broken, soldOut, true, asPromised, ""},
		{"broken, guarded, and something is caught", with(func(r *Result) { r.Caught = n(3) }), broken, soldOut, true, asPromised, ""},
		{"broken, guarded, and nothing is caught", with(func(r *Result) { r.Caught = n(0) }), broken, soldOut, true, promise, "caught nothing"},
		{"sound, guarded, and nothing is caught", with(func(r *Result) { r.Caught = n(0) }), sound, soldOut, true, asPromised, ""},
		{"arrivals at a broken one", with(func(r *Result) { r.Rate = 10 }), broken, soldOut, false, asPromised, ""},
		{"arrivals lost by a broken one", with(func(r *Result) { r.Rate, r.Missing = 10, 1 }), broken, soldOut, false, promise, "not found"},
		{"broken, guarded, oversells", oversold, broken, soldOut, true, promise, "oversold 2 units"},
		{"lost orders", with(func(r *Result) { r.Missing = 1 }), sound, soldOut, false, promise, "1 orders answered 201 are not found"},
		{"units kept back", with(func(r *Result) { r.Sold, r.Undersold, r.Ledger, r.Gate = 9, 1, n(1), n(1) }), sound, soldOut, false, promise, "1 units were left"},
		{"units not sold in time", with(func(r *Result) { r.Undersold = 1 }), sound, atLimit, false, undecided, ""},
		{"nothing sold in time", with(func(r *Result) { r.Accepted = 0 }), sound, atLimit, false, promise, "no order was accepted"},
		{"interrupted", with(func(r *Result) { r.Accepted = 0 }), sound, interrupted, false, undecided, ""},
		{"stock row off", with(func(r *Result) { r.Ledger, r.Gate = n(3), n(3) }), sound, soldOut, false, promise, "the stock row has 3"},
		{"gate off", with(func(r *Result) { r.Gate = n(4) }), sound, soldOut, false, promise, "the gate has 4"},
		{"nothing to ask", with(func(r *Result) { r.Ledger, r.Gate, r.InFlight = nil, nil, nil }), sound, soldOut, false, asPromised, ""},
		{"arrivals in plenty", with(func(r *Result) { r.Undersold, r.Rate = 90, 10 }), sound, soldOut, false, asPromised, ""},
	} {
		r := test.result
		r.judge(test.spec, test.ending, test.guarded)
		if says := strings.Join(r.Faults, "; "); r.Verdict != test.verdict || !strings.Contains(says, test.says) {
			t.Errorf("%s: %s (%s), want %s (%s)", test.name, r.Verdict, says, test.verdict, test.says)
		}
	}
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
	forget bool          // orders are not found again
	slow   time.Duration // each order takes so long
	clerks chan struct{} // holds as many orders as are served at once; nil: no limit

	mu     sync.Mutex
	bodies []string
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
		fmt.Fprint(w, `{"running":"lua"}`)
	case r.Method == http.MethodPut:
		w.WriteHeader(http.StatusCreated)
	case one && !s.forget:
		fmt.Fprintf(w, `{"id":%q}`, id)
	case r.URL.Path == "/orders" && s.units > len(s.bodies):
		var order struct {
			Buyer string `json:"buyer_id"`
		}
		_ = json.NewDecoder(r.Body).Decode(&order)
		s.bodies = append(s.bodies, order.Buyer)
		w.Header().Set("Location", fmt.Sprintf("/orders/o-%d", len(s.bodies)))
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"id":"o-%d"}`, len(s.bodies))
	case r.URL.Path == "/orders":
		w.WriteHeader(http.StatusConflict)
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
		code int
		says string
	}{
		{"right", &shop{units: 20}, exitOK, asPromised},
		{"oversells", &shop{units: 23}, exitBroken, "oversold 3 units"},
		{"keeps units back", &shop{units: 19}, exitBroken, "1 units were left"},
		{"forgets", &shop{units: 20, forget: true}, exitBroken, "20 orders answered 201 are not found"},
		{"refuses all", &shop{}, exitBroken, "no order was accepted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			server := httptest.NewServer(test.shop)
			defer server.Close()
			code, out, _ := runHere(t, "--target", server.URL, "--stock", "20", "--clients", "4")
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

// TestConvicts takes the gate's check out of the service and expects a verdict.
func TestConvicts(t *testing.T) {
	t.Parallel()
	const check = "left[i] < units[l]"
	file, err := filepath.Abs("../internal/stock/gate/take.lua")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(script), check); n != 1 {
		t.Fatalf("%q stands %d times in %s", check, n, file)
	}
	folder := t.TempDir()
	mutated, overlay := filepath.Join(folder, "take.lua"), filepath.Join(folder, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: mutated}})
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(os.WriteFile(mutated, []byte(strings.Replace(string(script), check, "false", 1)), 0o600),
		os.WriteFile(overlay, replace, 0o600))
	if err != nil {
		t.Fatal(err)
	}
	api := testenv.Build(t, "./cmd/api", "-overlay="+overlay)
	code, out, _ := runHere(t, "--api", api, "--strategies", "lua", "--stock", "20", "--limit", "2s")
	if code != exitBroken || !strings.Contains(out, promise) || !strings.Contains(out, "lua: oversold ") {
		t.Errorf("exit code %d", code)
	}
}

// TestRealStores drives a strategy that oversells and two that do not.
func TestRealStores(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		instances int
		stores    func(t *testing.T) (redis, db string)
	}{
		{"MariaDB and Redis", 2, func(t *testing.T) (string, string) { return testenv.Redis(t), testenv.MariaDB(t) }},
		{"PostgreSQL and Redis Cluster", 2, func(t *testing.T) (string, string) { return testenv.RedisCluster(t), testenv.Postgres(t) }},
		{"MariaDB and Redis, four instances", 4, func(t *testing.T) (string, string) { return testenv.Redis(t), testenv.MariaDB(t) }},
		{"PostgreSQL and Redis, four instances", 4, func(t *testing.T) (string, string) { return testenv.Redis(t), testenv.Postgres(t) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			redis, db := test.stores(t)
			folder := t.TempDir()
			code, out, _ := runHere(t, "--strategies", "none,lua,merged", "--instances", fmt.Sprint(test.instances),
				"--stock", "200", "--redis", redis, "--db", db, "--out", folder)
			if code != exitOK || strings.Contains(out, promise) || strings.Count(out, asPromised) != 3 {
				t.Errorf("exit code %d", code)
			}
			for _, r := range written(t, folder).Strategies {
				if r.Instances != test.instances || (r.Sold == 200) != r.Sound {
					t.Errorf("%s: %d instances, %d of 200 units sold", r.Strategy, r.Instances, r.Sold)
				}
			}
		})
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
			code, out, _ := runHere(t, "--target", server.URL, "--search", "--p99", "500ms", "--duration", "1s", "--out", folder)
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
	code, out, _ := runHere(t, "--strategies", "none,db-none,lua", "--guard", "on", "--stock", "200", "--limit", "2s",
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
			args := append([]string{"--strategies", test.strategies, "--lock", test.lock, "--stock", "40", "--clients", "8", "--redis", redis, "--db", db}, test.flags(t)...)
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
func startLoading(t *testing.T, says string, args ...string) *running {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	args = append([]string{"--api", testenv.Build(t, "./cmd/api")}, args...)
	r := &running{Cmd: exec.Command(testenv.Build(t, "./loadtest"), args...), temp: t.TempDir()}
	r.Env = append(os.Environ(), "TMPDIR="+r.temp)
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
	r := startLoading(t, "lua: loading", "--strategies", "lua", "--stock", "1000000", "--limit", "1m")
	if err := r.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = r.Wait()
	within(t, 10*time.Second, "nothing is left of it", func() bool { return len(r.processes()) == 0 && len(r.folders()) == 0 })
}

// TestInterrupted expects the table so far.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	r := startLoading(t, "lua: loading", "--strategies", "merged,lua", "--stock", "1000000", "--limit", "1s")
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
