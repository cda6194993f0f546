package recipe_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// onRedis returns a Locker in Redis, and a function that deletes keys there.
func onRedis(t *testing.T) (l *redislock.Locker, remove func(key string)) {
	t.Helper()
	client := storetest.Redis(t, testenv.Redis(t))
	l = redislock.New(client, redislock.Options{Lease: 30 * time.Second})
	t.Cleanup(func() { _ = l.Close() })
	return l, func(key string) {
		if n, err := client.Del(t.Context(), key).Result(); n != 1 || err != nil {
			t.Errorf("%d keys of the lock were deleted, %v", n, err)
		}
	}
}

// TestTickOfAProcessThatStops lets a run succeed although its process is told to stop meanwhile.
// Its tick must be recorded, because otherwise another process would run the job again.
func TestTickOfAProcessThatStops(t *testing.T) {
	t.Parallel()
	l, _ := onRedis(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	const every = 24 * time.Hour
	job := recipe.Job{Name: uuid.NewString(), Locker: l, Ticks: l, Every: every, Log: slog.New(slog.DiscardHandler)}
	var ran time.Time
	job.Run = func(_ context.Context, tick time.Time, _ uint64) error {
		ran = tick
		stop()
		return nil
	}
	if err := job.Keep(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Keep returned %v", err)
	}
	last, err := l.LastTick(t.Context(), job.Name)
	if want := ran.UnixNano() / int64(every); err != nil || last != want {
		t.Errorf("the last tick is %d, %v; want %d", last, err, want)
	}
}

// TestLeadershipLostAtUnlock lets the leader's work return when the servers no longer have the
// lock, which the leader learns at Unlock. Another process may have led meanwhile, so Lead must try
// again.
func TestLeadershipLostAtUnlock(t *testing.T) {
	t.Parallel()
	l, remove := onRedis(t)
	name, done := "leader/"+uuid.NewString(), errors.New("done")
	terms := 0
	err := recipe.Lead(t.Context(), l, name, func(context.Context, uint64) error {
		if terms++; terms == 1 {
			remove(name)
			return nil
		}
		return done
	})
	if !errors.Is(err, done) || terms != 2 {
		t.Errorf("after %d terms Lead returned %v, want %v after 2", terms, err, done)
	}
}
