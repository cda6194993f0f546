package redis

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestConfirmTellsTheReason deletes a lock between two renewals.
func TestConfirmTellsTheReason(t *testing.T) {
	t.Parallel()
	client, name := storetest.Redis(t, testenv.Redis(t)), "confirmed-"+uuid.NewString()
	lease := locktest.MustLock(t, newLocker(t, client, Options{}), name)
	if err := client.Del(t.Context(), name).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := lease.(lock.Confirmer).Confirm(t.Context()); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("Confirm of a deleted lock: %v, want %v", err, lock.ErrDeleted)
	}
	_ = lease.Unlock(t.Context())
}
