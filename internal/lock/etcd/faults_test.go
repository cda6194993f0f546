package etcd

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

var errFault = status.Error(codes.PermissionDenied, "the request has failed")

// calls is an interceptor that makes calls of a client fail.
type calls struct{ faults.Injector }

// heal ends the faults, and returns how many calls have failed.
func (c *calls) heal() int {
	_, injected := c.Disarm()
	return len(injected)
}

func (c *calls) intercept(ctx context.Context, method string, request, answer any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
	kind := c.Next(method)
	if kind == faults.Refused {
		return errFault
	}
	if err := invoke(ctx, method, request, answer, conn, options...); err != nil || kind == faults.None {
		return err
	}
	return errFault
}

// newFaulty returns a Locker whose calls can be made to fail. Its leftovers on the server do not
// expire within a test.
func newFaulty(t *testing.T) (*Locker, *calls) {
	t.Helper()
	l := newLockerWith(t, testenv.Etcd(t), 5*time.Minute)
	c := new(calls)
	client, err := clientv3.New(clientv3.Config{
		Endpoints: l.backend.client.Endpoints(), DialTimeout: dialTimeout, Logger: zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(c.intercept)},
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = l.backend.client.Close()
	l.backend.client = client // closed by Close
	return l, c
}

// mustBeFault checks that the error is the one of the failed call.
func mustBeFault(t *testing.T, what string, err error) {
	t.Helper()
	if status.Code(err) != codes.PermissionDenied {
		t.Errorf("%s: %v, want %v", what, err, errFault)
	}
}

// TestFailingCalls makes each call of each operation fail, or loses its answer. The error must be
// reported, and no key may be left long before the lease ends.
func TestFailingCalls(t *testing.T) {
	t.Parallel()
	other := newLocker(t, testenv.Etcd(t))
	keys := func(t *testing.T, prefix string) int64 {
		found, err := other.backend.client.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err != nil {
			t.Fatal(err)
		}
		return found.Count
	}
	lockWith := func(request func(*Locker, context.Context, string) (lock.Lease, error)) func(*testing.T, *Locker, *calls, string, func()) error {
		return func(t *testing.T, l *Locker, c *calls, name string, arm func()) error {
			arm()
			lease, err := request(l, t.Context(), name)
			c.heal()
			if err == nil {
				defer func() { _ = lease.Unlock(t.Context()) }()
			}
			return err
		}
	}
	for what, operation := range map[string]func(t *testing.T, l *Locker, c *calls, name string, arm func()) error{
		"Lock":    lockWith((*Locker).Lock),
		"TryLock": lockWith((*Locker).TryLock),
		"TryLock of a held lock": func(t *testing.T, l *Locker, c *calls, name string, arm func()) error {
			lease := locktest.MustLock(t, other, name)
			arm()
			_, err := l.TryLock(t.Context(), name)
			locktest.MustUnlock(t, lease)
			if errors.Is(err, lock.ErrHeld) {
				err = nil
				if idle := len(l.backend.idle); idle != 1 {
					t.Errorf("%d sessions are kept, want 1", idle)
				}
			}
			return err
		},
		"Unlock": func(t *testing.T, l *Locker, c *calls, name string, arm func()) error {
			s, err := l.backend.takeSession(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			l.backend.returnSession(s) // the lock gets this session
			lease := locktest.MustLock(t, l, name)
			arm()
			if err = lease.Unlock(t.Context()); err != nil && s.ctx.Err() == nil {
				t.Error("the session of a lock that may not be free is still renewed")
			}
			return err
		},
		"Confirm": func(t *testing.T, l *Locker, c *calls, name string, arm func()) error {
			lease := locktest.MustLock(t, l, name)
			defer locktest.MustUnlock(t, lease)
			arm()
			_, err := lease.(lock.Confirmer).Confirm(t.Context())
			c.heal()
			return err
		},
		"Show": func(t *testing.T, l *Locker, c *calls, name string, arm func()) error {
			arm()
			hide, err := l.Show(t.Context(), name, "a text")
			if err == nil {
				c.heal()
				hide(t.Context())
				if idle := len(l.backend.idle); idle != 1 {
					t.Errorf("%d sessions are kept, want 1", idle)
				}
			}
			return err
		},
		"TryLock beside a longer name": func(t *testing.T, l *Locker, c *calls, name string, arm func()) error {
			defer locktest.MustUnlock(t, locktest.MustLock(t, other, name+"/longer"))
			arm()
			lease, err := l.TryLock(t.Context(), name)
			c.heal()
			if err == nil {
				locktest.MustUnlock(t, lease)
			}
			return err
		},
		"Shown": func(t *testing.T, l *Locker, c *calls, name string, arm func()) error {
			arm()
			_, err := l.Shown(t.Context(), name)
			return err
		},
		"LastTick": func(t *testing.T, l *Locker, c *calls, name string, arm func()) error {
			arm()
			_, err := l.LastTick(t.Context(), name)
			return err
		},
		"RecordTick": func(t *testing.T, l *Locker, c *calls, name string, arm func()) error {
			arm()
			_, err := l.RecordTick(t.Context(), name, 1)
			return err
		},
	} {
		for _, fault := range []faults.Fault{{Kind: faults.Refused, Times: 1}, {Kind: faults.Lost, Times: 2}} { // 2: the call that ends the session fails, too
			t.Run(fmt.Sprint(what, " ", fault.Kind), func(t *testing.T) {
				t.Parallel()
				for n := 1; ; n++ {
					fault.Nth = n
					l, c := newFaulty(t) // a new Locker, because the previous one's later clean-up must not count here
					name := "faulty-" + uuid.NewString()
					err := operation(t, l, c, name, func() { c.Arm(fault) })
					if c.heal() == 0 {
						if err != nil {
							t.Errorf("without a fault: %v", err)
						}
						if n == 1 {
							t.Error("no call was made")
						}
						return
					}
					mustBeFault(t, fmt.Sprintf("%s, call %d", what, n), err)
					testenv.Await(t, "nothing is left", func() bool {
						return keys(t, Prefix+name+"/")+keys(t, other.backend.shownPrefix(name)) == 0
					})
				}
			})
		}
	}
}

// TestHideFails makes the deletion of a text fail. Its session must end, and the text with it.
func TestHideFails(t *testing.T) {
	t.Parallel()
	l, c := newFaulty(t)
	name := "hidden-" + uuid.NewString()
	hide, err := l.Show(t.Context(), name, "a text")
	if err != nil {
		t.Fatal(err)
	}
	c.Arm(faults.Fault{Kind: faults.Refused, Nth: 1})
	hide(t.Context())
	if c.heal() == 0 {
		t.Fatal("no call has failed")
	}
	if texts, err := l.Shown(t.Context(), name); err != nil || len(texts) != 0 {
		t.Errorf("the texts are %q, %v", texts, err)
	}
}

// TestCloseFails makes the end of an idle session fail.
func TestCloseFails(t *testing.T) {
	t.Parallel()
	l, c := newFaulty(t)
	locktest.MustUnlock(t, locktest.MustLock(t, l, "closed-"+uuid.NewString()))
	c.Arm(faults.Fault{Kind: faults.Refused, Nth: 1})
	mustBeFault(t, "Close", l.Close())
}

// TestWaiterWhoseServerFails makes the calls of a waiter fail when its turn comes. The next waiter
// must be granted the lock.
func TestWaiterWhoseServerFails(t *testing.T) {
	t.Parallel()
	other := newLocker(t, testenv.Etcd(t))
	l, c := newFaulty(t)
	name := "waiting-" + uuid.NewString()
	lease := locktest.MustLock(t, other, name)
	waiting := locktest.LockAsync(t.Context(), l, name)
	waitForContenders(t, foreignSession(t, testenv.Etcd(t)), name, 2)
	c.Arm(faults.Fault{Kind: faults.Refused, Nth: 1, Times: faults.Always})
	locktest.MustUnlock(t, lease)
	answer := <-waiting
	c.heal()
	mustBeFault(t, "the waiter", answer.Err)
	locktest.MustUnlock(t, locktest.MustLock(t, other, name))
}

// meanwhile is a client that calls now before its first write, so that another process is faster.
type meanwhile struct {
	clientv3.KV
	now func()
}

func (m *meanwhile) Txn(ctx context.Context) clientv3.Txn {
	m.now()
	m.now = func() {}
	return m.KV.Txn(ctx)
}

// TestTickMeanwhile records a tick while another process records one, and reads a tick that is not
// a number.
func TestTickMeanwhile(t *testing.T) {
	t.Parallel()
	l, other := newLocker(t, testenv.Etcd(t)), newLocker(t, testenv.Etcd(t))
	kv := l.backend.client.KV
	for tick, want := range map[int64]bool{4: false, 5: false, 6: true} {
		job := "job-" + uuid.NewString()
		l.backend.client.KV = &meanwhile{kv, func() {
			if recorded, err := other.RecordTick(t.Context(), job, 5); !recorded || err != nil {
				t.Errorf("the other: %t, %v", recorded, err)
			}
		}}
		if recorded, err := l.RecordTick(t.Context(), job, tick); recorded != want || err != nil {
			t.Errorf("tick %d was recorded: %t, %v", tick, recorded, err)
		}
		if last, err := l.LastTick(t.Context(), job); last != max(tick, 5) || err != nil {
			t.Errorf("the last tick is %d, %v", last, err)
		}
		if _, err := kv.Put(t.Context(), l.backend.tickKey(job), "soon"); err != nil {
			t.Fatal(err)
		}
		if _, err := l.LastTick(t.Context(), job); !errors.Is(err, strconv.ErrSyntax) {
			t.Errorf("the last tick is no number: %v", err)
		}
		if recorded, err := l.RecordTick(t.Context(), job, 9); recorded || !errors.Is(err, strconv.ErrSyntax) {
			t.Errorf("the last tick is no number: %t, %v", recorded, err)
		}
	}
}

// TestEndedWaitKeepsIdleSessions ends a wait as LockAll does when another of its locks is lost. The
// waiter must not use up the idle sessions.
func TestEndedWaitKeepsIdleSessions(t *testing.T) {
	t.Parallel()
	l := newLocker(t, testenv.Etcd(t))
	name := "ended-" + uuid.NewString()
	lease := locktest.MustLock(t, newLocker(t, testenv.Etcd(t)), name)
	var sessions []*session
	for range 5 {
		sessions = append(sessions, mustTakeSession(t, l.backend))
	}
	for _, s := range sessions {
		l.backend.returnSession(s)
	}
	ctx, end := context.WithCancelCause(t.Context())
	waiting := locktest.LockAsync(ctx, l, name)
	waitForContenders(t, foreignSession(t, testenv.Etcd(t)), name, 2)
	end(lock.ErrDisconnected)
	if a := <-waiting; !errors.Is(a.Err, context.Canceled) {
		t.Errorf("the wait has ended with %v, want %v", a.Err, context.Canceled)
	}
	if n := len(l.backend.idle); n != 4 {
		t.Errorf("%d of the 4 other sessions are left", n)
	}
	locktest.MustUnlock(t, lease)
}

// losing is a client that calls lose before the first deletion, and then waits until the
// deletion's context ends.
type losing struct {
	clientv3.KV
	lose func()
}

func (l *losing) Delete(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.DeleteResponse, error) {
	if l.lose != nil {
		l.lose()
		l.lose = nil
		<-ctx.Done()
	}
	return l.KV.Delete(ctx, key, options...)
}

// TestSessionIsLostInTryLock tries a lock that is held. The session is lost while TryLock deletes its
// key. TryLock must still return that the lock is held.
func TestSessionIsLostInTryLock(t *testing.T) {
	t.Parallel()
	l := newLocker(t, testenv.Etcd(t))
	name := "tried-" + uuid.NewString()
	lease := locktest.MustLock(t, newLocker(t, testenv.Etcd(t)), name)
	s := nextSession(t, l)
	l.backend.client.KV = &losing{l.backend.client.KV, func() { s.lose(lock.ErrExpired) }}
	locktest.MustBeHeld(t, l, name)
	if s.ctx.Err() == nil {
		t.Error("the session was not lost")
	}
	locktest.MustUnlock(t, lease)
}
