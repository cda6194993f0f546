package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"go.uber.org/goleak"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestTokensRiseWithoutTheirParent deletes the lock's node between grants, as a
// server does with an empty container. The sequence numbers then start again.
func TestTokensRiseWithoutTheirParent(t *testing.T) {
	t.Parallel()
	const name = "rising"
	addr := testenv.OwnZooKeeper(t).Addr()
	conn := watcher(t, addr)
	ours := open(t, addr, 10*time.Second)
	var last uint64
	grant := func(sequence string) {
		t.Helper()
		lease := locktest.MustLock(t, ours, name)
		if lease.Token() <= last {
			t.Errorf("token %d after %d", lease.Token(), last)
		}
		last = lease.Token()
		tokenIsCzxid(t, conn, name, lease)
		nodes := contenders(t, conn, name)
		if len(nodes) != 1 || !strings.HasSuffix(nodes[0], marker+sequence) {
			t.Fatalf("the holder's node is %v, and should have the sequence number %s", nodes, sequence)
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
	// All that is above it is no different.
	if err := errors.Join(conn.Delete(Root, -1), conn.Delete(path.Dir(Root), -1)); err != nil {
		t.Fatal(err)
	}
	grant("0000000000")
}

// tokenIsCzxid: others that share the fence read the number from their own nodes.
func tokenIsCzxid(t *testing.T, conn *zk.Conn, name string, holder lock.Lease) {
	t.Helper()
	_, stat, err := conn.Exists(Root + "/" + name + "/" + contenders(t, conn, name)[0])
	if err != nil {
		t.Fatal(err)
	}
	if holder.Token() != uint64(stat.Czxid) {
		t.Errorf("the token is %d, and the holder's node has the czxid %d", holder.Token(), stat.Czxid)
	}
}

// TestFollowersTokens has waiters of two processes take turns, so that most of
// their nodes are made by another's release.
func TestFollowersTokens(t *testing.T) {
	t.Parallel()
	const name, waiters = "followed", 6
	addr := testenv.OwnZooKeeper(t).Addr()
	conn := watcher(t, addr)
	processes := []*Locker{open(t, addr, 10*time.Second), open(t, addr, 10*time.Second)}
	lease := locktest.MustLock(t, processes[0], name)
	granted := make(chan granting, waiters)
	for i := range waiters {
		go func() {
			lease, err := processes[i%2].Lock(t.Context(), name)
			granted <- granting{lease: lease, err: err}
		}()
	}
	queued(t, conn, name, 2) // of each process one has a node
	for range waiters {
		tokenIsCzxid(t, conn, name, lease)
		last := lease.Token()
		locktest.MustUnlock(t, lease)
		lease = mustGrant(t, granted).lease
		if lease.Token() <= last {
			t.Errorf("token %d after %d", lease.Token(), last)
		}
	}
	tokenIsCzxid(t, conn, name, lease)
	locktest.MustUnlock(t, lease)
}

// ask sends the server one of its four-letter words.
func ask(t *testing.T, addr, word string) string {
	t.Helper()
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
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

// watches are how many sessions watch each node, by what wchp answers: a node a
// line, and below it a line with a tab for each session.
func watches(t *testing.T, addr string) map[string]int {
	t.Helper()
	watched := make(map[string]int)
	node := ""
	for line := range strings.Lines(ask(t, addr, "wchp")) {
		switch line = strings.TrimRight(line, "\n"); {
		case strings.HasPrefix(line, "\t"):
			watched[node]++
		case line != "":
			node = line
		}
	}
	return watched
}

// TestWaitersWatchTheirPredecessor wakes one waiter a release, not all.
func TestWaitersWatchTheirPredecessor(t *testing.T) {
	t.Parallel()
	const name, waiters = "watched", 5
	addr := testenv.OwnZooKeeper(t).Addr()
	conn := watcher(t, addr)
	lease := locktest.MustLock(t, open(t, addr, 10*time.Second), name)
	var granted []<-chan granting
	for i := range waiters { // each an instance with a session of its own
		granted = append(granted, lockLater(t, open(t, addr, 10*time.Second), name))
		queued(t, conn, name, 2+i)
	}
	for left := waiters; ; left-- {
		nodes := contenders(t, conn, name)
		if len(nodes) != left+1 {
			t.Fatalf("%d contenders, and there should be a holder and %d waiters", len(nodes), left)
		}
		eventually(t, "all waiters watch", func() bool { return len(watches(t, addr)) >= left })
		watched := watches(t, addr)
		for i, node := range nodes {
			want := 1
			if i == left { // the last comer
				want = 0
			}
			if n := watched[Root+"/"+name+"/"+node]; n != want {
				t.Errorf("%d waiters, of whom %d watch contender %d", left, n, i)
			}
		}
		if len(watched) != left {
			t.Errorf("%d waiters watch %v", left, watched)
		}
		locktest.MustUnlock(t, lease)
		if left == 0 {
			return
		}
		lease = mustGrant(t, granted[waiters-left]).lease
	}
}

// TestBadNames refuses what is no path of nodes, at once, and leaves nothing of
// it: not in the lock either that a careless reading would take it for.
func TestBadNames(t *testing.T) {
	t.Parallel()
	addr := testenv.OwnZooKeeper(t).Addr()
	conn := watcher(t, addr)
	ours := open(t, addr, 10*time.Second)
	for _, name := range []string{"a", "b", "a/b"} { // whose nodes are there then
		locktest.MustUnlock(t, locktest.MustLock(t, ours, name))
	}
	for _, name := range []string{
		"", "/", "//", "a//b", "a/../b", "a/./b", ".", "..", "../locks/b", "a/..", "/b", "b/", "a\x00b", "a\nb", "a\u0085b",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		asked := time.Now()
		for how, ask := range map[string]func(context.Context, string) (lock.Lease, error){"TryLock": ours.TryLock, "Lock": ours.Lock} {
			lease, err := ask(ctx, name)
			if err == nil {
				t.Errorf("%s grants %q", how, name)
				locktest.MustUnlock(t, lease)
			}
			if errors.Is(err, lock.ErrHeld) || errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s of %q: %v", how, name, err)
			}
		}
		if took := time.Since(asked); took > time.Second {
			t.Errorf("%q is refused only after %v", name, took)
		}
		cancel()
	}
	for _, name := range []string{"a", "b", "a/b"} {
		for _, node := range contenders(t, conn, name) {
			if strings.Contains(node, marker) {
				t.Errorf("a refused request has left %s at the lock %s", node, name)
			}
		}
		lease, err := ours.TryLock(t.Context(), name)
		if err != nil {
			t.Errorf("afterwards: %v", err)
			continue
		}
		locktest.MustUnlock(t, lease)
	}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		_ = ours.Close()
	}()
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Error("Close does not return")
	}
	if children, _, err := conn.Children(Root); err != nil || len(children) != 2 {
		t.Errorf("below %s there is %v, %v; it should be a and b", Root, children, err)
	}
}

// TestLockBelowLock has locks whose names begin with another's.
func TestLockBelowLock(t *testing.T) {
	t.Parallel()
	addr := testenv.OwnZooKeeper(t).Addr()
	conn := watcher(t, addr)
	for i, below := range []string{"b", "lock-0", "a-lock--", "b/c/d"} {
		name := fmt.Sprintf("a%d", i)
		ours, others := open(t, addr, 10*time.Second), open(t, addr, 10*time.Second)
		inner := locktest.MustLock(t, ours, name+"/"+below)
		if children := contenders(t, conn, name); len(children) != 1 {
			t.Fatalf("below %s there is %v", name, children)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		outer, err := ours.Lock(ctx, name)
		cancel()
		if err != nil {
			t.Errorf("with %s/%s held: %v", name, below, err)
			locktest.MustUnlock(t, inner)
			continue
		}
		refused(t, others, name)
		refused(t, others, name+"/"+below)
		granted := lockLater(t, others, name)
		queued(t, conn, name, 3) // the holder, the waiter and the lock below
		notGranted(t, granted, 50*time.Millisecond)
		locktest.MustUnlock(t, inner)
		notGranted(t, granted, 50*time.Millisecond)
		locktest.MustUnlock(t, outer)
		locktest.MustUnlock(t, mustGrant(t, granted).lease)
	}
}

// TestCutDuringLockLeavesNoNode cuts the connection at ten moments of a request.
// The session stays, so that no node goes by its end.
func TestCutDuringLockLeavesNoNode(t *testing.T) {
	t.Parallel()
	server := testenv.OwnZooKeeper(t)
	conn := watcher(t, server.Addr())
	holder := open(t, server.Addr(), 10*time.Second)
	const moments = 10
	for _, kind := range []string{"free", "held"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			wire := testenv.NewWire(t, server.Addr())
			ours := open(t, wire.Addr(), 10*time.Second)
			session := ours.backend.conn.SessionID()
			answers := make(map[string]int)
			took := time.Minute // for a request, the lock's node included
			for i := range 3 {
				asked := time.Now()
				lease := locktest.MustLock(t, ours, fmt.Sprintf("measured-%s-%d", kind, i))
				took = min(took, time.Since(asked))
				locktest.MustUnlock(t, lease)
			}
			for i := range moments {
				name := fmt.Sprintf("cut-%s-%d", kind, i)
				var held lock.Lease
				if kind == "held" {
					held = locktest.MustLock(t, holder, name)
				}
				locktest.MustUnlock(t, locktest.MustLock(t, ours, "ready")) // it is connected
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				answer := make(chan granting, 1)
				go func() {
					lease, err := ours.Lock(ctx, name)
					answer <- granting{lease, err, time.Now()}
				}()
				time.Sleep(took * time.Duration(i) / (moments - 1))
				if n := wire.Cut(); n == 0 {
					t.Fatal("there was no connection to cut")
				}
				cut := time.Now()
				if kind == "held" {
					// Waiting through it would be right as well: then it is asked to stop.
					time.AfterFunc(2*time.Second, cancel)
				}
				g := <-answer
				cancel()
				switch {
				case g.err != nil:
					answers["an error"]++
				default:
					answers["a grant"]++
					if err := g.lease.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrLost) {
						answers["an unlock's error"]++
					}
				}
				left := 0
				if held != nil {
					left = 1
				}
				eventually(t, "the connection is back", func() bool { return ours.backend.conn.State() == zk.StateHasSession })
				eventually(t, "no node is left", func() bool { return len(contenders(t, conn, name)) == left })
				if took := time.Since(cut); took > 8*time.Second {
					t.Errorf("%s: the node was gone only after %v, which the session's end may have done", name, took)
				}
				if held != nil {
					locktest.MustUnlock(t, held)
				}
				lease := locktest.MustLock(t, ours, name) // and nothing holds it up
				locktest.MustUnlock(t, lease)
			}
			if now := ours.backend.conn.SessionID(); now != session {
				t.Errorf("the session was %x and is %x: its nodes went with it", session, now)
			}
			if answers["an error"] == 0 {
				t.Error("no request was cut in two")
			}
			t.Logf("the requests had %v", answers)
		})
	}
}

// TestCutDuringHandOver cuts the connection while the transaction is under way that
// removes the holder's node and makes the next waiter's. The session stays, so
// that no node goes by its end.
func TestCutDuringHandOver(t *testing.T) {
	t.Parallel()
	server := testenv.OwnZooKeeper(t)
	conn := watcher(t, server.Addr())
	others := open(t, server.Addr(), 10*time.Second)
	for _, test := range []struct {
		name string
		seen bool // by the server
		lose func(*testenv.Wire)
	}{
		{"before the server sees it", false, func(w *testenv.Wire) { w.Freeze() }},
		{"before its answer arrives", true, (*testenv.Wire).Mute},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			name := fmt.Sprintf("handed-over-%t", test.seen)
			wire := testenv.NewWire(t, server.Addr())
			ours := open(t, wire.Addr(), 10*time.Second)
			session := ours.backend.conn.SessionID()
			lease := locktest.MustLock(t, ours, name)
			holder := contenders(t, conn, name)
			granted := lockLater(t, ours, name)
			notGranted(t, granted, 100*time.Millisecond) // it waits in the process, by now

			test.lose(wire)
			unlocked := make(chan error, 1)
			go func() { unlocked <- lease.Unlock(t.Context()) }()
			if test.seen {
				eventually(t, "the server has handed it over", func() bool {
					next := contenders(t, conn, name)
					return len(next) == 1 && next[0] != holder[0]
				})
			} else {
				time.Sleep(100 * time.Millisecond)
				if left := contenders(t, conn, name); !slices.Equal(left, holder) {
					t.Fatalf("the server has seen it: %v instead of %v", left, holder)
				}
			}
			if n := wire.Cut(); n == 0 {
				t.Fatal("there was no connection to cut")
			}
			cut := time.Now()
			wire.Thaw()
			if err := <-unlocked; err == nil {
				t.Error("Unlock does not tell that it has no answer")
			}
			select {
			case g := <-granted:
				if g.err != nil {
					t.Logf("the waiter has an error: %v", g.err)
					break
				}
				tokenIsCzxid(t, conn, name, g.lease)
				if err := g.lease.Unlock(t.Context()); err != nil && !errors.Is(err, lock.ErrLost) {
					t.Error(err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("the waiter has no answer")
			}
			queued(t, conn, name, 0)
			if took := time.Since(cut); took > 8*time.Second {
				t.Errorf("no node was left only after %v, which the session's end may have done", took)
			}
			locktest.MustUnlock(t, locktest.MustLock(t, others, name))
			if now := ours.backend.conn.SessionID(); now != session {
				t.Errorf("the session was %x and is %x: its nodes went with it", session, now)
			}
		})
	}
}

// TestLostConnectionEndsLeases cuts a holder off: nobody knows whether its
// session goes on.
func TestLostConnectionEndsLeases(t *testing.T) {
	t.Parallel()
	server := testenv.OwnZooKeeper(t)
	conn := watcher(t, server.Addr())
	wire := testenv.NewWire(t, server.Addr())
	lease := locktest.MustLock(t, open(t, wire.Addr(), 10*time.Second), "cut-off")
	if n := wire.Cut(); n == 0 {
		t.Fatal("there was no connection to cut")
	}
	select {
	case <-lease.Context().Done():
	case <-time.After(5 * time.Second):
		t.Fatal("the lease goes on")
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, lock.ErrLost) {
		t.Errorf("the lease ended with %v", cause)
	}
	queued(t, conn, "cut-off", 0)
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock of a lost lease: %v", err)
	}
}

// TestSuspendedWhileListing suspends the session while the answer that says that
// a contender is the first is under way, and has the session's end remove its
// node. The answer must not grant the lock.
func TestSuspendedWhileListing(t *testing.T) {
	t.Parallel()
	server := testenv.OwnZooKeeper(t)
	wire := testenv.NewWire(t, server.Addr())
	b := open(t, wire.Addr(), 10*time.Second).backend
	g := b.contender(Root + "/suspended")
	if err := g.enter(); err != nil {
		t.Fatal(err)
	}
	wire.Mute()
	answer := make(chan error, 1)
	go func() {
		granted, err := g.look()
		if granted {
			err = errors.New("the lock was granted")
		}
		answer <- err
	}()
	eventually(t, "the server has listed the contenders", func() bool {
		for line := range strings.Lines(ask(t, server.Addr(), "cons")) {
			if strings.Contains(line, fmt.Sprintf("sid=0x%x,lop=GETC", b.conn.SessionID())) {
				return true
			}
		}
		return false
	})
	if err := watcher(t, server.Addr()).Delete(g.path(g.node), -1); err != nil {
		t.Fatal(err)
	}
	b.suspend()
	wire.Thaw()
	if err := <-answer; !errors.Is(err, lock.ErrLost) {
		t.Errorf("looking for the contender: %v", err)
	}
	if b.forget(g) {
		t.Error("the contender is noted as the holder")
	}
}

// TestReleaseAfterSuspension releases a grant that a suspension has ended, whose
// node is still there. Another may have held the lock since, for all that is known.
func TestReleaseAfterSuspension(t *testing.T) {
	t.Parallel()
	b := open(t, testenv.OwnZooKeeper(t).Addr(), 10*time.Second).backend
	g, err := b.Acquire(t.Context(), "released", true, func() {})
	if err != nil {
		t.Fatal(err)
	}
	if !b.forget(g.(*grant)) { // as suspend does
		t.Fatal("the grant is not held")
	}
	if err := g.Release(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("releasing: %v", err)
	}
}

// TestCloseEndsAllGoroutines is not parallel, so that all goroutines are its own.
func TestCloseEndsAllGoroutines(t *testing.T) {
	addr := testenv.OwnZooKeeper(t).Addr()
	before := goleak.IgnoreCurrent()
	holder, err := New(t.Context(), []string{addr}, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	waiter, err := New(t.Context(), []string{addr}, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	lease := locktest.MustLock(t, holder, "closed")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if _, err := waiter.Lock(ctx, "closed"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a waiter that ran out of time: %v", err)
	}
	kept := locktest.MustLock(t, waiter, "kept") // and never unlocked
	locktest.MustUnlock(t, lease)
	if err := errors.Join(holder.Close(), waiter.Close()); err != nil {
		t.Error(err)
	}
	select {
	case <-kept.Context().Done():
		if cause := context.Cause(kept.Context()); !errors.Is(cause, lock.ErrLost) {
			t.Errorf("Close ended a lease with %v", cause)
		}
	case <-time.After(5 * time.Second):
		t.Error("Close has left a lease")
	}
	goleak.VerifyNone(t, before)

	// Nor does a connection that was never made leave any.
	ctx, cancelConnect := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancelConnect()
	if _, err := New(ctx, []string{"127.0.0.1:1"}, 10*time.Second); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("connecting to nobody: %v", err)
	}
	goleak.VerifyNone(t, before)
}
