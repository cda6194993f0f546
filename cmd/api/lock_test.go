package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// lockBackend is a backend that locks between instances.
type lockBackend struct {
	name       string
	stores     pair
	flags      func(t *testing.T) []string // flags that name the backend's servers
	strategies []string
}

func lockBackends() []lockBackend {
	none := func(*testing.T) []string { return nil }
	both := []string{"lock", "segment-lock"}
	return []lockBackend{
		{"redis", mariaDBAndRedis, none, both},
		{"redlock", mariaDBAndRedis, func(t *testing.T) []string {
			var independent []string
			for range 3 {
				independent = append(independent, testenv.OwnRedis(t).Addr())
			}
			return []string{"--redlock", strings.Join(independent, ",")}
		}, both},
		{"zookeeper", mariaDBAndRedis, func(t *testing.T) []string { return []string{"--zookeeper", testenv.ZooKeeper(t)} }, both},
		{"etcd", mariaDBAndRedis, func(t *testing.T) []string { return []string{"--etcd", testenv.Etcd(t)} }, both},
		{"mysql", mariaDBAndRedis, none, []string{"lock"}},
		{"postgres", postgresAndRedis, none, []string{"segment-lock"}},
	}
}

// TestLocks checks that two instances without the guard sell exactly 50 units to 16 clients, under
// every kind of lock. Unless the run is thorough, each kind of lock serves one strategy in turn,
// except those that TestLocks of loadtest covers.
func TestLocks(t *testing.T) {
	t.Parallel()
	for n, backend := range lockBackends() {
		if !testenv.Thorough() {
			if backend.name == "etcd" || backend.name == "redlock" {
				continue
			}
			backend.strategies = backend.strategies[n%len(backend.strategies):][:1]
		}
		t.Run(backend.name, func(t *testing.T) {
			t.Parallel()
			flags := append(migrated(t, backend.stores.flags(t)), "--guard", "off", "--lock", backend.name)
			flags = append(flags, backend.flags(t)...)
			for _, strategy := range backend.strategies {
				args := append([]string{"--strategy", strategy}, flags...)
				one, two := serveHere(t, args...), serveHere(t, args...)
				setStock(t, one.URL(), strategy, 50)
				c := rush(t.Context(), 16, strategy, one.URL(), two.URL())
				c.wait()
				c.checkStatuses(t, http.StatusCreated, http.StatusConflict, http.StatusServiceUnavailable)
				c.checkFound(t, two.URL())
				if a := waitAtRest(t, two.URL(), strategy); a.Sold != 50 || c.count.Load() != 50 {
					t.Errorf("%s: %+v after %d orders of one unit", strategy, a, c.count.Load())
				}
				if metrics := string(mustCall(t, http.StatusOK, http.MethodGet, one.URL()+"/metrics?name[]=holdfast_lock_requests_total", "")); strings.Contains(metrics, `holdfast_lock_requests_total{result="granted"} 0`) {
					t.Error("/metrics has no granted requests for locks")
				}
				for _, api := range []*service{one, two} {
					api.Interrupt()
					if code := api.Wait(); code != 0 {
						t.Errorf("exit code %d: %s", code, api.Output())
					}
				}
			}
		})
	}
}

// TestSegmentsOfACluster checks that the segments of a SKU are spread over all
// masters of a cluster.
func TestSegmentsOfACluster(t *testing.T) {
	t.Parallel()
	cluster := testenv.OwnRedisCluster(t, 0)
	args := migrated(t, []string{"--db", testenv.MariaDB(t), "--redis", cluster.URL(), "--strategy", "segment", "--segments", "12", "--guard", "off"})
	one, two := serveHere(t, args...), serveHere(t, args...)
	setStock(t, one.URL(), "hot", 100)
	c := rush(t.Context(), 32, "hot", one.URL(), two.URL())
	c.wait()
	c.checkFound(t, two.URL())
	if a := waitAtRest(t, two.URL(), "hot"); a.Sold != 100 || c.count.Load() != 100 {
		t.Errorf("%+v after %d orders of one unit", a, c.count.Load())
	}
	segments := 0
	for _, node := range cluster.Nodes {
		client := redis.NewClient(&redis.Options{Addr: node.Addr()})
		defer client.Close()
		counts, err := client.Keys(t.Context(), "*:hot/*}:count").Result()
		if err != nil {
			t.Fatal(err)
		}
		if len(counts) == 0 {
			t.Errorf("the master at %s has no segment", node.Addr())
		}
		segments += len(counts)
	}
	if segments != 12 {
		t.Errorf("%d segments, want 12", segments)
	}
}

// TestNearlyEmptySegments checks that orders of two units can be taken from
// several segments with one unit each, until one unit is left, and that units
// added afterwards sell too.
func TestNearlyEmptySegments(t *testing.T) {
	t.Parallel()
	for _, strategy := range []string{"segment", "segment-lock"} {
		t.Run(strategy, func(t *testing.T) {
			t.Parallel()
			args := migrated(t, append(mariaDBAndRedis.flags(t), "--strategy", strategy, "--segments", "8", "--guard", "off"))
			one, two := serveHere(t, args...), serveHere(t, args...)
			urls := []string{one.URL(), two.URL()}
			setStock(t, one.URL(), "pairs", 9)
			if got := orderPairs(t.Context(), t, urls); got != 4 {
				t.Errorf("%d orders of two from 9 units, want 4", got)
			}
			setStock(t, two.URL(), "pairs", 12) // adds 3 units
			if got := orderPairs(t.Context(), t, urls); got != 2 {
				t.Errorf("%d orders of two from 1 unit and 3 more, want 2", got)
			}
			setStock(t, one.URL(), "pairs", 14)
			setStock(t, two.URL(), "pairs", 13) // removes one of the two units
			if got := orderPairs(t.Context(), t, urls); got != 0 {
				t.Errorf("%d orders of two from 1 unit, want 0", got)
			}
			if a := waitAtRest(t, one.URL(), "pairs"); a.Sold != 12 || a.Oversold != 0 {
				t.Errorf("%+v", a)
			}
		})
	}
}

// orderPairs starts 16 clients that order two units at a time until they are
// answered "sold out". It returns the number of accepted orders.
func orderPairs(ctx context.Context, t *testing.T, urls []string) (accepted int) {
	t.Helper()
	var (
		all sync.WaitGroup
		mu  sync.Mutex
	)
	ctx, cancel := context.WithTimeout(ctx, testenv.Patience)
	defer cancel()
	for i := range 16 {
		all.Go(func() {
			for ctx.Err() == nil {
				body := fmt.Sprintf(`{"buyer_id":"buyer-%d","lines":[{"sku":"pairs","quantity":2}]}`, i)
				status, answer, err := call(ctx, http.MethodPost, urls[i%len(urls)]+"/orders", body)
				switch {
				case err != nil:
					t.Error(err)
					return
				case status == http.StatusCreated:
					mu.Lock()
					accepted++
					mu.Unlock()
				case status == http.StatusConflict:
					return
				case status == http.StatusServiceUnavailable:
					testenv.Dither()
				default:
					t.Errorf("%d: %s", status, answer)
					return
				}
			}
			t.Error("no order was answered \"sold out\"")
		})
	}
	all.Wait()
	return accepted
}
