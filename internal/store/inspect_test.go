package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// TestInspect_Unanswered checks that a store that does not answer is a finding.
func TestInspect_Unanswered(t *testing.T) {
	t.Parallel()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	forEachSQL(t, func(t *testing.T, dbURL string) {
		db := opened(t, dbURL)
		if found := db.Inspect(ended, 0); worst(found) != Problem {
			t.Errorf("found %+v", found)
		}
		if ahead, err := db.Offset(ended); err == nil {
			t.Errorf("%+v", ahead)
		}
		if e := db.Engine(ended); e.Replication != unknownEngine+", "+context.Canceled.Error() {
			t.Errorf("%+v", e)
		}
	})
	const reason = "not connected"
	fails := func(context.Context, string, string) (net.Conn, error) { return nil, errors.New(reason) }
	for _, client := range []redis.UniversalClient{
		redis.NewClient(&redis.Options{Addr: "nowhere:1", Dialer: fails}),
		redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"nowhere:1"}, Dialer: fails}),
	} {
		if found := InspectRedis(t.Context(), client, RedisUse{}); worst(found) != Problem || !strings.Contains(found[0].Detail, reason) {
			t.Errorf("%T: found %+v", client, found)
		}
		if ahead, err := RedisOffsets(t.Context(), client); err == nil {
			t.Errorf("%T: %+v", client, ahead)
		}
		if e := RedisEngine(t.Context(), client); e.Name != unknownEngine || !strings.Contains(e.Replication, reason) {
			t.Errorf("%T: %+v", client, e)
		}
		_ = client.Close()
	}
}

// TestOffset checks that the duration of a request does not count as an offset of either clock.
func TestOffset(t *testing.T) {
	t.Parallel()
	start := time.Now().Add(-2 * time.Second) // the answer took two seconds
	for _, test := range []struct {
		read        time.Duration // since the start
		least, most time.Duration
	}{
		{time.Second, 0, 0},
		{7 * time.Second, 4 * time.Second, 5 * time.Second},
		{-3 * time.Second, -3 * time.Second, -3 * time.Second},
	} {
		if got := offset(start, start.Add(test.read)); got < test.least || got > test.most {
			t.Errorf("read %v after the start: %v", test.read, got)
		}
	}
}

// TestOlderThan checks the comparison of versions.
func TestOlderThan(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"6.0.16": true, "5.0": true, "6.2.0": false, "7.0.15": false, "10.1": false, "": false, "unknown": false} {
		if got := olderThan(version, 6, 2); got != want {
			t.Errorf("%q: %v, want %v", version, got, want)
		}
	}
}

// TestRedisServer_Inspect checks the doctor's findings about a Redis by the fields of its INFO.
func TestRedisServer_Inspect(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		fields  string // NAME=VALUE
		cluster bool
		want    Level
		says    string
	}{
		{"role=master", false, OK, ""},
		{"loading=1", false, Problem, "is loading its data"},
		{"role=slave", false, Problem, "is a replica"},
		{"cluster_enabled=1", false, Problem, "is a node of a cluster"},
		{"cluster_enabled=1", true, OK, ""},
		{"redis_version=6.1.9", false, Problem, "cannot queue orders"},
		{"redis_version=6.2.0", false, OK, ""},
		{"maxmemory_policy=allkeys-lru", false, Problem, "may evict"},
		{"maxmemory=100 used_memory=80", false, OK, ""},
		{"maxmemory=100 used_memory=81", false, Warning, "uses 81 % of its maxmemory"},
		{"maxmemory=0 used_memory=81", false, OK, ""},
		{fmt.Sprintf("connected_clients=1 maxclients=%d", redisPoolSize+1), false, OK, ""},
		{fmt.Sprintf("connected_clients=2 maxclients=%d", redisPoolSize+1), false, Warning, "connections"},
	} {
		server := redisServer{address: "a", engine: redisEngines[0], version: "7.0.15", fields: map[string]string{}}
		for _, field := range strings.Fields(test.fields) {
			name, value, _ := strings.Cut(field, "=")
			server.fields[name] = value
		}
		found := server.inspect(test.cluster, RedisUse{Queues: true})
		if got := worst(found); got != test.want || !strings.Contains(fmt.Sprint(found), test.says) {
			t.Errorf("%s: %+v, want %s that says %q", test.fields, found, test.want, test.says)
		}
	}
}

// TestCheckConnections compares an instance that opens 10 connections with the free connections of
// the server.
func TestCheckConnections(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		used, limit float64
		want        Level
	}{
		{0, 0, OK}, {0, 9, Problem}, {0, 10, OK}, {1, 10, Warning}, {90, 100, OK}, {91, 100, Warning},
	} {
		var found Findings
		found.checkConnections("db", 10, test.used, test.limit)
		if got := worst(found); got != test.want {
			t.Errorf("%.0f of %.0f used: %+v, want %s", test.used, test.limit, found, test.want)
		}
	}
}

// TestDurability checks which settings of a database may lose commits.
func TestDurability(t *testing.T) {
	t.Parallel()
	const flushes = "innodb_flush_log_at_trx_commit="
	for _, test := range []struct {
		of       func(target string, settings map[string]string) Findings
		settings string
		want     Level
		says     string
	}{
		{mysqlDurability, flushes + "1 log_bin=ON sync_binlog=1 innodb_doublewrite=ON", OK, ""},
		{mysqlDurability, flushes + "1 log_bin=OFF sync_binlog=0", OK, ""},
		{mysqlDurability, flushes + "0", Problem, flushes + "0"},
		{mysqlDurability, flushes + "2", Problem, flushes + "2"},
		{mysqlDurability, flushes + "1 log_bin=ON sync_binlog=0", Warning, "sync_binlog=0"},
		{mysqlDurability, flushes + "1 innodb_doublewrite=OFF", Warning, "innodb_doublewrite"},
		{postgresDurability, "synchronous_commit=on fsync=on full_page_writes=on standbys=0", OK, ""},
		{postgresDurability, "synchronous_commit=local", OK, ""},
		{postgresDurability, "synchronous_commit=off", Problem, "synchronous_commit=off"},
		{postgresDurability, "fsync=off", Problem, "fsync"},
		{postgresDurability, "full_page_writes=off", Warning, "full_page_writes"},
		{postgresDurability, "synchronous_commit=local synchronous_standby_names=s standbys=1", Warning, "synchronous_commit=local"},
		{postgresDurability, "synchronous_commit=on synchronous_standby_names=s standbys=0", Problem, "no standby"},
		{postgresDurability, "synchronous_commit=on synchronous_standby_names=s standbys=1", OK, ""},
	} {
		settings := map[string]string{}
		for _, setting := range strings.Fields(test.settings) {
			name, value, _ := strings.Cut(setting, "=")
			settings[name] = value
		}
		found := test.of("db", settings)
		if got := worst(found); got != test.want || !strings.Contains(fmt.Sprint(found), test.says) {
			t.Errorf("%s: %+v, want %s that says %q", test.settings, found, test.want, test.says)
		}
	}
}
