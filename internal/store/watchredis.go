package store

import (
	"context"
	"fmt"
	"maps"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// WatchRedis calls changed whenever a master of the client may have lost writes unnoticed. That is
// after a restart, a failover, or a change of its role or replication ID, and when it is no longer
// one of a cluster's masters. It polls the masters at the interval every, and also after each new
// connection of the client, until ctx ends. Calls of changed do not overlap.
//
// A master that could not be reached is compared with its last known state when it answers again. A
// master that has never answered counts as changed at its first answer.
//
// WatchRedis adds a hook to the client that cannot be removed, so call it once for a client.
func WatchRedis(ctx context.Context, client redis.UniversalClient, every time.Duration, changed func()) {
	connected := make(chan struct{}, 1)
	watchDials(ctx, client, connected)

	ticker := time.NewTicker(every)
	defer ticker.Stop()
	w := watch{client: client, timeout: max(every, redisTimeout)}
	for first := true; ; first = false {
		if w.poll(ctx) && !first {
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

// watch is the state of WatchRedis: the masters as last polled.
type watch struct {
	client  redis.UniversalClient
	timeout time.Duration
	known   map[string]identity // by address
}

// identity changes when a master is replaced, restarts, or becomes a replica and then a master
// again. The in-process Redis has no run ID and no replication ID.
type identity struct{ runID, role, replicationID string }

// poll reads the identities of the masters, stores them as known, and reports whether any of them
// has changed, or has joined or left.
func (w *watch) poll(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	type answer struct {
		address string
		id      identity
		err     error
	}
	// An error means that no master has ever been known.
	answers, _ := askMasters(ctx, w.client, func(ctx context.Context, node *redis.Client) (answer, error) {
		id, err := identify(ctx, node)
		return answer{node.Options().Addr, id, err}, nil
	})
	current := make(map[string]identity)
	for _, a := range answers {
		if a.err == nil {
			current[a.address] = a.id
		} else if id, ok := w.known[a.address]; ok {
			current[a.address] = id
		}
	}
	// A master that has left counts too. A cluster makes it a replica, which keeps its scripts. It
	// could be promoted later without some writes, and must not be able to run the generation then.
	differs := !maps.Equal(w.known, current)
	w.known = current
	return differs
}

// identify reads the identity of the node.
func identify(ctx context.Context, node *redis.Client) (identity, error) {
	fields, err := info(ctx, node, "server", "replication")
	if err != nil {
		return identity{}, err
	}
	return identity{fields["run_id"], fields["role"], fields["master_replid"]}, nil
}

// info returns the fields of these sections of INFO, read in one pipeline.
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

// askMasters calls ask for every master of the client, for the masters of a cluster concurrently.
// It returns the answers in any order. If some calls fail, err is the error of one of them.
func askMasters[T any](ctx context.Context, client redis.UniversalClient, ask func(context.Context, *redis.Client) (T, error)) (answers []T, err error) {
	var mu sync.Mutex
	each := func(ctx context.Context, node *redis.Client) error {
		answer, err := ask(ctx, node)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		answers = append(answers, answer)
		return nil
	}
	switch c := client.(type) {
	case *redis.ClusterClient:
		err = c.ForEachMaster(ctx, each)
	case *redis.Client:
		err = each(ctx, c)
	default:
		err = fmt.Errorf("a %T has no known masters", client)
	}
	return answers, err
}

// watchDials makes the client signal connected after each new connection.
func watchDials(ctx context.Context, client redis.UniversalClient, connected chan<- struct{}) {
	hook := dialHook{connected}
	c, ok := client.(*redis.ClusterClient)
	if !ok {
		client.AddHook(hook)
		return
	}
	c.OnNewNode(func(node *redis.Client) { node.AddHook(hook) })
	_ = c.ForEachShard(ctx, func(_ context.Context, node *redis.Client) error { // the nodes that were known before OnNewNode
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
			default: // a signal is pending already
			}
		}
		return conn, err
	}
}

func (dialHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (dialHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
