// Package etcd locks in etcd. It uses the sessions of the client's concurrency
// package and the same keys as that package's Mutex, so that both exclude each
// other and wait in one queue. Processes are granted a lock in the order in which
// they asked. The fencing token is the revision that created the holder's key. It
// keeps rising across restarts of the servers.
//
// Each holder has its own session. The Mutex names its key by the session, so two
// goroutines with one session would write one key and both hold the lock. When a
// holder is done, another can take its session over.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

const (
	// Prefix is before every lock's name: its keys begin with Prefix/NAME/.
	Prefix = "holdfast/locks/"
	// dialTimeout bounds connecting, and the wait for the answer to a keep-alive
	// of the connection.
	dialTimeout = 5 * time.Second
	// keepAliveInterval is the time between two keep-alives of the connection.
	// Servers close connections that send them more often.
	keepAliveInterval = 6 * time.Second
	// maxIdleSessions bounds the sessions that are kept for later holders.
	maxIdleSessions = 64
	// pollTime is how long a waiter polls, every pollInterval, before it watches
	// its predecessor's key. If the key was deleted before the watch existed, the
	// server can take 100 ms to report that.
	pollTime, pollInterval = 100 * time.Millisecond, time.Millisecond
	// revokeTimeout bounds ending a session.
	revokeTimeout = 2 * time.Second
)

// Locker locks in etcd. Close ends its sessions and connections.
type Locker struct {
	lock.Locker
	backend *backend
}

// New connects to the servers (host:port). lease is how long a lock can outlive
// its holder; 0 means lock.DefaultLease. It is rounded up to whole seconds, and to
// at least two.
func New(ctx context.Context, servers []string, lease time.Duration) (*Locker, error) {
	lease = cmp.Or(lease, lock.DefaultLease)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: servers,
		// Until the first keep-alive of a lease is answered, the client regards
		// the lease as valid for DialTimeout and one second.
		DialTimeout:       min(dialTimeout, max(lease-time.Second, time.Second)),
		DialKeepAliveTime: keepAliveInterval, DialKeepAliveTimeout: dialTimeout,
		Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, fmt.Errorf("connecting to etcd: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	if _, err := client.Get(ctx, Prefix); err != nil {
		_ = client.Close()
		return nil, fmt.Errorf("connecting to etcd at %s: %w", strings.Join(servers, ","), err)
	}
	seconds := (lease + time.Second - 1) / time.Second
	b := &backend{client: client, leaseSeconds: max(int64(seconds), 2)}
	return &Locker{Locker: lock.New(b), backend: b}, nil
}

// Close ends the sessions and the connections. Leases that are still held are
// lost.
func (l *Locker) Close() error {
	b := l.backend
	b.mu.Lock()
	idle := b.idle
	b.idle, b.closed = nil, true
	b.mu.Unlock()
	var errs []error
	for _, s := range idle {
		errs = append(errs, s.end())
	}
	return errors.Join(append(errs, b.client.Close())...)
}

type backend struct {
	client       *clientv3.Client
	leaseSeconds int64

	mu     sync.Mutex
	idle   []*session
	closed bool
}

// session is an etcd lease that is kept alive until it is ended or lost.
type session struct {
	etcd          *concurrency.Session
	stopKeepAlive context.CancelFunc
}

// takeSession returns an idle session, or a new one.
func (b *backend) takeSession(ctx context.Context) (*session, error) {
	b.mu.Lock()
	for len(b.idle) > 0 {
		last := len(b.idle) - 1
		s := b.idle[last]
		b.idle = b.idle[:last]
		select {
		case <-s.etcd.Done():
			s.stopKeepAlive()
			continue
		default:
		}
		b.mu.Unlock()
		return s, nil
	}
	b.mu.Unlock()

	granted, err := b.client.Grant(ctx, b.leaseSeconds)
	if err != nil {
		return nil, err
	}
	alive, stop := context.WithCancel(b.client.Ctx())
	s, err := concurrency.NewSession(b.client, concurrency.WithLease(granted.ID), concurrency.WithContext(alive), concurrency.WithTTL(int(b.leaseSeconds)))
	if err != nil {
		stop()
		return nil, err
	}
	return &session{s, stop}, nil
}

// returnSession keeps the session for a later holder, or ends it.
func (b *backend) returnSession(s *session) {
	b.mu.Lock()
	keep := !b.closed && len(b.idle) < maxIdleSessions
	if keep {
		b.idle = append(b.idle, s)
	}
	b.mu.Unlock()
	if !keep {
		_ = s.end()
	}
}

// end revokes the session's lease, which deletes its keys. If that fails, the
// lease expires, because nothing keeps it alive any more.
func (s *session) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), revokeTimeout)
	defer cancel()
	s.etcd.Orphan()
	s.stopKeepAlive()
	_, err := s.etcd.Client().Revoke(ctx, s.etcd.Lease())
	return err
}

func (b *backend) Acquire(ctx context.Context, name string, wait bool, lost func()) (lock.Grant, error) {
	s, err := b.takeSession(ctx)
	if err != nil {
		return nil, err
	}
	prefix := Prefix + name + "/"
	g := &grant{backend: b, session: s, prefix: prefix, key: fmt.Sprintf("%s%x", prefix, s.etcd.Lease())}
	switch err := g.acquire(ctx, wait); {
	case errors.Is(err, lock.ErrHeld):
		b.returnSession(s)
		return nil, err
	case err != nil:
		_ = s.end() // also deletes the key, if it was written
		return nil, err
	}
	ctx, g.stopWatching = context.WithCancel(context.Background())
	g.watching.Go(func() {
		select {
		case <-s.etcd.Done():
			lost()
		case <-ctx.Done():
		}
	})
	return g, nil
}

// grant is one contender, before and after it is granted the lock.
type grant struct {
	backend      *backend
	session      *session
	prefix       string // of the keys of all contenders
	key          string
	token        int64 // the revision that created the key
	stopWatching context.CancelFunc
	watching     sync.WaitGroup
}

// acquire takes the lock as concurrency.Mutex does, with the same keys. Unlike the
// Mutex it returns as soon as ctx ends: the Mutex first waits for the server to
// delete its key. It also returns when the session ends.
func (g *grant) acquire(ctx context.Context, wait bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(g.session.etcd.Ctx(), func() { cancel(concurrency.ErrSessionExpired) })()
	first, err := g.createKey(ctx)
	if err == nil && !first {
		if !wait {
			_, err := g.backend.client.Delete(ctx, g.key)
			return cmp.Or(err, lock.ErrHeld)
		}
		err = g.waitForTurn(ctx)
	}
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	return nil
}

// createKey writes the contender's key and reports whether it is the first.
func (g *grant) createKey(ctx context.Context) (first bool, err error) {
	written, err := g.backend.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(g.key), "=", 0)).
		Then(clientv3.OpPut(g.key, "", clientv3.WithLease(g.session.etcd.Lease())), clientv3.OpGet(g.prefix, clientv3.WithFirstCreate()...)).
		Commit()
	if err != nil {
		return false, err
	}
	if !written.Succeeded {
		return false, fmt.Errorf("the key %s already exists", g.key)
	}
	g.token = written.Header.Revision
	holder := written.Responses[1].GetResponseRange().Kvs
	return len(holder) == 0 || holder[0].CreateRevision == g.token, nil
}

// waitForTurn waits until there is no contender before this one.
func (g *grant) waitForTurn(ctx context.Context) error {
	client := g.backend.client
	for started := time.Now(); ; {
		before, err := client.Get(ctx, g.prefix, append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(g.token-1))...)
		if err != nil {
			return err
		}
		if len(before.Kvs) == 0 {
			break
		}
		if time.Since(started) < pollTime {
			select {
			case <-time.After(pollInterval):
			case <-ctx.Done():
			}
			continue
		}
		predecessor := string(before.Kvs[0].Key)
		if err := waitForDelete(ctx, client, predecessor, before.Header.Revision+1); err != nil {
			return err
		}
	}
	own, err := client.Get(ctx, g.key) // missing if the session has ended meanwhile
	if err != nil {
		return err
	}
	if len(own.Kvs) == 0 || own.Kvs[0].CreateRevision != g.token {
		return concurrency.ErrSessionExpired
	}
	return nil
}

// waitForDelete waits until the key is deleted at the revision or later.
func waitForDelete(ctx context.Context, client *clientv3.Client, key string, revision int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for answer := range client.Watch(ctx, key, clientv3.WithRev(revision), clientv3.WithFilterPut()) {
		if err := answer.Err(); err != nil {
			return err
		}
		if len(answer.Events) > 0 {
			return nil
		}
	}
	return cmp.Or(ctx.Err(), errWatchEnded)
}

var errWatchEnded = errors.New("the watch on the predecessor's key ended")

func (g *grant) Token() uint64 { return uint64(g.token) }

func (g *grant) Release(ctx context.Context) error {
	g.stopWatching()
	g.watching.Wait()
	select {
	case <-g.session.etcd.Done():
		_ = g.session.end()
		return lock.ErrLost
	default:
	}
	answer, err := g.backend.client.Delete(ctx, g.key)
	if err != nil {
		_ = g.session.end() // also deletes the key
		return err
	}
	g.backend.returnSession(g.session)
	if answer.Deleted == 0 {
		return lock.ErrLost
	}
	return nil
}
