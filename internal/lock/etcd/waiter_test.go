package etcd

import (
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// waitInSession makes the Locker wait for the name, which is held, in the returned session.
func waitInSession(t *testing.T, l *Locker, name string) (*session, <-chan locktest.Answer) {
	t.Helper()
	s := nextSession(t, l)
	return s, locktest.LockAsync(t.Context(), l, name)
}

// mustEnd waits until the session has ended.
func mustEnd(t *testing.T, s *session) {
	t.Helper()
	testenv.Receive(t, "the session ends", s.ctx.Done())
}

// impatientClient returns a client that sends each request once. The default repeats it a hundred
// times while the servers have no leader.
func impatientClient(t *testing.T, addr string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}, DialTimeout: dialTimeout, MaxUnaryRetries: 1, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// TestWaiterOutlivesItsSession ends the session, or deletes the key, of a waiter that never held
// the lock. The waiter must continue to wait, in a new place, and get the lock.
func TestWaiterOutlivesItsSession(t *testing.T) {
	t.Parallel()
	const name = "waited-for"
	for _, test := range []struct {
		name    string
		members int
		lease   time.Duration // lease of the waiter
		end     func(t *testing.T, servers []*testenv.EtcdServer, waiter *session)
	}{
		{"servers unreachable for longer than the lease", 1, 5 * time.Second, func(t *testing.T, servers []*testenv.EtcdServer, waiter *session) {
			servers[0].Kill()
			mustEnd(t, waiter)
			servers[0].Restart()
		}},
		{"no leader for longer than the lease", 3, 5 * time.Second, func(t *testing.T, servers []*testenv.EtcdServer, waiter *session) {
			servers[1].Kill()
			servers[2].Kill()
			mustEnd(t, waiter)
			for range 2 { // meanwhile the server also refuses the waiter's next session
				if _, err := waiter.client.Grant(t.Context(), 5); !isAway(err) {
					t.Errorf("a new session without a leader: %v", err)
				}
			}
			servers[1].Restart()
		}},
		{"session revoked", 1, 6 * time.Second, func(t *testing.T, _ []*testenv.EtcdServer, waiter *session) {
			if _, err := waiter.client.Revoke(t.Context(), waiter.id); err != nil {
				t.Fatal(err)
			}
			mustEnd(t, waiter)
		}},
		{"key deleted", 1, locktest.LongLease, func(t *testing.T, _ []*testenv.EtcdServer, waiter *session) {
			// The waiter reads its own key when the one before it is deleted.
			if _, err := waiter.client.Delete(t.Context(), Prefix+name+"/", clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var servers []*testenv.EtcdServer
			if test.members == 1 {
				servers = append(servers, testenv.OwnEtcd(t))
			} else {
				servers = testenv.OwnEtcdCluster(t, "--heartbeat-interval", "50", "--election-timeout", "500")
			}
			addr := servers[0].Addr()
			holder, waiter := newLocker(t, addr), newLockerWith(t, addr, test.lease)
			waiter.backend.client = impatientClient(t, addr)
			lease := locktest.MustLock(t, holder, name)
			s, waiting := waitInSession(t, waiter, name)
			waitForContenders(t, foreignSession(t, addr), name, 2)
			test.end(t, servers, s)
			_ = lease.Unlock(t.Context()) // the lease may be lost, too
			locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
		})
	}
}
