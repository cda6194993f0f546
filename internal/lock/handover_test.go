package lock

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
)

// relay is a backend that grants everything, and whose grants are handed over
// only once they are let.
type relay struct {
	wrap     func(*baton) Grant
	asked    chan *baton   // each grant that was asked for
	handing  chan struct{} // closed when the first hand-over is under way
	let      chan struct{}
	released atomic.Int64
}

func newRelay(wrap func(*baton) Grant) *relay {
	return &relay{wrap: wrap, asked: make(chan *baton, 10), handing: make(chan struct{}), let: make(chan struct{})}
}

func (r *relay) Acquire(_ context.Context, _ string, _ bool, lost func()) (Grant, error) {
	b := &baton{r, lost}
	r.asked <- b
	return r.wrap(b), nil
}

type baton struct {
	relay *relay
	lost  func()
}

func (*baton) Token() uint64 { return 1 }

func (b *baton) Release(context.Context) error {
	b.relay.released.Add(1)
	return nil
}

func (b *baton) handOver() {
	close(b.relay.handing)
	<-b.relay.let
}

type passed struct{ *baton }

func (p passed) Pass(_ context.Context, lost func()) (Grant, error) {
	p.handOver()
	return &baton{p.relay, lost}, nil
}

type followed struct{ *baton }

func (f followed) Follow(context.Context) (Place, error) {
	f.handOver()
	return f, nil
}

func (f followed) Acquire(_ context.Context, lost func()) (Grant, error) {
	return &baton{f.relay, lost}, nil
}

func (f followed) Leave(ctx context.Context) { _ = f.Release(ctx) }

// TestHandingOver has one thing happen while a lock is handed over to the next
// waiter. What was handed over must be his, or be given back.
func TestHandingOver(t *testing.T) {
	t.Parallel()
	type waiter struct {
		granted chan Lease // nil: he gave up
		giveUp  context.CancelFunc
	}
	for how, wrap := range map[string]func(*baton) Grant{
		"passed on": func(b *baton) Grant { return passed{b} },
		"followed":  func(b *baton) Grant { return followed{b} },
	} {
		for _, test := range []struct {
			name      string
			meanwhile func(t *testing.T, holder *baton, w waiter)
			granted   bool  // the waiter was, by what was handed over
			released  int64 // grants and places, by then
		}{
			{"to a waiter", func(*testing.T, *baton, waiter) {}, true, 0},
			{"whose waiter gives up", func(_ *testing.T, _ *baton, w waiter) {
				w.giveUp()
				<-w.granted
			}, false, 1},
			{"whose lease is lost", func(t *testing.T, holder *baton, w waiter) {
				holder.lost() // so the waiter asks for himself, and is done before the hand-over is
				unlock(t, <-w.granted)
			}, false, 2},
		} {
			t.Run(how+" "+test.name, func(t *testing.T) {
				t.Parallel()
				r := newRelay(wrap)
				l := newLocker(r)
				lease := held(t, l, "a")
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				w := waiter{make(chan Lease, 1), cancel}
				go func() {
					lease, err := l.Lock(ctx, "a")
					if err != nil && !errors.Is(err, context.Canceled) {
						t.Error(err)
					}
					w.granted <- lease
				}()
				waitFor(l, "a", 1)
				unlocked := make(chan struct{})
				go func() {
					defer close(unlocked)
					unlock(t, lease)
				}()
				<-r.handing
				test.meanwhile(t, <-r.asked, w)
				close(r.let)
				<-unlocked
				if n := r.released.Load(); n != test.released {
					t.Errorf("%d were released, not %d", n, test.released)
				}
				if test.granted {
					unlock(t, <-w.granted)
				}
				unlock(t, held(t, l, "a")) // nothing holds it any more
				if len(l.queue.lines) != 0 {
					t.Error("the name is kept")
				}
			})
		}
	}
}
