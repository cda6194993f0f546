package locktest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// silentServers makes the servers stop answering while an instance requests locks and while it
// frees one. The instance must not wait for them. The locks must be free when they answer again,
// long before their leases end.
func silentServers(t *testing.T, r rig) {
	ctx := t.Context()
	other, err := r.open(ctx, r.addrs(), locktest.LongLease)
	if err != nil {
		t.Fatal(err)
	}
	instance, wire, err := r.OverWire(ctx, locktest.LongLease)
	if err != nil {
		t.Fatal(err)
	}
	prefix := "silent-" + uuid.NewString() + "-"
	held, err := instance.Lock(ctx, prefix+"unlocked")
	if err != nil {
		t.Fatal(err)
	}

	// These requests reach the servers late, and run in any order.
	var names []string
	wire.Freeze()
	var requests sync.WaitGroup
	for n := range 8 {
		name := fmt.Sprint(prefix, n)
		names = append(names, name)
		requests.Go(func() {
			limited, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
			defer cancel()
			if lease, err := instance.TryLock(limited, name); err == nil {
				t.Errorf("%s was granted by silent servers", name)
				_ = lease.Unlock(ctx)
			}
		})
	}
	requests.Wait()
	wire.Thaw()
	mustBeFree(ctx, t, other, names...)

	// A release that never reaches the servers.
	wire.Freeze()
	unlocked := make(chan error, 1)
	go func() { unlocked <- held.Unlock(ctx) }()
	if err := testenv.Receive(t, "Unlock returns although nothing answers", unlocked); err == nil {
		t.Error("silent servers have confirmed an Unlock")
	}
	wire.Cut()
	wire.Thaw()
	mustBeFree(ctx, t, other, prefix+"unlocked")
}

// mustBeFree checks that the locks can be taken long before a lease ends.
func mustBeFree(ctx context.Context, t *testing.T, l lock.Locker, names ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, testenv.Patience)
	defer cancel()
	for _, name := range names {
		lease, err := l.Lock(ctx, name)
		if err != nil {
			t.Fatalf("the servers answer again: %v", err)
		}
		_ = lease.Unlock(ctx)
	}
}
