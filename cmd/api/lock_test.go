package main

import (
	"net/http"
	"regexp"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/assembly/backendtest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

var grantedLocks = regexp.MustCompile(`holdfast_lock_requests_total\{result="granted"\} [1-9]`)

// TestLocks checks that two instances without the guard sell exactly 50 units to 16 clients, under
// every kind of lock. Unless the run is thorough, it uses locks in Redis and in the database.
func TestLocks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		lock, strategy string
		stores         pair
	}{
		{"redis", "lock", mariaDBAndRedis},
		{"postgres", "segment-lock", postgresAndRedis},
		{"mysql", "lock", mariaDBAndRedis},
		{"redlock", "segment-lock", mariaDBAndRedis},
		{"zookeeper", "lock", mariaDBAndRedis},
		{"etcd", "segment-lock", mariaDBAndRedis},
	} {
		if !testenv.Thorough() && test.lock != "redis" && test.lock != "postgres" {
			continue
		}
		t.Run(test.lock, func(t *testing.T) {
			t.Parallel()
			args := append(migrated(t, test.stores.flags(t)), "--guard", "off", "--lock", test.lock, "--strategy", test.strategy)
			if backend, _ := backends.Find(test.lock); !slices.Contains(args, "--"+backend.Flag) { // the stores have no such locks
				args = append(args, backendtest.Flags(t, test.lock)...)
			}
			one, two := serveHere(t, args...), serveHere(t, args...)
			setStock(t, one.URL(), "hot", 50)
			c := rush(t.Context(), 16, "hot", one.URL(), two.URL())
			c.wait()
			c.checkStatuses(t, http.StatusCreated, http.StatusConflict, http.StatusServiceUnavailable)
			c.checkFound(t, two.URL())
			if a := waitAtRest(t, two.URL(), "hot"); a.Sold != 50 || c.count.Load() != 50 {
				t.Errorf("%+v after %d orders of one unit", a, c.count.Load())
			}
			if metrics := mustCall(t, http.StatusOK, http.MethodGet, one.URL()+"/metrics?name[]=holdfast_lock_requests_total", ""); !grantedLocks.Match(metrics) {
				t.Errorf("/metrics has no granted requests for locks: %s", metrics)
			}
			for _, api := range []*service{one, two} {
				api.Interrupt()
				if code := api.Wait(); code != 0 {
					t.Errorf("exit code %d: %s", code, api.Output())
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
