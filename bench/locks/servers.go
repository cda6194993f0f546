package main

import (
	"context"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly/backendtest"
	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// servers are the servers of one backend.
type servers struct {
	backend string
	list    backendtest.Servers
}

func startServers(t testenv.T, backend string) servers {
	if backend != "postgres" {
		return servers{backend, backendtest.Start(t, backend)}
	}
	s := servers{backend, backendtest.InDatabase(t, testenv.OwnPostgres(t, "-c", "shared_preload_libraries=pg_stat_statements"))}
	if err := storetest.SQL(t, s.list[0].Addr()).DB().Exec("CREATE EXTENSION pg_stat_statements").Error; err != nil {
		t.Fatalf("counting the statements of PostgreSQL: %v", err)
	}
	return s
}

// counters are the totals of a backend's servers so far. NaN means that a counter is unknown.
type counters struct {
	requests float64 // received; of databases, statements
	commands float64 // executed by Redis, including those within scripts
}

// count reads the counters. sends are the Redis commands that the contestant sends
// itself: only these count as requests.
func (s servers) count(ctx context.Context, sends []string) (counters, error) {
	switch s.backend {
	case "redis", "redlock":
		return s.countRedis(ctx, sends)
	case "zookeeper":
		text, err := s.list[0].(*testenv.ZooKeeperServer).Monitor(ctx)
		return counters{known(measure.ParseCounters(text), "zk_packets_received"), math.NaN()}, err
	case "etcd":
		metrics, err := measure.Counters(ctx, "http://"+s.list[0].Addr()+"/metrics")
		// Count messages, not calls: watches and leases are streams of many messages.
		return counters{known(metrics, "grpc_server_msg_received_total"), math.NaN()}, err
	case "mysql":
		return s.countSQL(ctx, "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'Questions'")
	case "postgres": // PostgreSQL's other statement counters lag, because sessions report theirs late
		return s.countSQL(ctx, "SELECT SUM(calls) FROM pg_stat_statements")
	default:
		return counters{math.NaN(), math.NaN()}, nil
	}
}

// countSQL reads the number of statements that the server has executed.
func (s servers) countSQL(ctx context.Context, query string) (counters, error) {
	pool, err := store.OpenSessions(s.list[0].Addr())
	if err != nil {
		return counters{}, err
	}
	defer pool.Close()
	c := counters{commands: math.NaN()}
	err = pool.QueryRowContext(ctx, query).Scan(&c.requests)
	return c, err
}

// known returns the counter of this name, or NaN if there is none.
func known(all map[string]float64, name string) float64 {
	if value, ok := all[name]; ok {
		return value
	}
	return math.NaN()
}

func (s servers) countRedis(ctx context.Context, sends []string) (total counters, err error) {
	for _, addr := range s.list.Addrs() {
		client := redis.NewClient(&redis.Options{Addr: addr})
		info, err := client.InfoMap(ctx, "commandstats").Result()
		_ = client.Close()
		if err != nil {
			return total, err
		}
		c := addCommands(info["Commandstats"], sends)
		total.requests, total.commands = total.requests+c.requests, total.commands+c.commands
	}
	return total, nil
}

// overhead lists the commands that open a connection or read the counters.
var overhead = []string{"info", "hello", "client", "ping", "command", "auth", "select"}

// addCommands adds up the section commandstats of INFO. Its keys are like cmdstat_get,
// its values like calls=1,usec=2.
func addCommands(stats map[string]string, sends []string) (c counters) {
	for key, value := range stats {
		name, _, _ := strings.Cut(strings.TrimPrefix(key, "cmdstat_"), "|") // client|id is part of client
		first, _, _ := strings.Cut(value, ",")
		calls, err := strconv.ParseFloat(strings.TrimPrefix(first, "calls="), 64)
		if err != nil || slices.Contains(overhead, name) {
			continue
		}
		c.commands += calls
		if slices.Contains(sends, name) {
			c.requests += calls
		}
	}
	return c
}
