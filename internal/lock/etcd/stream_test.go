package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// renewals answers the renewals of a lease. fails is called for each step: open, send, receive and
// answer. If the last one fails, no answer comes.
type renewals struct {
	pb.LeaseClient
	fails   func(step string) error
	seconds int64
	streams []context.Context
	open    bool // two streams were open at once
	sent    int
}

func (r *renewals) LeaseKeepAlive(ctx context.Context, _ ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	for _, before := range r.streams {
		r.open = r.open || before.Err() == nil
	}
	r.streams = append(r.streams, ctx)
	return renewalStream{nil, ctx, r}, r.fails("open")
}

type renewalStream struct {
	pb.Lease_LeaseKeepAliveClient
	ctx context.Context
	*renewals
}

func (s renewalStream) Send(*pb.LeaseKeepAliveRequest) error {
	s.sent++
	return errors.Join(s.ctx.Err(), s.fails("send"))
}

func (s renewalStream) Recv() (*pb.LeaseKeepAliveResponse, error) {
	if s.fails("answer") != nil {
		<-s.ctx.Done()
		return nil, s.ctx.Err()
	}
	return &pb.LeaseKeepAliveResponse{TTL: s.seconds}, s.fails("receive")
}

// TestRenewalsThatFail makes the renewals of a session fail. They must be tried again, each on a
// new stream, and the session must be lost only when its lease ends.
func TestRenewalsThatFail(t *testing.T) {
	t.Parallel()
	const length = 6 * time.Second
	for _, test := range []struct {
		name    string
		fails   string        // the step that fails
		until   time.Duration // time since the start until which the stream fails
		seconds int64         // seconds in the server's answers
		lost    error         // reason of the loss; nil: no loss within a minute
		at      time.Duration // time of the loss
		streams int
	}{
		{"none", "", 0, 6, nil, 0, 1},
		{"open fails", "open", 3 * time.Second, 6, nil, 0, 6},
		{"send fails", "send", 3 * time.Second, 6, nil, 0, 6},
		{"receive fails", "receive", 3 * time.Second, 6, nil, 0, 6},
		{"no answer", "answer", 3 * time.Second, 6, nil, 0, 2},
		{"open goes on failing", "open", time.Hour, 6, lock.ErrExpired, length, 21},
		{"receive goes on failing", "receive", time.Hour, 6, lock.ErrExpired, length, 21},
		{"the lease is gone", "", 0, 0, lock.ErrSessionExpired, length / renewalsPerLease, 1},
		{"the client is closed", "", 0, 6, lock.ErrDisconnected, 30 * time.Second, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				r := &renewals{seconds: test.seconds, fails: func(step string) error {
					if step == test.fails && time.Since(start) < test.until {
						return errFault
					}
					return nil
				}}
				ctx, closeClient := context.WithCancel(t.Context())
				defer closeClient()
				if errors.Is(test.lost, lock.ErrDisconnected) {
					time.AfterFunc(test.at, closeClient)
				}
				s := &session{client: clientv3.NewCtxClient(ctx), leases: r, length: length, until: start.Add(length)}
				s.ctx, s.lose = context.WithCancelCause(t.Context())
				stopped := make(chan struct{})
				go func() {
					defer close(stopped)
					s.keepAlive()
				}()
				select {
				case <-stopped:
				case <-time.After(time.Minute):
				}
				if lost, at := context.Cause(s.ctx), time.Since(start); !errors.Is(lost, test.lost) || lost != nil && at != test.at {
					t.Errorf("after %s the session is lost: %v; want %v after %s", at, lost, test.lost, test.at)
				}
				s.lose(nil)
				<-stopped
				if len(r.streams) != test.streams {
					t.Errorf("%d streams were opened, want %d", len(r.streams), test.streams)
				}
				if r.open || r.streams[len(r.streams)-1].Err() == nil {
					t.Error("a stream was left open")
				}
				if r.sent > 40 {
					t.Errorf("%d renewals in a minute", r.sent)
				}
			})
		})
	}
}

// TestConfirmWithoutRenewal makes the renewal of a confirmation fail. Confirm must not return
// success, and must return the loss if it is certain.
func TestConfirmWithoutRenewal(t *testing.T) {
	t.Parallel()
	s := newSession(t, nil)
	b := newLocker(t, testenv.Etcd(t)).backend
	for _, test := range []struct {
		fails   string
		seconds int64
		deleted bool // the key was deleted
		want    error
	}{
		{"open", 60, false, errFault}, {"send", 60, false, errFault}, {"receive", 60, false, errFault},
		{"open", 60, true, lock.ErrDeleted}, {"", 60, true, lock.ErrDeleted}, {"", 0, false, lock.ErrSessionExpired},
	} {
		g := b.newGrant(s, "confirmed-"+uuid.NewString())
		if _, err := g.createKey(t.Context()); err != nil {
			t.Fatal(err)
		}
		if test.deleted {
			if _, err := b.client.Delete(t.Context(), g.key); err != nil {
				t.Fatal(err)
			}
		}
		r := &renewals{seconds: test.seconds, fails: func(step string) error {
			if step == test.fails {
				return errFault
			}
			return nil
		}}
		s.leases = r
		if until, err := g.Confirm(t.Context()); !errors.Is(err, test.want) || !until.IsZero() {
			t.Errorf("%+v: %v, %v", test, until, err)
		}
		if len(r.streams) != 1 || r.streams[0].Err() == nil {
			t.Errorf("%+v: a stream was left open", test)
		}
	}
}

// server answers a client in the process.
type server struct {
	clientv3.Watcher
	clientv3.KV
	clientv3.Lease
	watch   []clientv3.WatchResponse // answers of every watch
	silent  bool                     // each watch stays open after these answers until its context ends
	found   []*mvccpb.KeyValue       // key-value pairs that every Get returns
	readErr error                    // error of every Get
	written int64                    // revision of every Get
	gone    time.Time                // time from which a Get finds nothing; zero: never
	reads   []time.Time
	turns   []turn // answers of the transactions; the last one is repeated
	watched []string
	granted int
	endless int // revocations without a deadline
}

// turn is an answer to a contender: the key before its own, and its own.
type turn struct {
	before, own *mvccpb.KeyValue
	err         error
}

func keyOf(key string, created int64) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{Key: []byte(key), CreateRevision: created}
}

func (s *server) client(ctx context.Context) *clientv3.Client {
	c := clientv3.NewCtxClient(ctx)
	c.Watcher, c.KV, c.Lease = s, s, s
	return c
}

func (s *server) Close() error { return nil }

func (s *server) Watch(ctx context.Context, key string, _ ...clientv3.OpOption) clientv3.WatchChan {
	s.watched = append(s.watched, key)
	answers := make(chan clientv3.WatchResponse, len(s.watch))
	for _, a := range s.watch {
		answers <- a
	}
	if s.silent {
		context.AfterFunc(ctx, func() { close(answers) })
	} else {
		close(answers)
	}
	return answers
}

func (s *server) Get(context.Context, string, ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	s.reads = append(s.reads, time.Now())
	answer := &clientv3.GetResponse{Header: &pb.ResponseHeader{Revision: s.written}, Kvs: s.found}
	if !s.gone.IsZero() && !time.Now().Before(s.gone) {
		answer.Kvs = nil
	}
	return answer, s.readErr
}

func (s *server) Grant(ctx context.Context, seconds int64) (*clientv3.LeaseGrantResponse, error) {
	s.granted++
	return &clientv3.LeaseGrantResponse{TTL: seconds}, ctx.Err()
}

func (s *server) Revoke(ctx context.Context, _ clientv3.LeaseID) (*clientv3.LeaseRevokeResponse, error) {
	if _, bounded := ctx.Deadline(); !bounded {
		s.endless++
	}
	return nil, nil
}

func (s *server) Txn(ctx context.Context) clientv3.Txn { return transaction{nil, ctx, s} }

type transaction struct {
	clientv3.Txn
	ctx context.Context
	*server
}

func (t transaction) If(...clientv3.Cmp) clientv3.Txn { return t }

func (t transaction) Then(...clientv3.Op) clientv3.Txn { return t }

func (t transaction) Commit() (*clientv3.TxnResponse, error) {
	if err := t.ctx.Err(); err != nil {
		return nil, err
	}
	next := t.turns[0]
	t.turns = t.turns[min(1, len(t.turns)-1):]
	answer := new(clientv3.TxnResponse)
	for _, kv := range []*mvccpb.KeyValue{next.before, next.own} {
		found := new(pb.RangeResponse)
		if kv != nil {
			found.Kvs = append(found.Kvs, kv)
		}
		answer.Responses = append(answer.Responses, &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{ResponseRange: found}})
	}
	return answer, next.err
}

// TestWatchThatFails ends the watch of an entry in every way. Only a deletion may count as one, and
// after a failure the next watches must use a new stream.
func TestWatchThatFails(t *testing.T) {
	t.Parallel()
	created := clientv3.WatchResponse{Created: true}
	deleted := clientv3.WatchResponse{Events: []*clientv3.Event{{Type: clientv3.EventTypeDelete}}}
	there := []*mvccpb.KeyValue{keyOf("k", 7)}
	for _, test := range []struct {
		name    string
		server  server
		stopped bool
		want    error
		stream  int64 // stream of the next watch
	}{
		{"deleted", server{watch: []clientv3.WatchResponse{created, deleted}, found: there}, false, nil, 0},
		{"deleted before the watch", server{watch: []clientv3.WatchResponse{created}}, false, nil, 0},
		{"the watch fails", server{watch: []clientv3.WatchResponse{created, {CompactRevision: 3}}, found: there}, false, rpctypes.ErrCompacted, 1},
		{"the watch ends", server{watch: []clientv3.WatchResponse{created}, found: there}, false, errWatchEnded, 1},
		{"the key cannot be read", server{watch: []clientv3.WatchResponse{created, deleted}, readErr: errFault}, false, errFault, 1},
		{"stopped", server{}, true, context.Canceled, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if test.stopped {
				stop()
			}
			b := &backend{client: test.server.client(ctx)}
			if err := b.waitForDelete(ctx, entry{"k", 7}); !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
			if stream := b.watchStream.Load(); stream != test.stream {
				t.Errorf("the next watch uses stream %d, want %d", stream, test.stream)
			}
		})
	}
}

// TestWatchBeginsLate has a watch without events. The key must be read again only if there was a
// write while the watch began, and only while the server may be late with its events.
func TestWatchBeginsLate(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, test := range []struct {
		name    string
		written int64         // revision of the read; that of the watch is 7
		gone    time.Duration // time at which the key is deleted; 0: never
		want    error
		reads   []time.Duration
	}{
		{"no write meanwhile", 7, 5 * ms, context.DeadlineExceeded, []time.Duration{0}},
		{"a write meanwhile", 8, 5 * ms, nil, []time.Duration{0, 8 * ms}},
		{"deleted later", 8, 100 * ms, nil, []time.Duration{0, 8 * ms, 24 * ms, 56 * ms, 120 * ms}},
		{"not deleted", 8, 0, context.DeadlineExceeded, []time.Duration{0, 8 * ms, 24 * ms, 56 * ms, 120 * ms}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				ctx, stop := context.WithTimeout(t.Context(), time.Minute)
				defer stop()
				s := &server{watch: []clientv3.WatchResponse{{Created: true, Header: &pb.ResponseHeader{Revision: 7}}}, silent: true,
					found: []*mvccpb.KeyValue{keyOf("k", 5)}, written: test.written}
				if test.gone != 0 {
					s.gone = start.Add(test.gone)
				}
				b := &backend{client: s.client(t.Context())}
				if err := b.waitForDelete(ctx, entry{"k", 5}); !errors.Is(err, test.want) {
					t.Errorf("%v, want %v", err, test.want)
				}
				var reads []time.Duration
				for _, at := range s.reads {
					reads = append(reads, at.Sub(start))
				}
				if !slices.Equal(reads, test.reads) {
					t.Errorf("it read the key after %v, want %v", reads, test.reads)
				}
			})
		})
	}
}

// patience is how long a contender with a pause after each of 11 tries waits.
const patience = 10*watchPause + watchPause/2

// TestTurn checks for whom a contender waits, one after the other. It must get the lock only when
// no contender is before it and its own key exists.
func TestTurn(t *testing.T) {
	t.Parallel()
	deleted := []clientv3.WatchResponse{{Events: []*clientv3.Event{{Type: clientv3.EventTypeDelete}}}}
	first, second, own := keyOf("lock/a", 3), keyOf("lock/b", 5), keyOf("lock/c", 9)
	for _, test := range []struct {
		name    string
		server  server
		want    error
		watched []string
	}{
		{"the one before leaves first", server{watch: deleted, turns: []turn{{first, own, nil}, {nil, own, nil}}}, nil, []string{"lock/b", "lock/a"}},
		{"its key is gone", server{watch: deleted, turns: []turn{{}}}, lock.ErrSessionExpired, []string{"lock/b"}},
		{"its key is written again", server{watch: deleted, turns: []turn{{nil, keyOf("lock/c", 11), nil}}}, lock.ErrSessionExpired, []string{"lock/b"}},
		{"the servers are unreachable", server{watch: deleted, turns: []turn{{err: rpctypes.ErrNoLeader}, {nil, own, nil}}}, nil, []string{"lock/b", "lock/b"}},
		{"a request fails", server{watch: deleted, turns: []turn{{err: errFault}}}, errFault, []string{"lock/b"}},
		{"the reading of all keys fails", server{watch: deleted, turns: []turn{{keyOf("lock/longer/a", 4), own, nil}}, readErr: errFault}, errFault, []string{"lock/b"}},
		{"watches fail until it gives up", server{turns: []turn{{second, own, nil}}}, context.DeadlineExceeded, slices.Repeat([]string{"lock/b"}, 11)},
		{"the servers are unreachable until it gives up", server{turns: []turn{{err: rpctypes.ErrNoLeader}}}, context.DeadlineExceeded, slices.Repeat([]string{"lock/b"}, 11)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), patience)
				defer stop()
				g := &grant{backend: &backend{client: test.server.client(t.Context())}, prefix: "lock/", key: "lock/c", token: 9}
				if err := g.waitForTurn(ctx, entry{"lock/b", 5}); !errors.Is(err, test.want) {
					t.Errorf("%v, want %v", err, test.want)
				}
				if !slices.Equal(test.server.watched, test.watched) {
					t.Errorf("it waited for %q, want %q", test.server.watched, test.watched)
				}
			})
		})
	}
}

// TestContenderWithoutAPlace makes the requests of a contender fail before it has a place. If its
// sessions are lost, it must take others, after a pause, until it gives up. If the servers cannot
// be reached, it must not wait for them.
func TestContenderWithoutAPlace(t *testing.T) {
	t.Parallel()
	for fault, test := range map[error]struct {
		want     error
		sessions int
	}{
		rpctypes.ErrLeaseNotFound: {context.DeadlineExceeded, 11},
		rpctypes.ErrNoLeader:      {rpctypes.ErrNoLeader, 1},
		errFault:                  {errFault, 1},
	} {
		t.Run(fault.Error(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, stop := context.WithTimeout(t.Context(), patience)
				defer stop()
				s := &server{turns: []turn{{err: fault}}}
				b := &backend{client: s.client(t.Context()), leaseSeconds: 60}
				if _, err := b.Acquire(ctx, "a", true, func(error) {}); !errors.Is(err, test.want) || s.granted != test.sessions {
					t.Errorf("%d sessions, %v; want %d, %v", s.granted, err, test.sessions, test.want)
				}
				if s.endless != 0 {
					t.Errorf("%d revocations have no deadline", s.endless)
				}
			})
		})
	}
}

func TestIsAway(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]bool{
		rpctypes.ErrNoLeader:        true,
		rpctypes.ErrLeaseNotFound:   false,
		rpctypes.ErrGRPCNoLeader:    true,
		errFault:                    false,
		context.DeadlineExceeded:    false, // the caller's own timeout
		context.Canceled:            false,
		errors.New("anything else"): false,
		status.Error(codes.Unavailable, "connection refused"):                            true,
		status.Error(codes.Unknown, context.DeadlineExceeded.Error()):                    true,
		status.Error(codes.Unknown, "anything else"):                                     false,
		status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error()):           false,
		fmt.Errorf("wrapped: %w", status.Error(codes.Unavailable, "connection refused")): true,
	} {
		if got := isAway(err); got != want {
			t.Errorf("isAway(%v) = %t", err, got)
		}
	}
}
