package gate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// queue0 returns a gate with generation 0 loaded. Its turns are leases in the same
// Redis.
func queue0(client redis.UniversalClient, ledger uuid.UUID) countedQueue {
	return queueWith(client, ledger, leasesOf(client, ledger), nil)
}

// leasesOf returns leases of turns in Redis. Each ledger's leases have other names, so that tests
// of one SKU do not wait for each other.
func leasesOf(client redis.UniversalClient, ledger uuid.UUID) OwnedLocker {
	return ledgerLeases{redislock.New(client, redislock.Options{}), ledger.String() + ":"}
}

type ledgerLeases struct {
	OwnedLocker
	prefix string
}

func (l ledgerLeases) Lock(ctx context.Context, name string) (lock.Lease, error) {
	return l.OwnedLocker.Lock(ctx, l.prefix+name)
}

// queueWith returns the same gate with other leases. It calls between when the consumer has read
// the counts and not yet written them.
func queueWith(client redis.UniversalClient, ledger uuid.UUID, leases OwnedLocker, between func()) countedQueue {
	c, g := NewQueue(client, ledger, leases, lockWait)
	load0(c)
	g.readWrite.between = between
	return countedQueue{c, g}
}

// pause is a hook that stops the consumer.
type pause struct {
	stopped chan struct{} // receives a value when the consumer has stopped
	resume  chan struct{} // lets the consumer continue; closed: it does not stop again
}

func newPause() pause { return pause{make(chan struct{}), make(chan struct{})} }

func (p pause) here() {
	select {
	case p.stopped <- struct{}{}:
		<-p.resume
	case <-p.resume:
	}
}

// TestCallerLeaves lets a caller leave before its turn has come.
func TestCallerLeaves(t *testing.T) {
	t.Parallel()
	queues := newQueues(sharedLocker{lock.NewLocal()}, time.Minute)
	t.Cleanup(queues.close)
	turn := func() lock.Lease {
		lease, err := queues.Lock(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		return lease
	}
	first := turn()
	ctx, leave := context.WithCancel(t.Context())
	answer := make(chan error, 1)
	go func() {
		_, err := queues.Lock(ctx, "a")
		answer <- err
	}()
	testenv.Await(t, "the second caller waits in the queue", func() bool {
		queues.mu.Lock()
		defer queues.mu.Unlock()
		return len(queues.byName["a"].waiting) == 1
	})
	leave()
	if err := testenv.Receive(t, "the caller that left is answered", answer); !errors.Is(err, stock.ErrBusy) {
		t.Errorf("the caller that left is answered %v", err)
	}
	locktest.MustUnlock(t, first)
	locktest.MustUnlock(t, turn())
}

// start makes a take of SKU a in a goroutine, and returns once the take waits in the
// queue or is answered.
func (g countedQueue) start(ctx context.Context, d stock.Deduction) <-chan error {
	before := g.waiting("a")
	answer := make(chan error, 1)
	go func() {
		_, err := g.Take(ctx, d)
		answer <- err
	}()
	for g.waiting("a") == before && len(answer) == 0 {
		testenv.Dither() // pause between two polls
	}
	return answer
}

// waiting returns how many takes of the SKU wait or are being decided.
func (g countedQueue) waiting(sku stock.SKU) int {
	g.queues.mu.Lock()
	defer g.queues.mu.Unlock()
	if q := g.queues.byName[lockName(sku)]; q != nil {
		return len(q.waiting) + len(q.deciding)
	}
	return 0
}

// TestRefusedAtOnce checks that a take that does not fit behind the waiting takes is refused before
// the consumer has decided them. A duplicate of a waiting take must not be answered "sold out", and
// neither must a repeated take.
func TestRefusedAtOnce(t *testing.T) {
	t.Parallel()
	client, ledger, p := ownClient(t, "Redis", nil, -1), uuid.New(), newPause()
	fails := faults.NewHook()
	client.AddHook(fails)
	g := queueWith(client, ledger, leasesOf(client, ledger), p.here)
	g.queues.length = time.Hour
	t.Cleanup(g.Close)
	fill(t, g, "a", 1, 6)

	first := orderOf("a", 1)
	waiting := []<-chan error{g.start(t.Context(), first)} // in the queue of an instance that knows no count yet
	<-p.stopped
	second := orderOf("a", 2)
	waiting = append(waiting, g.start(t.Context(), second))
	p.resume <- struct{}{}
	<-p.stopped // 5 units are left, and the consumer is deciding about 2 of them
	third := orderOf("a", 2)
	waiting = append(waiting, g.start(t.Context(), third))
	var twins []<-chan error
	for _, twin := range []stock.Deduction{second, third} { // of a take that is being decided, and of one that waits
		twin.TakeID = uuid.New()
		twins = append(twins, g.start(t.Context(), twin))
	}
	waiting = append(waiting, g.start(t.Context(), orderOf("a", 1))) // the twins need no units

	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	if _, err := g.Take(ctx, orderOf("a", 1)); !errors.Is(err, stock.ErrSoldOut) {
		t.Errorf("a take behind all units: %v", err)
	}
	fails.Arm(faults.Fault{Kind: faults.Refused, Nth: 1, Only: g.scripts.Load().read.sha})
	if _, err := g.Take(ctx, orderOf("a", 1)); !errors.Is(err, stock.ErrBusy) || !isNotSent(err) {
		t.Errorf("a take behind all units while Redis is unreachable: %v", err)
	}
	fails.Disarm()
	waiting = append(waiting, g.start(t.Context(), first)) // this take has its unit already
	close(p.resume)
	for _, answer := range twins {
		if err := <-answer; !errors.Is(err, stock.ErrInFlight) {
			t.Errorf("a twin of a take that waited: %v", err)
		}
	}
	for _, answer := range waiting {
		if err := <-answer; err != nil {
			t.Error(err)
		}
	}
	if level := levelOf(t, g, "a"); level.Available != 0 || level.InFlight != 6 {
		t.Errorf("%+v", level)
	}
}

// TestLeftQueue checks that a caller who stops waiting takes no units and holds no
// place.
func TestLeftQueue(t *testing.T) {
	t.Parallel()
	client, ledger, p := shared.client(t, "Redis"), uuid.New(), newPause()
	g := queueWith(client, ledger, leasesOf(client, ledger), p.here)
	g.queues.length = time.Hour
	t.Cleanup(g.Close)
	fill(t, g, "a", 1, 6)
	fill(t, g, "b", 1, 6)

	first := g.start(t.Context(), orderOf("a", 1))
	<-p.stopped
	second := g.start(t.Context(), orderOf("a", 1))
	p.resume <- struct{}{}
	<-p.stopped // 5 units are left, and the consumer is deciding about one of them
	basket := orderOf("a", 4)
	basket.Lines = append(basket.Lines, stock.Line{SKU: "b", Quantity: 1})
	for _, d := range []stock.Deduction{orderOf("a", 4), basket} {
		ctx, cancel := context.WithCancel(t.Context())
		answer := g.start(ctx, d)
		cancel()
		if err := <-answer; !errors.Is(err, stock.ErrBusy) || !stock.NothingTaken(err) {
			t.Errorf("a take whose caller left: %v", err)
		}
	}
	if n := g.waiting("a"); n != 1 {
		t.Errorf("%d takes wait or are being decided, want 1", n)
	}
	third := g.start(t.Context(), orderOf("a", 4))
	close(p.resume)
	for _, answer := range []<-chan error{first, second, third} {
		if err := <-answer; err != nil {
			t.Error(err)
		}
	}
}

// TestFullQueue checks that a call that finds the queue full is answered busy.
func TestFullQueue(t *testing.T) {
	t.Parallel()
	client, ledger := shared.client(t, "Redis"), uuid.New()
	g := queue0(client, ledger)
	t.Cleanup(g.Close)
	fill(t, readWrite0(client, ledger), "a", 1, 6)
	q := &skuQueue{name: lockName("a"), waiting: make([]*waiter, maxWaiting), arrived: make(chan struct{}, 1)}
	g.queues.byName[q.name] = q
	full := fmt.Sprintf("%d calls wait", maxWaiting)
	if _, err := g.Take(t.Context(), orderOf("a", 1)); !errors.Is(err, stock.ErrBusy) || !strings.Contains(err.Error(), full) {
		t.Errorf("a take: %v", err)
	}
	if err := g.Fill(t.Context(), "a", 2, 7); !errors.Is(err, stock.ErrBusy) || !strings.Contains(err.Error(), full) {
		t.Errorf("a fill: %v", err)
	}
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 6})
}

// TestOneConsumer checks that two instances never decide takes of one SKU at the same time, and
// that both get turns.
func TestOneConsumer(t *testing.T) {
	t.Parallel()
	client, ledger := shared.client(t, "Redis"), uuid.New()
	var consumers, both atomic.Int64
	between := func() {
		if consumers.Add(1) > 1 {
			both.Add(1)
		}
		testenv.Dither() // a pause in which another consumer would be noticed
		consumers.Add(-1)
	}
	var instances [2]countedQueue
	for i := range instances {
		// A lease may end early, because it only advises.
		instances[i] = queueWith(client, ledger, leasesOf(client, ledger), between)
		t.Cleanup(instances[i].Close)
	}
	fill(t, instances[0], "a", 1, 1_000_000)
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	var (
		sold [2]atomic.Int64
		all  sync.WaitGroup
	)
	for n := range 8 {
		all.Go(func() {
			for ctx.Err() == nil {
				if _, err := instances[n%2].Take(ctx, orderOf("a", 1)); err == nil {
					sold[n%2].Add(1)
				}
				if sold[0].Load() > 200 && sold[1].Load() > 200 {
					cancel()
				}
			}
		})
	}
	all.Wait()
	if both.Load() > 0 {
		t.Errorf("two instances consumed the queue at the same time, %d times", both.Load())
	}
	if sold[0].Load() <= 200 || sold[1].Load() <= 200 {
		t.Errorf("sold %d and %d: an instance got no turn", sold[0].Load(), sold[1].Load())
	}
}

// TestTurnEnds checks that a consumer whose queue is never empty ends its turn.
func TestTurnEnds(t *testing.T) {
	t.Parallel()
	client, ledger, leases := shared.client(t, "Redis"), uuid.New(), newRecorder()
	granted := func() (times int) {
		leases.mu.Lock()
		defer leases.mu.Unlock()
		for _, event := range leases.events {
			if event == "lock stock:a" {
				times++
			}
		}
		return times
	}
	var (
		g     countedQueue
		start = time.Now()
		more  []<-chan error
	)
	g = queueWith(client, ledger, ownedRecorder{leases}, func() {
		if granted() < 2 && time.Since(start) < 15*time.Second {
			more = append(more, g.start(t.Context(), orderOf("a", 1)))
		}
	})
	g.queues.length = time.Millisecond
	t.Cleanup(g.Close)
	fill(t, readWrite0(client, ledger), "a", 1, stock.MaxTotal)
	mustTake(t, g, orderOf("a", 1))
	g.queues.consumers.Wait() // until the queue is empty
	for _, answer := range more {
		if err := <-answer; err != nil {
			t.Error(err)
		}
	}
	if n := granted(); n < 2 {
		t.Errorf("the consumer had %d turns", n)
	}
}

// TestTurnEnds_UnitsUnknown checks that an instance whose turn has ended does not refuse a take for
// lack of units, because other instances may have returned some since. Neither does an instance that
// has given its turn to a caller, who may return some. Units of takes that were refused when their
// turn could not begin must count as free again.
func TestTurnEnds_UnitsUnknown(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		qs := newQueues(ownLocker{lock.NewLocal(), new(atomic.Uint64)}, time.Second)
		q := &skuQueue{name: lockName("a"), arrived: make(chan struct{}, 1)}
		qs.byName[q.name] = q // without a consumer
		qs.decide = func(context.Context, ...*cut) map[stock.SKU]int64 {
			time.Sleep(maxTurn)
			return map[stock.SKU]int64{"a": 0}
		}
		enter := func() {
			t.Helper()
			d := orderOf("a", 1)
			if err := qs.enter(newWaiter(&cut{d: d, lines: d.Lines})); err != nil {
				t.Error(err)
			}
		}
		enter()
		qs.takeTurn(q)
		enter()
		q.known, q.waiting = true, append([]*waiter{{name: q.name, ready: make(chan struct{})}}, q.waiting...)
		qs.next(q, nil)
		enter()
		if q.queued != 2 {
			t.Errorf("%d units are queued, want 2", q.queued)
		}
		other, err := qs.leases.Lock(t.Context(), q.name) // another instance has the turn for long
		if err != nil {
			t.Fatal(err)
		}
		qs.takeTurn(q)
		_ = other.Unlock(t.Context())
		if q.queued != 0 {
			t.Errorf("%d units are queued after all takes were refused", q.queued)
		}
	})
}

type ownedRecorder struct{ *recorder }

func (ownedRecorder) Close() error { return nil }

// ownLocker is a locker that excludes only within this process. Its tokens rise over all lockers
// with the same counter.
type ownLocker struct {
	lock.Local
	tokens *atomic.Uint64
}

func (l ownLocker) Lock(ctx context.Context, name string) (lock.Lease, error) {
	lease, err := l.Local.Lock(ctx, name)
	return numberedLease{lease, l.tokens.Add(1)}, err
}

func (ownLocker) Close() error { return nil }

type numberedLease struct {
	lock.Lease
	token uint64
}

func (l numberedLease) Token() uint64 { return l.token }

// TestTwoConsumers checks that a lease only advises. A consumer that has read the last unit must
// not sell it if another consumer has sold it since.
func TestTwoConsumers(t *testing.T) {
	t.Parallel()
	client, ledger, p := shared.client(t, "Redis"), uuid.New(), newPause()
	var tokens atomic.Uint64
	late := queueWith(client, ledger, ownLocker{lock.NewLocal(), &tokens}, p.here)
	next := queueWith(client, ledger, ownLocker{lock.NewLocal(), &tokens}, nil)
	t.Cleanup(late.Close)
	t.Cleanup(next.Close)
	fill(t, readWrite0(client, ledger), "a", 1, 1)
	answer := late.start(t.Context(), orderOf("a", 1))
	<-p.stopped
	_, err := next.Take(t.Context(), orderOf("a", 1))
	close(p.resume)
	if err != nil {
		t.Errorf("the next consumer: %v", err)
	}
	if err := <-answer; !errors.Is(err, errFenced) || !stock.NothingTaken(err) {
		t.Errorf("the consumer that was late: %v", err)
	}
	if level := levelOf(t, next, "a"); level.Available != 0 || level.InFlight != 1 {
		t.Errorf("%+v", level)
	}
}

// TestQueue_LateWrite lets the unanswered write of a take arrive after the next take was decided.
// It must not replace the count that the next take has left.
func TestQueue_LateWrite(t *testing.T) {
	t.Parallel()
	basket := orderOf("a", 1)
	basket.Lines = append(basket.Lines, stock.Line{SKU: "b", Quantity: 1})
	for name, late := range map[string]stock.Deduction{"one line": orderOf("a", 1), "two lines": basket} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, ledger := ownClient(t, "Redis", nil, -1), uuid.New()
			var (
				g      countedQueue
				lost   atomic.Bool
				next   <-chan error
				arrive func() error
			)
			client.AddHook(faults.Around(func(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error) error {
				if ScriptName(cmds[0]) != "write" || lost.Swap(true) {
					return run(ctx)
				}
				next = g.start(t.Context(), orderOf("a", 1)) // the next take waits for the same turn
				arrive = func() error { return run(t.Context()) }
				return io.EOF
			}))
			g = queueWith(client, ledger, leasesOf(client, ledger), nil)
			g.queues.length = time.Hour
			t.Cleanup(g.Close)
			fill(t, g, "a", 1, 10)
			fill(t, g, "b", 1, 10)
			if _, err := g.Take(t.Context(), late); !errors.Is(err, io.EOF) || stock.NothingTaken(err) {
				t.Fatalf("the take whose write has no answer: %v", err)
			}
			if err := testenv.Receive(t, "the next take is answered", next); err != nil {
				t.Fatalf("the next take: %v", err)
			}
			if err := arrive(); err != nil {
				t.Fatal(err)
			}
			wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 9, InFlight: 1})
			wantLevel(t, g, stock.Level{SKU: "b", Epoch: 1, Available: 10})
		})
	}
}

// TestLeasesUnavailable checks that calls are answered busy if the instance cannot become the
// consumer, and that a call on an ended context does not try to become it.
func TestLeasesUnavailable(t *testing.T) {
	t.Parallel()
	client, ledger := shared.client(t, "Redis"), uuid.New()
	asked := new(atomic.Int64)
	g := queueWith(client, ledger, noLeases{asked: asked}, nil)
	t.Cleanup(g.Close)
	ended, end := context.WithCancel(t.Context())
	end()
	_, takeEnded := g.Take(ended, orderOf("a", 1))
	for call, err := range map[string]error{"Take": takeEnded, "Fill": g.Fill(ended, "a", 1, 1)} {
		if g.queues.consumers.Wait(); !errors.Is(err, stock.ErrBusy) || !errors.Is(err, context.Canceled) || asked.Load() > 0 {
			t.Errorf("%s on an ended context: %v, %d leases asked for", call, err, asked.Load())
		}
	}
	_, takeErr := g.Take(t.Context(), orderOf("a", 1))
	for call, err := range map[string]error{"Take": takeErr, "Fill": g.Fill(t.Context(), "a", 1, 1)} {
		if !errors.Is(err, stock.ErrBusy) || !errors.Is(err, errNoLeases) {
			t.Errorf("%s: got %v", call, err)
		}
	}
}

// TestClosedQueue checks that a call after Close is refused, and starts no consumer: Close may still
// wait for the others.
func TestClosedQueue(t *testing.T) {
	t.Parallel()
	asked := new(atomic.Int64)
	queues := newQueues(noLeases{asked: asked}, time.Minute)
	queues.close()
	if _, err := queues.Lock(t.Context(), "a"); !errors.Is(err, stock.ErrBusy) || asked.Load() > 0 {
		t.Errorf("%v, and leases were asked for %d times", err, asked.Load())
	}
}

var errNoLeases = errors.New("no leases")

// noLeases is a locker that grants nothing.
type noLeases struct {
	ownLocker
	asked *atomic.Int64
}

func (l noLeases) Lock(context.Context, string) (lock.Lease, error) {
	l.asked.Add(1)
	return nil, errNoLeases
}

// TestQueueEnds checks that a take is refused if it does not get its turn in time, and that Close
// waits for the turn under way before it closes the leases.
func TestQueueEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		closed := new(atomic.Bool)
		_, g := NewQueue(nil, uuid.New(), closingLocker{ownLocker{lock.NewLocal(), new(atomic.Uint64)}, closed}, time.Minute) // no call needs Redis
		turn, err := g.queues.Lock(t.Context(), lockName("a"))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := g.Take(ctx, orderOf("a", 1)); !errors.Is(err, stock.ErrBusy) || ctx.Err() != nil {
			t.Errorf("a take during a long turn: %v", err)
		}
		go g.Close()
		synctest.Wait()
		if closed.Load() {
			t.Error("the leases were closed during a turn")
		}
		if err := turn.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
		g.Close()
		if !closed.Load() {
			t.Error("the leases stay open")
		}
	})
}

// closingLocker is a locker that records that it was closed.
type closingLocker struct {
	ownLocker
	closed *atomic.Bool
}

func (l closingLocker) Close() error {
	l.closed.Store(true)
	return nil
}
