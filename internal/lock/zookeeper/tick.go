package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/go-zookeeper/zk"
)

// ticksRoot returns the parent of the nodes whose data are the jobs' last ticks.
func (b *backend) ticksRoot() string { return b.base + "/ticks" }

func (b *backend) tickNode(job string) string { return b.ticksRoot() + "/" + url.PathEscape(job) }

// LastTick returns the last recorded tick of the job, or 0 if there is none.
func (l *Locker) LastTick(ctx context.Context, job string) (int64, error) {
	b, answer := l.backend, make(chan int64, 1)
	err := b.call(ctx, func() error {
		// Without Sync, a server that lags behind the leader could answer with an old tick.
		if _, err := b.conn.Sync(b.tickNode(job)); err != nil {
			return err
		}
		tick, _, err := b.readTick(b.tickNode(job))
		answer <- tick
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("reading the last tick of %s: %w", job, err)
	}
	return <-answer, nil
}

// readTick also returns the state of the node, or nil if there is no node.
func (b *backend) readTick(node string) (tick int64, stat *zk.Stat, err error) {
	text, stat, err := b.conn.Get(node)
	if errors.Is(err, zk.ErrNoNode) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, err
	}
	tick, err = strconv.ParseInt(string(text), 10, 64)
	return tick, stat, err
}

// RecordTick records the tick unless the same tick or a later one is recorded.
func (l *Locker) RecordTick(ctx context.Context, job string, tick int64) (recorded bool, err error) {
	answer := make(chan bool, 1)
	err = l.backend.call(ctx, func() error {
		recorded, err := l.backend.recordTick(ctx, l.backend.tickNode(job), tick)
		answer <- recorded
		return err
	})
	if err != nil {
		return false, fmt.Errorf("recording a tick of %s: %w", job, err)
	}
	return <-answer, nil
}

func (b *backend) recordTick(ctx context.Context, node string, tick int64) (recorded bool, err error) {
	for ctx.Err() == nil {
		last, stat, err := b.readTick(node)
		if err != nil || last >= tick {
			return false, err
		}
		text := []byte(strconv.FormatInt(tick, 10))
		if stat == nil {
			_, err = b.create(node, b.ticksRoot(), text, 0)
		} else {
			_, err = b.conn.Set(node, text, stat.Version)
		}
		if !errors.Is(err, zk.ErrBadVersion) && !errors.Is(err, zk.ErrNodeExists) {
			return err == nil, err
		}
		// Another process has recorded a tick.
	}
	return false, ctx.Err()
}
