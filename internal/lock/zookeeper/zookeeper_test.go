package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"path"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestTokensRiseWithoutParent deletes the lock's node between grants, as a server
// does with an empty container. The sequence numbers then start again at 0.
func TestTokensRiseWithoutParent(t *testing.T) {
	t.Parallel()
	const name = "rising"
	addr := testenv.OwnZooKeeper(t).Addr()
	conn := connect(t, addr)
	ours := open(t, addr, locktest.LongLease)
	var last uint64
	grant := func(sequence string) {
		t.Helper()
		lease := locktest.MustLock(t, ours, name)
		if lease.Token() <= last {
			t.Errorf("token %d was followed by token %d", last, lease.Token())
		}
		last = lease.Token()
		tokenIsCzxid(t, conn, name, lease)
		nodes := contenders(t, conn, name)
		if len(nodes) != 1 || !strings.HasSuffix(nodes[0], nameMarker+sequence) {
			t.Fatalf("the contenders are %v, want one with the sequence number %s", nodes, sequence)
		}
		locktest.MustUnlock(t, lease)
	}
	for range 3 {
		grant("0000000000")
		grant("0000000001")
		grant("0000000002")
		if err := conn.Delete(Root+"/"+name, -1); err != nil {
			t.Fatal(err)
		}
	}
	// Locks must also work after Root and the node above Root were deleted.
	if err := errors.Join(conn.Delete(Root, -1), conn.Delete(path.Dir(Root), -1)); err != nil {
		t.Fatal(err)
	}
	grant("0000000000")
}

// tokenIsCzxid checks the token against the holder's node. Clients of other
// languages that share the fence read the same number from their nodes.
func tokenIsCzxid(t *testing.T, conn *zk.Conn, name string, holder lock.Lease) {
	t.Helper()
	_, stat, err := conn.Exists(Root + "/" + name + "/" + contenders(t, conn, name)[0])
	if err != nil {
		t.Fatal(err)
	}
	if holder.Token() != uint64(stat.Czxid) {
		t.Errorf("the token is %d, want the czxid %d of the holder's node", holder.Token(), stat.Czxid)
	}
}

// fourLetterWord sends the server one of its administrative commands.
func fourLetterWord(t *testing.T, addr, word string) string {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: testenv.Patience}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testenv.Patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, word); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(conn)
	if err != nil {
		t.Fatal(err)
	}
	return string(answer)
}

// watchers returns how many sessions watch each contender's node of the lock, without the session
// that owns the node. The answer to wchp has a line for each node, and below it a line with a tab
// for each session.
func watchers(t *testing.T, addr string, conn *zk.Conn, name string) map[string]int {
	t.Helper()
	watched := make(map[string]int)
	node, owner := "", ""
	for line := range strings.Lines(fourLetterWord(t, addr, "wchp")) {
		switch line = strings.TrimRight(line, "\n"); {
		case strings.HasPrefix(line, "\t"):
			if node != "" && strings.TrimPrefix(line, "\t") != owner {
				watched[node]++
			}
		case path.Dir(line) != Root+"/"+name:
			node = ""
		default:
			_, stat, err := conn.Exists(line)
			if err != nil {
				t.Fatal(err)
			}
			node, owner = line, fmt.Sprintf("0x%x", stat.EphemeralOwner)
		}
	}
	return watched
}

// TestWaitersWatchTheirPredecessor reads from the server which nodes are watched. Each release must
// wake only one waiter. A holder may also watch its own node.
func TestWaitersWatchTheirPredecessor(t *testing.T) {
	t.Parallel()
	const name, waiters = "watched", 5
	addr := testenv.ZooKeeper(t)
	conn := connect(t, addr)
	lease := locktest.MustLock(t, open(t, addr, locktest.LongLease), name)
	var waiting []<-chan locktest.Answer
	for i := range waiters { // an instance with its own session for each waiter
		waiting = append(waiting, locktest.LockAsync(t.Context(), open(t, addr, locktest.LongLease), name))
		waitForContenders(t, conn, name, 2+i)
	}
	for left := waiters; ; left-- {
		nodes := contenders(t, conn, name)
		if len(nodes) != left+1 {
			t.Fatalf("%d contenders, want a holder and %d waiters", len(nodes), left)
		}
		testenv.Await(t, "all waiters watch a node", func() bool { return len(watchers(t, addr, conn, name)) >= left })
		watched := watchers(t, addr, conn, name)
		for i, node := range nodes {
			want := 1
			if i == left { // the last contender
				want = 0
			}
			if n := watched[Root+"/"+name+"/"+node]; n != want {
				t.Errorf("with %d waiters: %d watch contender %d, want %d", left, n, i, want)
			}
		}
		if len(watched) != left {
			t.Errorf("with %d waiters: watched nodes %v, want %d", left, watched, left)
		}
		locktest.MustUnlock(t, lease)
		if left == 0 {
			return
		}
		lease = locktest.MustGrant(t, waiting[waiters-left]).Lease
	}
}

func mustCut(t *testing.T, wire *testenv.Wire) {
	t.Helper()
	if wire.Cut() == 0 {
		t.Fatal("there was no connection to cut")
	}
}

// mustKeepSession checks that the session is still the same. The end of a session would delete its
// nodes, and a test of their deletion would prove nothing.
func mustKeepSession(t *testing.T, l *Locker, session int64) {
	t.Helper()
	if now := l.backend.conn.SessionID(); now != session {
		t.Errorf("the session %x was replaced by %x", session, now)
	}
}

// TestLostConnectionEndsLeases cuts a holder's connection. The holder cannot know whether its
// session continues, so its lease must end. Its work may continue until it unlocks, so no other
// contender may get the lock before.
func TestLostConnectionEndsLeases(t *testing.T) {
	t.Parallel()
	server := testenv.ZooKeeper(t)
	conn := connect(t, server)
	wire := testenv.NewWire(t, server)
	ours := open(t, wire.Addr(), locktest.LongLease)
	session := ours.backend.conn.SessionID()
	lease := locktest.MustLock(t, ours, "cut-off")
	mustCut(t, wire)
	locktest.MustBeLost(t, lease)
	// The requests of this lock follow those of suspend, if there are any.
	testenv.Await(t, "the client is connected again", func() bool { return ours.backend.conn.State() == zk.StateHasSession })
	locktest.MustUnlock(t, locktest.MustLock(t, ours, "ready"))
	mustKeepSession(t, ours, session)
	locktest.MustBeHeld(t, open(t, server, locktest.LongLease), "cut-off")
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock of a lost lease: %v", err)
	}
	waitForContenders(t, conn, "cut-off", 0)
	locktest.MustUnlock(t, locktest.MustLock(t, ours, "ready")) // the session has not ended in between
	mustKeepSession(t, ours, session)
}

// TestSuspendedWhileListing suspends the session and deletes the contender's node while a list that
// shows the contender as the first is under way. That list must not grant the lock.
func TestSuspendedWhileListing(t *testing.T) {
	t.Parallel()
	server := testenv.ZooKeeper(t)
	wire := testenv.NewWire(t, server)
	b := open(t, wire.Addr(), locktest.LongLease).backend
	g := &grant{backend: b, parent: Root + "/suspended", guid: uuid.NewString()}
	if err := g.createNode(nameMarker, Root, nil); err != nil {
		t.Fatal(err)
	}
	wire.Mute()
	answer := make(chan error, 1)
	go func() {
		predecessor, err := g.checkTurn()
		if err == nil {
			err = fmt.Errorf("the contender before is %q", predecessor)
		}
		answer <- err
	}()
	testenv.Await(t, "the server has listed the contenders", func() bool { return lastRequest(t, server, b) == "GETC" })
	if err := connect(t, server).Delete(g.path(g.node), -1); err != nil {
		t.Fatal(err)
	}
	b.suspend()
	wire.Thaw()
	if err := <-answer; !errors.Is(err, lock.ErrLost) {
		t.Errorf("checkTurn: %v, want %v", err, lock.ErrLost)
	}
	if b.removeHeld(g) {
		t.Error("the contender is recorded as the holder")
	}
}

// lastRequest returns the kind of the backend's last request that the server has processed, as
// abbreviated by the server.
func lastRequest(t *testing.T, addr string, b *backend) string {
	t.Helper()
	_, line, _ := strings.Cut(fourLetterWord(t, addr, "cons"), fmt.Sprintf("sid=0x%x,lop=", b.conn.SessionID()))
	kind, _, _ := strings.Cut(line, ",")
	return kind
}

// TestCloseEndsAllGoroutines is not parallel, so that no other test's goroutines
// run.
func TestCloseEndsAllGoroutines(t *testing.T) {
	addr := testenv.ZooKeeper(t)
	before := goleak.IgnoreCurrent()
	holder, err := New(t.Context(), addr, locktest.LongLease)
	if err != nil {
		t.Fatal(err)
	}
	waiter, err := New(t.Context(), addr, 0)
	if err != nil {
		t.Fatal(err)
	}
	lease := locktest.MustLock(t, holder, "closed")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := waiter.Lock(ctx, "closed"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Lock of a waiter whose time is up: %v", err)
	}
	if timeout := waiter.backend.session.timeout(); timeout != lock.DefaultLease {
		t.Errorf("a lease has %v, want %v", timeout, lock.DefaultLease)
	}
	kept := locktest.MustLock(t, waiter, "kept") // never unlocked
	locktest.MustUnlock(t, lease)
	waiting := locktest.LockAsync(t.Context(), holder, "kept")
	testenv.Await(t, "the waiter watches the holder", func() bool {
		holder.backend.mu.Lock()
		defer holder.backend.mu.Unlock()
		watched := slices.Collect(maps.Keys(holder.backend.watches))
		return slices.ContainsFunc(watched, func(node string) bool { return path.Dir(node) == Root+"/kept" })
	})
	if err := errors.Join(holder.Close(), waiter.Close()); err != nil {
		t.Error(err)
	}
	if answer := <-waiting; !errors.Is(answer.Err, zk.ErrClosing) {
		t.Errorf("Lock of a waiter whose Locker was closed: %v, want %v", answer.Err, zk.ErrClosing)
	}
	locktest.MustBeLost(t, kept)
	ran := false
	holder.backend.start(func() { ran = true })
	if !ran {
		t.Error("work that begins after Close runs in a goroutine, for which nobody waits")
	}
	locktest.MustEndGoroutines(t, before)

	// A failed New leaves no goroutines either.
	ctx, cancelConnect := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancelConnect()
	if _, err := New(ctx, "127.0.0.1:1", locktest.LongLease); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("New without a server: %v", err)
	}
	locktest.MustEndGoroutines(t, before)
}

// TestCloseEndsLeases closes a Locker whose server does not answer. The lease must have ended when
// Close returns.
func TestCloseEndsLeases(t *testing.T) {
	t.Parallel()
	wire := testenv.NewWire(t, testenv.ZooKeeper(t))
	l := open(t, wire.Addr(), time.Minute)
	held := locktest.MustLock(t, l, "closed-silently")
	wire.Freeze()
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if held.Context().Err() == nil {
		t.Error("the lease has not ended")
	}
}

// watches returns the number of watches in the client library of the Locker.
func watches(l *Locker) (n int) {
	byPath := reflect.ValueOf(l.backend.conn).Elem().FieldByName("watchers")
	for each := byPath.MapRange(); each.Next(); {
		n += each.Value().Len()
	}
	return n
}

// TestAbandonedWaitsShareAWatch makes waiters for a held lock give up. The library cannot end a
// watch before it fires, so the waiters must share one.
func TestAbandonedWaitsShareAWatch(t *testing.T) {
	t.Parallel()
	const name, waits = "given-up", 20
	addr := testenv.ZooKeeper(t)
	conn := connect(t, addr)
	holder, waiter := open(t, addr, lock.DefaultLease), open(t, addr, lock.DefaultLease)
	lease := locktest.MustLock(t, holder, name)
	for range waits {
		ctx, cancel := context.WithCancel(t.Context())
		waiting := locktest.LockAsync(ctx, waiter, name)
		testenv.Await(t, "the waiter watches the holder", func() bool {
			waiter.backend.mu.Lock()
			defer waiter.backend.mu.Unlock()
			return len(waiter.backend.watches) > 0
		})
		waitForContenders(t, conn, name, 2)
		cancel()
		if given := <-waiting; !errors.Is(given.Err, context.Canceled) {
			t.Fatalf("a cancelled wait: %v", given.Err)
		}
	}
	if n := watches(waiter); n != 1 {
		t.Errorf("%d waits have left %d watches, want one that they share", waits, n)
	}
	waiting := locktest.LockAsync(t.Context(), waiter, name)
	locktest.MustWait(t, waiting)
	locktest.MustUnlock(t, lease)
	locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
	testenv.Await(t, "no watch is left", func() bool {
		waiter.backend.mu.Lock()
		defer waiter.backend.mu.Unlock()
		return len(waiter.backend.watches) == 0
	})
}
