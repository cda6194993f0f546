// Package zookeeper locks in ZooKeeper. It follows the recipe of Apache Curator's
// InterProcessMutex and uses the same node names, so that Java services and this
// one wait in one queue. Each contender creates an ephemeral sequential node. The
// first node has the lock, and each of the others watches the node before it. See
// https://zookeeper.apache.org/doc/current/recipes.html#sc_recipes_Locks.
//
// Processes are granted a lock in the order in which they asked. The fencing
// token is the czxid of the holder's node. The node's sequence number would not
// do: it starts again at 0 when the parent node is deleted.
//
// When the connection is lost the session is suspended: the client cannot know
// whether the server has ended it. The session's leases then end at once. Their
// nodes are deleted as soon as the server can be reached again.
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

const (
	// Root is the parent of the locks' nodes.
	Root = "/holdfast/locks"
	// A contender's node has the name _c_GUID-lock-SEQUENCE.
	namePrefix, nameMarker = "_c_", "lock-"
	// contenderFlags are the flags of a contender's node.
	contenderFlags = zk.FlagEphemeral | zk.FlagSequence
	// connectTimeout bounds the wait for the first session.
	connectTimeout = 10 * time.Second
	// retryInterval is the pause between two attempts to delete a node.
	retryInterval = 100 * time.Millisecond
	// answerTimeout bounds the wait for the answer to a cancelled request.
	answerTimeout = 2 * time.Second
)

var acl = zk.WorldACL(zk.PermAll)

// Locker locks in ZooKeeper. Close ends its session.
type Locker struct {
	lock.Locker
	backend *backend
}

// New connects to one of the servers (host:port). lease is the timeout of the
// session, and so how long a lock can outlive its holder; 0 means
// lock.DefaultLease. The servers may adjust it to their own bounds.
func New(ctx context.Context, servers []string, lease time.Duration) (*Locker, error) {
	b := &backend{held: make(map[*grant]bool)}
	b.ctx, b.stop = context.WithCancel(context.Background())
	connected := make(chan struct{}, 1)
	conn, _, err := zk.Connect(servers, cmp.Or(lease, lock.DefaultLease), zk.WithLogger(discardLogger{}), zk.WithEventCallback(func(e zk.Event) {
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
		err = fmt.Errorf("no session after %v", connectTimeout)
	}
	_ = l.Close()
	return nil, fmt.Errorf("connecting to ZooKeeper at %s: %w", strings.Join(servers, ","), err)
}

// Close ends the session and all its leases.
func (l *Locker) Close() error {
	l.backend.stop()
	l.backend.conn.Close()
	l.backend.work.Wait()
	return nil
}

// discardLogger discards the library's log lines. The errors and events that they
// report also reach the callers.
type discardLogger struct{}

func (discardLogger) Printf(string, ...any) {}

type backend struct {
	conn *zk.Conn
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup // requests under way, and nodes being deleted

	mu          sync.Mutex
	suspensions int // how many times the session was suspended
	held        map[*grant]bool
}

// suspend ends all leases, because the server may have ended the session.
func (b *backend) suspend() {
	b.mu.Lock()
	b.suspensions++
	held := b.held
	b.held = make(map[*grant]bool)
	b.mu.Unlock()
	for g := range held {
		g.lost()
		g.deleteAsync()
	}
}

func (b *backend) Acquire(ctx context.Context, name string, wait bool, lost func()) (lock.Grant, error) {
	g := b.newContender(Root + "/" + name)
	g.lost = lost
	return g.acquire(ctx, func() error {
		if err := g.createNode(); err != nil {
			return err
		}
		return g.wait(ctx, wait)
	})
}

// place is a contender that is already in the queue.
type place struct{ contender *grant }

func (p place) Acquire(ctx context.Context, lost func()) (lock.Grant, error) {
	p.contender.lost = lost
	return p.contender.acquire(ctx, func() error { return p.contender.wait(ctx, true) })
}

func (p place) Leave(ctx context.Context) { p.contender.delete(ctx) }

func (b *backend) suspensionCount() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.suspensions
}

// addHeld records that the contender has the lock. It returns false, and records
// nothing, if the session was suspended since suspensionCount returned
// suspensions.
func (b *backend) addHeld(g *grant, suspensions int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.suspensions != suspensions {
		return false
	}
	b.held[g] = true
	return true
}

// removeHeld undoes addHeld. It returns false if a suspension has ended the lease
// before.
func (b *backend) removeHeld(g *grant) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.held[g]
	delete(b.held, g)
	return held
}

// grant is one contender, before and after it is granted the lock. The GUID in its
// node's name identifies the node even if the answer to its creation was lost.
type grant struct {
	backend     *backend
	parent      string
	guid        string
	node        string   // empty: not known yet
	predecessor string   // the contender before it; empty: not known
	queue       []string // the contenders at the moment at which it became the first
	czxid       int64
	lost        func()
}

func (b *backend) newContender(parent string) *grant {
	return &grant{backend: b, parent: parent, guid: uuid.NewString()}
}

func (g *grant) Token() uint64 { return uint64(g.czxid) }

func (g *grant) prefix() string { return namePrefix + g.guid + "-" }

// path returns the path of a child of the lock's node. It does not clean the
// path: the library then refuses names such as a//b and a/../b, and sends nothing.
func (g *grant) path(node string) string { return g.parent + "/" + node }

// acquire calls requests, which must take the lock. If requests fails, or has not
// returned within answerTimeout after ctx's end, acquire deletes the contender's
// node.
func (g *grant) acquire(ctx context.Context, requests func() error) (lock.Grant, error) {
	b := g.backend
	answer := make(chan error, 1)
	b.work.Go(func() { answer <- requests() })
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		// The library has no timeout of its own for an answer.
		timer := time.NewTimer(answerTimeout)
		defer timer.Stop()
		select {
		case err = <-answer:
		case <-timer.C:
			b.work.Go(func() {
				if <-answer == nil { // the lock was granted after all
					b.removeHeld(g)
				}
				g.deleteAsync()
			})
			return nil, ctx.Err()
		}
	}
	if err != nil {
		g.delete(ctx)
		return nil, err
	}
	return g, nil
}

// createNode creates the contender's node, and the nodes above it if they are
// missing.
func (g *grant) createNode() error {
	for {
		node, err := g.backend.conn.Create(g.path(g.prefix()+nameMarker), nil, contenderFlags, acl)
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

// createParents creates the lock's node and the nodes above it. Those below Root
// are containers, as Curator's are: the server deletes them some time after their
// last child.
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

// wait waits for the contender's turn. It reads the token at the same time, beside
// the listing or while other contenders are before this one, so that the holder
// does not wait for it.
func (g *grant) wait(ctx context.Context, wait bool) error {
	read := make(chan error, 1)
	g.backend.work.Go(func() { read <- g.readToken() })
	if err := g.waitForTurn(ctx, wait); err != nil {
		return err
	}
	err := <-read
	if err != nil {
		g.backend.removeHeld(g)
	}
	return err
}

func (g *grant) readToken() error {
	exists, stat, err := g.backend.conn.Exists(g.path(g.node))
	switch {
	case err != nil:
		return fmt.Errorf("reading the node %s: %w", g.node, err)
	case !exists:
		return g.missingNode()
	}
	g.czxid = stat.Czxid
	return nil
}

func (g *grant) missingNode() error {
	return fmt.Errorf("the node %s no longer exists: %w", g.node, lock.ErrLost)
}

// waitForTurn waits until the contender's node is the first.
func (g *grant) waitForTurn(ctx context.Context, wait bool) error {
	b := g.backend
	for ctx.Err() == nil {
		if g.predecessor == "" {
			if granted, err := g.checkTurn(); granted || err != nil {
				return err
			}
			if !wait {
				return lock.ErrHeld
			}
		}
		// GetW leaves no watch behind if the node does not exist. ExistsW would.
		_, _, deleted, err := b.conn.GetW(g.path(g.predecessor))
		g.predecessor = ""
		if errors.Is(err, zk.ErrNoNode) {
			continue
		}
		if err != nil {
			return fmt.Errorf("watching the contender before this one: %w", err)
		}
		select {
		case e := <-deleted:
			if e.Err != nil {
				return fmt.Errorf("watching the contender before this one: %w", e.Err)
			}
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// checkTurn lists the contenders. If this one is the first it has the lock.
// Otherwise checkTurn sets its predecessor.
func (g *grant) checkTurn() (granted bool, err error) {
	suspensions := g.backend.suspensionCount()
	contenders, _, err := g.backend.conn.Children(g.parent)
	if err != nil {
		return false, fmt.Errorf("listing contenders: %w", err)
	}
	contenders = slices.DeleteFunc(contenders, func(child string) bool { return sequence(child) == "" })
	slices.SortFunc(contenders, func(a, b string) int { return cmp.Compare(sequence(a), sequence(b)) })
	switch position := slices.Index(contenders, g.node); position {
	case -1:
		return false, g.missingNode()
	case 0:
		if !g.backend.addHeld(g, suspensions) { // the list may be out of date
			return g.checkTurn()
		}
		g.queue = contenders
		return true, nil
	default:
		g.predecessor = contenders[position-1]
		return false, nil
	}
}

// directPredecessor returns the last of the contenders if node has the next
// sequence number: then no other contender is between the two. Otherwise it
// returns an empty string.
func directPredecessor(contenders []string, node string) string {
	last := contenders[len(contenders)-1]
	number, err := strconv.Atoi(sequence(node))
	if err != nil || sequence(last) != fmt.Sprintf("%010d", number-1) {
		return ""
	}
	return last
}

// sequence returns the part of a contender's name by which contenders are sorted:
// everything after the last marker. It returns an empty string for a node that is
// not a contender's, such as the node of the lock a/lock-0 below that of the lock
// a.
func sequence(node string) string {
	at := strings.LastIndex(node, nameMarker)
	if at < 0 || !strings.HasPrefix(node, namePrefix) {
		return ""
	}
	return node[at+len(nameMarker):]
}

func (g *grant) Release(ctx context.Context) error {
	select {
	case err := <-g.end(func() error { return g.backend.conn.Delete(g.path(g.node), -1) }):
		return err
	case <-ctx.Done():
		return ctx.Err() // end keeps trying
	}
}

// ReleaseAndQueue deletes the node and creates the next waiter's node in one
// transaction. If the two were separate requests, the second would delay the
// grant to the next holder.
func (g *grant) ReleaseAndQueue(ctx context.Context) (lock.Place, error) {
	next := g.backend.newContender(g.parent)
	answer := g.end(func() error {
		answers, err := g.backend.conn.Multi(
			&zk.DeleteRequest{Path: g.path(g.node), Version: -1},
			&zk.CreateRequest{Path: next.path(next.prefix() + nameMarker), Flags: contenderFlags, Acl: acl},
		)
		if err == nil {
			next.node = path.Base(answers[1].String)
			next.predecessor = directPredecessor(g.queue, next.node)
		}
		return err
	})
	select {
	case err := <-answer:
		if next.node != "" {
			return place{next}, err
		}
		next.deleteAsync() // it may exist: the answer may have been lost
		return nil, err
	case <-ctx.Done():
		g.backend.work.Go(func() {
			<-answer
			next.deleteAsync()
		})
		return nil, ctx.Err()
	}
}

// end ends the grant by the request, which must delete its node.
func (g *grant) end(request func() error) <-chan error {
	held := g.backend.removeHeld(g)
	answer := make(chan error, 1)
	g.backend.work.Go(func() {
		err := request()
		switch {
		case errors.Is(err, zk.ErrNoNode) || err == nil && !held:
			err = lock.ErrLost
		case err != nil:
			g.deleteAsync()
		}
		answer <- err
	})
	return answer
}

// delete deletes the contender's node. It waits for that for at most
// answerTimeout; the deletion goes on afterwards.
func (g *grant) delete(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	select {
	case <-g.deleteAsync():
	case <-ctx.Done():
	}
}

// deleteAsync deletes the contender's node. It tries until the server answers or
// the Locker is closed. Then it closes the returned channel.
func (g *grant) deleteAsync() <-chan struct{} {
	deleted := make(chan struct{})
	g.backend.work.Go(func() {
		defer close(deleted)
		for g.backend.ctx.Err() == nil {
			if g.tryDelete() {
				return
			}
			select {
			case <-g.backend.ctx.Done():
			case <-time.After(retryInterval):
			}
		}
	})
	return deleted
}

// tryDelete reports whether the contender has no node any more.
func (g *grant) tryDelete() bool {
	contenders, _, err := g.backend.conn.Children(g.parent)
	if err != nil {
		// The library sends no request with an invalid path, so there is no node.
		return errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrClosing) || errors.Is(err, zk.ErrInvalidPath)
	}
	for _, node := range contenders {
		if strings.HasPrefix(node, g.prefix()) {
			err := g.backend.conn.Delete(g.path(node), -1)
			return err == nil || errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrClosing)
		}
	}
	return true
}
