package redis

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"
)

var (
	//go:embed show.lua
	showLua    string
	showScript = goredis.NewScript(showLua)
)

func shownKey(name string) string { return lockKey("holdfast_holders", name) }

// Show lists text under the name, beside the texts of other processes, until hide is called. It
// renews the text three times within a lease, so the text disappears as the lock of a dead process
// does. A lease of less than 10 ms is refused.
func (l *Locker) Show(ctx context.Context, name, text string) (hide func(context.Context), err error) {
	b, id := l.backend, uuid.NewString()
	if err := b.checkLease(); err != nil {
		return nil, fmt.Errorf("listing a holder of %s: %w", name, err)
	}
	show := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		return showScript.Run(ctx, b.client, []string{shownKey(name)}, id, text, b.lease.Milliseconds()).Err()
	}
	if err := show(ctx); err != nil {
		return nil, fmt.Errorf("listing a holder of %s: %w", name, err)
	}
	showing, stop := context.WithCancel(context.WithoutCancel(ctx))
	var again sync.WaitGroup
	again.Go(func() {
		tick := time.NewTicker(b.lease / renewalsPerLease)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_ = show(showing) // the next call may succeed
			case <-showing.Done():
				return
			}
		}
	})
	return func(ctx context.Context) {
		stop()
		again.Wait()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		_ = b.client.HDel(ctx, shownKey(name), id).Err() // if the deletion fails, the text expires
	}, nil
}

// Shown returns the texts that are listed under the name.
func (l *Locker) Shown(ctx context.Context, name string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	client := l.backend.client
	now, err := client.Time(ctx).Result()
	if err != nil {
		return nil, fmt.Errorf("listing the holders of %s: %w", name, err)
	}
	stored, err := client.HVals(ctx, shownKey(name)).Result()
	if err != nil {
		return nil, fmt.Errorf("listing the holders of %s: %w", name, err)
	}
	var texts []string
	for _, entry := range stored {
		end, text, _ := strings.Cut(entry, " ")
		if milliseconds, err := strconv.ParseInt(end, 10, 64); err == nil && milliseconds > now.UnixMilli() {
			texts = append(texts, text)
		}
	}
	return texts, nil
}
