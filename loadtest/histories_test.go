package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/loadtest/history"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

var (
	histories   = flag.Uint64("histories", 0, "the number of seeds of TestHistories; scenarioOf says what each runs; 0: a few")
	historySeed = flag.Uint64("histories.seed", 1, "the first seed of TestHistories")
)

// TestHistories checks histories of every sound strategy in turn, in which an instance is killed,
// connections to the database are cut, and Redis is emptied or restarts empty. By default it uses
// the strategies that sell from several rows of a SKU, because no other test kills an instance of
// them. TestHistories_Broken shows that the check detects broken strategies.
//
//	go test ./loadtest -run TestHistories -histories=1 -histories.seed=7
func TestHistories(t *testing.T) {
	t.Parallel()
	databases := testenv.NetworkDatabases()
	first, seeds := *historySeed, *histories
	switch {
	case seeds > 0:
	case testenv.Thorough():
		seeds = uint64(len(soundStrategies()))
	default:
		first, seeds = seedOf("slots"), 2 // the other is unit-rows
	}
	for i, d := range databases {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			dbURL := d.URL(t)
			server := testenv.OwnRedis(t)
			for seed := first; seed < first+seeds; seed++ {
				if s := scenarioOf(seed); s.database == i {
					s.check(t, seed, server, dbURL)
				}
			}
		})
	}
}

// scenario is what a seed of TestHistories selects.
type scenario struct {
	spec     assembly.Spec
	database int  // an index of testenv.NetworkDatabases
	expires  bool // orders have a short payment window
}

// scenarioOf returns the scenario of a seed. Consecutive seeds have one strategy after the other.
// In four rounds of these, each strategy runs on both databases, with and without a payment window.
func scenarioOf(seed uint64) scenario {
	sound := soundStrategies()
	strategy, round := seed%uint64(len(sound)), seed/uint64(len(sound))
	return scenario{spec: sound[strategy], database: int((strategy + round) % 2), expires: (strategy+round/2)%2 == 1}
}

// TestScenarioOf checks that seeds enough for four rounds select every combination of a sound
// strategy, a database and a payment window once, whatever the first seed is.
func TestScenarioOf(t *testing.T) {
	t.Parallel()
	type combination struct {
		strategy, database string
		expires            bool
	}
	databases := testenv.NetworkDatabases()
	rounds := 4 * uint64(len(soundStrategies()))
	for first := range rounds {
		seen := make(map[combination]bool)
		for seed := first; seed < first+rounds; seed++ {
			s := scenarioOf(seed)
			seen[combination{s.spec.Name, databases[s.database].Name, s.expires}] = true
		}
		if len(seen) != int(rounds) {
			t.Errorf("seeds %d to %d: %d combinations, want %d", first, first+rounds-1, len(seen), rounds)
		}
	}
}

// check runs and checks the history of a seed.
func (s scenario) check(t *testing.T, seed uint64, server *testenv.RedisServer, dbURL string) {
	t.Helper()
	spec := s.spec
	file := filepath.Join(t.TempDir(), "history.jsonl")
	args := []string{"--history", file, "--strategies", spec.Name, "--redis", server.URL(), "--db", dbURL}
	if s.expires { // with an odd --seed, orders expire
		args = append(args, "--seed", fmt.Sprint(2*seed+1), "--payment-window", "1s")
	} else {
		args = append(args, "--seed", fmt.Sprint(2*seed))
	}
	wire := testenv.NewWire(t, dbURL)
	code, _, _ := runWith(t, func(s *settings) {
		s.wiredDB = wire.Through(dbURL)
		s.disturb = map[string]func(){"the connections to the database are cut": func() { wire.Cut() }}
		if !spec.Queues { // queued orders are only as durable as Redis
			s.disturb["Redis is emptied"] = func() { flush(t, server) }
			s.disturb["Redis is killed, and restarts empty"] = func() { server.Kill(); server.Restart() }
		}
	}, args...)
	if code == command.ExitOK {
		return
	}
	var out bytes.Buffer
	if err := checkHistory([]string{file}, &out); err != nil {
		t.Errorf("seed %d, %s: %v\n%s", seed, spec.Name, err, &out)
	} else {
		t.Errorf("seed %d, %s: exit code %d", seed, spec.Name, code)
	}
}

// soundStrategies returns the strategies that must not oversell.
func soundStrategies() (all []assembly.Spec) {
	for _, spec := range assembly.Strategies() {
		if spec.Sound {
			all = append(all, spec)
		}
	}
	return all
}

// seedOf returns the first seed of a history of the strategy.
func seedOf(strategy string) uint64 {
	return uint64(slices.IndexFunc(soundStrategies(), func(spec assembly.Spec) bool { return spec.Name == strategy }))
}

// flush empties a Redis.
func flush(t *testing.T, server *testenv.RedisServer) {
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer client.Close()
	if err := client.FlushAll(context.Background()).Err(); err != nil {
		t.Error(err)
	}
}

// TestHistories_OtherReplay records a history in which replays have a byte more than the first
// answers. The orders are the same, so the calls can be explained.
func TestHistories_OtherReplay(t *testing.T) {
	t.Parallel()
	services := startServices(t, "--history", filepath.Join(t.TempDir(), "history.jsonl"), "--strategies", "merged", "--seed", "2", "--crash=false")
	liar, urls := services.tell(t, "adds-a-space-to-replays")
	r, err := services.runHistory(t.Context(), mustFind(t, "merged"), &fleet{urls: urls})
	if err != nil || liar.Told() == 0 {
		t.Fatalf("%d lies, %v", liar.Told(), err)
	}
	if r.Verdict != results.Broken || len(r.Findings) != 1 || r.Findings[0].Kind != results.OtherReplay || r.History.Linearizable != 2 {
		t.Errorf("%s, linearizable: %+v, findings: %v, faults: %q", r.Verdict, r.History, r.Findings, r.Faults)
	}
}

// TestJudgeHistory checks the verdict on a strategy by the decision on a SKU of its history.
func TestJudgeHistory(t *testing.T) {
	broken := terms{mayOversell: true, mustOversell: true}
	for _, test := range []struct {
		decision   history.Decision
		terms      terms
		verdict    string
		conclusive bool
	}{
		{history.Linearizable, terms{}, results.AsPromised, true},
		{history.NotLinearizable, terms{}, results.Broken, true},
		{history.Undecided, terms{}, results.Broken, true},
		{history.NotLinearizable, broken, results.AsPromised, true},
		{history.Linearizable, broken, results.Broken, false},
		{history.Undecided, broken, results.Broken, false},
	} {
		r := results.Result{Accepted: 1, History: &results.History{}}
		conclusive := judgeHistory(&r, []history.Verdict{{SKU: "a", Decision: test.decision}}, test.terms)
		if r.Verdict != test.verdict || conclusive != test.conclusive || (r.History.Linearizable == 1) != (test.decision == history.Linearizable) {
			t.Errorf("%s under %+v: %s, conclusive %v, %v", test.decision, test.terms, r.Verdict, conclusive, r.Faults)
		}
	}
	for _, terms := range []terms{{}, broken} {
		r := results.Result{Accepted: 1, History: &results.History{}, Findings: []results.Finding{{Kind: results.OtherReplay, Count: 1}}}
		conclusive := judgeHistory(&r, []history.Verdict{{SKU: "a", Decision: history.Linearizable}}, terms)
		if r.Verdict != results.Broken || !conclusive {
			t.Errorf("with a finding: %s, conclusive %v", r.Verdict, conclusive)
		}
	}
	busy := results.Result{History: &results.History{}} // every order was answered busy
	judgeHistory(&busy, []history.Verdict{{SKU: "a", Decision: history.Linearizable}}, terms{})
	if busy.Verdict != results.Broken {
		t.Errorf("without an order: %s", busy.Verdict)
	}
}

// TestHistories_Incomplete checks that a history is not judged if it was interrupted, or if a call
// could not be written.
func TestHistories_Incomplete(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "history.jsonl")
	file, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	recorder := history.NewRecorder(file)
	l := &lab{settings: settings{History: name}, history: recorder, stderr: io.Discard}
	h := &historyLoad{lifecycleLoad: &lifecycleLoad{loading: &loading{lab: l, rec: newRecord()}}, random: rand.New(rand.NewPCG(1, 1))}
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := h.run(interrupted, assembly.Spec{}); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
	_ = file.Close()
	recorder.Fault("a call", func() {})
	if verdicts, err := h.verdicts(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("without a call: %v, %v", verdicts, err)
	}
}

// TestCheckHistory checks which histories end with an error.
func TestCheckHistory(t *testing.T) {
	t.Parallel()
	const (
		set  = `{"call":"set","outcome":"accepted","begin":0,"end":1,"sku":"a","total":1}` + "\n"
		rest = `{"call":"audit","outcome":"accepted","begin":90,"end":91,"sku":"a","counts":{"total":1,"ledger_available":1}}` + "\n"
		// A unit is left, so the refusal is correct only if it may be 100 ns old.
		refusal = `{"call":"take","outcome":"refused","begin":70,"end":71,"buyer_id":"b","lines":[{"sku":"a","quantity":1}],"sku":"a"}` + "\n"
	)
	for _, test := range []struct{ text, flag, says string }{
		{set + rest, "--memory=0s", ""},
		{set, "--memory=0s", "1 of 1 SKUs"}, // not decided
		{set + refusal + rest, "--memory=0s", "1 of 1 SKUs"},
		{set + refusal + rest, "--memory=100ns", ""},
		{"", "--memory=0s", "the history has no SKU"},
		{set + rest, "--timeout=0s", "--timeout"},
	} {
		file := filepath.Join(t.TempDir(), "history.jsonl")
		if err := os.WriteFile(file, []byte(test.text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := checkHistory([]string{test.flag, file}, io.Discard)
		if (err != nil) != (test.says != "") || err != nil && !strings.Contains(err.Error(), test.says) {
			t.Errorf("%s%s: %v", test.text, test.flag, err)
		}
	}
}

// TestHistories_Broken checks that the histories of all broken strategies are detected, both when
// they are recorded and when their file is read. By default it uses one strategy with a gate and
// one without.
func TestHistories_Broken(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "history.jsonl")
	var names []string
	for _, spec := range assembly.Strategies() {
		if !spec.Sound && (testenv.Thorough() || spec.Name == "none" || spec.Name == "db-none") {
			names = append(names, spec.Name)
		}
	}
	code, stdout, _ := runHere(t, "--history", file, "--strategies", strings.Join(names, ","), "--seed", "2")
	if code != command.ExitOK || strings.Count(stdout, "as promised") != len(names) {
		t.Errorf("exit code %d", code)
	}
	var out bytes.Buffer
	err := run(t.Context(), []string{"history", file}, &out, &out)
	for _, name := range names {
		if !strings.Contains(out.String(), "-"+name+"-history") {
			t.Errorf("no %s", name)
		}
	}
	if err == nil || !strings.Contains(out.String(), ": not linearizable, ") || !strings.Contains(out.String(), "no order of the calls explains the answer to ") {
		t.Errorf("%v\n%s", err, &out)
	}
}
