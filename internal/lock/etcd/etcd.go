// Package etcd locks in etcd, with the sessions of its client's concurrency
// package and the keys of that package's Mutex, so that both exclude each other.
// Waiters are granted a lock in the order in which their processes asked. The fencing
// token is the revision that created the holder's key, which no restart takes
// back.
//
// Each holder has a session of its own, since etcd's mutex names its key by the
// session: two goroutines on one session both hold the lock. Sessions of holders
// that are done serve the next.
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
	// Prefix stands before every name: a lock's keys are below Prefix/NAME/.
	Prefix = "holdfast/locks/"
	// dialTimeout bounds connecting, and how long a connection may be silent
	// that was asked whether it lives, every keepAliveEvery. (A server takes it
	// ill if it is asked more often.)
	dialTimeout, keepAliveEvery = 5 * time.Second, 6 * time.Second
	// idleSessions bounds the sessions that are kept for the next holder.
	idleSessions = 64
	// A server may notice only every 100 ms that a watch has something to tell
	// if that happened before the watch was there. So who waits asks for itself
	// in the beginning, every askEvery.
	askFor, askEvery = 100 * time.Millisecond, time.Millisecond
	// endTimeout bounds ending a session.
	endTimeout = 2 * time.Second
)

// Locker locks in etcd. Close ends its sessions and connections.
type Locker struct {
	lock.Locker
	backend *backend
}

// New connects to the servers (host:port). A lock outlives its holder by lease
// at the most, which is rounded up to whole seconds, and is two at least; 0:
// lock.DefaultLease.
func New(ctx context.Context, servers []string, lease time.Duration) (*Locker, error) {
	client, err := clientv3.New(clientv3.Config{
		// The client believes a lease for DialTimeout and a second without an
		// answer to its first keeping alive.
		Endpoints: servers, DialTimeout: min(dialTimeout, max(cmp.Or(lease, lock.DefaultLease)-time.Second, time.Second)), Logger: zap.NewNop(),
		DialKeepAliveTime: keepAliveEvery, DialKeepAliveTimeout: dialTimeout,
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
	seconds := (cmp.Or(lease, lock.DefaultLease) + time.Second - 1) / time.Second
	b := &backend{client: client, seconds: max(int64(seconds), 2)}
	return &Locker{Locker: lock.New(b), backend: b}, nil
}

// Close ends the sessions and the connections. What is held still is lost.
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
	client  *clientv3.Client
	seconds int64

	mu     sync.Mutex
	idle   []*session
	closed bool
}

// session is an etcd lease that is kept alive until it is ended or lost.
type session struct {
	*concurrency.Session
	stop context.CancelFunc // its keeping alive
}

// session takes an idle session or makes one.
func (b *backend) session(ctx context.Context) (*session, error) {
	b.mu.Lock()
	for len(b.idle) > 0 {
		last := len(b.idle) - 1
		s := b.idle[last]
		b.idle = b.idle[:last]
		select {
		case <-s.Done():
			s.stop()
			continue
		default:
		}
		b.mu.Unlock()
		return s, nil
	}
	b.mu.Unlock()

	granted, err := b.client.Grant(ctx, b.seconds)
	if err != nil {
		return nil, err
	}
	living, stop := context.WithCancel(b.client.Ctx())
	s, err := concurrency.NewSession(b.client, concurrency.WithLease(granted.ID), concurrency.WithContext(living), concurrency.WithTTL(int(b.seconds)))
	if err != nil {
		stop()
		return nil, err
	}
	return &session{s, stop}, nil
}

// done keeps the session for the next holder.
func (b *backend) done(s *session) {
	b.mu.Lock()
	keep := !b.closed && len(b.idle) < idleSessions
	if keep {
		b.idle = append(b.idle, s)
	}
	b.mu.Unlock()
	if !keep {
		_ = s.end()
	}
}

// end revokes the lease, and all keys with it. What cannot be revoked ends by
// itself, as nothing keeps it alive.
func (s *session) end() error {
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	s.Orphan()
	s.stop()
	_, err := s.Client().Revoke(ctx, s.Lease())
	return err
}

func (b *backend) Acquire(ctx context.Context, name string, wait bool, lost func()) (lock.Grant, error) {
	s, err := b.session(ctx)
	if err != nil {
		return nil, err
	}
	g := &grant{backend: b, session: s, key: fmt.Sprintf("%s%s/%x", Prefix, name, s.Lease())}
	switch err := g.acquire(ctx, Prefix+name+"/", wait); {
	case errors.Is(err, lock.ErrHeld):
		b.done(s)
		return nil, err
	case err != nil:
		_ = s.end() // and with it the key, if it was written
		return nil, err
	}
	ctx, g.stop = context.WithCancel(context.Background())
	g.watched.Go(func() {
		select {
		case <-s.Done():
			lost()
		case <-ctx.Done():
		}
	})
	return g, nil
}

type grant struct {
	backend *backend
	session *session
	key     string
	token   int64 // the revision that created the key
	stop    context.CancelFunc
	watched sync.WaitGroup
}

// acquire does what concurrency.Mutex does, with the same keys, so that both
// exclude each other. It ends with ctx where that, giving up, waits for the
// server; and it ends with its session.
func (g *grant) acquire(ctx context.Context, prefix string, wait bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(g.session.Ctx(), func() { cancel(concurrency.ErrSessionExpired) })()
	client := g.session.Client()
	written, err := client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(g.key), "=", 0)).
		Then(clientv3.OpPut(g.key, "", clientv3.WithLease(g.session.Lease())), clientv3.OpGet(prefix, clientv3.WithFirstCreate()...)).
		Commit()
	switch {
	case err != nil:
		return cmp.Or(context.Cause(ctx), err)
	case !written.Succeeded:
		return fmt.Errorf("the key %s is there already", g.key)
	}
	g.token = written.Header.Revision
	first := written.Responses[1].GetResponseRange().Kvs
	if len(first) == 0 || first[0].CreateRevision == g.token {
		return nil
	}
	if !wait {
		_, err := client.Delete(ctx, g.key)
		return cmp.Or(err, lock.ErrHeld)
	}
	for asked := time.Now(); ; {
		// The last of those before us is the only one to watch.
		before, err := client.Get(ctx, prefix, append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(g.token-1))...)
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		if len(before.Kvs) == 0 {
			break
		}
		if time.Since(asked) < askFor {
			select {
			case <-time.After(askEvery):
			case <-ctx.Done():
			}
			continue
		}
		if err := deleted(ctx, client, string(before.Kvs[0].Key), before.Header.Revision+1); err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
	}
	own, err := client.Get(ctx, g.key) // gone, if the session ended meanwhile
	switch {
	case err != nil:
		return cmp.Or(context.Cause(ctx), err)
	case len(own.Kvs) == 0 || own.Kvs[0].CreateRevision != g.token:
		return concurrency.ErrSessionExpired
	}
	return nil
}

// deleted waits until the key is deleted, at that revision or later.
func deleted(ctx context.Context, client *clientv3.Client, key string, revision int64) error {
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
	return cmp.Or(ctx.Err(), errWatch)
}

var errWatch = errors.New("the watch on the predecessor ended")

func (g *grant) Token() uint64 { return uint64(g.token) }

func (g *grant) Release(ctx context.Context) error {
	g.stop()
	g.watched.Wait()
	select {
	case <-g.session.Done():
		_ = g.session.end()
		return lock.ErrLost
	default:
	}
	answer, err := g.session.Client().Delete(ctx, g.key)
	if err != nil {
		_ = g.session.end() // and with it the key
		return err
	}
	g.backend.done(g.session)
	if answer.Deleted == 0 {
		return lock.ErrLost
	}
	return nil
}
