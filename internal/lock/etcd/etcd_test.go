package etcd

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/holdfast-stock/holdfast/internal/lock"
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

// foreign is a session of a program that uses the client's own Mutex.
func foreign(t *testing.T, addr string) *concurrency.Session {
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

// waiting waits until so many contend for the lock.
func waiting(t *testing.T, s *concurrency.Session, name string, contenders int64) {
	t.Helper()
	for {
		found, err := s.Client().Get(t.Context(), Prefix+name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		if found.Count == contenders {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestOneQueueWithTheClientsMutex: both exclude each other, and are granted the
// lock in the order of asking.
func TestOneQueueWithTheClientsMutex(t *testing.T) {
	t.Parallel()
	addr := testenv.Etcd(t)
	name := "both-" + uuid.NewString()
	ours, theirs := newLocker(t, addr), foreign(t, addr)
	lease, err := ours.Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	mutex := concurrency.NewMutex(theirs, Prefix+name)
	if err := mutex.TryLock(t.Context()); !errors.Is(err, concurrency.ErrLocked) {
		t.Fatalf("their TryLock while ours holds it: %v", err)
	}
	granted := make(chan string, 3)
	failed := make(chan error, 3)
	contend := func(who string, lock func() error, unlock func() error) {
		go func() {
			err := lock()
			if err == nil {
				granted <- who
				err = unlock()
			}
			failed <- err
		}()
	}
	contend("theirs", func() error { return mutex.Lock(t.Context()) }, func() error { return mutex.Unlock(t.Context()) })
	waiting(t, theirs, name, 2)
	second := newLocker(t, addr)
	var held lock.Lease
	contend("ours",
		func() (err error) { held, err = second.Lock(t.Context(), name); return err },
		func() error { return held.Unlock(t.Context()) })
	waiting(t, theirs, name, 3)
	last := concurrency.NewMutex(foreign(t, addr), Prefix+name)
	contend("theirs again", func() error { return last.Lock(t.Context()) }, func() error { return last.Unlock(t.Context()) })
	waiting(t, theirs, name, 4)
	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"theirs", "ours", "theirs again"} {
		if got := <-granted; got != want {
			t.Errorf("granted to %s, where %s was the next", got, want)
		}
	}
	for range 3 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}
	waiting(t, theirs, name, 0)
}

// TestLostWithItsSession: the server ends a holder's session.
func TestLostWithItsSession(t *testing.T) {
	t.Parallel()
	addr := testenv.Etcd(t)
	name := "revoked-" + uuid.NewString()
	ours, theirs := newLocker(t, addr), foreign(t, addr)
	lease, err := ours.Lock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	found, err := theirs.Client().Get(t.Context(), Prefix+name+"/", clientv3.WithPrefix())
	if err != nil || len(found.Kvs) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	if got := uint64(found.Kvs[0].CreateRevision); got != lease.Token() {
		t.Errorf("token %d of a key created at revision %d", lease.Token(), got)
	}
	if _, err := theirs.Client().Revoke(t.Context(), clientv3.LeaseID(found.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
	select {
	case <-lease.Context().Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the holder has not heard of it")
	}
	if !errors.Is(context.Cause(lease.Context()), lock.ErrLost) {
		t.Errorf("its context ended with %v", context.Cause(lease.Context()))
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("its Unlock: %v", err)
	}
}

// TestNoServer is told by New.
func TestNoServer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := New(ctx, []string{"127.0.0.1:1"}, 0); err == nil {
		t.Error("no error")
	}
}

// TestCloseEndsAllGoroutines runs alone, so that it sees its own only.
func TestCloseEndsAllGoroutines(t *testing.T) {
	addr := testenv.Etcd(t)
	before := goleak.IgnoreCurrent()
	l, err := New(t.Context(), []string{addr}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		lease, err := l.Lock(t.Context(), "closed-"+uuid.NewString())
		if err != nil {
			t.Fatal(err)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	goleak.VerifyNone(t, before)
}
