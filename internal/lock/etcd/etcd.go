// Package etcd locks in etcd. It uses the same keys as the Mutex of the client's concurrency
// package, so that both exclude each other and wait in one queue. Processes are granted a lock in
// the order in which they asked. The fencing token is the revision that created the holder's key.
// It keeps rising across restarts of the servers.
//
// Each holder has its own session. The Mutex names its key by the session, so two goroutines with
// one session would write one key and both hold the lock. A later holder can take over the session
// of a holder that is done.
package etcd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/retry"
)

const (
	// Prefix precedes the name of a lock in its keys, unless the address has a path: the
	// keys of the lock NAME begin with holdfast/locks/NAME/.
	Prefix = defaultBase + "/" + locksBelow
	// defaultBase is the prefix of all keys, unless the address has a path.
	defaultBase = "holdfast"
	locksBelow  = "locks/"
	// dialTimeout bounds connecting, and the wait for the answer to a keep-alive
	// of the connection.
	dialTimeout = 5 * time.Second
	// keepAliveInterval is the time between two keep-alives of the connection.
	// Servers close connections that send them more often.
	keepAliveInterval = 6 * time.Second
	// watchPause is the pause after a failed watch.
	watchPause = 100 * time.Millisecond
	// firstReread and rereads say when a waiter reads a key again, because its watch may have begun
	// too late: after 8, 16, 32 and 64 ms. Their sum exceeds 100 ms, which is the pause between two
	// rounds in which the server sends events that watches have missed.
	firstReread = 8 * time.Millisecond
	rereads     = 4
	// watchStreamKey is the key of the metadata with the number of the watch stream.
	watchStreamKey = "holdfast-watch-stream"
)

// Locker locks in etcd. Close ends its sessions and connections.
type Locker struct {
	lock.Locker
	backend *backend
}

// New connects to the servers at the address:
//
//	[http[s]://][USER:PASSWORD@]HOST:PORT[,HOST:PORT…][/PATH][?ca=FILE&cert=FILE&key=FILE]
//
// The user, the password and the path are percent-encoded. All keys begin with PATH instead of
// holdfast. The keys of the lock NAME begin with PATH/locks/NAME/. ca is the certificate of the
// authority that signed the servers' certificates. cert and key are the client's certificate and
// key. All are in PEM format.
//
// lease is how long a lock can outlive its holder; 0 means lock.DefaultLease. It is rounded up to
// whole seconds, and to at least two.
func New(ctx context.Context, address string, lease time.Duration) (*Locker, error) {
	e, err := parseAddress(address)
	if err != nil {
		return nil, fmt.Errorf("the address of etcd: %w", err)
	}
	security, err := e.tlsConfig()
	if err != nil {
		return nil, fmt.Errorf("connecting to etcd: %w", err)
	}
	lease = cmp.Or(lease, lock.DefaultLease)
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	failed := func(err error) error {
		if ctx.Err() != nil { // the library does not say why no server has answered
			err = fmt.Errorf("no answer within %v: %w", time.Since(start).Round(100*time.Millisecond), err)
		}
		return fmt.Errorf("connecting to etcd at %s: %w", strings.Join(e.Servers, ","), err)
	}
	clientCtx, cancelClient := context.WithCancel(context.Background())
	defer context.AfterFunc(ctx, cancelClient)() // ctx bounds the login only, and not the client
	client, err := connect(clientv3.Config{
		Context:   clientCtx,
		Endpoints: e.endpoints(),
		Username:  e.User, Password: e.Password, TLS: security,
		DialTimeout:       dialTimeout,
		DialKeepAliveTime: keepAliveInterval, DialKeepAliveTimeout: dialTimeout,
		Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, failed(err)
	}
	if _, err := client.Get(ctx, e.base()); err != nil {
		_ = client.Close()
		return nil, failed(err)
	}
	seconds := (lease + time.Second - 1) / time.Second
	b := &backend{client: client, base: e.base(), leaseSeconds: max(int64(seconds), 2)}
	return &Locker{Locker: lock.New(b), backend: b}, nil
}

// Close ends the sessions and the connections. Leases that are still held are
// lost.
func (l *Locker) Close() error {
	b := l.backend
	b.mu.Lock()
	idle := b.idle
	b.idle = nil
	b.mu.Unlock()
	b.failed.Close()
	errs := make([]error, len(idle))
	var ending sync.WaitGroup
	for i, s := range idle { // concurrently, because each can take seconds while the servers do not answer
		ending.Go(func() { errs[i] = s.end() })
	}
	ending.Wait()
	return errors.Join(append(errs, b.client.Close())...)
}

type backend struct {
	client       *clientv3.Client
	base         string // prefix of all keys
	leaseSeconds int64
	watchStream  atomic.Int64 // number of the stream for new watches
	failed       lock.Leftovers

	mu   sync.Mutex
	idle []*session
}

// Acquire takes the lock. If its session or its place in the queue is lost before it has the lock,
// Acquire begins again with new ones. It does not return lock.ErrLost then, because the caller has
// not held the lock yet. Once it has had a place, it tries again until ctx ends, even while the
// servers do not answer.
func (b *backend) Acquire(ctx context.Context, name string, wait bool, lost func(error)) (lock.Grant, error) {
	for waited := false; ; {
		g, err := b.contend(ctx, name, wait)
		if err == nil {
			session := g.session.ctx
			g.stopReporting = context.AfterFunc(session, func() { lost(context.Cause(session)) })
			return g, nil
		}
		waited = waited || wait && g != nil && g.token != 0
		if !errors.Is(err, lock.ErrLost) && !(waited && isAway(err)) {
			return nil, err
		}
		if err := retry.Sleep(ctx, watchPause); err != nil {
			return nil, err // another try would use up an idle session
		}
	}
}

// contend asks for the lock in one session. Its error wraps lock.ErrLost if the session or the
// place was lost. The grant is nil if there was no session. After any other error, its token is not
// 0 if it had a place.
func (b *backend) contend(ctx context.Context, name string, wait bool) (*grant, error) {
	s, err := b.takeSession(ctx)
	if err != nil {
		return nil, err
	}
	g := b.newGrant(s, name)
	switch err := g.acquire(ctx, wait); {
	case errors.Is(err, lock.ErrHeld):
		b.returnSession(s)
		return g, err
	case errors.Is(err, rpctypes.ErrLeaseNotFound): // the lease was revoked while the session was idle
		s.lose(lock.ErrSessionExpired)
		return g, lock.ErrSessionExpired
	case err != nil:
		_ = s.end() // also deletes the key, if the request has written it
		return g, err
	}
	return g, nil
}

// isAway reports whether a request has failed because no server answers, or because the servers
// have no leader.
func isAway(err error) bool {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code() == codes.Unavailable
	}
	s, answered := status.FromError(err)
	// A server without a leader answers some requests with the text of its own timeout.
	return s.Code() == codes.Unavailable || answered && s.Code() == codes.Unknown && s.Message() == context.DeadlineExceeded.Error()
}

// grant is one contender, before and after it gets the lock.
type grant struct {
	backend       *backend
	session       *session
	prefix        string // prefix of the keys of all contenders
	key           string
	token         int64       // revision that created the key
	stopReporting func() bool // stops reporting the session's loss
}

func (b *backend) newGrant(s *session, name string) *grant {
	prefix := b.base + locksBelow + name + "/"
	return &grant{backend: b, session: s, prefix: prefix, key: fmt.Sprintf("%s%x", prefix, s.id)}
}

// acquire takes the lock as concurrency.Mutex does, with the same keys. Unlike the Mutex, it
// returns as soon as ctx or the session ends. The Mutex first waits until the server has deleted
// its key.
func (g *grant) acquire(ctx context.Context, wait bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(g.session.ctx, func() { cancel(context.Cause(g.session.ctx)) })()
	before, err := g.createKey(ctx)
	if before.created != 0 {
		if !wait {
			if _, err = g.backend.client.Delete(ctx, g.key); err == nil {
				return lock.ErrHeld
			}
		} else {
			err = g.waitForTurn(ctx, before)
		}
	}
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	return context.Cause(g.session.ctx) // ctx may end a moment later than the session
}

// entry is one version of a key. A reused session writes its key again, with a greater create
// revision.
type entry struct {
	key     string
	created int64 // create revision; 0: the key does not exist
}

// entryIn returns the only key of an answer, if there is one.
func entryIn(answer *clientv3.GetResponse) entry {
	if len(answer.Kvs) == 0 {
		return entry{}
	}
	return entry{string(answer.Kvs[0].Key), answer.Kvs[0].CreateRevision}
}

// entryOf returns the only key of one answer of a transaction, if there is one.
func entryOf(answer *clientv3.TxnResponse, request int) entry {
	return entryIn((*clientv3.GetResponse)(answer.Responses[request].GetResponseRange()))
}

// createKey writes the contender's key. It returns the entry of the contender before it,
// or a zero entry if there is none or createKey fails.
func (g *grant) createKey(ctx context.Context) (before entry, err error) {
	written, err := g.backend.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(g.key), "=", 0)).
		Then(clientv3.OpGet(g.prefix, clientv3.WithLastCreate()...), clientv3.OpPut(g.key, "", clientv3.WithLease(g.session.id))).
		Commit()
	if err != nil {
		return before, err
	}
	if !written.Succeeded {
		return before, fmt.Errorf("the key %s already exists", g.key)
	}
	g.token = written.Header.Revision
	return g.lastContender(ctx, entryOf(written, 0))
}

// lastContender returns the entry of the last contender before this one, if there is one. last is
// the last entry below the prefix.
//
// The prefix also matches the keys of locks whose names begin with this lock's name and a slash.
// All keys are read only if the last key is such a key.
func (g *grant) lastContender(ctx context.Context, last entry) (before entry, err error) {
	if last.created == 0 || g.isContender(last.key) {
		return last, nil
	}
	found, err := g.backend.client.Get(ctx, g.prefix, append(clientv3.WithLastCreate(),
		clientv3.WithMaxCreateRev(g.token-1), clientv3.WithKeysOnly(), clientv3.WithLimit(0))...)
	if err != nil {
		return entry{}, err
	}
	for _, kv := range found.Kvs {
		if g.isContender(string(kv.Key)) {
			return entry{string(kv.Key), kv.CreateRevision}, nil
		}
	}
	return entry{}, nil
}

// isContender reports whether the key, which begins with the prefix, belongs to a contender for
// this lock and not to one for a lock with a longer name.
func (g *grant) isContender(key string) bool {
	return !strings.Contains(key[len(g.prefix):], "/")
}

// waitForTurn waits until there is no contender before this one. before is the entry directly
// before its own.
//
// After a failed watch it reads the preceding entry again and watches that. It does so for as long
// as the session lasts, even while the servers do not answer.
func (g *grant) waitForTurn(ctx context.Context, before entry) error {
	for before.created != 0 {
		if err := g.backend.waitForDelete(ctx, before); err != nil {
			_ = retry.Sleep(ctx, watchPause)
		}
		answer, err := g.backend.client.Txn(ctx).Then(
			clientv3.OpGet(g.prefix, append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(g.token-1))...),
			clientv3.OpGet(g.key),
		).Commit()
		var next entry
		if err == nil {
			if entryOf(answer, 1).created != g.token {
				return lock.ErrSessionExpired
			}
			next, err = g.lastContender(ctx, entryOf(answer, 0))
		}
		switch {
		case err == nil:
			before = next
		case !isAway(err):
			return err
		}
	}
	return nil
}

// waitForDelete waits until the entry is deleted. The watch begins at the current revision, because
// the server can send past events 100 ms late. One read of the key finds a deletion before the
// watch.
//
// The server reads its revision before it registers the watch. A write in between makes the watch
// begin in the past. Then the read has a greater revision than the watch, and the key is read a few
// more times.
//
// The watch fails if the server has no leader, because such a server may not learn of the deletion.
// After any failure, later watches use a new stream.
func (b *backend) waitForDelete(ctx context.Context, e entry) (err error) {
	stream := b.watchStream.Load()
	defer func() {
		if err != nil && ctx.Err() == nil {
			b.watchStream.CompareAndSwap(stream, stream+1)
		}
	}()
	watchCtx, cancel := context.WithCancel(inWatchStream(ctx, stream))
	defer cancel()
	answers := b.client.Watch(watchCtx, e.key, clientv3.WithCreatedNotify(), clientv3.WithFilterPut())
	var (
		began   int64            // revision at which the watch began
		reread  <-chan time.Time // nil: the key need not be read again
		pause   = firstReread
		readAll = firstReread << rereads // the pause that would follow the last reread
	)
	for {
		select {
		case answer, ok := <-answers:
			switch {
			case !ok:
				return cmp.Or(ctx.Err(), errWatchEnded)
			case answer.Err() != nil:
				return answer.Err()
			case len(answer.Events) > 0:
				return nil
			case !answer.Created:
				continue
			}
			began = answer.Header.GetRevision()
		case <-reread:
		}
		found, err := b.client.Get(ctx, e.key)
		if err != nil {
			return err
		}
		if entryIn(found).created != e.created {
			return nil
		}
		reread = nil
		if found.Header.GetRevision() > began && pause < readAll {
			reread = time.After(pause)
			pause *= 2
		}
	}
}

var errWatchEnded = errors.New("the watch on a key ended")

// inWatchStream returns a context whose watches share the stream with the number. The client opens
// one stream for all watches with equal metadata, and logs in at that time. The server refuses new
// watches on a stream whose login has expired.
func inWatchStream(ctx context.Context, number int64) context.Context {
	return clientv3.WithRequireLeader(metadata.AppendToOutgoingContext(ctx, watchStreamKey, strconv.FormatInt(number, 10)))
}

func (g *grant) Token() uint64 { return uint64(g.token) }

func (g *grant) Until() time.Time { return g.session.Until() }

// Watch waits until the grant's key is deleted.
func (g *grant) Watch(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := g.backend.waitForDelete(ctx, entry{g.key, g.token}); err == nil {
			return g.session.reasonOfDeletion(ctx)
		}
		_ = retry.Sleep(ctx, watchPause)
	}
	return ctx.Err()
}

func (g *grant) Release(ctx context.Context) error {
	g.stopReporting()
	if g.session.ctx.Err() != nil {
		_ = g.session.end()
		return context.Cause(g.session.ctx)
	}
	answer, err := g.backend.client.Delete(ctx, g.key)
	if err != nil {
		g.session.endLater() // also deletes the key
		return err
	}
	g.backend.returnSession(g.session)
	if answer.Deleted == 0 {
		return lock.ErrDeleted
	}
	return nil
}
