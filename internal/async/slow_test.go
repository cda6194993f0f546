package async

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// pile is a journal of many orders. It delivers each of them once.
type pile struct {
	Journal
	mu        sync.Mutex
	queued    []stock.Take
	delivered int
	finished  map[uuid.UUID]bool
	left      bool // the consumer has left the group

	slow    time.Duration // how long a call of Finish lasts, and half of one of Redeliver
	looking bool          // a call of Redeliver is under way
}

func newPile(orders int) *pile {
	p := &pile{finished: make(map[uuid.UUID]bool)}
	for range orders {
		p.queued = append(p.queued, stock.Take{Deduction: oneUnit()})
	}
	return p
}

func (p *pile) Read(_ context.Context, _ string, limit int, wait time.Duration) ([]stock.Take, error) {
	p.mu.Lock()
	from, to := p.delivered, min(p.delivered+limit, len(p.queued))
	p.delivered = to
	p.mu.Unlock()
	if from == to {
		time.Sleep(wait) // in a bubble
	}
	return p.queued[from:to], nil
}

// Claim delivers again all orders that were delivered but not finished.
func (p *pile) Claim(context.Context, string, int, time.Duration) (takes []stock.Take, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.queued[:p.delivered] {
		if !p.finished[t.OrderID] {
			takes = append(takes, t)
		}
	}
	return takes, nil
}

func (p *pile) Finish(ctx context.Context, takes ...stock.Take) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	time.Sleep(p.slow) // in a bubble
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range takes {
		p.finished[t.OrderID] = true
	}
	return nil
}

// counts returns how many orders were delivered, and how many have ended.
func (p *pile) counts() (delivered, ended int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.delivered, len(p.finished)
}

func (p *pile) Redeliver(context.Context) (int, error) {
	p.look(true)
	defer p.look(false)
	time.Sleep(2 * p.slow) // in a bubble
	return 0, nil
}

func (p *pile) look(looking bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.looking = looking
}

func (*pile) Backlog(context.Context) (int64, time.Duration, error) { return 0, 0, nil }

func (p *pile) Leave(context.Context, string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.left = true
	return nil
}

// lockedRows is a ledger that commits held orders when they are released, and all others at once.
type lockedRows struct {
	Ledger
	held     map[uuid.UUID]bool
	released chan struct{}
	mu       sync.Mutex
	tries    map[uuid.UUID]int
}

func (l *lockedRows) Record(ctx context.Context, t stock.Take) (order.Order, order.Outcome) {
	l.mu.Lock()
	l.tries[t.OrderID]++
	l.mu.Unlock()
	if l.held[t.OrderID] {
		select {
		case <-l.released:
		case <-ctx.Done():
			return order.Order{}, order.Refused(stock.ErrBusy)
		}
	}
	return order.Order{}, order.Committed()
}

// hold returns a ledger that holds the pile's first orders, and a consumer of both.
func (p *pile) hold(orders int) (*lockedRows, *Consumer) {
	l := &lockedRows{held: make(map[uuid.UUID]bool), released: make(chan struct{}), tries: make(map[uuid.UUID]int)}
	for _, t := range p.queued[:orders] {
		l.held[t.OrderID] = true
	}
	return l, NewConsumer(p, l, &reconciler{}, ignore, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), nil)
}

// TestLockedRow checks that orders with locked stock rows do not delay others. A consumer must work
// on each only once at a time, although they are delivered again. They must leave the journal when
// the rows are free.
func TestLockedRow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const held, orders = 3, 2 * maxBatch
		p := newPile(orders)
		l, c := p.hold(held)
		stop := testenv.Background(t, c.Run)
		time.Sleep(commitTimeout - time.Second)
		if _, ended := p.counts(); ended != orders-held {
			t.Errorf("%d orders have ended, want %d", ended, orders-held)
		}
		l.mu.Lock()
		for id, tries := range l.tries {
			if tries != 1 {
				t.Errorf("order %s was tried %d times", id, tries)
			}
		}
		l.mu.Unlock()
		time.Sleep(2 * (maxIdle + commitTimeout)) // long enough for the consumer to give up the orders and claim them again
		close(l.released)
		time.Sleep(2 * (maxIdle + commitTimeout))
		if stop(); len(p.finished) != orders {
			t.Errorf("%d orders have ended, want %d", len(p.finished), orders)
		}
	})
}

// TestFullConsumer checks that a consumer works on a bounded number of orders at once. It continues
// when one of them ends, and can be stopped before.
func TestFullConsumer(t *testing.T) {
	t.Parallel()
	for _, released := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			p, want := newPile(maxUnderWay+10), 0
			l, c := p.hold(len(p.queued))
			stop := testenv.Background(t, c.Run)
			time.Sleep(time.Second)
			if delivered, _ := p.counts(); delivered != maxUnderWay {
				t.Errorf("%d orders were delivered, want %d", delivered, maxUnderWay)
			}
			if released {
				close(l.released)
				time.Sleep(time.Second)
				want = len(p.queued)
			}
			began := time.Now()
			stop()
			if took := time.Since(began); took > commitTimeout || len(p.finished) != want || !p.left {
				t.Errorf("it stopped after %v, %d orders have ended, want %d, and it has left: %v", took, len(p.finished), want, p.left)
			}
		})
	}
}

// abandoned is a pile whose orders a consumer has read and not finished. Claim delivers each of
// them once.
type abandoned struct {
	*pile
	claimed int
}

func (a *abandoned) Claim(_ context.Context, _ string, limit int, _ time.Duration) ([]stock.Take, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	from := a.claimed
	a.claimed = min(from+limit, len(a.queued))
	return a.queued[from:a.claimed], nil
}

// TestClaimsAll checks that a consumer claims all orders that other consumers have read and not
// finished, one batch after the other. There are many after a long fault of the database.
func TestClaimsAll(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := &abandoned{pile: newPile(5 * maxUnderWay)}
		a.delivered = len(a.queued)
		l, _ := a.hold(0)
		stop := testenv.Background(t, NewConsumer(a, l, &reconciler{}, ignore, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), nil).Run)
		time.Sleep(claimPause / 2)
		if stop(); len(a.finished) != len(a.queued) {
			t.Errorf("%d orders have ended before the next pause, want %d", len(a.finished), len(a.queued))
		}
	})
}

// failing is a journal in which other consumers have always left orders. All of these orders fail.
type failing struct {
	*pile
	*lockedRows
	claims, reads int
}

func (f *failing) Claim(context.Context, string, int, time.Duration) ([]stock.Take, error) {
	f.claims++
	return newPile(maxBatch).queued, nil
}

func (f *failing) Read(ctx context.Context, consumer string, limit int, wait time.Duration) ([]stock.Take, error) {
	f.reads++
	return f.pile.Read(ctx, consumer, limit, wait)
}

func (*failing) Record(context.Context, stock.Take) (order.Order, order.Outcome) {
	return order.Order{}, order.Refused(stock.ErrBusy)
}

// TestReadsBesideFailures checks that a consumer reads new orders although those that others have
// left fail all the time.
func TestReadsBesideFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &failing{pile: newPile(0)}
		stop := testenv.Background(t, NewConsumer(f, f, &reconciler{}, ignore, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), nil).Run)
		time.Sleep(time.Minute)
		if stop(); f.reads < 20 || f.claims < 20 {
			t.Errorf("in a minute it read %d times and claimed %d times", f.reads, f.claims)
		}
	})
}

// TestStopWaitsForOrders checks that a consumer that stops first finishes an order that waits for a
// locked row.
func TestStopWaitsForOrders(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPile(1)
		l, c := p.hold(1)
		stop := testenv.Background(t, c.Run)
		time.Sleep(time.Second)
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			stop()
		}()
		time.Sleep(time.Second)
		p.mu.Lock()
		if p.left {
			t.Error("it has left while it had an order")
		}
		p.mu.Unlock()
		close(l.released)
		<-stopped
		if len(p.finished) != 1 || !p.left {
			t.Errorf("%d orders were removed; the consumer has left: %v", len(p.finished), p.left)
		}
	})
}

// TestSlowJournal checks that a consumer works on an order only once until the order has left the
// journal, although it is delivered again. Run must not return before the last call to the journal
// has.
func TestSlowJournal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPile(1)
		p.slow = 3 * claimPause
		l, c := p.hold(0)
		ctx, stop := context.WithTimeout(t.Context(), 2*claimPause)
		defer stop()
		if c.Run(ctx); p.looking || len(p.finished) != 1 {
			t.Errorf("%d orders were removed; a call is under way: %v", len(p.finished), p.looking)
		}
		if n := l.tries[p.queued[0].OrderID]; n != 1 {
			t.Errorf("the order was recorded %d times", n)
		}
	})
}
