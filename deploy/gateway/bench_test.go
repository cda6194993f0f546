package gateway

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// measured is the duration of each measurement, and clients the number of concurrent
// connections.
const (
	measured = 10 * time.Second
	clients  = 128
)

var (
	perSecond = regexp.MustCompile(`Requests/sec:\s+(\S+)`)
	median    = regexp.MustCompile(`(?m)^\s+50%\s+(\S+)`)
	late      = regexp.MustCompile(`(?m)^\s+99%\s+(\S+)`)
	requests  = regexp.MustCompile(`(\d+) requests in`)
	refusedBy = regexp.MustCompile(`sold out by the gateway (\d+), by the service (\d+)`)
	refusals  = regexp.MustCompile(`Non-2xx or 3xx responses: (\d+)`)
)

// BenchmarkSoldOut measures the rate of "sold out" answers from one instance, from
// nginx in front of two instances without the check, and from the gateway. It needs
// wrk and an idle machine:
//
//	go test -run '^$' -bench SoldOut -benchtime 1x ./deploy/gateway
func BenchmarkSoldOut(b *testing.B) {
	wrk, err := exec.LookPath("wrk")
	if err != nil {
		b.Skip("wrk is not installed: apt-get install wrk")
	}
	script := filepath.Join(b.TempDir(), "order.lua")
	text := fmt.Sprintf(`wrk.method = "POST"
wrk.path = "/orders"
wrk.headers["Content-Type"] = "application/json"
wrk.body = %q
`, order(1, "gone"))
	if err := os.WriteFile(script, []byte(text), 0o644); err != nil {
		b.Fatal(err)
	}
	db, redis := testenv.MariaDB(b), testenv.OwnRedis(b)
	checked := build(b, plan{db: db, redis: redis.URL()})
	checked.sell("gone", 1)
	unchecked := build(b, plan{db: db, redis: redis.URL(), environment: []string{"HOLDFAST_LEDGER_ID="}})
	for _, way := range []struct {
		name, url string
		shop      *shop
	}{
		{"instance", checked.instances[0].URL(), checked},
		{"proxy", unchecked.url, unchecked},
		{"gateway", checked.url, checked},
	} {
		b.Run(way.name, func(b *testing.B) {
			for range b.N {
				before := way.shop.placed()
				out, err := exec.Command(wrk, "-t", "2", "-c", strconv.Itoa(clients), "-d", strconv.Itoa(int(measured.Seconds()))+"s",
					"--latency", "-s", script, way.url).CombinedOutput()
				if err != nil {
					b.Fatalf("%v: %s", err, out)
				}
				after := way.shop.placed()
				if a, err := call("POST", way.url+"/orders", order(1, "gone")); err != nil || a.status != 409 {
					b.Fatalf("%v, %v", a, err)
				}
				reportWrk(b, out)
				b.ReportMetric(after-before, "reached")
			}
		})
	}
}

// reportWrk reports the rate and the latencies in the output of wrk. Every answer
// must be a refusal.
func reportWrk(b *testing.B, out []byte) {
	b.Helper()
	rate := perSecond.FindSubmatch(out)
	all, refused := requests.FindSubmatch(out), refusals.FindSubmatch(out)
	if rate == nil || all == nil || refused == nil || string(all[1]) != string(refused[1]) {
		b.Fatalf("not every answer is a refusal: %s", out)
	}
	n, err := strconv.ParseFloat(string(rate[1]), 64)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(n, "answers/s")
	for name, pattern := range map[string]*regexp.Regexp{"ms-p50": median, "ms-p99": late} {
		if d, err := time.ParseDuration(string(pattern.FindSubmatch(out)[1])); err == nil {
			b.ReportMetric(float64(d.Microseconds())/1000, name)
		}
	}
}

// BenchmarkRush sends the k6 rush through the gateway: buyers with a key each, the
// same with three repeats after a refusal, and buyers without keys. It reports how
// many orders the gateway and the service refused. The audit at an instance must
// agree. It builds k6:
//
//	go test -run '^$' -bench Rush -benchtime 1x ./deploy/gateway
func BenchmarkRush(b *testing.B) {
	const root = "../.."
	s := build(b, plan{})
	run := func(script string, environment ...string) []byte {
		cmd := exec.Command("go", "tool", "-modfile=tools/go.mod", "k6", "run", "--quiet", "--no-usage-report", "--address", "", "loadtest/k6/"+script)
		cmd.Dir = root
		cmd.Env = append(os.Environ(), environment...)
		out, err := cmd.CombinedOutput()
		if err != nil {
			b.Fatalf("%s: %v: %s", script, err, out)
		}
		return out
	}
	for _, way := range []struct {
		name        string
		environment []string
	}{
		{"keys", nil},
		{"keys-again", []string{"AGAIN=3"}},
		{"no-keys", []string{"KEYS=off"}},
	} {
		b.Run(way.name, func(b *testing.B) {
			for n := range b.N {
				environment := append([]string{
					"BASE_URL=" + s.url, "ADMIN_URL=" + s.instances[0].URL(), fmt.Sprintf("SKU=rush-%s-%d", way.name, n),
					"STOCK=300", "PEAK=300", "SECONDS=5", "P99=10000",
				}, way.environment...)
				out := run("rush.js", environment...)
				run("verify.js", environment...)
				refused := refusedBy.FindSubmatch(out)
				if refused == nil {
					b.Fatalf("the output does not count the refusals: %s", out)
				}
				for i, unit := range []string{"refused-by-gateway", "refused-by-service"} {
					n, err := strconv.ParseFloat(string(refused[i+1]), 64)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(n, unit)
				}
			}
		})
	}
}
