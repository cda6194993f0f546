package store

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
)

// Level says how bad a finding is.
type Level string

// The levels. A Problem breaks a promise of the service, or keeps it from working. A
// Warning costs speed or safety in some cases.
const (
	OK      Level = "ok"
	Warning Level = "warning"
	Problem Level = "problem"
)

// Finding is what an inspection says about one thing, in one line.
type Finding struct {
	Level  Level
	Detail string // what is so
	Mend   string // what to do about it; empty with OK
}

// Findings collects what an inspection finds.
type Findings []Finding

// OK adds that something is as it should be.
func (f *Findings) OK(format string, args ...any) {
	*f = append(*f, Finding{Level: OK, Detail: fmt.Sprintf(format, args...)})
}

// Warn adds a Warning.
func (f *Findings) Warn(mend, format string, args ...any) {
	*f = append(*f, Finding{Warning, fmt.Sprintf(format, args...), mend})
}

// Problem adds a Problem.
func (f *Findings) Problem(mend, format string, args ...any) {
	*f = append(*f, Finding{Problem, fmt.Sprintf(format, args...), mend})
}

// maxMemoryUse is the share of maxmemory above which a Redis is nearly full.
const maxMemoryUse = 0.8

// RedisUse is what an instance uses its Redis for.
type RedisUse struct {
	Queues bool // orders are queued in it
	Guard  bool // the ledger refuses what a wrong count admits
}

// InspectRedis returns what the masters of the client are, and which of their settings
// do not suit a gate that is used so. It changes nothing. If a master does not answer, that
// is a finding.
func InspectRedis(ctx context.Context, client redis.UniversalClient, use RedisUse) Findings {
	_, cluster := client.(*redis.ClusterClient)
	all, _ := askMasters(ctx, client, func(ctx context.Context, node *redis.Client) (Findings, error) {
		return inspectNode(ctx, node, cluster, use), nil
	}) // if no master is known, clusterState says so
	found := slices.Concat(all...)
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.Detail, b.Detail) }) // a cluster's masters answer in any order
	if cluster {
		found = append(found, clusterState(ctx, client)...)
	}
	if use.Queues {
		if warning := QueueWarning(ctx, client); warning != "" {
			found.Warn("see Queued orders in docs/operations.md", "%s", warning)
		}
	}
	return found
}

// inspectNode inspects one master.
func inspectNode(ctx context.Context, node *redis.Client, cluster bool, use RedisUse) (found Findings) {
	server, err := askRedis(ctx, node, "server", "memory", "replication", "persistence", "clients", "cluster")
	if err != nil {
		found.Problem("allow the command INFO, or check the server", "%v", err)
		return found
	}
	return server.inspect(cluster, use)
}

// inspect is inspectNode of a master that has answered.
func (s redisServer) inspect(cluster bool, use RedisUse) (found Findings) {
	address, fields := s.address, s.fields
	found.OK("%s %s at %s, %s, replicas: %s", s.engine.name, s.version, address, fields["role"], fields["connected_slaves"])
	found = append(found, s.unsafeSettings(use.Guard)...)
	switch {
	case fields["loading"] == "1":
		found.Problem("wait", "Redis at %s is loading its data and refuses commands", address)
	case fields["role"] == "slave":
		found.Problem("name the master, or use redis+sentinel://", "Redis at %s is a replica and refuses writes", address)
	case fields["cluster_enabled"] == "1" && !cluster:
		found.Problem("use redis+cluster://", "Redis at %s is a node of a cluster", address)
	}
	if use.Queues && olderThan(fields["redis_version"], 6, 2) {
		found.Problem("use Redis 6.2 or later", "Redis at %s is version %s, which cannot queue orders", address, fields["redis_version"])
	}
	if used, limit := number(fields["used_memory"]), number(fields["maxmemory"]); limit > 0 && used > maxMemoryUse*limit {
		found.Warn("raise maxmemory", "Redis at %s uses %.0f %% of its maxmemory; when it is full, no order can be taken", address, 100*used/limit)
	}
	if clients, limit := number(fields["connected_clients"]), number(fields["maxclients"]); limit > 0 && clients+redisPoolSize > limit {
		found.Warn("raise maxclients", "Redis at %s has %.0f of at most %.0f connections; an instance opens up to %d", address, clients, limit, redisPoolSize)
	}
	return found
}

// RedisWarnings returns warnings about unsafe settings of the client's masters,
// as sentences for a log. A server that cannot be reached, or does not report
// its settings, yields no warning.
func RedisWarnings(ctx context.Context, client redis.UniversalClient) (warnings []string) {
	servers, _ := redisServers(ctx, client, "memory") // the others have answered
	for _, s := range servers {
		for _, f := range s.unsafeSettings(true) {
			warnings = append(warnings, f.Detail+"; "+f.Mend)
		}
	}
	return warnings
}

// unsafeSettings returns what may make a master sell units twice, with or without the
// guard.
func (s redisServer) unsafeSettings(guard bool) (found Findings) {
	if policy := s.fields["maxmemory_policy"]; policy != "" && policy != "noeviction" {
		found.Problem("set it to noeviction", "Redis at %s runs with maxmemory-policy %s and may evict counts and takes in flight", s.address, policy)
	}
	switch text, refused := s.unsafeScripts(); {
	case text == "":
	case refused && !guard:
		found.Problem("set --guard on, or "+mendScripts, "%s", text)
	default:
		found.Warn(mendScripts, "%s", text)
	}
	return found
}

// clusterState returns whether the cluster serves all slots.
func clusterState(ctx context.Context, client redis.UniversalClient) (found Findings) {
	text, err := client.ClusterInfo(ctx).Result()
	switch {
	case err != nil:
		found.Problem("check the servers", "the state of the Redis Cluster cannot be read: %v", err)
	case !strings.Contains(text, "cluster_state:ok"):
		found.Problem("run redis-cli --cluster check", "the Redis Cluster does not serve all slots")
	}
	return found
}

// olderThan reports whether a version is before major.minor. A version that cannot be
// read is not.
func olderThan(version string, major, minor int) bool {
	var gotMajor, gotMinor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &gotMajor, &gotMinor); n < 2 {
		return false
	}
	return gotMajor < major || gotMajor == major && gotMinor < minor
}

// number parses a number that a server reports. 0: it is none.
func number(text string) float64 {
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0
	}
	return n
}

// Offset is how far the clock of a server is ahead of this machine's.
type Offset struct {
	Server string
	Ahead  time.Duration // at least, in either direction: less what the network may add
}

// offset returns how far a clock that was read between start and now is ahead, at least.
func offset(start, read time.Time) time.Duration {
	ahead, late := read.Sub(start), time.Until(read)
	switch { // without a network, both would be the same
	case late > 0:
		return late
	case ahead < 0:
		return ahead
	}
	return 0
}

// RedisOffsets reads the clocks of the client's masters.
func RedisOffsets(ctx context.Context, client redis.UniversalClient) ([]Offset, error) {
	return askMasters(ctx, client, func(ctx context.Context, node *redis.Client) (o Offset, err error) {
		start := time.Now()
		read, err := node.Time(ctx).Result()
		if err != nil {
			return o, fmt.Errorf("reading the clock of Redis at %s: %w", node.Options().Addr, err)
		}
		return Offset{"Redis at " + node.Options().Addr, offset(start, read)}, nil
	})
}

// Offset reads the clock of the database.
func (s *SQL) Offset(ctx context.Context) (Offset, error) {
	start := time.Now()
	read, err := s.Ledger().Now(ctx)
	if err != nil {
		return Offset{}, s.failed("reading the clock of", err)
	}
	return Offset{s.target, offset(start, read)}, nil
}

// Inspect returns what the database is, and which of its settings do not suit a ledger.
// It changes nothing. connections is how many connections an instance opens besides its
// pool.
func (s *SQL) Inspect(ctx context.Context, connections int) Findings {
	inspect := map[sqltx.Dialect]func(context.Context, int) (Findings, error){
		sqltx.MySQL: s.inspectMySQL, sqltx.Postgres: s.inspectPostgres, sqltx.SQLite: s.inspectSQLite,
	}[s.dialect]
	found, err := inspect(ctx, poolSize+connections)
	if err != nil {
		found.Problem("check the server and the rights of the user", "%v", s.failed("reading the settings of", err))
	}
	return found
}

// settings reads pairs of a name and a value.
func (s *SQL) settings(ctx context.Context, query string) (map[string]string, error) {
	pairs, err := s.pairs(ctx, query)
	values := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		values[pair[0]] = pair[1]
	}
	return values, err
}

// checkConnections compares the connections that an instance opens with those that the
// server has left.
func (f *Findings) checkConnections(target string, needed int, used, limit float64) {
	switch left := limit - used; {
	case limit <= 0:
	case limit < float64(needed):
		f.Problem("raise max_connections", "%s allows %.0f connections; an instance opens up to %d", target, limit, needed)
	case left < float64(needed):
		f.Warn("raise max_connections, unless other connections are about to end", "%s has %.0f of %.0f connections left; an instance opens up to %d", target, left, limit, needed)
	}
}
