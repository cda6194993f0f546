package etcd

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// lateLeases delays the answers to renewals. It calls late between an answer of the server and its
// arrival.
type lateLeases struct {
	pb.LeaseClient
	late func()
}

func (l lateLeases) LeaseKeepAlive(ctx context.Context, options ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	stream, err := l.LeaseClient.LeaseKeepAlive(ctx, options...)
	return lateStream{stream, l.late}, err
}

type lateStream struct {
	pb.Lease_LeaseKeepAliveClient
	late func()
}

func (s lateStream) Recv() (*pb.LeaseKeepAliveResponse, error) {
	answer, err := s.Lease_LeaseKeepAliveClient.Recv()
	s.late()
	return answer, err
}

// newSession returns a session with a lease of a minute, which nothing renews.
func newSession(t *testing.T, late func()) *session {
	t.Helper()
	const seconds = 60
	client := newLocker(t, testenv.Etcd(t)).backend.client
	granted, err := client.Grant(t.Context(), seconds)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = client.Revoke(context.Background(), granted.ID) })
	s := &session{client: client, leases: lateLeases{clientv3.RetryLeaseClient(client), late}, length: seconds * time.Second,
		failed: new(lock.Leftovers), id: granted.ID, until: time.Now().Add(seconds * time.Second)}
	s.ctx, s.lose = context.WithCancelCause(t.Context())
	return s
}

// TestLeaseCountsFromTheRequest delays the answers of the server. The server counts the lease from
// a moment before its answer. So the lease may end earlier than an end counted from the answer's
// arrival.
func TestLeaseCountsFromTheRequest(t *testing.T) {
	t.Parallel()
	t.Run("grant", func(t *testing.T) {
		t.Parallel()
		server := testenv.OwnEtcd(t)
		wire := testenv.NewWire(t, server.Addr())
		l, admin := newLocker(t, wire.Addr()), newLocker(t, server.Addr()).backend.client
		leases := func() int {
			listed, err := admin.Leases(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return len(listed.Leases)
		}
		before := leases()
		wire.Mute()
		taken := make(chan *session, 1)
		go func() {
			s, err := l.backend.takeSession(t.Context())
			if err != nil {
				t.Error(err)
			}
			taken <- s
		}()
		testenv.Await(t, "the server has granted the lease", func() bool { return leases() > before })
		granted := time.Now()
		wire.Thaw()
		s := <-taken
		defer func() { _ = s.end() }()
		if latest := granted.Add(s.length); s.Until().After(latest) {
			t.Errorf("the lease ends %v after the latest end at the server", s.Until().Sub(latest))
		}
	})
	var answered time.Time
	late := func() {
		answered = time.Now()
		testenv.Await(t, "the clock goes on", func() bool { return answered.Before(time.Now()) }) // the clock may be coarse
	}
	t.Run("renewal", func(t *testing.T) {
		s := newSession(t, late)
		if err := s.renew(); err != nil {
			t.Fatal(err)
		}
		if latest := answered.Add(s.length); s.Until().After(latest) {
			t.Errorf("the lease ends %v after the latest end at the server", s.Until().Sub(latest))
		}
	})
	t.Run("confirmation", func(t *testing.T) {
		s := newSession(t, late)
		b := newLocker(t, testenv.Etcd(t)).backend
		g := b.newGrant(s, "confirmed-"+uuid.NewString())
		if _, err := g.createKey(t.Context()); err != nil {
			t.Fatal(err)
		}
		until, err := g.Confirm(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if latest := answered.Add(s.length); until.After(latest) {
			t.Errorf("the lease ends %v after the latest end at the server", until.Sub(latest))
		}
	})
}

// TestLateRenewal ends the lease, by the holder's clock, before the server's answer to a renewal
// arrives. The holder has learned of the end, so the lease must not continue.
func TestLateRenewal(t *testing.T) {
	t.Parallel()
	var s *session
	end := time.Now()
	s = newSession(t, func() {
		s.mu.Lock()
		s.until = end
		s.mu.Unlock()
	})
	if err := s.renew(); !errors.Is(err, lock.ErrExpired) {
		t.Errorf("renew returned %v, want %v", err, lock.ErrExpired)
	}
	if !s.Until().Equal(end) {
		t.Errorf("the lease ends %v later than the holder was told", s.Until().Sub(end))
	}
}
