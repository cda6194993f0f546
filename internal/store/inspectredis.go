package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisUse describes how an instance uses its Redis.
type RedisUse struct {
	Queues bool // Redis holds queued orders
	Guard  bool // the ledger refuses orders that a wrong count admits
}

// InspectRedis checks the masters of the client. It reports what they are, and the settings that do
// not suit this use. It changes nothing. A master that does not answer is a finding too.
func InspectRedis(ctx context.Context, client redis.UniversalClient, use RedisUse) Findings {
	_, cluster := client.(*redis.ClusterClient)
	all, _ := askMasters(ctx, client, func(ctx context.Context, node *redis.Client) (Findings, error) {
		return inspectNode(ctx, node, cluster, use), nil
	}) // if no master is known, clusterState reports that
	found := slices.Concat(all...)
	// The masters of a cluster answer in any order.
	slices.SortFunc(found, func(a, b Finding) int { return strings.Compare(a.Detail, b.Detail) })
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
	server, err := askRedis(ctx, node, "memory", "replication", "persistence", "clients", "cluster")
	if err != nil {
		found.Problem("allow the command INFO, or check the server", "%v", err)
		return found
	}
	return server.inspect(cluster, use)
}

// inspect is inspectNode for a master that has answered.
func (s redisServer) inspect(cluster bool, use RedisUse) (found Findings) {
	address, fields := s.address, s.fields
	found.OK("%s %s at %s, %s, replicas: %s", s.engine.name, s.version, address, fields["role"], fields["connected_slaves"])
	found = append(found, s.unsafeSettings(use.Guard)...)
	switch {
	case fields["loading"] == "1":
		found.Problem("wait", "Redis at %s is loading its data and refuses commands", address)
	case fields["role"] == "slave":
		found.Problem("use the address of the master, or redis+sentinel://", "Redis at %s is a replica and refuses writes", address)
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
	servers, _ := redisServers(ctx, client, "memory") // use the answers of the other masters
	for _, s := range servers {
		for _, f := range s.unsafeSettings(true) {
			warnings = append(warnings, f.Detail+"; "+f.Fix)
		}
	}
	return warnings
}

// unsafeSettings returns the settings and facts that may make a master sell units twice, with or
// without the guard.
func (s redisServer) unsafeSettings(guard bool) (found Findings) {
	if policy := s.fields["maxmemory_policy"]; policy != "" && policy != "noeviction" {
		found.Problem("set it to noeviction", "Redis at %s runs with maxmemory-policy %s and may evict counts and takes in flight", s.address, policy)
	}
	switch text, refused := s.unsafeScripts(); {
	case text == "":
	case refused && !guard:
		found.Problem("set --guard on, or "+fixScripts, "%s", text)
	default:
		found.Warn(fixScripts, "%s", text)
	}
	return found
}

// clusterState reports whether the cluster serves all slots.
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

// maxMemoryUse is the share of maxmemory above which a Redis is nearly full.
const maxMemoryUse = 0.8

// olderThan reports whether a version is before major.minor. It returns false for a version that
// cannot be read.
func olderThan(version string, major, minor int) bool {
	var gotMajor, gotMinor int
	if n, _ := fmt.Sscanf(version, "%d.%d", &gotMajor, &gotMinor); n < 2 {
		return false
	}
	return gotMajor < major || gotMajor == major && gotMinor < minor
}
