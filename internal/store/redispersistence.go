package store

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// QueueWarning describes the queued orders that the client's server may lose, as a sentence for a
// log. It is empty if the server writes every order to disk before it answers. The client must not
// be that of a cluster, which cannot queue.
func QueueWarning(ctx context.Context, client redis.UniversalClient) string {
	warnings, _ := askMasters(ctx, client, func(ctx context.Context, node *redis.Client) (string, error) { // fails only for a cluster
		loses := readPersistence(ctx, node).loses()
		if loses == "" {
			return "", nil
		}
		return fmt.Sprintf("Redis at %s %s; with appendonly yes and appendfsync always it loses none", node.Options().Addr, loses), nil
	})
	return strings.Join(warnings, "; ") // there is one
}

// persistence has a server's settings of persistence. An empty field could not be read.
type persistence struct {
	appendOnly string // yes or no
	sync       string // appendfsync: always, everysec or no
	snapshots  string // yes or no
}

// readPersistence reads the settings with CONFIG GET. Managed servers often forbid it. INFO then at
// least says whether there is an append-only file.
func readPersistence(ctx context.Context, node *redis.Client) (p persistence) {
	p.appendOnly, _ = setting(ctx, node, "appendonly")
	p.sync, _ = setting(ctx, node, "appendfsync")
	if points, ok := setting(ctx, node, "save"); ok {
		p.snapshots = "yes"
		if points == "" {
			p.snapshots = "no"
		}
	}
	if p.appendOnly == "" {
		if fields, err := info(ctx, node, "persistence"); err == nil {
			p.appendOnly = map[string]string{"0": "no", "1": "yes"}[fields["aof_enabled"]]
		}
	}
	return p
}

// setting reads one setting of the server. ok is false if the server does not return it.
func setting(ctx context.Context, node *redis.Client, name string) (value string, ok bool) {
	settings, err := node.ConfigGet(ctx, name).Result()
	if err != nil {
		return "", false
	}
	value, ok = settings[name]
	return value, ok
}

// loses describes the loss, as the end of a sentence about the server. It is empty if there is
// none.
func (p persistence) loses() string {
	switch {
	case p.appendOnly == "yes" && p.sync == "always":
		return ""
	case p.appendOnly == "yes" && p.sync == "everysec":
		return "runs with appendfsync everysec: a crash of Redis or of its machine loses about the last second of queued orders, at worst two"
	case p.appendOnly == "yes" && p.sync == "no":
		return "runs with appendfsync no: a crash of its machine loses the queued orders that the operating system has not written to disk, on Linux those of about 30 seconds"
	case p.appendOnly == "yes":
		return "runs with appendonly yes, but its appendfsync could not be read: unless that is always, a crash loses the latest queued orders"
	case p.appendOnly == "no" && p.snapshots == "yes":
		return "saves snapshots only: a crash loses the orders queued since the last snapshot"
	case p.appendOnly == "no" && p.snapshots == "no":
		return "saves nothing on disk: a restart loses every order that is still queued"
	case p.appendOnly == "no":
		return "runs with appendonly no, and its snapshots could not be read: a crash loses the orders queued since the last snapshot, and without snapshots every order that is still queued"
	}
	return "does not let its persistence be read: unless it runs with appendonly yes and appendfsync always, a crash loses queued orders"
}
