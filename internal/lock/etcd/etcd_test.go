package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

func newLocker(t *testing.T, addr string) *Locker {
	t.Helper()
	l, err := New(t.Context(), []string{addr}, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// foreignSession returns a session for the client's own Mutex, with a client that
// belongs to the test.
func foreignSession(t *testing.T, addr string) *concurrency.Session {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	session, err := concurrency.NewSession(client, concurrency.WithTTL(5))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

// waitForContenders waits until the lock has n contenders.
func waitForContenders(t *testing.T, s *concurrency.Session, name string, n int64) {
	t.Helper()
	locktest.Eventually(t, fmt.Sprintf("%s has %d contenders", name, n), func() bool {
		found, err := s.Client().Get(t.Context(), Prefix+name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return found.Count == n
	})
}

// TestOneQueueWithTheClientsMutex lets our Lockers and the client's own Mutex
// contend. They must exclude each other, and be granted the lock in the order of
// their requests.
func TestOneQueueWithTheClientsMutex(t *testing.T) {
	t.Parallel()
	addr := testenv.Etcd(t)
	name := "both-" + uuid.NewString()
	ours, theirs := newLocker(t, addr), foreignSession(t, addr)
	lease := locktest.MustLock(t, ours, name)
	mutex := concurrency.NewMutex(theirs, Prefix+name)
	if err := mutex.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
		t.Fatalf("TryLock of the client's Mutex while our Locker holds the lock: %v", err)
	}
	granted := make(chan string, 3)
	errs := make(chan error, 3)
	contend := func(contender string, lock func() error, unlock func() error) {
		go func() {
			err := lock()
			if err == nil {
				granted <- contender
				err = unlock()
			}
			errs <- err
		}()
	}
	contend("theirs", func() error { return mutex.Lock(t.Context()) }, func() error { return mutex.Unlock(t.Context()) })
	waitForContenders(t, theirs, name, 2)
	second := newLocker(t, addr)
	var held lock.Lease
	contend("ours",
		func() (err error) { held, err = second.Lock(t.Context(), name); return err },
		func() error { return held.Unlock(t.Context()) })
	waitForContenders(t, theirs, name, 3)
	last := concurrency.NewMutex(foreignSession(t, addr), Prefix+name)
	contend("theirs again", func() error { return last.Lock(t.Context()) }, func() error { return last.Unlock(t.Context()) })
	waitForContenders(t, theirs, name, 4)
	locktest.MustUnlock(t, lease)
	for _, want := range []string{"theirs", "ours", "theirs again"} {
		if got := <-granted; got != want {
			t.Errorf("the next grant went to %q, want %q", got, want)
		}
	}
	for range 3 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	waitForContenders(t, theirs, name, 0)
}

// TestLeaseEndsWithSession revokes a holder's session at the server.
func TestLeaseEndsWithSession(t *testing.T) {
	t.Parallel()
	addr := testenv.Etcd(t)
	name := "revoked-" + uuid.NewString()
	ours, theirs := newLocker(t, addr), foreignSession(t, addr)
	lease := locktest.MustLock(t, ours, name)
	found, err := theirs.Client().Get(t.Context(), Prefix+name+"/", clientv3.WithPrefix())
	if err != nil || len(found.Kvs) != 1 {
		t.Fatalf("the keys of the lock: %v, %v; want one", found, err)
	}
	if revision := uint64(found.Kvs[0].CreateRevision); revision != lease.Token() {
		t.Errorf("the token is %d, want the create revision %d of the holder's key", lease.Token(), revision)
	}
	if _, err := theirs.Client().Revoke(t.Context(), clientv3.LeaseID(found.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	locktest.MustBeLost(t, lease, 10*time.Second)
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock of a lost lease: %v", err)
	}
}

func TestNewWithoutServer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := New(ctx, []string{"127.0.0.1:1"}, 0); err == nil {
		t.Error("New returned no error")
	}
}

// TestCloseEndsAllGoroutines is not parallel, so that no other test's goroutines
// run.
func TestCloseEndsAllGoroutines(t *testing.T) {
	addr := testenv.Etcd(t)
	before := goleak.IgnoreCurrent()
	l, err := New(t.Context(), []string{addr}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		locktest.MustUnlock(t, locktest.MustLock(t, l, "closed-"+uuid.NewString()))
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	goleak.VerifyNone(t, before)
}
