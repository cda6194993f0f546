package zookeeper

import (
	"errors"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestWaiterOutlivesItsNode deletes the node, or ends the session, of a waiter that never held the
// lock. The waiter must continue to wait, in a new place, and get the lock.
func TestWaiterOutlivesItsNode(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		lease time.Duration
		end   func(t *testing.T, conn *zk.Conn, name string, wire *testenv.Wire, waiting <-chan locktest.Answer)
	}{
		{"node deleted", 30 * time.Second, func(t *testing.T, conn *zk.Conn, name string, _ *testenv.Wire, _ <-chan locktest.Answer) {
			if err := conn.Delete(Root+"/"+name+"/"+contenders(t, conn, name)[1], -1); err != nil {
				t.Fatal(err)
			}
		}},
		{"session expired", 2 * time.Second, func(t *testing.T, conn *zk.Conn, name string, wire *testenv.Wire, waiting <-chan locktest.Answer) {
			wire.Freeze()
			waitForContenders(t, conn, name, 1) // true when the server has ended the session
			wire.Thaw()
			testenv.Await(t, "the waiter has a new place, or its wait has ended", func() bool {
				return len(contenders(t, conn, name)) == 2 || len(waiting) > 0
			})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			addr, name := testenv.ZooKeeper(t), "waited-for-"+uuid.NewString()
			conn, wire := connect(t, addr), testenv.NewWire(t, addr)
			lease := locktest.MustLock(t, open(t, addr, 30*time.Second), name)
			waiter := open(t, wire.Addr(), test.lease)
			waiting := locktest.LockAsync(t.Context(), waiter, name)
			for tries := 1; ; tries++ {
				waitForContenders(t, conn, name, 2)
				testenv.Await(t, "the waiter watches the holder", func() bool { return len(watchers(t, addr, conn, name)) > 0 })
				test.end(t, conn, name, wire, waiting)
				if len(waiting) == 0 {
					break
				}
				// On a busy machine the connection may be lost once more, which ends the wait.
				a := <-waiting
				if cut := errors.Is(a.Err, zk.ErrConnectionClosed) || errors.Is(a.Err, zk.ErrNoServer); !cut || tries == 10 {
					t.Fatalf("the wait ended: %v", a.Err)
				}
				waiting = locktest.LockAsync(t.Context(), waiter, name)
			}
			locktest.MustUnlock(t, lease)
			locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
		})
	}
}
