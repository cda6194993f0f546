package redlock

import (
	"errors"
	"testing"

	goredis9 "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestConfirmTellsTheReason deletes a lock from all servers between two renewals.
func TestConfirmTellsTheReason(t *testing.T) {
	t.Parallel()
	var clients []goredis9.UniversalClient
	for range 3 {
		client := goredis9.NewClient(&goredis9.Options{Addr: testenv.OwnRedis(t).Addr()})
		t.Cleanup(func() { client.Close() })
		clients = append(clients, client)
	}
	l, err := New(clients, lock.DefaultLease)
	if err != nil {
		t.Fatal(err)
	}
	lease := locktest.MustLock(t, l, "confirmed")
	for _, client := range clients {
		if n, err := client.Del(t.Context(), "confirmed").Result(); n != 1 || err != nil {
			t.Fatalf("deleted %d, %v", n, err)
		}
	}
	if _, err := lease.(lock.Confirmer).Confirm(t.Context()); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("Confirm of a deleted lock: %v, want %v", err, lock.ErrDeleted)
	}
	_ = lease.Unlock(t.Context())
}
