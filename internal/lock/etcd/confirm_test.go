package etcd

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestConfirmTellsTheReason lets the key of a grant that nobody watches be deleted, by
// itself or with its session.
func TestConfirmTellsTheReason(t *testing.T) {
	t.Parallel()
	addr := testenv.Etcd(t)
	for _, test := range []struct {
		name   string
		delete func(ctx context.Context, g *grant) error
		want   error
	}{
		{"key", func(ctx context.Context, g *grant) error {
			_, err := g.backend.client.Delete(ctx, g.key)
			return err
		}, lock.ErrDeleted},
		{"session", func(ctx context.Context, g *grant) error {
			_, err := g.backend.client.Revoke(ctx, g.session.id)
			return err
		}, lock.ErrSessionExpired},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			b := newLocker(t, addr).backend // of its own: the next grant would take the session over
			acquired, err := b.Acquire(t.Context(), "confirmed-"+uuid.NewString(), false, func(error) {})
			if err != nil {
				t.Fatal(err)
			}
			g := acquired.(*grant)
			if err := test.delete(t.Context(), g); err != nil {
				t.Fatal(err)
			}
			if _, err := g.Confirm(t.Context()); !errors.Is(err, test.want) {
				t.Errorf("Confirm: %v, want %v", err, test.want)
			}
			_ = g.Release(t.Context())
		})
	}
}
