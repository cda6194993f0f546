package backends_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	store.LogRedis(slog.New(slog.DiscardHandler)) // the test stops servers, whose failed dials would be logged
	os.Exit(testenv.Main(m))
}

// TestRedlockWithoutAServer opens the backend redlock while one and then two of three servers are
// down. Its locks last as long as --lease says.
func TestRedlockWithoutAServer(t *testing.T) {
	t.Parallel()
	servers := []*testenv.RedisServer{testenv.OwnRedis(t), testenv.OwnRedis(t), testenv.OwnRedis(t)}
	var addrs []string
	for _, server := range servers {
		addrs = append(addrs, server.Addr())
	}
	flags := backends.Flags{Backend: "redlock", Lease: 6 * time.Second, Redlock: strings.Join(addrs, ",")}
	servers[0].Kill()
	l, closeLocker, err := flags.Open(t.Context(), nil, "", nil)
	if err != nil {
		t.Fatalf("with one server down: %v", err)
	}
	lease, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	client := goredis.NewClient(&goredis.Options{Addr: addrs[1]})
	defer client.Close()
	if left := client.PTTL(t.Context(), "a").Val(); left <= 0 || left > flags.Lease {
		t.Errorf("the lock lasts %v, want at most %v", left, flags.Lease)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := closeLocker(); err != nil {
		t.Error(err)
	}
	if _, err := l.Lock(t.Context(), "a"); err == nil || !strings.Contains(err.Error(), goredis.ErrClosed.Error()) {
		t.Errorf("Lock after the clients were closed: %v", err)
	}
	servers[1].Kill()
	if _, _, err := flags.Open(t.Context(), nil, "", nil); err == nil ||
		!strings.Contains(err.Error(), addrs[0]) || !strings.Contains(err.Error(), addrs[1]) {
		t.Errorf("with two servers down: %v", err)
	}
}

// TestClose checks that a Locker that was closed has no session left in which it could lock.
func TestClose(t *testing.T) {
	t.Parallel()
	l, closeLocker, err := (&backends.Flags{Backend: "etcd", Lease: time.Minute, Etcd: testenv.Etcd(t)}).Open(t.Context(), nil, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	lease, err := l.Lock(t.Context(), "closed")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(lease.Unlock(t.Context()), closeLocker()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // the client retries for seconds
	defer cancel()
	if _, err := l.Lock(ctx, "closed"); err == nil {
		t.Error("a closed Locker has granted a lock")
	}
}
