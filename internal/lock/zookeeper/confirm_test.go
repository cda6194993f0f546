package zookeeper

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestConfirmTellsTheReason deletes the node of an unwatched grant. Watch and Release must report
// that, too.
func TestConfirmTellsTheReason(t *testing.T) {
	t.Parallel()
	b := open(t, testenv.ZooKeeper(t), locktest.LongLease).backend
	acquired, err := b.Acquire(t.Context(), "confirmed-"+uuid.NewString(), false, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	g := acquired.(*grant)
	if err := b.conn.Delete(g.path(g.node), -1); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Confirm(t.Context()); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("Confirm of a deleted lock: %v, want %v", err, lock.ErrDeleted)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := g.Watch(endsWhenAwaited{ctx, cancel}); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("Watch of a deleted lock: %v, want %v", err, lock.ErrDeleted)
	}
	if err := g.Release(t.Context()); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("Release of a deleted lock: %v, want %v", err, lock.ErrDeleted)
	}
}
