package gateway

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	store.LogRedis(slog.New(slog.DiscardHandler))
	os.Exit(testenv.Main(program{m}))
}

// program ends the shared pairs before testenv stops their servers.
type program struct{ *testing.M }

func (p program) Run() int {
	defer shared.end()
	return p.M.Run()
}

// The files of the gateway. They are embedded so that internal/mutants can
// replace them.
var (
	//go:embed gateway.lua
	script string
	//go:embed nginx.conf
	configuration string
)

// soldOutTTL is how long the gateways of most tests cache that a SKU is sold out.
const soldOutTTL = 300 * time.Millisecond

// longTTL replaces soldOutTTL where several calls must be faster than a cached count expires, even
// on a slow machine.
const longTTL = 3 * time.Second

// beatTimeout is how long BEAT must not change before the gateway ignores the counts, in tests that
// let this happen.
const beatTimeout = 5 * time.Second

// patience is how long gateways wait for Redis and for instances that answer, so that a busy
// machine does not look like a failure.
const patience = 15 * time.Second

// shop is two instances on the same stores, and a gateway in front of them. Its methods
// end the test if they fail, unless they return an error.
type shop struct {
	t         testenv.T
	url       string // URL of the gateway
	instances []*testenv.APIServer
	redis     redis.UniversalClient
	ledger    uuid.UUID
	redisAddr string
	segments  int // segments of each SKU; 0: no segments
	beat      int // BEAT of a fake ledger
	ttl       time.Duration
	gateway   *testenv.NginxServer
}

// pair is two instances on the same stores. A pair serves one scenario at a time, which counts the
// orders that reach it. Each scenario has its own SKUs and keys.
type pair struct {
	instances []*testenv.APIServer
	ledger    uuid.UUID
	turn      sync.Mutex // held by the scenario that uses the pair
}

// pairs are the pairs that the scenarios of all tests share, by the flags of the instances.
type pairs struct {
	mu   sync.Mutex
	made map[string]*pair

	cleanups sync.Mutex
	ends     []func()
}

var shared pairs

// of returns a pair for the plan, for exclusive use until the test ends. The pair ends with the
// program.
func (ps *pairs) of(t *testing.T, p plan) *pair {
	t.Helper()
	key := strings.Join(append([]string{p.redis, p.db}, p.args...), " ")
	on := ps.find(t, key, p)
	on.turn.Lock()
	t.Cleanup(on.turn.Unlock)
	return on
}

// find returns the pair of the key, and starts it if necessary.
func (ps *pairs) find(t *testing.T, key string, p plan) *pair {
	t.Helper()
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.made == nil {
		ps.made = make(map[string]*pair)
	}
	if ps.made[key] == nil {
		ps.made[key] = start(lasting{t}, p)
	}
	return ps.made[key]
}

// lasting is a test whose servers end with the program.
type lasting struct{ *testing.T }

func (lasting) Cleanup(f func()) {
	shared.cleanups.Lock()
	defer shared.cleanups.Unlock()
	shared.ends = append(shared.ends, f)
}

// end ends all pairs.
func (ps *pairs) end() {
	for _, end := range slices.Backward(ps.ends) {
		end()
	}
}

// plan describes a shop. Its zero value is the default strategy on the shared
// servers.
type plan struct {
	on           *pair  // nil: separate instances, unless files has others
	redis        string // URL; empty: the shared Redis
	db           string // URL; empty: a new database on the shared server
	args         []string
	ttl          time.Duration     // lifetime of cached counts; 0: soldOutTTL
	fakeLedger   bool              // the test writes the gateway's keys in Redis, because no service uses its ledger ID
	files        map[string]string // further files in nginx's folder
	environment  []string          // variables of the gateway; they override the defaults
	redisTimeout time.Duration     // how long the gateway waits for Redis; 0: patience
	redisPause   time.Duration     // how long the gateway does not ask a Redis that has failed; 0: as in gateway.lua
	beatTimeout  time.Duration     // how long BEAT may stay the same; 0: an hour
}

// start starts the instances of the plan.
func start(t testenv.T, p plan) *pair {
	t.Helper()
	if p.redis == "" {
		p.redis = testenv.Redis(t)
	}
	if p.db == "" {
		p.db = testenv.MariaDB(t)
	}
	on := &pair{}
	var err error
	on.ledger, err = storetest.Migrated(t, p.db).LedgerID(context.Background())
	check(t, err)
	for range 2 {
		on.instances = append(on.instances, testenv.API(t, append([]string{"--db", p.db, "--redis", p.redis}, p.args...)...))
	}
	return on
}

// check fails the test if there is an error.
func check(t testenv.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// build starts a shop.
func build(t testenv.T, p plan) *shop {
	t.Helper()
	if p.redis == "" {
		p.redis = testenv.Redis(t)
	}
	if p.on == nil && p.files["instances.conf"] == "" {
		p.on = start(t, p)
	}
	s := &shop{t: t, ttl: cmp.Or(p.ttl, soldOutTTL), ledger: uuid.New()}
	servers := ""
	if p.on != nil {
		s.instances = p.on.instances
		if !p.fakeLedger {
			s.ledger = p.on.ledger
		}
	}
	for _, api := range s.instances {
		servers += "server " + strings.TrimPrefix(api.URL(), "http://") + ";\n"
	}
	s.redis = storetest.Redis(t, p.redis)
	s.redisAddr = regexp.MustCompile(`[0-9.]+:\d+`).FindString(p.redis)
	if i := slices.Index(p.args, "--segments"); i >= 0 {
		var err error
		s.segments, err = strconv.Atoi(p.args[i+1])
		check(t, err)
	}
	if p.fakeLedger {
		s.seed()
	}

	patient := script
	for constant, value := range map[string]string{
		"REDIS_TIMEOUT = 100": fmt.Sprintf("REDIS_TIMEOUT = %d", cmp.Or(p.redisTimeout, patience).Milliseconds()),
		"REDIS_PAUSE = 0.2":   fmt.Sprintf("REDIS_PAUSE = %v", cmp.Or(p.redisPause, 200*time.Millisecond).Seconds()),
		"BEAT_TIMEOUT = 5":    fmt.Sprintf("BEAT_TIMEOUT = %v", cmp.Or(p.beatTimeout, time.Hour).Seconds()),
	} {
		if strings.Count(patient, constant) != 1 {
			t.Fatalf("gateway.lua does not have %q once", constant)
		}
		patient = strings.Replace(patient, constant, value, 1)
	}
	// Bounds of the wait for the instances' strategy.
	patientConf := strings.ReplaceAll(configuration, "500ms;", patience.String()+";")
	if patientConf == configuration {
		t.Fatalf("nginx.conf has no bound of 500 ms")
	}
	files := map[string]string{"instances.conf": servers, "gateway.lua": patient, "nginx.conf": patientConf}
	maps.Copy(files, p.files)
	s.gateway = testenv.OwnNginx(t, files, append([]string{
		"HOLDFAST_LEDGER_ID=" + s.ledger.String(),
		"HOLDFAST_GATEWAY_REDIS=" + s.redisAddr,
		fmt.Sprintf("HOLDFAST_GATEWAY_SOLD_OUT_MS=%d", s.ttl.Milliseconds()),
	}, p.environment...)...)
	s.url = s.gateway.URL()
	t.Cleanup(func() {
		if test, ok := t.(interface{ Failed() bool }); ok && test.Failed() {
			t.Logf("the gateway:\n%s", s.gateway.Output())
		}
	})
	return s
}

// generationKey returns the key of the generation, the number of segments and BEAT.
func (s *shop) generationKey() string {
	return "holdfast:{" + s.ledger.String() + "}:generation"
}

// seed writes generation 3 of a fake ledger, as the service would.
func (s *shop) seed() { s.setGeneration(fmt.Sprintf("3 %d", s.segments)) }

// setGeneration writes the generation and segments of a fake ledger, with the next
// BEAT.
func (s *shop) setGeneration(text string) {
	s.t.Helper()
	s.beat++
	check(s.t, s.redis.Set(context.Background(), s.generationKey(), fmt.Sprintf("%s %d", text, s.beat), 0).Err())
}

// generation reads the current generation.
func (s *shop) generation() int {
	s.t.Helper()
	text, err := s.redis.Get(context.Background(), s.generationKey()).Result()
	check(s.t, err)
	number, _, _ := strings.Cut(text, " ")
	n, err := strconv.Atoi(number)
	check(s.t, err)
	return n
}

// count writes a count without units in flight, as the gate would. Its epoch is the n-th of the
// generation that is ahead generations after the current one.
func (s *shop) count(sku string, ahead, n, available int) {
	s.t.Helper()
	epoch := (s.generation()+ahead)<<28 + n
	check(s.t, s.redis.HSet(context.Background(), "holdfast:{"+s.ledger.String()+"}:count", sku, fmt.Sprintf("%d %d 0 0 0", epoch, available)).Err())
}

var client = &http.Client{Timeout: testenv.Patience, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// answer is the answer to a request.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.status, a.body) }

// call sends a request. Its body is JSON unless the headers say otherwise.
func call(method, url, body string, headers ...string) (answer, error) {
	a, err := testenv.Call(context.Background(), client, method, url, body, headers...)
	return answer{a.Status, a.Header, string(a.Text)}, err
}

// order returns the body of an order. Its arguments are quantity, SKU, quantity,
// SKU and so on.
func order(lines ...any) string {
	var b strings.Builder
	for i := 0; i+1 < len(lines); i += 2 {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"sku":%q,"quantity":%d}`, lines[i+1], lines[i])
	}
	return `{"buyer_id":"u-1","lines":[` + b.String() + `]}`
}

// call sends a request that must be answered.
func (s *shop) call(method, url, body string, headers ...string) answer {
	s.t.Helper()
	a, err := call(method, url, body, headers...)
	check(s.t, err)
	return a
}

// place places an order through the gateway.
func (s *shop) place(body string, headers ...string) answer {
	s.t.Helper()
	return s.call("POST", s.url+"/orders", body, headers...)
}

// passed reports whether an instance gave the answer: the gateway marks answers of its own.
// The scenarios soldOut and metrics count what reaches the instances.
func (a answer) passed() bool { return a.header.Get("Proxy-Status") == "" }

// series returns the gateway's counters by name and labels.
func (s *shop) series() map[string]int {
	s.t.Helper()
	a := s.call("GET", s.url+"/gateway/metrics", "")
	if a.status != 200 {
		s.t.Fatalf("reading the metrics: %v", a)
	}
	found := make(map[string]int)
	for line := range strings.Lines(a.body) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), "} "); ok && line[0] != '#' {
			n, err := strconv.Atoi(value)
			check(s.t, err)
			found[name+"}"] = n
		}
	}
	return found
}

// ordersMetric selects only the counts of orders, because an instance has thousands of metrics.
const ordersMetric = "/metrics?name[]=holdfast_orders_total"

// placed returns the number of orders that reached the instances, whatever their
// result.
func (s *shop) placed() (sum float64) {
	s.t.Helper()
	for _, api := range s.instances {
		metrics := s.call("GET", api.URL()+ordersMetric, "", "Accept-Encoding", "identity")
		for line := range strings.Lines(metrics.body) {
			if !strings.HasPrefix(line, "holdfast_orders_total{") {
				continue
			}
			_, value, _ := strings.Cut(strings.TrimSpace(line), "} ")
			n, err := strconv.ParseFloat(value, 64)
			check(s.t, err)
			sum += n
		}
	}
	return sum
}

// setStock sets the total of a SKU directly at an instance, because the gateway refuses the call.
func (s *shop) setStock(sku string, total int) {
	s.t.Helper()
	a := s.call("PUT", s.instances[0].URL()+"/stock/"+sku, fmt.Sprintf(`{"kind":"product","total":%d}`, total))
	if a.status != 200 && a.status != 201 {
		s.t.Fatalf("setting the stock of %s to %d: %v", sku, total, a)
	}
}

// sell adds units and sells them all in one order, and waits until the SKU is at rest. Another
// scenario may have sold them already.
func (s *shop) sell(sku string, total int) {
	s.t.Helper()
	s.setStock(sku, total)
	if a := s.call("POST", s.instances[0].URL()+"/orders", order(total, sku)); a.status != 201 && a.status != 409 {
		s.t.Fatalf("selling %d of %s: %v", total, sku, a)
	}
	s.rest(sku)
}

// rest waits until no unit of the SKU is in flight and the gateway's cache of it has
// expired.
func (s *shop) rest(sku string) {
	s.t.Helper()
	testenv.AwaitSuccess(s.t, sku+" is at rest", func() error {
		a, err := call("GET", s.instances[0].URL()+"/stock/"+sku+"/audit", "")
		if err == nil && (!strings.Contains(a.body, `"gate_in_flight":0,`) || !strings.Contains(a.body, `"drift":0`)) {
			err = fmt.Errorf("the audit is %v", a)
		}
		return err
	})
	s.expireCache()
}

// expireCache waits until every count that the gateway has cached has expired. A test
// cannot observe that nginx drops an entry, so this must be a sleep.
func (s *shop) expireCache() { time.Sleep(s.ttl + 50*time.Millisecond) }

// expect places an order and checks the status of its answer, and whether it reached
// an instance.
func (s *shop) expect(status int, passed bool, body string, headers ...string) {
	s.t.Helper()
	check(s.t, s.answers(status, passed, body, headers...))
}

// answers is expect for a condition that a test waits for.
func (s *shop) answers(status int, passed bool, body string, headers ...string) error {
	a, err := call("POST", s.url+"/orders", body, headers...)
	if err == nil && (a.status != status || a.passed() != passed) {
		err = fmt.Errorf("%.200s %v: %v, reached an instance: %v; want %d, %v", body, headers, a, a.passed(), status, passed)
	}
	return err
}

// awaitAnswer waits until an order is answered as expect says.
func (s *shop) awaitAnswer(status int, passed bool, body string) {
	s.t.Helper()
	testenv.AwaitSuccess(s.t, "the answer changes", func() error { return s.answers(status, passed, body) })
}

// same checks that two answers to a request are the same, except headers that differ between
// any two answers.
func (s *shop) same(request string, a, b answer) {
	s.t.Helper()
	var diff bytes.Buffer
	if a.status != b.status || a.body != b.body {
		fmt.Fprintf(&diff, "%v instead of %v; ", a, b)
	}
	for _, own := range []string{"Date", "Server", "Connection"} {
		a.header.Del(own)
		b.header.Del(own)
	}
	for name := range a.header {
		if name != "X-Request-Id" && name != "Proxy-Status" && strings.Join(a.header[name], "|") != strings.Join(b.header[name], "|") {
			fmt.Fprintf(&diff, "%s: %q instead of %q; ", name, a.header[name], b.header[name])
		}
	}
	for name := range b.header {
		if len(a.header[name]) == 0 {
			fmt.Fprintf(&diff, "no %s; ", name)
		}
	}
	if diff.Len() > 0 {
		s.t.Fatalf("%.100s: %s", request, diff.String())
	}
}

// file writes a temporary file and returns its path.
func file(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}
