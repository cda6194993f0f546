package store

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// RedisWarnings says what is unsafe in the configuration of the masters behind
// the client, in sentences for a log. A server that cannot tell, or cannot be
// reached, gives none.
func RedisWarnings(ctx context.Context, client redis.UniversalClient) []string {
	var (
		mu       sync.Mutex
		warnings []string
	)
	_ = eachMaster(ctx, client, func(ctx context.Context, node *redis.Client) error {
		about, err := info(ctx, node, "server", "memory")
		if err != nil {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		if policy := about["maxmemory_policy"]; policy != "" && policy != "noeviction" {
			warnings = append(warnings, fmt.Sprintf(
				"Redis at %s runs with maxmemory-policy %s and may forget counts and takes in flight; set it to noeviction",
				node.Options().Addr, policy))
		}
		if version := about["redis_version"]; keepsScripts(version) {
			warnings = append(warnings, fmt.Sprintf(
				"Redis at %s is version %s and keeps scripts over a restart; one that restarts from a snapshot is believed until its run ID is seen to have changed, about a second; use Redis 7 or later",
				node.Options().Addr, version))
		}
		return nil
	})
	slices.Sort(warnings)
	return warnings
}

// keepsScripts reports whether a server of the version saves scripts in its
// snapshots and copies them to replicas, as Redis did before 7.
func keepsScripts(version string) bool {
	major, err := strconv.Atoi(strings.SplitN(version, ".", 2)[0])
	return err == nil && major < 7
}

// WatchRedis calls changed whenever a master behind the client may have lost
// writes without another sign: it restarted, another server took its place, or
// its role or replication history changed. It looks every so often, and at
// once when the client has connected anew, until ctx ends; calls of changed do
// not overlap. A master out of reach is remembered and compared when it is
// back; one that could not be seen at the start counts as changed when it can.
// A server that does not say who it is (the embedded one) is not watched.
//
// WatchRedis leaves a hook in the client: call it once for each.
func WatchRedis(ctx context.Context, client redis.UniversalClient, every time.Duration, changed func()) {
	connected := make(chan struct{}, 1)
	watchDials(ctx, client, connected)

	ticker := time.NewTicker(every)
	defer ticker.Stop()
	w := watch{client: client, timeout: max(every, redisSilence)}
	for first := true; ; first = false {
		if w.look(ctx) && !first {
			changed()
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-connected:
		}
	}
}

// watch remembers who the masters were.
type watch struct {
	client  redis.UniversalClient
	timeout time.Duration
	known   map[string]identity // by address
}

// identity tells a master from its successor, and from itself after a restart
// or a spell as a replica.
type identity struct{ runID, role, history string }

// look compares the masters with those known, reports whether any differs, and
// remembers them.
func (w *watch) look(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	var (
		mu   sync.Mutex
		now  = make(map[string]identity)
		mute = make(map[string]bool)
	)
	err := eachMaster(ctx, w.client, func(ctx context.Context, node *redis.Client) error {
		who, err := identify(ctx, node)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			mute[node.Options().Addr] = true
			return nil
		}
		now[node.Options().Addr] = who
		return nil
	})
	if err != nil { // nobody says which nodes are masters
		return false
	}
	for address := range mute {
		if who, ok := w.known[address]; ok {
			now[address] = who
		}
	}
	differs := false
	for address, who := range now {
		differs = differs || w.known[address] != who
	}
	w.known = now
	return differs
}

var errAnonymous = errors.New("the server does not say who it is")

func identify(ctx context.Context, node *redis.Client) (identity, error) {
	sections, err := info(ctx, node, "server", "replication")
	if err != nil {
		return identity{}, err
	}
	who := identity{
		runID:   sections["run_id"],
		role:    sections["role"],
		history: sections["master_replid"],
	}
	if who.runID == "" {
		return identity{}, errAnonymous
	}
	return who, nil
}

// info reads sections of INFO on one connection.
func info(ctx context.Context, node *redis.Client, sections ...string) (map[string]string, error) {
	answers := make([]*redis.StringCmd, len(sections))
	_, err := node.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, section := range sections {
			answers[i] = p.Info(ctx, section)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	fields := make(map[string]string)
	for _, answer := range answers {
		for line := range strings.Lines(answer.Val()) {
			if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
				fields[name] = value
			}
		}
	}
	return fields, nil
}

// eachMaster calls f for every master behind the client, for those of a
// cluster at the same time.
func eachMaster(ctx context.Context, client redis.UniversalClient, f func(context.Context, *redis.Client) error) error {
	switch c := client.(type) {
	case *redis.ClusterClient:
		return c.ForEachMaster(ctx, f)
	case *redis.Client:
		return f(ctx, c)
	}
	return fmt.Errorf("a %T has no known masters", client)
}

// watchDials makes the client say when it connects to a server.
func watchDials(ctx context.Context, client redis.UniversalClient, connected chan<- struct{}) {
	hook := dialHook{connected}
	c, ok := client.(*redis.ClusterClient)
	if !ok {
		client.AddHook(hook)
		return
	}
	c.OnNewNode(func(node *redis.Client) { node.AddHook(hook) })
	_ = c.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error { // those it has already
		node.AddHook(hook)
		return nil
	})
}

type dialHook struct{ connected chan<- struct{} }

func (h dialHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := next(ctx, network, address)
		if err == nil {
			select {
			case h.connected <- struct{}{}:
			default: // it has been told and not looked yet
			}
		}
		return conn, err
	}
}

func (dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (dialHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
