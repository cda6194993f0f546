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
	conn, _, err := zk.Connect([]string{addr}, 10*time.Second, zk.WithLogger(new(sessionTimeout)))
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

// TestCurator lets our Lockers and Curator's mutex, in Java, wait in one queue. Each mutex starts a
// Java machine, so only a thorough run checks more than the order: each kind then also waits for
// the other.
func TestCurator(t *testing.T) {
	t.Parallel()
	addr := testenv.ZooKeeper(t)
	const session = 10 * time.Second

	t.Run("locks are granted in the order of the requests", func(t *testing.T) {
		t.Parallel()
		const name = "fair"
		conn := connect(t, addr)
		javas := []*testenv.CuratorMutex{
			testenv.Curator(t, addr, Root+"/"+name, session),
			testenv.Curator(t, addr, Root+"/"+name, session),
		}
		for _, java := range javas {
			java.Ready()
		}
		ours := []*Locker{open(t, addr, session), open(t, addr, session)}
		lease := locktest.MustLock(t, open(t, addr, session), name)

		var mu sync.Mutex
		var order []string
		granted := func(contender string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, contender)
		}
		var done sync.WaitGroup
		want := []string{"Java 1", "ours 1", "Java 2", "ours 2"}
		for i := range 2 {
			javas[i].Send("acquire")
			waitForContenders(t, conn, name, 2+2*i)
			done.Go(func() {
				if err := javas[i].ReleaseOnGrant(func() { granted(want[2*i]) }); err != nil {
					t.Error(err)
				}
			})
			waiting := locktest.LockAsync(t.Context(), ours[i], name)
			waitForContenders(t, conn, name, 3+2*i)
			done.Go(func() {
				answer := <-waiting
				if answer.Err != nil {
					t.Error(answer.Err)
					return
				}
				granted(want[2*i+1])
				if err := answer.Lease.Unlock(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		mu.Lock()
		early := slices.Clone(order)
		mu.Unlock()
		if len(early) > 0 {
			t.Fatalf("granted before the holder's release: %v", early)
		}
		locktest.MustUnlock(t, lease)
		done.Wait()
		if !slices.Equal(order, want) {
			t.Errorf("granted in the order %v, want %v", order, want)
		}
	})

	if !testenv.Thorough() {
		return
	}

	t.Run("Java holder excludes ours", func(t *testing.T) {
		t.Parallel()
		conn := connect(t, addr)
		java := testenv.Curator(t, addr, Root+"/java-holds", session).Ready()
		ours := open(t, addr, session)
		java.Send("acquire")
		java.Expect("acquired")
		locktest.MustBeHeld(t, ours, "java-holds")
		waiting := locktest.LockAsync(t.Context(), ours, "java-holds")
		waitForContenders(t, conn, "java-holds", 2)
		locktest.MustWait(t, waiting)
		java.Send("release")
		java.Expect("released")
		locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
		java.Send("quit")
	})

	t.Run("our holder excludes Java", func(t *testing.T) {
		t.Parallel()
		conn := connect(t, addr)
		java := testenv.Curator(t, addr, Root+"/ours-holds", session).Ready()
		lease := locktest.MustLock(t, open(t, addr, session), "ours-holds")
		java.Send("acquire")
		waitForContenders(t, conn, "ours-holds", 2)
		java.ExpectNothing(300 * time.Millisecond)
		locktest.MustUnlock(t, lease)
		java.Expect("acquired")
		locktest.MustBeHeld(t, open(t, addr, session), "ours-holds")
		java.Send("release")
		java.Expect("released")
		java.Send("quit")
	})

	t.Run("killed Java holder", func(t *testing.T) {
		t.Parallel()
		const short = 4 * time.Second
		conn := connect(t, addr)
		java := testenv.Curator(t, addr, Root+"/java-dies", short).Ready()
		java.Send("acquire")
		java.Expect("acquired")
		waiting := locktest.LockAsync(t.Context(), open(t, addr, session), "java-dies")
		waitForContenders(t, conn, "java-dies", 2)
		java.Kill()
		granted := locktest.MustGrant(t, waiting)
		if left := contenders(t, conn, "java-dies"); len(left) != 1 {
			t.Errorf("contenders after the grant: %v, want only the new holder", left)
		}
		locktest.MustUnlock(t, granted.Lease)
	})
}
