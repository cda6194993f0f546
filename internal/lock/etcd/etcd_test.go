package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// newLocker returns a Locker whose leases are long enough for a busy machine to renew them.
func newLocker(t *testing.T, addr string) *Locker {
	t.Helper()
	return newLockerWith(t, addr, locktest.LongLease)
}

func newLockerWith(t *testing.T, addr string, lease time.Duration) *Locker {
	t.Helper()
	l, err := New(t.Context(), addr, lease)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// mustTakeSession returns a session as a request gets it.
func mustTakeSession(t *testing.T, b *backend) *session {
	t.Helper()
	s, err := b.takeSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// nextSession returns the session that the next request gets.
func nextSession(t *testing.T, l *Locker) *session {
	t.Helper()
	s := mustTakeSession(t, l.backend)
	l.backend.returnSession(s)
	return s
}

// mustAcquire takes the lock. lost is called when the grant is lost.
func mustAcquire(t *testing.T, b *backend, name string, lost func(error)) *grant {
	t.Helper()
	g, err := b.Acquire(t.Context(), name, false, lost)
	if err != nil {
		t.Fatal(err)
	}
	return g.(*grant)
}

// foreignSession returns a session for the client's own Mutex, with a client that
// belongs to the test.
func foreignSession(t *testing.T, addr string) *concurrency.Session {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: testenv.Patience, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	session, err := concurrency.NewSession(client, concurrency.WithTTL(30))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { session.Close() })
	return session
}

// waitForContenders waits until the lock has n contenders.
func waitForContenders(t *testing.T, s *concurrency.Session, name string, n int64) {
	t.Helper()
	testenv.Await(t, fmt.Sprintf("%s has %d contenders", name, n), func() bool {
		found, err := s.Client().Get(t.Context(), Prefix+name+"/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return found.Count == n
	})
}

// TestOneQueueWithTheClientsMutex lets our Lockers and the client's own Mutex contend. They must
// exclude each other, and get the lock in the order of their requests.
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

// TestPredecessorLeavesBeforeTheWatch ends the grant that a waiter waits for, after the waiter has
// written its key and before it watches the holder's key. Because sessions are reused, the former
// holder may also have written the same key again. Then it waits behind this waiter.
func TestPredecessorLeavesBeforeTheWatch(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("again=%t", again), func(t *testing.T) {
			t.Parallel()
			addr := testenv.Etcd(t)
			name := "left-" + uuid.NewString()
			ours, other := newLocker(t, addr), newLocker(t, addr)
			lease := locktest.MustLock(t, ours, name)
			waiter := other.backend.newGrant(mustTakeSession(t, other.backend), name)
			before, err := waiter.createKey(t.Context())
			if err != nil || before.created != int64(lease.Token()) {
				t.Fatalf("createKey returned %+v, %v; want the create revision %d", before, err, lease.Token())
			}
			locktest.MustUnlock(t, lease)
			var next <-chan locktest.Answer
			if again {
				next = locktest.LockAsync(t.Context(), ours, name)
				waitForContenders(t, foreignSession(t, addr), name, 2)
				if found, err := other.backend.client.Get(t.Context(), before.key); err != nil || entryIn(found).created <= waiter.token {
					t.Fatalf("the key %s was not written again: %v, %v", before.key, found, err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
			defer cancel()
			if err := waiter.waitForTurn(ctx, before); err != nil {
				t.Errorf("waitForTurn: %v", err)
			}
			if err := waiter.session.end(); err != nil { // deletes the waiter's key
				t.Error(err)
			}
			if again {
				locktest.MustUnlock(t, locktest.MustGrant(t, next).Lease)
			}
		})
	}
}

// waitForWatch waits until the server at addr has one watch.
func waitForWatch(t *testing.T, addr string) {
	t.Helper()
	testenv.Await(t, "the server has one watch", func() bool {
		response, err := http.Get("http://" + addr + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		metrics, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(metrics), "\netcd_debugging_mvcc_watcher_total 1\n")
	})
}

// TestWatchOfACompactedRevision compacts the revision at which a waiter's watch
// continues when its connection is cut. The server then ends the watch.
func TestWatchOfACompactedRevision(t *testing.T) {
	t.Parallel()
	addr := testenv.OwnEtcd(t).Addr()
	wire := testenv.NewWire(t, addr)
	ours, theirs := newLocker(t, wire.Addr()), foreignSession(t, addr)
	mutex := concurrency.NewMutex(theirs, Prefix+"compacted") // the Mutex does not watch its own key
	if err := mutex.Lock(t.Context()); err != nil {
		t.Fatal(err)
	}
	waiting := locktest.LockAsync(t.Context(), ours, "compacted")
	waitForWatch(t, addr)
	var revision int64
	for range 10 {
		put, err := theirs.Client().Put(t.Context(), "elsewhere", "")
		if err != nil {
			t.Fatal(err)
		}
		revision = put.Header.Revision
	}
	if _, err := theirs.Client().Compact(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	wire.Cut()
	if err := mutex.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
	if stream := ours.backend.watchStream.Load(); stream != 1 {
		t.Errorf("later watches use stream %d, want 1, the one after the failed watch", stream)
	}
}

// TestWatchWithoutLeader stops all other members of the cluster. The watch must fail, because the
// server would not learn of the deletion.
func TestWatchWithoutLeader(t *testing.T) {
	t.Parallel()
	members := testenv.OwnEtcdCluster(t, "--heartbeat-interval", "50", "--election-timeout", "500")
	ours := newLocker(t, members[0].Addr())
	put, err := ours.backend.client.Put(t.Context(), "watched", "")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- ours.backend.waitForDelete(t.Context(), entry{"watched", put.Header.Revision}) }()
	waitForWatch(t, members[0].Addr())
	for _, other := range members[1:] {
		other.Kill()
	}
	if err := testenv.Receive(t, "the watch ends", ended); !errors.Is(err, rpctypes.ErrNoLeader) {
		t.Errorf("the watch ended with %v, want %v", err, rpctypes.ErrNoLeader)
	}
}

// TestIdleSessionThatHasExpired ends the lease of an idle session while the process is stopped. The
// session may not have noticed the loss yet.
func TestIdleSessionThatHasExpired(t *testing.T) {
	t.Parallel()
	b := newLocker(t, testenv.Etcd(t)).backend
	for _, end := range []func(*session){
		func(s *session) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.until = time.Now()
		},
		func(s *session) { s.lose(lock.ErrSessionExpired) },
	} {
		expired := mustTakeSession(t, b)
		end(expired)
		b.returnSession(expired)
		next := mustTakeSession(t, b)
		if next == expired {
			t.Error("takeSession returned a session that has expired")
		}
		b.returnSession(next)
	}
}

// TestIdleSessionsAreBounded returns one session more than are kept. It must be ended.
func TestIdleSessionsAreBounded(t *testing.T) {
	t.Parallel()
	b := newLocker(t, testenv.Etcd(t)).backend
	var sessions [maxIdleSessions + 1]*session
	for i := range sessions {
		sessions[i] = mustTakeSession(t, b)
	}
	for i, s := range sessions {
		b.returnSession(s)
		if ended, want := s.ctx.Err() != nil, i == maxIdleSessions; ended != want {
			t.Errorf("session %d of %d was ended: %t", i+1, len(sessions), ended)
		}
	}
}

// TestKeyThatExists creates the contender's own key before the contender does. Such a key must not
// grant the lock.
func TestKeyThatExists(t *testing.T) {
	t.Parallel()
	l := newLocker(t, testenv.Etcd(t))
	name := "exists-" + uuid.NewString()
	key := l.backend.newGrant(nextSession(t, l), name).key
	if _, err := l.backend.client.Put(t.Context(), key, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := l.TryLock(t.Context(), name); err == nil || !strings.Contains(err.Error(), key+" already exists") {
		t.Errorf("TryLock: %v", err)
	}
	if _, err := l.backend.client.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
}

// TestIdleSessionThatWasRevoked lets an administrator revoke the lease of an idle session. The next
// holder must get another session.
func TestIdleSessionThatWasRevoked(t *testing.T) {
	t.Parallel()
	l := newLocker(t, testenv.Etcd(t))
	name := "revoked-" + uuid.NewString()
	locktest.MustUnlock(t, locktest.MustLock(t, l, name))
	idle := l.backend.idle[0]
	if _, err := l.backend.client.Revoke(t.Context(), idle.id); err != nil {
		t.Fatal(err)
	}
	lease, err := l.TryLock(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	locktest.MustUnlock(t, lease)
	if idle.ctx.Err() == nil {
		t.Error("the session whose lease was revoked goes on")
	}
}

// TestIdleSessionIsLostWhileItIsTaken loses an idle session while the next holder writes its key.
// The renewal may notice the loss before the write does. The holder must get another session.
func TestIdleSessionIsLostWhileItIsTaken(t *testing.T) {
	t.Parallel()
	wire := testenv.NewWire(t, testenv.Etcd(t))
	l := newLocker(t, wire.Addr())
	name := "taken-" + uuid.NewString()
	locktest.MustUnlock(t, locktest.MustLock(t, l, name))
	idle := l.backend.idle[0]
	wire.Freeze()
	answers := locktest.LockAsync(t.Context(), l, name)
	testenv.Await(t, "the session is taken", func() bool {
		l.backend.mu.Lock()
		defer l.backend.mu.Unlock()
		return len(l.backend.idle) == 0
	})
	idle.lose(lock.ErrSessionExpired)
	wire.Thaw()
	locktest.MustUnlock(t, locktest.MustGrant(t, answers).Lease)
}

// TestConfirmWithoutServer checks that Confirm does not repeat its requests until ctx ends.
func TestConfirmWithoutServer(t *testing.T) {
	t.Parallel()
	server := testenv.OwnEtcd(t)
	session := mustTakeSession(t, newLocker(t, server.Addr()).backend)
	if seconds, err := session.renewOnce(t.Context()); err != nil || time.Duration(seconds)*time.Second != locktest.LongLease {
		t.Errorf("renewOnce returned %d, %v; want %v", seconds, err, locktest.LongLease)
	}
	server.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	if _, err := session.renewOnce(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("renewOnce without a server: %v, want an error at once", err)
	}
}

// TestNewThatFails is not parallel: it checks that no connection and no goroutine is left.
func TestNewThatFails(t *testing.T) {
	for address, says := range map[string]string{
		"h1":                      "the address of etcd",
		"127.0.0.1:1":             "connecting to etcd at 127.0.0.1:1: no answer within ",
		"shop:p%40ss@127.0.0.1:1": "connecting to etcd at 127.0.0.1:1: no answer within ",
	} {
		before := goleak.IgnoreCurrent()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := New(ctx, address, 0); err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "p@ss") {
			t.Errorf("%s: %v, want an error that says %q", address, err, says)
		}
		locktest.MustEndGoroutines(t, before)
	}
	if _, err := connect(clientv3.Config{Username: "shop", Password: "p@ss"}); err == nil {
		t.Error("connect without servers returned no error")
	}
}

// TestCloseEndsAllGoroutines is not parallel, so that no other test's goroutines
// run.
func TestCloseEndsAllGoroutines(t *testing.T) {
	withUsers := testenv.OwnEtcd(t)
	enableAuth(t, clientv3.Config{Endpoints: []string{withUsers.Addr()}}, "holdfast/")
	for _, addr := range []string{testenv.Etcd(t), "shop:p%40ss@" + withUsers.Addr()} {
		before := goleak.IgnoreCurrent()
		l, err := New(t.Context(), addr, 0)
		if err != nil {
			t.Fatal(err)
		}
		if lease := time.Duration(l.backend.leaseSeconds) * time.Second; lease != lock.DefaultLease {
			t.Errorf("a lease has %v, want %v", lease, lock.DefaultLease)
		}
		for range 3 {
			locktest.MustUnlock(t, locktest.MustLock(t, l, "closed-"+uuid.NewString()))
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		locktest.MustBeClosed(t, &l.backend.failed)
		locktest.MustEndGoroutines(t, before)
	}
}
