// Package zookeeper locks in ZooKeeper, by the recipe of Apache Curator's
// InterProcessMutex and with its node names, so that Java services and this one
// stand in one queue: an ephemeral sequential node for each contender, of which
// the first has the lock and each of the others watches the one before it. See
// https://zookeeper.apache.org/doc/current/recipes.html#sc_recipes_Locks.
//
// Waiters are granted a lock in the order in which their processes asked. The
// fencing token is the node's czxid. (Its sequence number would start again
// when the parent node is removed.)
//
// A connection that is lost suspends the session: nobody knows whether the
// server has ended it, so its leases end at once, and their nodes are removed
// as soon as the server is there again.
package zookeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// flags are those of a contender's node.
const flags = zk.FlagEphemeral | zk.FlagSequence

const (
	// Root is the node below which every lock has a node of its own.
	Root = "/holdfast/locks"
	// marker stands in every contender's name before its sequence number.
	marker = "lock-"
	// protected begins it.
	protected = "_c_"
	// connectTimeout bounds the wait for the first session.
	connectTimeout = 10 * time.Second
	// removeEvery is how long removing a node waits before it is tried again.
	removeEvery = 100 * time.Millisecond
	// answerTimeout is how long a request that was given up is waited for.
	answerTimeout = 2 * time.Second
)

var acl = zk.WorldACL(zk.PermAll)

// Locker locks in ZooKeeper. Close ends its session.
type Locker struct {
	lock.Locker
	backend *backend
}

// New connects to one of the servers (host:port). lease is the session's
// timeout: a lock outlives its holder by that at the most, as far as the servers
// allow it; 0: lock.DefaultLease.
func New(ctx context.Context, servers []string, lease time.Duration) (*Locker, error) {
	b := &backend{held: make(map[*grant]bool)}
	b.ctx, b.stop = context.WithCancel(context.Background())
	connected := make(chan struct{}, 1)
	conn, _, err := zk.Connect(servers, cmp.Or(lease, lock.DefaultLease), zk.WithLogger(silent{}), zk.WithEventCallback(func(e zk.Event) {
		if e.Type != zk.EventSession {
			return
		}
		switch e.State {
		case zk.StateHasSession:
			select {
			case connected <- struct{}{}:
			default:
			}
		case zk.StateDisconnected, zk.StateExpired:
			b.suspend()
		}
	}))
	if err != nil {
		return nil, fmt.Errorf("connecting to ZooKeeper: %w", err)
	}
	b.conn = conn
	l := &Locker{Locker: lock.New(b), backend: b}
	timeout := time.NewTimer(connectTimeout)
	defer timeout.Stop()
	select {
	case <-connected:
		return l, nil
	case <-ctx.Done():
		err = ctx.Err()
	case <-timeout.C:
		err = fmt.Errorf("no session within %v", connectTimeout)
	}
	_ = l.Close()
	return nil, fmt.Errorf("connecting to ZooKeeper at %s: %w", strings.Join(servers, ","), err)
}

// Close ends the session, and with it every lease.
func (l *Locker) Close() error {
	l.backend.stop()
	l.backend.conn.Close()
	l.backend.work.Wait()
	return nil
}

// silent: what the library would log comes back as errors and events.
type silent struct{}

func (silent) Printf(string, ...any) {}

type backend struct {
	conn *zk.Conn
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // requests under way, and nodes being removed

	mu        sync.Mutex
	suspended int // how often
	held      map[*grant]bool
}

// suspend ends every lease: the session may be over.
func (b *backend) suspend() {
	b.mu.Lock()
	b.suspended++
	held := b.held
	b.held = make(map[*grant]bool)
	b.mu.Unlock()
	for g := range held {
		g.lost()
		g.removeLater()
	}
}

func (b *backend) Acquire(ctx context.Context, name string, wait bool, lost func()) (lock.Grant, error) {
	g := b.contender(Root + "/" + name)
	g.lost = lost
	return g.ask(ctx, func() error {
		if err := g.enter(); err != nil {
			return err
		}
		return g.wait(ctx, wait)
	})
}

// place is a contender that stands in the queue already.
type place struct{ *grant }

func (p place) Acquire(ctx context.Context, lost func()) (lock.Grant, error) {
	p.lost = lost
	return p.ask(ctx, func() error { return p.wait(ctx, true) })
}

func (p place) Leave(ctx context.Context) { p.remove(ctx) }

// suspensions is how often the session was suspended.
func (b *backend) suspensions() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.suspended
}

// hold notes that the contender has the lock, unless the session was suspended
// since.
func (b *backend) hold(g *grant, suspensions int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.suspended != suspensions {
		return false
	}
	b.held[g] = true
	return true
}

// forget reports whether the session has not been suspended since.
func (b *backend) forget(g *grant) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.held[g]
	delete(b.held, g)
	return held
}

// grant is one contender: its node has the name _c_GUID-lock-SEQUENCE, by which
// it is found though the answer to its creation was lost.
type grant struct {
	backend *backend
	parent  string
	guid    string
	node    string   // empty: not known
	before  string   // the contender before it; empty: not known
	queue   []string // the contenders when it became the first
	czxid   int64
	lost    func()
}

func (b *backend) contender(parent string) *grant {
	return &grant{backend: b, parent: parent, guid: uuid.NewString()}
}

func (g *grant) Token() uint64 { return uint64(g.czxid) }

func (g *grant) prefix() string { return protected + g.guid + "-" }

// path is that of a node of the lock's. It is not cleaned: of a name that is no
// path, as a//b or a/../b, the library then sends nothing.
func (g *grant) path(node string) string { return g.parent + "/" + node }

// ask has the requests made that grant the lock. It leaves nothing behind where
// they fail, or where ctx ends.
func (g *grant) ask(ctx context.Context, requests func() error) (lock.Grant, error) {
	b := g.backend
	answer := make(chan error, 1)
	b.work.Go(func() { answer <- requests() })
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		// The library waits for the server however long that takes.
		timer := time.NewTimer(answerTimeout)
		defer timer.Stop()
		select {
		case err = <-answer:
		case <-timer.C:
			b.work.Go(func() {
				if <-answer == nil { // it was granted after all, when nobody wanted it any more
					b.forget(g)
				}
				g.removeLater()
			})
			return nil, ctx.Err()
		}
	}
	if err != nil {
		g.remove(ctx)
		return nil, err
	}
	return g, nil
}

// enter creates the contender's node, and where they are missing those above.
func (g *grant) enter() error {
	for {
		node, err := g.backend.conn.Create(g.path(g.prefix()+marker), nil, flags, acl)
		switch {
		case err == nil:
			g.node = path.Base(node)
			return nil
		case !errors.Is(err, zk.ErrNoNode):
			return fmt.Errorf("creating a node: %w", err)
		}
		if err := g.createParents(); err != nil {
			return err
		}
	}
}

// createParents creates the lock's node and those above it. As Curator's do,
// those below Root go by themselves some time after their last child.
func (g *grant) createParents() error {
	parts := strings.Split(strings.TrimPrefix(g.parent, "/"), "/")
	for i := range parts {
		node := "/" + strings.Join(parts[:i+1], "/")
		var err error
		if len(node) > len(Root) {
			_, err = g.backend.conn.CreateContainer(node, nil, zk.FlagContainer, acl)
		} else {
			_, err = g.backend.conn.Create(node, nil, 0, acl)
		}
		if err != nil && !errors.Is(err, zk.ErrNodeExists) {
			return fmt.Errorf("creating %s: %w", node, err)
		}
	}
	return nil
}

// wait waits for the node's turn. The token is read meanwhile, so that nobody
// waits for it: beside the listing, or while others are before the node.
func (g *grant) wait(ctx context.Context, wait bool) error {
	read := make(chan error, 1)
	g.backend.work.Go(func() { read <- g.read() })
	if err := g.turn(ctx, wait); err != nil {
		return err
	}
	err := <-read
	if err != nil {
		g.backend.forget(g)
	}
	return err
}

// read reads the node's czxid.
func (g *grant) read() error {
	exists, stat, err := g.backend.conn.Exists(g.path(g.node))
	switch {
	case err != nil:
		return fmt.Errorf("reading the node %s: %w", g.node, err)
	case !exists:
		return g.gone()
	}
	g.czxid = stat.Czxid
	return nil
}

func (g *grant) gone() error { return fmt.Errorf("the node %s is gone: %w", g.node, lock.ErrLost) }

// turn waits until the node is the first.
func (g *grant) turn(ctx context.Context, wait bool) error {
	b := g.backend
	for ctx.Err() == nil {
		if g.before == "" {
			if granted, err := g.look(); granted || err != nil {
				return err
			}
			if !wait {
				return lock.ErrHeld
			}
		}
		// Reading the node rather than asking whether it exists leaves no watch
		// behind where it does not.
		_, _, gone, err := b.conn.GetW(g.path(g.before))
		g.before = ""
		if errors.Is(err, zk.ErrNoNode) {
			continue
		}
		if err != nil {
			return fmt.Errorf("watching the contender before: %w", err)
		}
		select {
		case e := <-gone:
			if e.Err != nil {
				return fmt.Errorf("watching the contender before: %w", e.Err)
			}
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// look lists the contenders. The first has the lock; else it finds the one before
// it.
func (g *grant) look() (granted bool, err error) {
	suspensions := g.backend.suspensions()
	contenders, _, err := g.backend.conn.Children(g.parent)
	if err != nil {
		return false, fmt.Errorf("listing contenders: %w", err)
	}
	contenders = slices.DeleteFunc(contenders, func(child string) bool { return sequence(child) == "" })
	slices.SortFunc(contenders, func(a, b string) int { return cmp.Compare(sequence(a), sequence(b)) })
	switch place := slices.Index(contenders, g.node); place {
	case -1:
		return false, g.gone()
	case 0:
		if !g.backend.hold(g, suspensions) { // whether it still is so must be asked again
			return g.look()
		}
		g.queue = contenders
		return true, nil
	default:
		g.before = contenders[place-1]
		return false, nil
	}
}

// behind is the last of the contenders, if the node's number is the next: then no
// other has come between them. Else it is empty.
func behind(contenders []string, node string) string {
	last := contenders[len(contenders)-1]
	number, err := strconv.Atoi(sequence(node))
	if err != nil || sequence(last) != fmt.Sprintf("%010d", number-1) {
		return ""
	}
	return last
}

// sequence is what a contender's name is sorted by: all after the last marker.
// It is empty for what is no contender, as the node of a lock with a longer name
// (which may well have the marker in it: a/lock-0 is below a).
func sequence(node string) string {
	at := strings.LastIndex(node, marker)
	if at < 0 || !strings.HasPrefix(node, protected) {
		return ""
	}
	return node[at+len(marker):]
}

func (g *grant) Release(ctx context.Context) error {
	select {
	case err := <-g.end(func() error { return g.backend.conn.Delete(g.path(g.node), -1) }):
		return err
	case <-ctx.Done():
		return ctx.Err() // it goes on
	}
}

// Follow removes the node and creates the next waiter's in one transaction: after
// a release of its own, that request would hold up the next holder's.
func (g *grant) Follow(ctx context.Context) (lock.Place, error) {
	next := g.backend.contender(g.parent)
	answer := g.end(func() error {
		answers, err := g.backend.conn.Multi(
			&zk.DeleteRequest{Path: g.path(g.node), Version: -1},
			&zk.CreateRequest{Path: next.path(next.prefix() + marker), Flags: flags, Acl: acl},
		)
		if err == nil {
			next.node = path.Base(answers[1].String)
			next.before = behind(g.queue, next.node)
		}
		return err
	})
	select {
	case err := <-answer:
		if next.node != "" {
			return place{next}, err
		}
		next.removeLater() // its answer may have been lost
		return nil, err
	case <-ctx.Done():
		g.backend.work.Go(func() {
			<-answer
			next.removeLater()
		})
		return nil, ctx.Err()
	}
}

// end ends the grant by the request that removes its node.
func (g *grant) end(request func() error) <-chan error {
	held := g.backend.forget(g)
	answer := make(chan error, 1)
	g.backend.work.Go(func() {
		err := request()
		switch {
		case errors.Is(err, zk.ErrNoNode) || err == nil && !held:
			err = lock.ErrLost
		case err != nil:
			g.removeLater()
		}
		answer <- err
	})
	return answer
}

// remove removes the node, and waits for it a little.
func (g *grant) remove(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	select {
	case <-g.removeLater():
	case <-ctx.Done(): // it goes on
	}
}

// removeLater removes the node, however long it takes for the server to be
// there again. The returned channel is closed when it is gone.
func (g *grant) removeLater() <-chan struct{} {
	gone := make(chan struct{})
	g.backend.work.Go(func() {
		defer close(gone)
		for g.backend.ctx.Err() == nil {
			if g.tryRemove() {
				return
			}
			select {
			case <-g.backend.ctx.Done():
			case <-time.After(removeEvery):
			}
		}
	})
	return gone
}

// tryRemove reports whether nothing of the contender is left.
func (g *grant) tryRemove() bool {
	contenders, _, err := g.backend.conn.Children(g.parent)
	if err != nil {
		// Nothing was ever sent of a path that is not valid.
		return errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrClosing) || errors.Is(err, zk.ErrInvalidPath)
	}
	for _, node := range contenders {
		if strings.HasPrefix(node, g.prefix()) {
			return g.removeNode(g.path(node))
		}
	}
	return true
}

func (g *grant) removeNode(node string) bool {
	err := g.backend.conn.Delete(node, -1)
	return err == nil || errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrClosing)
}
