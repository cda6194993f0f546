package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
	forget bool // orders are not found again

	mu     sync.Mutex
	bodies []string
}

func (s *shop) ServeHTTP(w http.ResponseWriter, r *http.Request) {
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
		name   string
		stores func(t *testing.T) (redis, db string)
	}{
		{"MariaDB and Redis", func(t *testing.T) (string, string) { return testenv.Redis(t), testenv.MariaDB(t) }},
		{"PostgreSQL and Redis Cluster", func(t *testing.T) (string, string) { return testenv.RedisCluster(t), testenv.Postgres(t) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			redis, db := test.stores(t)
			code, out, _ := runHere(t, "--strategies", "none,lua,merged", "--stock", "200", "--redis", redis, "--db", db)
			if code != exitOK || strings.Contains(out, promise) || strings.Count(out, asPromised) != 3 {
				t.Errorf("exit code %d", code)
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
	text, err := os.ReadFile(filepath.Join(folder, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	var results Results
	if err := json.Unmarshal(text, &results); err != nil {
		t.Fatal(err)
	}
	if r := results.Strategies[0]; r.Rate != 50 || r.Accepted+r.Failed != 50 || r.Verdict != asPromised {
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
