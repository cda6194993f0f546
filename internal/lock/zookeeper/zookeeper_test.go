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
	ours := open(t, addr, 10*time.Second)
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

// TestTokensOfQueuedWaiters lets waiters of two processes take turns. Most of their
// nodes are created while the holder's node is deleted.
func TestTokensOfQueuedWaiters(t *testing.T) {
	t.Parallel()
	const name, waiters = "queued", 6
	addr := testenv.ZooKeeper(t)
	conn := connect(t, addr)
	processes := []*Locker{open(t, addr, 10*time.Second), open(t, addr, 10*time.Second)}
	lease := locktest.MustLock(t, processes[0], name)
	granted := make(chan locktest.Answer, waiters)
	for i := range waiters {
		go func() {
			lease, err := processes[i%2].Lock(t.Context(), name)
			granted <- locktest.Answer{Lease: lease, Err: err}
		}()
	}
	waitForContenders(t, conn, name, 2) // the holder and the other process's first waiter
	for range waiters {
		tokenIsCzxid(t, conn, name, lease)
		last := lease.Token()
		locktest.MustUnlock(t, lease)
		lease = locktest.MustGrant(t, granted).Lease
		if lease.Token() <= last {
			t.Errorf("token %d was followed by token %d", last, lease.Token())
		}
	}
	tokenIsCzxid(t, conn, name, lease)
	locktest.MustUnlock(t, lease)
}

// fourLetterWord sends the server one of its administrative commands.
func fourLetterWord(t *testing.T, addr, word string) string {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: 20 * time.Second}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
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
	lease := locktest.MustLock(t, open(t, addr, 10*time.Second), name)
	var waiting []<-chan locktest.Answer
	for i := range waiters { // an instance with its own session for each waiter
		waiting = append(waiting, locktest.LockAsync(t.Context(), open(t, addr, 10*time.Second), name))
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

// TestInvalidNames requests names that are not valid paths. The requests must fail at once and
// leave no node, not even at the lock that a cleaned path would name.
func TestInvalidNames(t *testing.T) {
	t.Parallel()
	addr := testenv.OwnZooKeeper(t).Addr()
	conn := connect(t, addr)
	ours := open(t, addr, 10*time.Second)
	valid := []string{"a", "b", "a/b"}
	for _, name := range valid { // creates the nodes of valid names
		locktest.MustUnlock(t, locktest.MustLock(t, ours, name))
	}
	for _, name := range []string{
		"", "/", "//", "a//b", "a/../b", "a/./b", ".", "..", "../locks/b", "a/..", "/b", "b/", "a\x00b", "a\nb", "a\u0085b",
	} {
		mustFailAtOnce(t, ours, name)
	}
	for _, name := range valid {
		for _, node := range contenders(t, conn, name) {
			if strings.Contains(node, nameMarker) {
				t.Errorf("a failed request has left the node %s at the lock %s", node, name)
			}
		}
		lease, err := ours.TryLock(t.Context(), name)
		if err != nil {
			t.Errorf("TryLock of %s afterwards: %v", name, err)
			continue
		}
		locktest.MustUnlock(t, lease)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = ours.Close()
	}()
	testenv.Receive(t, "Close returns", closed)
	if children, _, err := conn.Children(Root); err != nil || len(children) != 2 {
		t.Errorf("the children of %s are %v, %v; want a and b", Root, children, err)
	}
}

// mustFailAtOnce checks that Lock and TryLock fail, with an error
// that does not say that the lock is held or that the time is up.
func mustFailAtOnce(t *testing.T, l lock.Locker, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	for method, call := range map[string]func(context.Context, string) (lock.Lease, error){"TryLock": l.TryLock, "Lock": l.Lock} {
		lease, err := call(ctx, name)
		if err == nil {
			t.Errorf("%s granted %q", method, name)
			locktest.MustUnlock(t, lease)
		}
		if errors.Is(err, lock.ErrHeld) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s of %q: %v", method, name, err)
		}
	}
}

// TestNestedNames locks names that begin with another lock's name.
func TestNestedNames(t *testing.T) {
	t.Parallel()
	addr := testenv.ZooKeeper(t)
	conn := connect(t, addr)
	for i, below := range []string{"b", "lock-0", "a-lock--", "b/c/d"} {
		name := fmt.Sprintf("nested%d", i)
		ours, others := open(t, addr, 10*time.Second), open(t, addr, 10*time.Second)
		inner := locktest.MustLock(t, ours, name+"/"+below)
		if children := contenders(t, conn, name); len(children) != 1 {
			t.Fatalf("the children of %s are %v, want one", name, children)
		}
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		outer, err := ours.Lock(ctx, name)
		cancel()
		if err != nil {
			t.Errorf("Lock of %s while %s/%s is held: %v", name, name, below, err)
			locktest.MustUnlock(t, inner)
			continue
		}
		locktest.MustBeHeld(t, others, name)
		locktest.MustBeHeld(t, others, name+"/"+below)
		waiting := locktest.LockAsync(t.Context(), others, name)
		waitForContenders(t, conn, name, 3) // the holder, the waiter and the nested lock
		locktest.MustWait(t, waiting)
		locktest.MustUnlock(t, inner)
		locktest.MustWait(t, waiting)
		locktest.MustUnlock(t, outer)
		locktest.MustUnlock(t, locktest.MustGrant(t, waiting).Lease)
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

// TestCutDuringRelease cuts the connection while the holder's node is deleted and
// the next waiter's is created. The server must receive both requests although it
// has answered neither. The session must survive the cut, because its end would
// delete the nodes anyway.
func TestCutDuringRelease(t *testing.T) {
	t.Parallel()
	server := testenv.ZooKeeper(t)
	conn := connect(t, server)
	others := open(t, server, 10*time.Second)
	for _, test := range []struct {
		name     string
		executed bool // the server has executed the request
		lose     func(*testenv.Wire)
	}{
		{"request lost", false, func(w *testenv.Wire) { w.Freeze() }},
		{"answer lost", true, (*testenv.Wire).Mute},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("handed-over-%t", test.executed)
			wire := testenv.NewWire(t, server)
			ours := open(t, wire.Addr(), 10*time.Second)
			session := ours.backend.conn.SessionID()
			lease := locktest.MustLock(t, ours, name)
			holder := contenders(t, conn, name)
			waiting := locktest.LockAsync(t.Context(), ours, name)
			locktest.MustWait(t, waiting) // long enough to enter the queue of the process

			test.lose(wire)
			unlocked := make(chan error, 1)
			go func() { unlocked <- lease.Unlock(t.Context()) }()
			if test.executed {
				testenv.Await(t, "the server has executed both requests", func() bool {
					next := contenders(t, conn, name)
					return len(next) == 1 && next[0] != holder[0]
				})
			} else {
				testenv.Await(t, "the wire holds the requests back", wire.Holding)
				if left := contenders(t, conn, name); !slices.Equal(left, holder) {
					t.Fatalf("the server has executed a request: the contenders %v became %v", holder, left)
				}
			}
			mustCut(t, wire)
			wire.Thaw()
			if err := <-unlocked; err == nil {
				t.Error("Unlock returned no error though its answer was lost")
			}
			if answer := testenv.Receive(t, "the waiter's Lock returns", waiting); answer.Err != nil {
				t.Logf("the waiter's error: %v", answer.Err)
			} else {
				tokenIsCzxid(t, conn, name, answer.Lease)
				if err := answer.Lease.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrLost) {
					t.Error(err)
				}
			}
			waitForContenders(t, conn, name, 0)
			locktest.MustUnlock(t, locktest.MustLock(t, others, name))
			locktest.MustUnlock(t, locktest.MustLock(t, ours, name)) // by now the client knows whether its session continues
			mustKeepSession(t, ours, session)
		})
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
	ours := open(t, wire.Addr(), 10*time.Second)
	session := ours.backend.conn.SessionID()
	lease := locktest.MustLock(t, ours, "cut-off")
	mustCut(t, wire)
	locktest.MustBeLost(t, lease)
	// The requests of this lock follow those of suspend, if there are any.
	testenv.Await(t, "the client is connected again", func() bool { return ours.backend.conn.State() == zk.StateHasSession })
	locktest.MustUnlock(t, locktest.MustLock(t, ours, "ready"))
	mustKeepSession(t, ours, session)
	locktest.MustBeHeld(t, open(t, server, 10*time.Second), "cut-off")
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
	b := open(t, wire.Addr(), 10*time.Second).backend
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
	holder, err := New(t.Context(), addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	waiter, err := New(t.Context(), addr, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	lease := locktest.MustLock(t, holder, "closed")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := waiter.Lock(ctx, "closed"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Lock of a waiter whose time is up: %v", err)
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
	locktest.MustEndGoroutines(t, before)

	// A failed New leaves no goroutines either.
	ctx, cancelConnect := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancelConnect()
	if _, err := New(ctx, "127.0.0.1:1", 10*time.Second); !errors.Is(err, context.DeadlineExceeded) {
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
