package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// faulty is a Locker behind a relay, another Locker, and a name.
type faulty struct {
	t           *testing.T
	relay       *relay
	ours, other *Locker
	session     int64 // session of our Locker
	name        string
}

// newOther returns the other Locker, for which the nodes above all locks, texts and ticks
// exist.
func newOther(t *testing.T) *Locker {
	t.Helper()
	f := faulty{t: t, other: open(t, testenv.ZooKeeper(t), locktest.LongLease), name: uuid.NewString()}
	f.must(f.acquire(f.other).Release(t.Context()))
	f.show(f.other)()
	f.record(1)
	return f.other
}

func newFaulty(t *testing.T, other *Locker) faulty {
	t.Helper()
	f := faulty{t: t, relay: newRelay(t, testenv.ZooKeeper(t)), other: other, name: uuid.NewString() + "/nested"}
	// With one address, the library would pause before it connects again.
	ours, err := New(t.Context(), f.relay.Addr()+","+f.relay.Addr(), locktest.LongLease)
	f.must(err)
	f.ours, f.session = ours, ours.backend.conn.SessionID()
	t.Cleanup(func() { _ = ours.Close() })
	return f
}

// must ends the goroutine, which need not be the test's, if there is an error.
func (f faulty) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Error(err)
		runtime.Goexit()
	}
}

func (f faulty) acquire(l *Locker) *grant {
	f.t.Helper()
	g, err := l.backend.Acquire(f.t.Context(), f.name, false, func(error) {})
	f.must(err)
	return g.(*grant)
}

func (f faulty) show(l *Locker) (hide func()) {
	f.t.Helper()
	end, err := l.Show(f.t.Context(), f.name, "a text")
	f.must(err)
	return func() { end(f.t.Context()) }
}

func (f faulty) record(tick int64) {
	f.t.Helper()
	_, err := f.other.RecordTick(f.t.Context(), f.name, tick)
	f.must(err)
}

// lock waits for the lock and frees it. The callback is called if the lock is lost in between.
func (f faulty) lock(ctx context.Context, lost func(error)) error {
	g, err := f.ours.backend.Acquire(ctx, f.name, true, lost)
	if err != nil {
		return err
	}
	f.relay.heal()
	return g.Release(f.t.Context())
}

// recordTick records 5, and checks the last tick if it is known.
func (f faulty) recordTick(ctx context.Context, want bool, last int64) error {
	recorded, err := f.ours.RecordTick(ctx, f.name, 5)
	f.relay.heal()
	if now, lastErr := f.other.LastTick(f.t.Context(), f.name); recorded != (want && err == nil) || err == nil && now != last || lastErr != nil {
		f.t.Errorf("recorded: %t, %v; and the last tick is %d, %v", recorded, err, now, lastErr)
	}
	return err
}

// mustSettle checks that no work is left under way, and that nothing is left on the server although
// the session has not ended.
func (f faulty) mustSettle(what string) {
	f.t.Helper()
	b, settled := f.ours.backend, make(chan struct{})
	go func() {
		b.work.Wait()
		close(settled)
	}()
	testenv.Receive(f.t, what+": the requests end", settled)
	b.mu.Lock()
	if len(b.held) != 0 || len(b.watches) != 0 {
		f.t.Errorf("%s: %d locks are held, and %d nodes are watched", what, len(b.held), len(b.watches))
	}
	b.mu.Unlock()
	texts, err := f.other.Shown(f.t.Context(), f.name)
	nodes, _, listErr := f.other.backend.conn.Children(Root + "/" + f.name)
	if len(texts)+len(nodes) != 0 || err != nil || listErr != nil && !errors.Is(listErr, zk.ErrNoNode) {
		f.t.Errorf("%s: what is left is %q, %v, and %q, %v", what, texts, err, nodes, listErr)
	}
	mustKeepSession(f.t, f.ours, f.session)
}

// operations are the operations of a Locker. Each calls arm before it begins, and returns its
// error.
var operations = map[string]func(ctx context.Context, f faulty, arm func()) error{
	"Lock": func(ctx context.Context, f faulty, arm func()) error {
		arm()
		return f.lock(ctx, func(error) {})
	},
	"Lock of a held lock": func(ctx context.Context, f faulty, arm func()) error {
		held := f.acquire(f.other)
		release := sync.OnceFunc(func() { f.must(held.Release(f.t.Context())) })
		defer release()
		f.relay.watched = release
		arm()
		return f.lock(ctx, func(error) {})
	},
	"TryLock of a held lock": func(ctx context.Context, f faulty, arm func()) error {
		held := f.acquire(f.other)
		arm()
		_, err := f.ours.backend.Acquire(ctx, f.name, false, func(error) {})
		f.must(held.Release(f.t.Context()))
		switch {
		case err == nil:
			f.t.Error("the lock was granted")
		case errors.Is(err, lock.ErrHeld):
			return nil
		}
		return err
	},
	"Unlock": func(ctx context.Context, f faulty, arm func()) error {
		g := f.acquire(f.ours)
		arm()
		return g.Release(ctx)
	},
	"Unlock of a lost lease": func(ctx context.Context, f faulty, arm func()) error {
		g := f.acquire(f.ours)
		f.ours.backend.suspend()
		arm()
		err := g.Release(ctx)
		switch {
		case err == nil:
			f.t.Error("the lease was not lost")
		case errors.Is(err, lock.ErrDeleted):
			return nil
		}
		return err
	},
	"Confirm": func(ctx context.Context, f faulty, arm func()) error {
		g := f.acquire(f.ours)
		arm()
		_, err := g.Confirm(ctx)
		f.relay.heal()
		_ = g.Release(f.t.Context()) // the lease may have been lost
		return err
	},
	"Show": func(ctx context.Context, f faulty, arm func()) error {
		arm()
		hide, err := f.ours.Show(ctx, f.name, "a text")
		if err == nil {
			f.relay.heal()
			hide(f.t.Context())
		}
		return err
	},
	"hide": func(_ context.Context, f faulty, arm func()) error {
		hide := f.show(f.ours)
		arm()
		hide()
		return nil
	},
	"Shown": func(ctx context.Context, f faulty, arm func()) error {
		defer f.show(f.other)()
		defer f.show(f.other)()
		arm()
		texts, err := f.ours.Shown(ctx, f.name)
		if err == nil && !slices.Equal(texts, []string{"a text", "a text"}) {
			f.t.Errorf("the texts are %q", texts)
		}
		return err
	},
	"LastTick": func(ctx context.Context, f faulty, arm func()) error {
		f.record(7)
		arm()
		last, err := f.ours.LastTick(ctx, f.name)
		if err == nil && last != 7 {
			f.t.Errorf("the last tick is %d", last)
		}
		return err
	},
	"RecordTick of a new job": func(ctx context.Context, f faulty, arm func()) error {
		arm()
		return f.recordTick(ctx, true, 5)
	},
	"RecordTick": func(ctx context.Context, f faulty, arm func()) error {
		f.record(1)
		arm()
		return f.recordTick(ctx, true, 5)
	},
	"New": func(ctx context.Context, f faulty, arm func()) error {
		arm()
		l, err := New(ctx, "user:password@"+f.relay.Addr(), locktest.LongLease)
		if err == nil {
			err = l.Close()
		}
		return err
	},
}

// harmless are the kinds of requests whose failure an operation need not report.
var harmless = map[string][]int32{"TryLock of a held lock": {opExists, opDelete}, "hide": {opDelete}}

// ways are the ways in which a request fails, and the errors that report it.
var ways = map[string]struct {
	way   way // nil: the operation's context ends, and the request waits until it has returned
	again bool
	want  []error
}{
	"refused":     {refuse(codeAPIError), false, []error{zk.ErrAPIError}},
	"not sent":    {cut, true, []error{zk.ErrConnectionClosed, zk.ErrAPIError}},
	"answer lost": {loseAnswer, true, []error{zk.ErrConnectionClosed, zk.ErrAPIError}},
	"hung":        {nil, false, []error{context.Canceled}},
}

// TestFailingRequests makes each request of each operation fail in each way. The operation must
// report the failure, and leave nothing behind. All run at once, because most of the time they
// wait.
func TestFailingRequests(t *testing.T) {
	t.Parallel()
	other := newOther(t)
	var running sync.WaitGroup
	for operation := range operations {
		running.Go(func() {
			requests := failRequest(t, other, operation, "", 1<<30)
			if requests == 0 {
				t.Errorf("%s makes no request", operation)
			}
			for nth := range requests {
				for way := range ways {
					running.Go(func() { failRequest(t, other, operation, way, nth+1) })
				}
			}
		})
	}
	running.Wait()
}

// failRequest makes the nth request of the operation fail, if there are that many.
func failRequest(t *testing.T, other *Locker, operation, way string, nth int) (requests int) {
	f, how := newFaulty(t, other), ways[way]
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	returned := make(chan struct{})
	if how.way == nil {
		how.way = hold(func() {
			cancel()
			<-returned
		})
	}
	err := operations[operation](ctx, f, func() { f.relay.fail(how.way, 0, nth, how.again) })
	close(returned)
	requests, failed := f.relay.heal()
	what := fmt.Sprintf("%s, request %d %s", operation, nth, way)
	for kind := range failed {
		if err == nil && !slices.Contains(harmless[operation], kind) {
			t.Errorf("%s: a request of the kind %d has failed, but there is no error", what, kind)
		}
	}
	var broken *net.OpError // error of a request that was being sent when the connection was cut
	switch {
	case len(failed) == 0 && (way != "" || err != nil):
		t.Errorf("%s: no request has failed, and the error is %v", what, err)
	case err != nil && !errors.As(err, &broken) && !slices.ContainsFunc(how.want, func(want error) bool { return errors.Is(err, want) }):
		t.Errorf("%s: the error is %v, want one of %v", what, err, how.want)
	}
	f.mustSettle(what)
	return requests
}

// TestBetweenRequests lets an event happen just before a request of an operation, which must still
// succeed.
func TestBetweenRequests(t *testing.T) {
	t.Parallel()
	other := newOther(t)
	lock := func(f faulty) error {
		return f.lock(t.Context(), func(reason error) { t.Errorf("a contender that has not got the lock loses it: %v", reason) })
	}
	record := func(want bool, last int64) func(faulty) error {
		return func(f faulty) error { return f.recordTick(t.Context(), want, last) }
	}
	for name, test := range map[string]struct {
		kind    int32
		prepare func(f faulty) (before func()) // nil: the session has expired
		do      func(faulty) error
	}{
		"a suspension before the token is read": {opExists, func(f faulty) func() {
			return func() {
				f.waitForHeld()
				f.ours.backend.suspend()
			}
		}, lock},
		"the node is deleted before the token is read": {opExists, func(f faulty) func() {
			return func() {
				g := f.waitForHeld()
				f.must(f.other.backend.conn.Delete(g.path(g.node), -1))
			}
		}, lock},
		"the session expires before the node is created": {opCreate, func(faulty) func() { return nil }, lock},
		"another creates the node above": {opCreateContainer, func(f faulty) func() {
			return func() { f.must(f.acquire(f.other).Release(t.Context())) }
		}, lock},
		"the holder leaves before it is watched": {opGetData, func(f faulty) func() {
			held := f.acquire(f.other)
			return func() { f.must(held.Release(t.Context())) }
		}, lock},
		"a text is hidden before it is read": {opGetData, func(f faulty) func() { return f.show(f.other) }, func(f faulty) error {
			texts, err := f.ours.Shown(t.Context(), f.name)
			if len(texts) != 0 {
				t.Errorf("the texts are %q", texts)
			}
			return err
		}},
		"another records an earlier tick": {opSetData, func(f faulty) func() {
			f.record(1)
			return func() { f.record(3) }
		}, record(true, 5)},
		"another records a later tick": {opSetData, func(f faulty) func() {
			f.record(1)
			return func() { f.record(7) }
		}, record(false, 7)},
		"another records the first tick": {opCreate, func(f faulty) func() { return func() { f.record(3) } }, record(true, 5)},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFaulty(t, other)
			way := refuse(codeSessionExpired)
			if before := test.prepare(f); before != nil {
				way = hold(before)
			}
			f.relay.fail(way, test.kind, 1, false)
			if err := test.do(f); err != nil {
				t.Error(err)
			}
			if _, failed := f.relay.heal(); len(failed) == 0 {
				t.Error("nothing has happened")
			}
			f.mustSettle(name)
		})
	}
}

// waitForHeld waits until a contender has the lock, and returns it.
func (f faulty) waitForHeld() (held *grant) {
	b := f.ours.backend
	testenv.Await(f.t, "a contender has the lock", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		for held = range b.held {
			return true
		}
		return false
	})
	return held
}

// endsWhenAwaited is a context that ends when its end is awaited.
type endsWhenAwaited struct {
	context.Context
	cancel func()
}

func (c endsWhenAwaited) Done() <-chan struct{} {
	c.cancel()
	return c.Context.Done()
}

// TestWatchOfAHeldLock ends the context of Watch. Watch must not return earlier, whether the node
// can be watched or not.
func TestWatchOfAHeldLock(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, newOther(t))
	g := f.acquire(f.ours)
	for _, nth := range []int{1, 0} {
		f.relay.fail(refuse(codeAPIError), opGetData, nth, false)
		ctx, cancel := context.WithCancel(t.Context())
		if err := g.Watch(endsWhenAwaited{ctx, cancel}); !errors.Is(err, context.Canceled) {
			t.Errorf("Watch: %v, want %v", err, context.Canceled)
		}
		if _, failed := f.relay.heal(); len(failed) != nth {
			t.Errorf("the kinds of requests that have failed are %v", failed)
		}
	}
	f.must(g.Release(t.Context()))
	f.mustSettle("Watch")
}

// TestFindNodeSyncsFirst looks for a node whose creation was not answered. The server must
// catch up with the leader before it lists the nodes. A node whose name is known needs no
// search.
func TestFindNodeSyncsFirst(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, newOther(t))
	g := f.acquire(f.ours)
	node := g.node
	f.relay.fail(refuse(codeAPIError), 0, 1, false)
	if found, err := g.findNode(); found != node || err != nil {
		t.Errorf("the node %s was found as %q, %v", node, found, err)
	}
	g.node = ""
	if found, err := g.findNode(); !errors.Is(err, zk.ErrAPIError) {
		t.Errorf("the node was found as %q, %v", found, err)
	}
	if _, failed := f.relay.heal(); !failed[opSync] {
		t.Errorf("the first request was of the kinds %v", failed)
	}
	if found, err := g.findNode(); found != node || err != nil {
		t.Errorf("the node %s was found as %q, %v", node, found, err)
	}
	g.node = node
	f.must(g.Release(t.Context()))
	f.mustSettle("Release")
}

// TestSyncsFirst checks that operations whose answer must not be out of date begin with a request
// that makes the server catch up with the leader. The test makes that request fail.
func TestSyncsFirst(t *testing.T) {
	t.Parallel()
	other := newOther(t)
	for _, operation := range []string{"Confirm", "LastTick"} {
		f := newFaulty(t, other)
		err := operations[operation](t.Context(), f, func() { f.relay.fail(refuse(codeAPIError), 0, 1, false) })
		if _, failed := f.relay.heal(); !errors.Is(err, zk.ErrAPIError) || !failed[opSync] {
			t.Errorf("%s: %v, after a failure of the kinds %v", operation, err, failed)
		}
		f.mustSettle(operation)
	}
}

// TestConfirmCountsFromTheRequest delays the request of a confirmation. The server may count the
// session's timeout from a moment before its answer.
func TestConfirmCountsFromTheRequest(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, newOther(t))
	g := f.acquire(f.ours)
	delayed := make(chan time.Time, 1)
	f.relay.fail(hold(func() {
		now := time.Now()
		testenv.Await(t, "the clock goes on", func() bool { return now.Before(time.Now()) }) // the clock may be coarse
		delayed <- now
	}), opSync, 1, false)
	until, err := g.Confirm(t.Context())
	f.must(err)
	f.relay.heal()
	if latest := (<-delayed).Add(f.ours.backend.session.timeout()); until.After(latest) {
		t.Errorf("the lease ends %v after the latest end at the server", until.Sub(latest))
	}
	f.must(g.Release(t.Context()))
	f.mustSettle("Confirm")
}

// TestAnsweredLate lets the server create a node after its request was given up. Until the server
// has answered, the Locker must not look for the node, because it would not find it. Then it must
// delete the node.
func TestAnsweredLate(t *testing.T) {
	t.Parallel()
	other := newOther(t)
	for _, operation := range []string{"Lock", "Show"} {
		t.Run(operation, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t, other)
			ctx, cancel := context.WithCancel(t.Context())
			proceed, requests := make(chan struct{}), make(chan uint32, 1)
			err := operations[operation](ctx, f, func() {
				f.relay.fail(hold(func() {
					f.relay.fail(func(c *relayed, request []byte) {
						requests <- number(request)
						passOn(c, request)
					}, 0, 1, false)
					cancel()
					<-proceed
				}), opCreate, 1, false)
			})
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v, want %v", operation, err, context.Canceled)
			}
			testenv.Quiet(t, "a request before the answer", requests)
			close(proceed)
			f.mustSettle(operation)
		})
	}
}

// TestDeletionIsAwaited cancels a request that has a node. It must not return before the node is
// deleted, because the process's next request would wait behind the node.
func TestDeletionIsAwaited(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, newOther(t))
	held := f.acquire(f.other)
	ctx, cancel := context.WithCancel(t.Context())
	proceed, deleting := make(chan struct{}), make(chan struct{})
	f.relay.watched = cancel // the request waits
	f.relay.fail(hold(func() {
		close(deleting)
		<-proceed
	}), opDelete, 1, false)
	waiting := make(chan error, 1)
	go func() { waiting <- f.lock(ctx, func(error) {}) }()
	testenv.Receive(t, "the node is being deleted", deleting)
	testenv.Quiet(t, "the request has returned", waiting)
	close(proceed)
	if err := testenv.Receive(t, "the request returns", waiting); !errors.Is(err, context.Canceled) {
		t.Errorf("the request has ended with %v", err)
	}
	f.must(held.Release(t.Context()))
	f.mustSettle("Lock")
}

// TestEndBetweenTries ends the context of an operation while a request fails after which
// the operation would try again.
func TestEndBetweenTries(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, newOther(t))
	ctx, cancel := context.WithCancel(t.Context())
	f.relay.fail(func(c *relayed, request []byte) {
		cancel()
		f.relay.fail(passOn, opCreate, 1, false) // heal reports whether a request creates a node
		refuse(codeSessionExpired)(c, request)
	}, opCreate, 1, false)
	if g, err := f.ours.backend.Acquire(ctx, f.name, true, func(error) {}); !errors.Is(err, context.Canceled) {
		t.Errorf("granted %v, %v", g, err)
	}
	if _, failed := f.relay.heal(); len(failed) != 0 {
		t.Error("Acquire creates another node after the end of its context")
	}

	f.record(1)
	ctx, cancel = context.WithCancel(t.Context())
	f.relay.fail(hold(func() {
		f.record(3)
		cancel()
	}), opSetData, 1, false)
	b := f.ours.backend
	if recorded, err := b.recordTick(ctx, b.tickNode(f.name), 5); recorded || !errors.Is(err, context.Canceled) {
		t.Errorf("recorded after the end of the context: %t, %v", recorded, err)
	}
	f.relay.heal()
}

// TestBadTick finds a text where a tick should be.
func TestBadTick(t *testing.T) {
	t.Parallel()
	l, job := open(t, testenv.ZooKeeper(t), locktest.LongLease), uuid.NewString()
	if _, err := l.backend.create(l.backend.tickNode(job), l.backend.ticksRoot(), []byte("seven"), 0); err != nil {
		t.Fatal(err)
	}
	if last, err := l.LastTick(t.Context(), job); !errors.Is(err, strconv.ErrSyntax) {
		t.Errorf("LastTick: %d, %v", last, err)
	}
	if recorded, err := l.RecordTick(t.Context(), job, 1); recorded || !errors.Is(err, strconv.ErrSyntax) {
		t.Errorf("RecordTick: %t, %v", recorded, err)
	}
}

// TestBadAddresses opens Lockers at invalid addresses.
func TestBadAddresses(t *testing.T) {
	t.Parallel()
	if err := CheckAddress("host"); err == nil {
		t.Error("CheckAddress accepts a host without a port")
	}
	if l, err := New(t.Context(), "host", time.Second); err == nil || l != nil {
		t.Errorf("New with a host without a port: %v, %v", l, err)
	}
	var unknown *net.DNSError
	if l, err := New(t.Context(), "no..host:1", time.Second); !errors.As(err, &unknown) || l != nil {
		t.Errorf("New with a host that cannot exist: %v, %v", l, err)
	}
}
