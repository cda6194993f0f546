package gate

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Use makes the counter run under generation g from now on.
func (c *Counter) Use(g stock.Generation) { c.scripts.Store(newScripts(c.ledgerID, g)) }

// Load loads the generation's scripts into every master, once, and asks each for one answer. Only
// the caller that raised the ledger to g may call it, and only once, even after an error. A Redis
// that came back with old data after the first Load must not run g. A server that failed to load
// them answers stock.ErrNoGeneration later, and the ledger must then be raised to another
// generation.
//
// No other code sends the text of a script that reads or changes counts. A text that was sent
// again, for example by the client's fallback to EVAL, would let a server with old data run the
// generation.
func (c *Counter) Load(ctx context.Context, g stock.Generation) error {
	s := newScripts(c.ledgerID, g)
	err := eachMaster(ctx, c.client, func(ctx context.Context, node *redis.Client) error {
		pipe := node.Pipeline() // one pipeline, because a distant server would need a round trip for each script
		for _, script := range s.all() {
			_ = pipe.Process(ctx, command{Cmder: redis.NewStringCmd(ctx, "script", "load", script.text)}) // Process queues the command
		}
		_, err := pipe.Exec(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("loading the scripts of generation %d: %w", g, err)
	}
	return nil
}

// Loaded reports whether every master has the scripts of the generation in use.
func (c *Counter) Loaded(ctx context.Context) (bool, error) {
	args := []any{"script", "exists"}
	for _, script := range c.scripts.Load().all() {
		args = append(args, script.sha)
	}
	var missing atomic.Bool
	err := eachMaster(ctx, c.client, func(ctx context.Context, node *redis.Client) error {
		cmd := redis.NewBoolSliceCmd(ctx, args...)
		if err := node.Process(ctx, cmd); err != nil {
			return err
		}
		for _, exists := range cmd.Val() {
			if !exists {
				missing.Store(true)
			}
		}
		return nil
	})
	if missing.Load() {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("checking for the scripts of generation %d: %w", c.scripts.Load().generation, proven(err))
	}
	return true, nil
}

// eachMaster calls f for every master behind the client, and returns an error if
// one call failed. It calls f for all masters of a cluster at the same time.
func eachMaster(ctx context.Context, client redis.UniversalClient, f func(context.Context, *redis.Client) error) error {
	switch c := client.(type) {
	case *redis.ClusterClient:
		return c.ForEachMaster(ctx, f)
	case *redis.Client:
		return f(ctx, c)
	}
	return fmt.Errorf("finding the masters of a %T: unknown type of client", client)
}

func (c *Counter) markKey() string { return c.ledgerPrefix + "}:generation" }

// Mark returns the mark in Redis, or the zero Mark if there is none. An unreadable mark
// counts as missing, so that it is written again.
func (c *Counter) Mark(ctx context.Context) (m stock.Mark, err error) {
	text, err := c.client.Get(ctx, c.markKey()).Result()
	if errors.Is(err, redis.Nil) || redis.HasErrorPrefix(err, "WRONGTYPE") {
		return m, nil
	}
	if err != nil {
		return m, fmt.Errorf("reading the gate's mark: %w", proven(err))
	}
	var segments int
	if _, err := fmt.Sscanf(text, "%d %d %d", &m.Generation, &segments, &m.Beat); err != nil {
		return stock.Mark{}, nil
	}
	return m, nil
}

// markLua reads and changes no counts, so it need not belong to a generation.
//
//go:embed mark.lua
var markLua string

// SetMark replaces the mark in Redis, unless the mark there is of a later generation.
func (c *Counter) SetMark(ctx context.Context, m stock.Mark) error {
	rest := fmt.Sprintf("%d %d", c.layout.Segments, m.Beat)
	if err := c.client.Eval(ctx, markLua, []string{c.markKey()}, int64(m.Generation), rest, int64(stock.MaxGeneration)).Err(); err != nil {
		return fmt.Errorf("writing the gate's mark: %w", proven(err))
	}
	return nil
}
