package redis

import (
	"context"
	_ "embed"
	"errors"
	"fmt"

	goredis "github.com/redis/go-redis/v9"
)

var (
	//go:embed tick.lua
	tickLua    string
	tickScript = goredis.NewScript(tickLua)
)

func tickKey(job string) string { return lockKey("holdfast_tick", job) }

// LastTick returns the last recorded tick of the job, or 0 if there is none. A Redis that has lost
// its data has also lost the ticks.
func (l *Locker) LastTick(ctx context.Context, job string) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	tick, err := l.backend.client.Get(ctx, tickKey(job)).Int64()
	switch {
	case errors.Is(err, goredis.Nil):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("reading the last tick of %s: %w", job, err)
	}
	return tick, nil
}

// RecordTick records the tick unless the same tick or a later one is recorded.
func (l *Locker) RecordTick(ctx context.Context, job string, tick int64) (recorded bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	recorded, err = tickScript.Run(ctx, l.backend.client, []string{tickKey(job)}, tick).Bool()
	if err != nil {
		return false, fmt.Errorf("recording a tick of %s: %w", job, err)
	}
	return recorded, nil
}
