package zookeeper

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// connect returns a client that belongs to the test.
func connect(t *testing.T, addr string) *zk.Conn {
	t.Helper()
	conn, _, err := zk.Connect([]string{addr}, locktest.LongLease, zk.WithLogger(new(sessionTimeout)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func open(t *testing.T, addr string, lease time.Duration) *Locker {
	t.Helper()
	l, err := New(t.Context(), addr, lease)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// contenders returns the children of a lock's node in the order of their sequence
// numbers.
func contenders(t *testing.T, conn *zk.Conn, name string) []string {
	t.Helper()
	children, _, err := conn.Children(Root + "/" + name)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		t.Fatal(err)
	}
	slices.SortFunc(children, func(a, b string) int {
		return strings.Compare(a[max(0, len(a)-10):], b[max(0, len(b)-10):])
	})
	return children
}

// waitForContenders waits until the lock's node has n children.
func waitForContenders(t *testing.T, conn *zk.Conn, name string, n int) {
	t.Helper()
	testenv.Await(t, fmt.Sprintf("%s has %d contenders", name, n), func() bool { return len(contenders(t, conn, name)) == n })
}

// TestCurator lets our Lockers and Curator's mutex, in Java, wait in one queue. They must get the
// lock in the order of their requests.
func TestCurator(t *testing.T) {
	t.Parallel()
	const name = "fair"
	addr := testenv.ZooKeeper(t)
	conn := connect(t, addr)
	java := testenv.Curator(t, addr, Root+"/"+name, locktest.LongLease)
	lease := locktest.MustLock(t, open(t, addr, locktest.LongLease), name)
	var done sync.WaitGroup
	granted := make(chan string, 3)
	request := func(contender string) {
		waiting := locktest.LockAsync(t.Context(), open(t, addr, locktest.LongLease), name)
		done.Go(func() {
			answer := <-waiting
			if answer.Err != nil {
				t.Error(answer.Err)
				return
			}
			granted <- contender
			if err := answer.Lease.Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	request("ours")
	waitForContenders(t, conn, name, 2)
	if err := java.Acquire(); err != nil {
		t.Fatal(err)
	}
	done.Go(func() {
		if err := java.ReleaseOnGrant(func() { granted <- "Java" }); err != nil {
			t.Error(err)
		}
	})
	waitForContenders(t, conn, name, 3)
	request("ours again")
	waitForContenders(t, conn, name, 4)
	if len(granted) > 0 {
		t.Fatalf("%s was granted the lock before the holder's release", <-granted)
	}
	locktest.MustUnlock(t, lease)
	done.Wait()
	close(granted)
	var order []string
	for contender := range granted {
		order = append(order, contender)
	}
	if want := []string{"ours", "Java", "ours again"}; !slices.Equal(order, want) {
		t.Errorf("granted in the order %v, want %v", order, want)
	}
}
