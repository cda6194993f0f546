package main

import (
	"net/http"
	"strings"
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
