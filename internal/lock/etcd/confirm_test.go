package etcd

import (
	"context"
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestConfirmTellsTheReason revokes the session of a grant, and so deletes its key. The holder must
// learn the reason whether it confirms, watches or releases the grant.
func TestConfirmTellsTheReason(t *testing.T) {
	t.Parallel()
	b := newLocker(t, testenv.Etcd(t)).backend
	g := mustAcquire(t, b, "confirmed-"+uuid.NewString(), func(error) {})
	if _, err := b.client.Revoke(t.Context(), g.session.id); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Confirm(t.Context()); !errors.Is(err, lock.ErrSessionExpired) {
		t.Errorf("Confirm: %v, want %v", err, lock.ErrSessionExpired)
	}
	if err := g.Watch(t.Context()); !errors.Is(err, lock.ErrSessionExpired) {
		t.Errorf("Watch: %v, want %v", err, lock.ErrSessionExpired)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	if err := g.Watch(stopped); !errors.Is(err, context.Canceled) {
		t.Errorf("Watch that is stopped: %v", err)
	}
	if err := g.session.reasonOfDeletion(stopped); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("the reason without an answer of the servers: %v", err)
	}
	if err := g.Release(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Release: %v", err)
	}
	if err := g.session.end(); err != nil {
		t.Errorf("ending the session: %v", err)
	}
}

// TestConfirmAfterRelease confirms a grant that was released meanwhile. The next holder has its
// session, and so the same key. The session must no longer report its loss to the first grant.
func TestConfirmAfterRelease(t *testing.T) {
	t.Parallel()
	b := newLocker(t, testenv.Etcd(t)).backend
	name := "released-" + uuid.NewString()
	var grants [2]*grant
	for i := range grants {
		grants[i] = mustAcquire(t, b, name, func(error) {})
		if i == 0 {
			if err := grants[i].Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	first, next := grants[0], grants[1]
	if next.key != first.key {
		t.Fatalf("the keys are %s and %s, want the same", first.key, next.key)
	}
	if _, err := first.Confirm(t.Context()); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("Confirm of the first grant: %v, want %v", err, lock.ErrDeleted)
	}
	if first.stopReporting() {
		t.Error("the session still reports its loss to the first grant")
	}
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestReleaseOfALostSession releases a grant whose session is lost before the server knows of it.
// The holder must learn of the loss, and the key must be deleted with the session.
func TestReleaseOfALostSession(t *testing.T) {
	t.Parallel()
	b := newLocker(t, testenv.Etcd(t)).backend
	lost := make(chan error, 1)
	g := mustAcquire(t, b, "lost-"+uuid.NewString(), func(err error) { lost <- err })
	g.session.lose(lock.ErrExpired)
	if err := testenv.Receive(t, "the holder is told of the loss", lost); !errors.Is(err, lock.ErrExpired) {
		t.Errorf("the holder was told %v, want %v", err, lock.ErrExpired)
	}
	if err := g.Release(t.Context()); !errors.Is(err, lock.ErrExpired) {
		t.Errorf("Release: %v, want %v", err, lock.ErrExpired)
	}
	if found, err := b.client.Get(t.Context(), g.key); err != nil || found.Count != 0 {
		t.Errorf("the key was left: %v, %v", found, err)
	}
}
