// Package zookeeper locks in ZooKeeper. It follows the recipe of Apache Curator's InterProcessMutex
// and uses the same node names, so that Java services and this one wait in one queue. Each
// contender creates an ephemeral sequential node. The first node has the lock, and each of the
// others watches the node before it. See
// https://zookeeper.apache.org/doc/current/recipes.html#sc_recipes_Locks.
//
// Processes get a lock in the order of their requests. The fencing token is the czxid of the
// holder's node. The node's sequence number cannot be the token, because it starts again at 0 when
// the parent node is deleted.
//
// When the connection is lost the session is suspended: the client cannot know whether the server
// has ended it. The session's leases then end at once. The node of a lost lease stays until its
// Unlock or the end of the session, because the holder may work until then.
package zookeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/address"
	"github.com/holdfast-stock/holdfast/internal/retry"
)

const (
	// Root is the parent of the locks' nodes, unless the address has a path.
	Root = defaultBase + locksBelow
	// defaultBase is the parent of all nodes, unless the address has a path.
	defaultBase = "/holdfast"
	locksBelow  = "/locks"
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

// Locker locks in ZooKeeper. Close ends its session.
type Locker struct {
	lock.Locker
	backend *backend
}

// CheckAddress returns an error if the address is invalid.
func CheckAddress(text string) error {
	_, err := address.Parse(text)
	return err
}

// New connects to one of the servers at the address:
//
//	[USER:PASSWORD@]HOST:PORT[,HOST:PORT…][/PATH]
//
// The user, the password and the path are percent-encoded. With a user, the session
// authenticates itself by digest, and only this user may use the nodes that it
// creates. Otherwise everyone may. All nodes are below PATH instead of /holdfast: those
// of the locks are below PATH/locks.
//
// lease is the timeout of the session, and so how long a lock can outlive its holder;
// 0 means lock.DefaultLease. The servers may adjust it to their own bounds.
func New(ctx context.Context, servers string, lease time.Duration) (*Locker, error) {
	a, err := address.Parse(servers)
	if err != nil {
		return nil, fmt.Errorf("the address of ZooKeeper: %w", err)
	}
	b := &backend{held: make(map[*grant]bool), watches: make(map[string]*watch), base: defaultBase, acl: zk.WorldACL(zk.PermAll)}
	if a.Path != "" {
		b.base = "/" + a.Path
	}
	b.ctx, b.stop = context.WithCancel(context.Background())
	connected := make(chan struct{}, 1)
	dial := dialer(connectTimeout / time.Duration(len(a.Servers)))
	conn, _, err := zk.Connect(a.Servers, cmp.Or(lease, lock.DefaultLease), zk.WithDialer(dial), zk.WithLogger(&b.session), zk.WithEventCallback(func(e zk.Event) {
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
	ctx, cancel := context.WithTimeoutCause(ctx, connectTimeout, fmt.Errorf("no session after %v", connectTimeout))
	defer cancel()
	select {
	case <-connected:
		if err = b.authenticate(ctx, a); err == nil {
			return l, nil
		}
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	_ = l.Close()
	return nil, fmt.Errorf("connecting to ZooKeeper at %s: %w", strings.Join(a.Servers, ","), err)
}

// authenticate sends the address's credentials, if it has any. The library sends
// them again with each new connection. The servers accept any password: a wrong one
// shows when a node's ACL refuses a request.
func (b *backend) authenticate(ctx context.Context, a address.Address) error {
	if a.User == "" {
		return nil
	}
	b.acl = zk.AuthACL(zk.PermAll)
	return b.call(ctx, func() error { return b.conn.AddAuth("digest", []byte(a.User+":"+a.Password)) })
}

// Close ends the session and all its leases.
func (l *Locker) Close() error {
	l.backend.mu.Lock()
	l.backend.stop() // under the mutex, see start
	l.backend.mu.Unlock()
	l.backend.conn.Close()
	l.backend.suspend() // the client ends the session too, but may do so later
	l.backend.work.Wait()
	return nil
}

type backend struct {
	conn    *zk.Conn
	base    string          // the parent of all nodes
	acl     []zk.ACL        // ACL of all nodes
	ctx     context.Context // ends with Close
	stop    context.CancelFunc
	work    sync.WaitGroup // requests under way, and nodes being deleted
	session sessionTimeout

	mu          sync.Mutex
	suspensions int // how many times the session was suspended
	held        map[*grant]bool
	watches     map[string]*watch // watches that have not fired, by path
}

// start runs work in a goroutine, for which Close waits. After Close has begun, start runs work in
// the caller instead. That does not take long, because every request then fails at once.
func (b *backend) start(work func()) {
	b.mu.Lock()
	closed := b.ctx.Err() != nil
	if !closed {
		b.work.Go(work)
	}
	b.mu.Unlock()
	if closed {
		work()
	}
}

// suspend ends all leases, because the server may have ended the session. It leaves their nodes,
// because the session may continue, and holders work on until they notice.
func (b *backend) suspend() {
	b.mu.Lock()
	b.suspensions++
	var granted []*grant
	for g := range b.held {
		if g.granted {
			granted = append(granted, g)
		}
	}
	clear(b.held)
	b.mu.Unlock()
	for _, g := range granted {
		g.lost(lock.ErrDisconnected)
	}
}

// Acquire acquires the lock. If the contender's node or its session is lost before it has
// the lock, Acquire begins again with a new node. It does not return lock.ErrLost then,
// because the caller has not held the lock yet.
func (b *backend) Acquire(ctx context.Context, name string, wait bool, lost func(error)) (lock.Grant, error) {
	for {
		g := &grant{backend: b, parent: b.base + locksBelow + "/" + name, guid: uuid.NewString(), lost: lost}
		err := g.acquire(ctx, wait)
		if err == nil {
			return g, nil
		}
		if !errors.Is(err, lock.ErrLost) && !errors.Is(err, zk.ErrSessionExpired) {
			return nil, err
		}
		if err := retry.Sleep(ctx, retryInterval); err != nil {
			return nil, err // acquire would create another node
		}
	}
}

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

// setGranted records that Acquire returns the grant, whose loss is reported from now on.
// It returns false if a suspension has ended the lease before.
func (b *backend) setGranted(g *grant) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	g.granted = b.held[g]
	return g.granted
}

// grant is one contender, before and after it is granted the lock. The GUID in its
// node's name identifies the node even if the answer to its creation was lost.
type grant struct {
	backend *backend
	parent  string
	guid    string
	node    string // empty: the name is not known yet
	czxid   int64
	lost    func(error)
	granted bool // see setGranted
}

func (g *grant) Token() uint64 { return uint64(g.czxid) }

// Watch waits until the contender's node is deleted. If the connection is lost, suspend ends the
// lease, and Watch waits for ctx's end.
func (g *grant) Watch(ctx context.Context) error {
	for {
		w, err := g.backend.watch(g.path(g.node))
		switch {
		case errors.Is(err, zk.ErrNoNode):
			return lock.ErrDeleted
		case err != nil:
			<-ctx.Done()
			return ctx.Err()
		}
		select {
		case <-w.fired:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (g *grant) prefix() string { return namePrefix + g.guid + "-" }

// path returns the path of a child of the lock's node.
func (g *grant) path(node string) string { return g.parent + "/" + node }

// acquire takes the lock. If that fails, or has not ended within answerTimeout after
// ctx's end, acquire deletes the contender's node.
func (g *grant) acquire(ctx context.Context, wait bool) error {
	b := g.backend
	answer := make(chan error, 1)
	b.start(func() { answer <- g.request(ctx, wait) })
	var err error
	select {
	case err = <-answer:
	case <-ctx.Done():
		// The library does not bound the wait for an answer.
		timer := time.NewTimer(answerTimeout)
		defer timer.Stop()
		select {
		case err = <-answer:
		case <-timer.C:
			b.start(func() {
				<-answer
				g.deleteAsync() // the lock may have been granted despite the error
			})
			return ctx.Err()
		}
	}
	if err == nil && !b.setGranted(g) {
		err = lock.ErrDisconnected
	}
	if err != nil {
		g.delete(ctx)
	}
	return err
}

// request creates the contender's node and waits for its turn.
func (g *grant) request(ctx context.Context, wait bool) error {
	if err := g.createNode(nameMarker, g.backend.base+locksBelow, nil); err != nil {
		return err
	}
	return g.wait(ctx, wait)
}

// createNode creates the contender's node _c_GUID-MARKERSEQUENCE, see create.
func (g *grant) createNode(marker, root string, data []byte) error {
	node, err := g.backend.create(g.path(g.prefix()+marker), root, data, contenderFlags)
	if err != nil {
		return fmt.Errorf("creating a node: %w", err)
	}
	g.node = path.Base(node)
	return nil
}

// create creates the node with the data. It also creates missing nodes above it, those below root
// as containers. It returns the node's name, which the server completes.
func (b *backend) create(node, root string, data []byte, flags int32) (created string, err error) {
	for {
		created, err := b.conn.Create(node, data, flags, b.acl)
		if !errors.Is(err, zk.ErrNoNode) {
			return created, err
		}
		if err := b.createMissing(path.Dir(node), root); err != nil {
			return "", err
		}
	}
}

// createMissing creates the node, after the missing nodes above it. It sends no requests about
// nodes above an existing node, because the user may lack the permission for them. Nodes below root
// are containers, as Curator's are: the server deletes them some time after their last child.
func (b *backend) createMissing(node, root string) error {
	for {
		var err error
		if len(node) > len(root) {
			_, err = b.conn.CreateContainer(node, nil, zk.FlagContainer, b.acl)
		} else {
			_, err = b.conn.Create(node, nil, 0, b.acl)
		}
		switch {
		case err == nil || errors.Is(err, zk.ErrNodeExists):
			return nil
		case !errors.Is(err, zk.ErrNoNode):
			return fmt.Errorf("creating %s: %w", node, err)
		}
		if err := b.createMissing(path.Dir(node), root); err != nil {
			return err
		}
	}
}

// wait waits for the contender's turn. Meanwhile it reads the token, so that the holder does not
// wait for it.
func (g *grant) wait(ctx context.Context, wait bool) error {
	read := make(chan error, 1)
	g.backend.start(func() { read <- g.readToken() })
	if err := g.waitForTurn(ctx, wait); err != nil {
		return err
	}
	return <-read
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
	return fmt.Errorf("the node %s no longer exists: %w", g.node, lock.ErrDeleted)
}

// waitForTurn waits until the contender's node is the first.
func (g *grant) waitForTurn(ctx context.Context, wait bool) error {
	b := g.backend
	for ctx.Err() == nil {
		predecessor, err := g.checkTurn()
		switch {
		case predecessor == "":
			return err
		case !wait:
			return lock.ErrHeld
		}
		w, err := b.watch(g.path(predecessor))
		if errors.Is(err, zk.ErrNoNode) {
			continue
		}
		if err != nil {
			return fmt.Errorf("watching the contender before this one: %w", err)
		}
		select {
		case <-w.fired:
			if w.err != nil {
				return fmt.Errorf("watching the contender before this one: %w", w.err)
			}
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

// checkTurn lists the contenders and returns the one before this one. If there is
// none, this one has the lock.
func (g *grant) checkTurn() (predecessor string, err error) {
	suspensions := g.backend.suspensionCount()
	contenders, _, err := g.backend.conn.Children(g.parent)
	if err != nil {
		return "", fmt.Errorf("listing contenders: %w", err)
	}
	contenders = slices.DeleteFunc(contenders, func(child string) bool { return sequence(child) == "" })
	slices.SortFunc(contenders, func(a, b string) int { return cmp.Compare(sequence(a), sequence(b)) })
	switch position := slices.Index(contenders, g.node); position {
	case -1:
		return "", g.missingNode()
	case 0:
		if !g.backend.addHeld(g, suspensions) { // the list may be out of date
			return g.checkTurn()
		}
		return "", nil
	default:
		return contenders[position-1], nil
	}
}

// sequence returns the part of a contender's name by which contenders are sorted: everything after
// the last marker. It returns an empty string for a node that is not a contender's, such as the
// node of the lock a/lock-0 below that of the lock a. No part of a lock's name can begin like the
// name of a contender's node.
func sequence(node string) string {
	at := strings.LastIndex(node, nameMarker)
	if at < 0 || !strings.HasPrefix(node, namePrefix) {
		return ""
	}
	return node[at+len(nameMarker):]
}

func (g *grant) Release(ctx context.Context) error { return g.StartRelease()(ctx) }

// StartRelease deletes the contender's node. The server processes the requests of a
// session in order, so the next waiter's node can be created before the answer.
func (g *grant) StartRelease() (wait func(ctx context.Context) error) {
	held := g.backend.removeHeld(g)
	answer, sending := make(chan error, 1), make(chan struct{})
	g.backend.start(func() {
		close(sending)
		err := g.backend.conn.Delete(g.path(g.node), -1)
		switch {
		case errors.Is(err, zk.ErrNoNode) || err == nil && !held:
			err = lock.ErrDeleted
		case err != nil:
			g.deleteAsync()
		}
		answer <- err
	})
	<-sending
	return func(ctx context.Context) error {
		select {
		case err := <-answer:
			return err
		case <-ctx.Done():
			return ctx.Err() // the deletion continues
		}
	}
}

// delete ends the contender, see deleteAsync. It waits for the deletion for at most answerTimeout,
// and the deletion continues afterwards.
func (g *grant) delete(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerTimeout)
	defer cancel()
	select {
	case <-g.deleteAsync():
	case <-ctx.Done():
	}
}

// deleteAsync ends the contender: it no longer has the lock, and its node is deleted.
// deleteAsync tries until the server answers or the Locker is closed. Then it closes the
// returned channel.
func (g *grant) deleteAsync() <-chan struct{} {
	g.backend.removeHeld(g)
	deleted := make(chan struct{})
	g.backend.start(func() {
		defer close(deleted)
		for g.backend.ctx.Err() == nil {
			if g.tryDelete() {
				return
			}
			_ = retry.Sleep(g.backend.ctx, retryInterval)
		}
	})
	return deleted
}

// tryDelete reports whether the contender's node no longer exists. It also returns true if an ACL
// refuses the deletion, because another attempt would be refused too.
func (g *grant) tryDelete() bool {
	node, err := g.findNode()
	if node != "" {
		err = g.backend.conn.Delete(g.path(node), -1)
	}
	return err == nil || errors.Is(err, zk.ErrNoNode) || errors.Is(err, zk.ErrNoAuth)
}

// findNode returns the contender's node, or an empty string if there is none. If the
// answer to its creation was lost, findNode looks for it on the server.
func (g *grant) findNode() (string, error) {
	if g.node != "" {
		return g.node, nil
	}
	// Without Sync, a server that lags behind the leader could answer with an old list.
	if _, err := g.backend.conn.Sync(g.parent); err != nil {
		return "", err
	}
	contenders, _, err := g.backend.conn.Children(g.parent)
	if err != nil {
		return "", err
	}
	for _, node := range contenders {
		if strings.HasPrefix(node, g.prefix()) {
			return node, nil
		}
	}
	return "", nil
}
