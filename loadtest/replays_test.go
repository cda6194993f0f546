package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// TestPlan counts the plans of many orders.
func TestPlan(t *testing.T) {
	t.Parallel()
	const orders = 10_000
	name, keys, repeats, others := buyers(1, 1), make(map[string]bool), make(map[repeat]int), 0
	for range orders {
		buyer := name()
		p := planOf(buyer, "sku")
		if p != planOf(buyer, "sku") {
			t.Fatalf("two plans for %s", buyer)
		}
		if q := planOf(buyer, "other"); p.key != "" && q.key == p.key {
			t.Fatalf("one key for two SKUs: %s", p.key)
		}
		if (p.key == "") != (p.repeat == never) {
			t.Fatalf("%+v", p)
		}
		if p.key != "" {
			keys[p.key] = true
			repeats[p.repeat]++
		}
		if p.other {
			others++
		}
	}
	about := func(n, want int) bool { return n > want*9/10 && n < want*11/10 }
	if !about(len(keys), orders/2) || !about(repeats[together], orders/8) || !about(repeats[atOnce], orders/8) || !about(repeats[later], orders/4) || !about(others, orders/4) {
		t.Errorf("%d keys, repeats %v, %d through another instance", len(keys), repeats, others)
	}
}

// reply is an answer of a service to one request.
type reply struct {
	status   int
	text     string
	replayed bool
}

// replying returns a load on a service that gives these answers to POST /orders, one after the
// other. Later requests get no answer. GET returns the first of these answers.
func replying(t *testing.T, replies ...reply) *loading {
	t.Helper()
	var n atomic.Int64
	service := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			_, _ = w.Write([]byte(replies[0].text))
			return
		}
		at := int(n.Add(1)) - 1
		if at >= len(replies) {
			panic(http.ErrAbortHandler) // there is no answer
		}
		reply := replies[at]
		if reply.replayed {
			w.Header().Set("Idempotent-Replayed", "true")
		}
		w.WriteHeader(reply.status)
		_, _ = w.Write([]byte(reply.text))
	}))
	t.Cleanup(service.Close)
	return &loading{lab: &lab{client: load.NewClient(http.DefaultTransport)}, fleet: &fleet{urls: []string{service.URL}}, rec: newRecord()}
}

const (
	orderText   = `{"id":"o-1","status":"pending"}`
	otherText   = `{"id":"o-2","status":"pending"}`
	soldOutText = `{"type":"/problems/sold-out"}`
	busyText    = `{"type":"/problems/busy"}`

	unavailableText = `{"type":"/problems/unavailable"}`
)

// TestRepeat repeats an order after its answer.
func TestRepeat(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name          string
		first, second reply
		wrong         bool
		failed        int64
	}{
		{"the same", reply{201, orderText, false}, reply{201, orderText, true}, false, 0},
		{"queued", reply{202, orderText, false}, reply{202, orderText, true}, false, 0},
		{"other bytes", reply{201, orderText, false}, reply{201, orderText + " ", true}, true, 0},
		{"another order", reply{201, orderText, false}, reply{201, otherText, true}, true, 0},
		{"another status", reply{202, orderText, false}, reply{201, orderText, true}, true, 0},
		{"not marked", reply{201, orderText, false}, reply{201, orderText, false}, true, 0},
		{"sold out", reply{201, orderText, false}, reply{409, soldOutText, false}, true, 0},
		{"at the buyer limit", reply{201, orderText, false}, reply{409, `{"type":"/problems/buyer-limit"}`, false}, true, 0},
		{"busy", reply{201, orderText, false}, reply{503, busyText, false}, false, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := replying(t, test.first, test.second)
			rec := l.rec
			l.place(t.Context(), 0, numbered(1), plan{key: "k", repeat: atOnce})
			expectRepeat(t, rec, test.wrong, test.failed)
		})
	}
}

// expectRepeat checks the record of one repeat.
func expectRepeat(t *testing.T, rec *record, wrong bool, failed int64) {
	t.Helper()
	found := rec.found()
	if wrong != (len(found) == 1 && found[0].Kind == results.OtherReplay) || !wrong && len(found) > 0 {
		t.Errorf("found %v", found)
	}
	if rec.repeats.Load() != 1 || rec.repeatsFailed.Load() != failed || rec.requests.Load() != 2 {
		t.Errorf("%d repeats of %d requests, %d of them failed", rec.repeats.Load(), rec.requests.Load(), rec.repeatsFailed.Load())
	}
}

// TestTogether sends two requests with one key at the same time, to two instances. Then it
// exchanges the answers of the instances and sends them again.
func TestTogether(t *testing.T) {
	t.Parallel()
	const progressText = `{"type":"/problems/in-progress"}`
	for _, test := range []struct {
		name          string
		first, second reply
		outcome       string
		wrong         bool
		failed        int64
	}{
		{"one repeats the other", reply{201, orderText, true}, reply{201, orderText, false}, accepted, false, 0},
		{"one is in progress", reply{409, progressText, false}, reply{201, orderText, false}, accepted, false, 0},
		{"in progress, and sold out", reply{409, progressText, false}, reply{409, soldOutText, false}, refused, false, 0},
		{"one is sold out", reply{409, soldOutText, false}, reply{201, orderText, false}, accepted, false, 0},
		{"one is busy", reply{503, busyText, false}, reply{201, orderText, false}, accepted, false, 1},
		{"one is sold out, and the other is unavailable", reply{409, soldOutText, false}, reply{503, unavailableText, false}, failed, false, 0},
		{"two orders", reply{201, orderText, false}, reply{201, otherText, false}, accepted, true, 0},
		{"both are first answers", reply{201, orderText, false}, reply{201, orderText, false}, accepted, true, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			for _, answers := range [][2]reply{{test.first, test.second}, {test.second, test.first}} {
				l := replying(t, answers[0])
				other := replying(t, answers[1])
				l.fleet.urls = append(l.fleet.urls, other.fleet.urls...)
				rec := l.rec
				s := l.place(t.Context(), 0, numbered(1), plan{key: "k", repeat: together, other: true})
				if s.outcome != test.outcome || s.unknown() != (test.outcome == failed) {
					t.Errorf("the answer that counts is %s, unknown %v, want %s", s.outcome, s.unknown(), test.outcome)
				}
				if test.outcome != accepted && rec.repeats.Load()+rec.repeatsFailed.Load() > 0 {
					t.Error("a repeat is counted, although there is no order")
				}
				if test.outcome == accepted { // otherwise there is no order to repeat
					expectRepeat(t, rec, test.wrong, test.failed)
				}
			}
		})
	}
}

// TestTurnedDownKey repeats a queued order that was refused meanwhile, so that its key is free.
func TestTurnedDownKey(t *testing.T) {
	t.Parallel()
	l := replying(t, reply{202, `{"id":"o-1","status":"refused"}`, false}, reply{202, otherText, false})
	rec := l.rec
	l.place(t.Context(), 0, numbered(1), plan{key: "k", repeat: atOnce})
	if found := rec.found(); len(found) > 0 || rec.queued.Load() != 1 {
		t.Errorf("%v, %d further orders queued", found, rec.queued.Load())
	}
}

// TestUnknownIsRepeated sends a request without a key, and one with a key, whose outcome
// is unknown at first. The request with a key is repeated. The audit must know whether the last
// answer leaves the outcome unknown.
func TestUnknownIsRepeated(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, key string
		second    reply
		outcome   string
		unknown   bool
	}{
		{"without a key", "", reply{201, orderText, true}, failed, true},
		{"placed", "k", reply{201, orderText, true}, accepted, false},
		{"sold out", "k", reply{409, soldOutText, false}, refused, false},
		{"busy", "k", reply{503, busyText, false}, failed, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := replying(t, reply{503, unavailableText, false}, test.second)
			rec := l.rec
			s := l.place(t.Context(), 0, numbered(1), plan{key: test.key})
			if s.outcome != test.outcome || s.unknown() != test.unknown || rec.uncertain.Load() != 1 {
				t.Errorf("%s, unknown: %t, %d unknown outcomes", s.outcome, s.unknown(), rec.uncertain.Load())
			}
		})
	}
}

// TestClientRepeats checks when a client repeats its orders, and through which instance.
func TestClientRepeats(t *testing.T) {
	t.Parallel()
	for _, measured := range []bool{false, true} {
		t.Run(fmt.Sprintf("measured %v", measured), func(t *testing.T) {
			t.Parallel()
			var sent [2][]string // keys by instance, in the order of their requests
			shop, urls := &shop{units: 1000}, []string(nil)
			for i := range sent {
				server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if key := r.Header.Get("Idempotency-Key"); key != "" {
						shop.mu.Lock()
						sent[i] = append(sent[i], key)
						shop.mu.Unlock()
					}
					shop.ServeHTTP(w, r)
				}))
				defer server.Close()
				urls = append(urls, server.URL)
			}
			rec := newRecord()
			l := &loading{lab: &lab{client: load.NewClient(http.DefaultTransport)}, fleet: &fleet{urls: urls}, rec: rec}
			c, name := &buyer{loading: l, measured: measured}, buyers(1, 1)
			for n := range 100 {
				buyer := name()
				rec.add(c.order(t.Context(), n, oneUnit(buyer, "sku"), buyer))
			}
			during := rec.repeats.Load()
			l.repeatAll(t.Context(), c.due)
			all := slices.Concat(sent[0], sent[1])
			distinct := len(slices.Compact(slices.Sorted(slices.Values(all))))
			if len(rec.found()) > 0 || rec.accepted.Load() != 100 || len(all) != 2*distinct || rec.repeats.Load() != int64(distinct) {
				t.Errorf("%v, %d accepted, %d keys in %d requests, %d repeats", rec.found(), rec.accepted.Load(), distinct, len(all), rec.repeats.Load())
			}
			if measured != (during == 0) || !measured && len(c.due) > 2*laterBy {
				t.Errorf("%d repeats during the load, %d left", during, len(c.due))
			}
			both := slices.ContainsFunc(sent[0], func(key string) bool { return slices.Contains(sent[1], key) })
			if !both {
				t.Error("no order is repeated through the other instance")
			}
		})
	}
}

// TestExcess compares the gate with the ledger, which has 5 units.
func TestExcess(t *testing.T) {
	t.Parallel()
	redis, err := store.OpenInProcessRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer redis.Close()
	l := newLedger(t, newRecord())
	l.redis = redis.Client()
	l.exec(t, "INSERT INTO stock (sku, kind, total, available) VALUES ('sku', 'product', 9, 5)")
	g, err := l.gateOf(t.Context(), "sku")
	if err != nil {
		t.Fatal(err)
	}
	old := fmt.Sprint(1<<generationBits) + " 7 0 0 0" // of another generation
	for count, want := range map[string]int64{"1 5 0 0 0": 0, "1 7 0 0 0": 2, "1 7 1 0 0": 0, "1 4 0 0 0": 0, old: 0} {
		if err := l.redis.HSet(t.Context(), g.key("sku", "count"), "sku", count).Err(); err != nil {
			t.Fatal(err)
		}
		if got, err := l.excess(t.Context(), "sku"); got != want || err != nil {
			t.Errorf("count %q: %d units too many, want %d (%v)", count, got, want, err)
		}
	}
	for key, text := range map[string]string{g.ledger + "}:generation": "no number", g.key("sku", "count"): "no hash"} {
		if err := l.redis.Set(t.Context(), key, text, 0).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := l.counts(t.Context(), "sku"); err == nil {
			t.Errorf("%s is no error", text)
		}
		if err := l.redis.Del(t.Context(), key).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWaitForExpiry waits for an order that claims to expire in an hour.
func TestWaitForExpiry(t *testing.T) {
	t.Parallel()
	o := &owner{lifecycleLoad: &lifecycleLoad{loading: &loading{lab: &lab{settings: settings{PaymentWindow: time.Millisecond}}}}, random: rand.New(rand.NewPCG(1, 1)), answered: time.Now()}
	o.order.ExpiresAt = new(time.Now().Add(time.Hour))
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	if o.waitForExpiry(ctx, 0, time.Millisecond); ctx.Err() != nil {
		t.Error("it waits for longer than the payment window")
	}
}

// TestCheckWindows checks the payment windows of the 201s.
func TestCheckWindows(t *testing.T) {
	t.Parallel()
	for window, want := range map[time.Duration]int{time.Second: 0, 0: 1, time.Hour: 1, time.Second - time.Microsecond: 1} {
		v := &lifecycleLoad{loading: &loading{lab: &lab{settings: settings{PaymentWindow: time.Second}}, rec: newRecord()}}
		o := numbered(1)
		o.CreatedAt = time.Now()
		o.ExpiresAt = new(o.CreatedAt.Add(window))
		v.rec.add(answer{outcome: accepted, order: o})
		v.rec.add(answer{outcome: refused})
		v.checkWindows()
		if found := v.rec.found(); len(found) != want || want == 1 && found[0].Kind != results.WrongWindow {
			t.Errorf("%v: %v", window, found)
		}
	}
}

// TestReadBackExpiry reads back an order that expires later than its 201 said, or never, and another
// order.
func TestReadBackExpiry(t *testing.T) {
	t.Parallel()
	o := numbered(1)
	o.ExpiresAt = new(time.Now().Round(0))
	for _, test := range []struct {
		id      string
		expires *time.Time
		want    []results.Kind
	}{
		{o.ID, new(o.ExpiresAt.UTC()), nil},
		{o.ID, new(o.ExpiresAt.Add(time.Second)), []results.Kind{results.OtherExpiry}},
		{o.ID, nil, []results.Kind{results.OtherExpiry}},
		{numbered(2).ID, o.ExpiresAt, []results.Kind{results.Missing}},
	} {
		got := o
		got.ID, got.ExpiresAt = test.id, test.expires
		text, err := json.Marshal(got)
		if err != nil {
			t.Fatal(err)
		}
		l := replying(t, reply{text: string(text)})
		rec := l.rec
		l.readBack(t.Context(), map[string]order{o.ID: o}, l.fleet.url(0))
		expectKinds(t, rec, test.want)
	}
}

// TestRecord checks which count each answer goes to, and that the result has all counts.
func TestRecord(t *testing.T) {
	t.Parallel()
	rec := newRecord()
	for n, outcome := range []string{accepted, refused, queued, failed} {
		for range n + 1 {
			rec.add(answered(numbered(n), outcome, 503, client.Busy))
		}
	}
	rec.turnedDown.Add(5)
	rec.heard(load.Answer{Status: 201})
	rec.heard(load.Answer{Status: 503, Problem: client.Busy})
	rec.heard(load.Answer{Problem: load.TimedOut})
	rec.repeats.Add(6)
	rec.repeatsFailed.Add(7)
	rec.sampled = 8
	rec.find(results.Early, "x")
	l := &loading{lab: &lab{settings: settings{Instances: 2}}, spec: assembly.Spec{Name: "lua", Sound: true}, rec: rec}
	r := l.newResult(9)
	rec.addTo(r)
	if want := (&results.Result{
		Strategy: "lua", Sound: true, Instances: 2, Stock: 9, Verdict: results.Undecided,
		Accepted: 1, Refused: 2, Queued: 3, Failed: 4, TurnedDown: 5, Repeats: 6, RepeatsFailed: 7, Sampled: 8, Requests: 3, Uncertain: 1,
		Unknown:  3, // those that are still queued
		Failures: map[string]int64{"503 busy": 4}, Findings: []results.Finding{{Kind: results.Early, Count: 1, First: "x"}},
	}); !reflect.DeepEqual(r, want) {
		t.Errorf("%+v, want %+v", r, want)
	}
}

// TestJudgeKeys checks that the worse verdict of two rushes counts.
func TestJudgeKeys(t *testing.T) {
	t.Parallel()
	worse := []string{results.AsPromised, results.Undecided, results.Broken}
	for i, rush := range worse {
		for j, keys := range worse {
			r := &results.Result{Verdict: rush, Load: "rush"}
			judgeKeys(r, &results.Result{Verdict: keys, Load: "keys"})
			if r.Verdict != worse[max(i, j)] || r.Keys == nil || strings.Contains(r.Load, "keys") != (keys == results.Undecided) {
				t.Errorf("%s and %s: %s of %q", rush, keys, r.Verdict, r.Load)
			}
		}
	}
}

// TestBrokenBy checks the first fault of each strategy that broke a promise.
func TestBrokenBy(t *testing.T) {
	t.Parallel()
	run := &results.Run{Strategies: []results.Result{
		{Strategy: "lua", Verdict: results.Broken, Faults: []string{"one", "two"}}, {Strategy: "merged", Verdict: results.AsPromised},
		{Strategy: "lock", Verdict: results.Broken, Faults: []string{"three"}},
	}}
	if got := brokenBy(run).Error(); !strings.HasSuffix(got, ": lua: one; lock: three") {
		t.Error(got)
	}
}
