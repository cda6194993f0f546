package store

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// openInProcessRedis starts an in-process Redis that is closed when the test ends.
func openInProcessRedis(t testing.TB) *InProcessRedis {
	t.Helper()
	r, err := OpenInProcessRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func TestOpenInProcessRedis_KeysExpire(t *testing.T) {
	t.Parallel()
	client := openInProcessRedis(t).Client()
	ctx := t.Context()
	const lifetime = 100 * time.Millisecond
	set := time.Now()
	if err := client.Set(ctx, "k", "v", lifetime).Err(); err != nil {
		t.Fatal(err)
	}
	if n := client.Exists(ctx, "k").Val(); n != 1 && time.Since(set) < lifetime {
		t.Error("the key has expired at once")
	}
	testenv.Await(t, "the key expires", func() bool { return client.Exists(ctx, "k").Val() == 0 })
	got, err := client.Eval(ctx, "return redis.call('TIME')[1]", nil).Int64()
	if err != nil || time.Since(time.Unix(got, 0)).Abs() > time.Minute {
		t.Errorf("TIME in a script: %d, error %v", got, err)
	}
}

func TestOpenInProcessRedis_RequiresPassword(t *testing.T) {
	t.Parallel()
	client := redis.NewClient(&redis.Options{Addr: openInProcessRedis(t).server.Addr()})
	defer client.Close()
	if err := client.Set(t.Context(), "k", "v", 0).Err(); err == nil {
		t.Error("a client without the password can write")
	}
}

func TestOpenEmbedded_MigratedThenRemovedByClose(t *testing.T) {
	t.Parallel()
	e, err := OpenEmbedded(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := e.SQL().CheckSchema(t.Context()); err != nil {
		t.Error(err)
	}
	checkRoundTrip(t, e.SQL())
	if err := e.Redis().Ping(t.Context()).Err(); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(e.folder)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("folder %v, error %v", info, err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(e.folder); !os.IsNotExist(err) {
		t.Errorf("after Close the folder still exists, or: %v", err)
	}
	if e.claim != nil && !errors.Is(e.claim.Close(), os.ErrClosed) {
		t.Error("after Close the file of the claim is open")
	}
	if err := e.Redis().Ping(t.Context()).Err(); err == nil {
		t.Error("Redis still answers after Close")
	}
}
