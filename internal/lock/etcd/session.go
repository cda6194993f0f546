package etcd

import (
	"context"
	"errors"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

const (
	// maxIdleSessions bounds the sessions that are kept for later holders.
	maxIdleSessions = 64
	// renewalsPerLease is how many times an etcd lease is renewed within its
	// length.
	renewalsPerLease = 3
	// revokeTimeout bounds ending a session.
	revokeTimeout = 2 * time.Second
)

// session is an etcd lease that is renewed until it is ended or lost. The sessions of the client's
// concurrency package are not used. They do not tell when the lease ends, because the client
// measures the lease from the arrival of an answer.
type session struct {
	client *clientv3.Client
	leases pb.LeaseClient
	length time.Duration   // length of the lease
	failed *lock.Leftovers // leases that could not be revoked
	id     clientv3.LeaseID
	ctx    context.Context         // ends with the session
	lose   context.CancelCauseFunc // ends the session with a reason

	// Used by keepAlive only: the stream of the renewals; nil if none is open.
	stream      pb.Lease_LeaseKeepAliveClient
	closeStream context.CancelFunc

	mu    sync.Mutex
	until time.Time
}

// takeSession returns an idle session, or a new one. takeSession compares the end of an idle
// session's lease with the clock, because the lease may have ended while the process was stopped.
func (b *backend) takeSession(ctx context.Context) (*session, error) {
	b.mu.Lock()
	for len(b.idle) > 0 {
		last := len(b.idle) - 1
		s := b.idle[last]
		b.idle = b.idle[:last]
		if s.ctx.Err() == nil && time.Now().Before(s.Until()) {
			b.mu.Unlock()
			return s, nil
		}
	}
	b.mu.Unlock()

	asked := time.Now()
	granted, err := b.client.Grant(ctx, b.leaseSeconds)
	if err != nil {
		return nil, err
	}
	ttl := time.Duration(granted.TTL) * time.Second
	s := &session{client: b.client, leases: clientv3.RetryLeaseClient(b.client), length: ttl, failed: &b.failed, id: granted.ID, until: asked.Add(ttl)}
	s.ctx, s.lose = context.WithCancelCause(context.Background())
	go s.keepAlive()
	return s, nil
}

// returnSession keeps the session for a later holder, or ends it.
func (b *backend) returnSession(s *session) {
	b.mu.Lock()
	keep := len(b.idle) < maxIdleSessions
	if keep {
		b.idle = append(b.idle, s)
	}
	b.mu.Unlock()
	if !keep {
		_ = s.end()
	}
}

// end revokes the session's lease, which deletes its keys. If the servers do not answer, the lease
// is revoked later or expires, because nothing renews it any more.
func (s *session) end() error {
	s.lose(nil)
	ctx, cancel := context.WithTimeout(context.Background(), revokeTimeout)
	defer cancel()
	_, err := s.revoke(ctx)
	if err != nil {
		s.endLater()
	}
	return err
}

// endLater calls end once the servers answer again.
func (s *session) endLater() {
	s.lose(nil)
	s.failed.Add(time.Now().Add(s.length), s.revoke)
}

// revoke revokes the lease. No key can be written with it afterwards.
func (s *session) revoke(ctx context.Context) (revoked bool, err error) {
	_, err = s.client.Revoke(ctx, s.id)
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		err = nil // the lease has expired
	}
	return err == nil, err
}

// Until returns when the lease ends, at the earliest.
func (s *session) Until() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.until
}

// keepAlive renews the lease until the session or the client ends. It tries a failed renewal again
// until the lease ends.
func (s *session) keepAlive() {
	pause := s.length / renewalsPerLease
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.client.Ctx().Done():
			s.lose(lock.ErrDisconnected)
			return
		case <-time.After(pause):
		}
		switch err := s.renew(); {
		case err == nil:
			pause = s.length / renewalsPerLease
		case errors.Is(err, lock.ErrLost):
			s.lose(err)
			return
		default:
			pause = s.length / (10 * renewalsPerLease)
		}
	}
}

// renew renews the lease once. Its error wraps lock.ErrLost if the session is
// lost.
func (s *session) renew() error {
	asked := time.Now()
	seconds, err := s.requestRenewal(min(time.Until(s.Until()), s.length/renewalsPerLease))
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !time.Now().Before(s.until):
		return lock.ErrExpired
	case err != nil:
		return err
	case seconds <= 0:
		return lock.ErrSessionExpired
	}
	s.until = asked.Add(time.Duration(seconds) * time.Second)
	return nil
}

// requestRenewal returns the lease's new length; 0 means that it no longer exists.
// The requests of a session use one stream, because a new stream logs in again.
func (s *session) requestRenewal(timeout time.Duration) (seconds int64, err error) {
	var streamCtx context.Context // context of a new stream
	if s.stream == nil {
		streamCtx, s.closeStream = context.WithCancel(clientv3.WithRequireLeader(s.ctx))
	}
	defer time.AfterFunc(timeout, s.closeStream).Stop()
	defer func() {
		if err != nil {
			s.closeStream()
			s.stream = nil
		}
	}()
	if s.stream == nil {
		if s.stream, err = s.leases.LeaseKeepAlive(streamCtx); err != nil {
			return 0, err
		}
	}
	return s.requestOn(s.stream)
}

// renewOnce is requestRenewal on a separate stream, so that it can run during other renewals. It
// returns an error if the server cannot be reached. The client's KeepAliveOnce would then repeat
// its requests without a pause.
func (s *session) renewOnce(ctx context.Context) (seconds int64, err error) {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	stream, err := s.leases.LeaseKeepAlive(ctx)
	if err != nil {
		return 0, err
	}
	return s.requestOn(stream)
}

// requestOn sends a renewal on the stream and returns the lease's new length.
func (s *session) requestOn(stream pb.Lease_LeaseKeepAliveClient) (seconds int64, err error) {
	if err := stream.Send(&pb.LeaseKeepAliveRequest{ID: int64(s.id)}); err != nil {
		return 0, err
	}
	answer, err := stream.Recv()
	if err != nil {
		return 0, err
	}
	return answer.TTL, nil
}

// reasonOfDeletion returns why a key of the session was deleted: with the session,
// or by itself.
func (s *session) reasonOfDeletion(ctx context.Context) error {
	lease, err := s.client.TimeToLive(ctx, s.id)
	if err == nil && lease.TTL <= 0 {
		return lock.ErrSessionExpired
	}
	return lock.ErrDeleted
}
