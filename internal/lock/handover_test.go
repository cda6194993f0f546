package lock

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
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
	next := &baton{p.relay, lost}
	p.relay.asked <- next
	return next, nil
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

// TestLeaseLostAfterHandover loses the holder's lease in the moment in which its
// turn has become the next waiter's. The turn must stay that waiter's.
func TestLeaseLostAfterHandover(t *testing.T) {
	t.Parallel()
	for how, wrap := range map[string]func(*baton) Grant{
		"passed on": func(b *baton) Grant { return passed{b} },
		"followed":  func(b *baton) Grant { return followed{b} },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			r := newRelay(wrap)
			close(r.let)
			l := newLocker(r)
			first := held(t, l, "a")
			holder := <-r.asked
			granted := make(chan Lease, 1)
			go func() { granted <- held(t, l, "a") }()
			waitFor(l, "a", 1)

			next := l.queue.first("a").hold
			next.mu.Lock() // holds up the handover, which has the queue locked by then
			unlocked := make(chan struct{})
			go func() {
				defer close(unlocked)
				unlock(t, first)
			}()
			<-r.handing
			for l.queue.mu.TryLock() {
				l.queue.mu.Unlock()
				runtime.Gosched()
			}
			lost := make(chan struct{})
			go func() {
				defer close(lost)
				holder.lost()
			}()
			for h := first.(*lease).hold; !h.isLost(); {
				runtime.Gosched()
			}
			for range 100 {
				runtime.Gosched() // until the loss waits for the queue
			}
			next.mu.Unlock()
			<-unlocked
			<-lost

			second := <-granted
			if _, err := l.TryLock(t.Context(), "a"); !errors.Is(err, ErrHeld) {
				t.Errorf("while the waiter holds the lock, another gets %v", err)
			}
			unlock(t, second)
			if len(l.queue.lines) != 0 {
				t.Error("the name is kept")
			}
		})
	}
}

// TestHandoverThatComesTooLate loses a grant that was made for a waiter which has
// got the lock by itself by then. The waiter's own lease must go on.
func TestHandoverThatComesTooLate(t *testing.T) {
	t.Parallel()
	r := newRelay(func(b *baton) Grant { return passed{b} })
	l := newLocker(r)
	first := held(t, l, "a")
	holder := <-r.asked
	granted := make(chan Lease, 1)
	go func() { granted <- held(t, l, "a") }()
	waitFor(l, "a", 1)
	unlocked := make(chan struct{})
	go func() {
		defer close(unlocked)
		unlock(t, first)
	}()
	<-r.handing
	holder.lost()
	second := <-granted
	<-r.asked // the waiter's own
	close(r.let)
	(<-r.asked).lost() // the one that was passed on
	<-unlocked
	if err := context.Cause(second.Context()); err != nil {
		t.Errorf("the waiter's lease ended: %v", err)
	}
	unlock(t, second)
}

// tied is a grant that is lost, and cannot be released before its loss was told.
type tied struct{ *baton }

func (g tied) Release(ctx context.Context) error {
	told := make(chan struct{})
	go func() {
		defer close(told)
		g.lost()
	}()
	<-told
	return g.baton.Release(ctx)
}

type passesTied struct{ *baton }

func (p passesTied) Pass(_ context.Context, lost func()) (Grant, error) {
	p.handOver()
	return tied{&baton{p.relay, lost}}, nil
}

// TestHandoverLostUnwanted loses a grant that is released because its waiter gave
// up. A backend that waits for its watchdog then must not wait for ever.
func TestHandoverLostUnwanted(t *testing.T) {
	t.Parallel()
	r := newRelay(func(b *baton) Grant { return passesTied{b} })
	l := newLocker(r)
	first := held(t, l, "a")
	ctx, giveUp := context.WithCancel(t.Context())
	gaveUp := make(chan error, 1)
	go func() {
		_, err := l.Lock(ctx, "a")
		gaveUp <- err
	}()
	waitFor(l, "a", 1)
	unlocked := make(chan error, 1)
	go func() { unlocked <- first.Unlock(t.Context()) }()
	<-r.handing
	giveUp()
	if err := <-gaveUp; !errors.Is(err, context.Canceled) {
		t.Errorf("the waiter has %v", err)
	}
	close(r.let)
	select {
	case err := <-unlocked:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(5 * time.Second):
		t.Fatal("Unlock does not end")
	}
}

type passesLost struct{ *baton }

func (p passesLost) Pass(_ context.Context, lost func()) (Grant, error) {
	lost()
	return &baton{p.relay, lost}, nil
}

// TestLossDuringHandover loses a grant before the waiter has it. The waiter must
// be told.
func TestLossDuringHandover(t *testing.T) {
	t.Parallel()
	l := newLocker(newRelay(func(b *baton) Grant { return passesLost{b} }))
	first := held(t, l, "a")
	granted := make(chan Lease, 1)
	go func() { granted <- held(t, l, "a") }()
	waitFor(l, "a", 1)
	unlock(t, first)
	second := <-granted
	select {
	case <-second.Context().Done():
	case <-time.After(5 * time.Second):
		t.Fatal("the lease goes on")
	}
	if err := second.Unlock(t.Context()); !errors.Is(err, ErrLost) {
		t.Errorf("unlocking what was lost: %v", err)
	}
}

func (h *hold) isLost() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lost
}
