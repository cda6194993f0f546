package async

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/gate"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	store.LogRedis(slog.New(slog.DiscardHandler))
	os.Exit(testenv.Main(m))
}

// units is the count with which a test fills the gate.
const units = 2000

// sku is the SKU of every test. Each test has its own keys.
const sku stock.SKU = "a"

// rig is a gate with a journal, and a ledger in memory.
type rig struct {
	client   redis.UniversalClient
	ledgerID uuid.UUID
	counter  *gate.Counter
	gate     *gate.Script
	journal  *gate.Journal
	ledger   *memory
	epoch    int64
}

// each runs the test on a real Redis and on the in-process one.
func each(t *testing.T, test func(t *testing.T, r *rig)) {
	t.Helper()
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		test(t, newRig(t, storetest.Redis(t, testenv.Redis(t))))
	})
	t.Run("InProcess", func(t *testing.T) {
		t.Parallel()
		server, err := store.OpenInProcessRedis(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Close() })
		test(t, newRig(t, server.Client()))
	})
}

func newRig(t *testing.T, client redis.UniversalClient) *rig {
	t.Helper()
	id := uuid.New()
	counter := gate.NewCounter(client, id, gate.Layout{})
	r := &rig{client: client, ledgerID: id, counter: counter, gate: gate.NewScript(counter), ledger: &memory{rows: make(map[uuid.UUID]order.Order)}}
	t.Cleanup(r.gate.Close)
	r.counter.Use(1)
	if err := r.counter.Load(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	r.journal = r.gate.Journal()
	if err := errors.Join(r.journal.Open(t.Context(), "opener"), r.counter.SetMark(t.Context(), stock.Mark{Generation: 1})); err != nil {
		t.Fatal(err)
	}
	if err := r.refill(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// refill fills the gate under the next epoch, with the units that the ledger has left.
func (r *rig) refill(ctx context.Context) error {
	first, _ := stock.Generation(1).Epochs()
	r.epoch = max(first, r.epoch) + 1
	return r.counter.Fill(ctx, sku, r.epoch, units-r.ledger.sold())
}

// key returns a key of the gate.
func (r *rig) key(name string) string { return "holdfast:{" + r.ledgerID.String() + "}:" + name }

// queue queues orders of one unit.
func (r *rig) queue(t *testing.T, orders int) (takes []stock.Take) {
	t.Helper()
	for range orders {
		taken, err := r.journal.Queue(t.Context(), oneUnit(), time.Now().UTC().Truncate(time.Microsecond))
		if err != nil {
			t.Fatal(err)
		}
		takes = append(takes, taken)
	}
	return takes
}

func oneUnit() stock.Deduction {
	return stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "u", Lines: []stock.Line{{SKU: sku, Quantity: 1}}}
}

// consumer returns a consumer that claims orders as soon as another consumer has left them.
func (r *rig) consumer() *Consumer {
	registry := prometheus.NewRegistry()
	return NewConsumer(&impatient{r.journal}, r.ledger, &reconciler{r}, ignore, slog.New(slog.DiscardHandler), registry, nil)
}

// waitEmpty waits until the journal has no order.
func (r *rig) waitEmpty(t *testing.T) {
	t.Helper()
	testenv.AwaitSuccess(t, "the journal is empty", func() error {
		length, _, err := r.journal.Backlog(t.Context())
		if err == nil && length != 0 {
			err = fmt.Errorf("%d orders are still queued", length)
		}
		return err
	})
	if named := r.client.HLen(t.Context(), r.key("queued")).Val(); named != 0 {
		t.Errorf("the journal is empty, and %d orders are queued", named)
	}
}

// check checks that every order ended with the status, that none is in flight, and that
// gate and ledger agree.
func (r *rig) check(t *testing.T, takes []stock.Take, want order.Status) {
	t.Helper()
	for _, taken := range takes {
		if o, err := r.ledger.Order(t.Context(), taken.OrderID); err != nil || o.Status != want {
			t.Errorf("order %s: %v (%v), want %s", taken.OrderID, o, err, want)
		}
	}
	levels, err := r.counter.Level(t.Context(), sku)
	if err != nil || levels[0].InFlight != 0 || levels[0].Available != units-r.ledger.sold() {
		t.Errorf("the gate has %+v (%v), the ledger sold %d", levels, err, r.ledger.sold())
	}
}

// impatient is a journal whose orders are claimed soon after their delivery.
type impatient struct{ Journal }

func (j *impatient) Claim(ctx context.Context, consumer string, limit int, _ time.Duration) ([]stock.Take, error) {
	return j.Journal.Claim(ctx, consumer, limit, 50*time.Millisecond)
}

// memory is a ledger in memory.
type memory struct {
	// before is called before an order is recorded. If it returns ok, Record does nothing and
	// returns the outcome. If before is nil, Record always records.
	before func(t stock.Take) (out order.Outcome, ok bool)

	mu       sync.Mutex
	rows     map[uuid.UUID]order.Order
	recorded []stock.Take // takes of every call of Record
}

func (m *memory) Record(_ context.Context, t stock.Take) (order.Order, order.Outcome) {
	if m.before != nil {
		if out, ok := m.before(t); ok {
			return order.Order{}, out
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recorded = append(m.recorded, t)
	return m.insert(t, order.Pending)
}

// commit commits the order as another consumer does. It returns false if that was done before.
func (m *memory) commit(t stock.Take) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, done := m.rows[t.OrderID]
	m.insert(t, order.Pending)
	return !done
}

func (m *memory) insert(t stock.Take, status order.Status) (order.Order, order.Outcome) {
	if o, ok := m.rows[t.OrderID]; ok {
		if o.Holds(t.TakeID) {
			return o, order.Committed()
		}
		return order.Order{}, order.Duplicate(&o)
	}
	o := order.Order{ID: t.OrderID, TakeID: t.TakeID, Status: status, Lines: t.Lines}
	m.rows[t.OrderID] = o
	return o, order.Committed()
}

func (m *memory) RecordRefusal(_ context.Context, t stock.Take) order.Outcome {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o, out := m.insert(t, order.TurnedDown); out.Committed() && o.Holds(t.TakeID) {
		return out
	}
	return order.Refused(errors.New("blocked"))
}

func (m *memory) Order(_ context.Context, id uuid.UUID) (*order.Order, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if o, ok := m.rows[id]; ok {
		return &o, nil
	}
	return nil, order.ErrUnknownOrder
}

// sold returns the units of the orders that hold their units.
func (m *memory) sold() (sold int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, o := range m.rows {
		if o.Status == order.Pending {
			sold++
		}
	}
	return sold
}

func (*memory) Now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

// ignore is a learn function that does nothing.
func ignore(time.Time, error) {}

// reconciler reconciles the gate of a rig.
type reconciler struct{ r *rig }

func (*reconciler) Usable(context.Context) error                            { return nil }
func (*reconciler) PrepareRetry(context.Context, error, ...stock.SKU) error { return nil }
func (*reconciler) CatchUp(context.Context, ...stock.SKU) error             { return nil }
func (m *reconciler) GiveBack(ctx context.Context, t stock.Take) bool {
	return m.r.counter.Give(ctx, t) == nil
}
func (*reconciler) AfterRefusal(context.Context, stock.Take, error) {}

// TestOrdersLeaveTheJournal checks that consumers commit every queued order once, that
// several batches are needed, and that nothing is left in the journal.
func TestOrdersLeaveTheJournal(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, r *rig) {
		takes := r.queue(t, maxBatch+50)
		one, other := r.consumer(), r.consumer()
		testenv.Background(t, one.Run)
		testenv.Background(t, other.Run)
		takes = append(takes, r.queue(t, 50)...)
		r.waitEmpty(t)
		r.check(t, takes, order.Pending)
		pending, err := r.client.XPending(t.Context(), r.key("journal"), "instances").Result()
		if err != nil || pending.Count != 0 {
			t.Errorf("%+v orders are delivered and not finished (%v)", pending, err)
		}
		if int(r.ledger.sold()) != len(takes) {
			t.Errorf("%d orders of %d", r.ledger.sold(), len(takes))
		}
	})
}

// TestClaimsFromTheDead checks that a consumer finishes the orders of a dead consumer, both
// committed and uncommitted ones.
func TestClaimsFromTheDead(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, r *rig) {
		takes := r.queue(t, 10)
		read, err := r.journal.Read(t.Context(), "dead", 10, -1)
		if err != nil || len(read) != 10 {
			t.Fatalf("read %v, %v", read, err)
		}
		for _, taken := range takes[:4] {
			r.ledger.Record(t.Context(), taken)
		}
		testenv.Background(t, r.consumer().Run)
		r.waitEmpty(t)
		r.check(t, takes, order.Pending)
	})
}

// TestAnswers checks what becomes of queued orders and their units after each answer of the ledger.
func TestAnswers(t *testing.T) {
	t.Parallel()
	soldOut := order.Refused(stock.Refuse(sku, stock.ErrSoldOut))
	for name, test := range map[string]struct {
		prepare func(t *testing.T, r *rig, takes []stock.Take)
		want    order.Status
		same    bool // the orders keep their takes
	}{
		"refused": {func(_ *testing.T, r *rig, _ []stock.Take) {
			r.ledger.before = func(stock.Take) (order.Outcome, bool) { return soldOut, true }
		}, order.TurnedDown, true},
		"committed by another": {func(_ *testing.T, r *rig, _ []stock.Take) { // which got the last unit
			r.ledger.before = func(taken stock.Take) (order.Outcome, bool) {
				r.ledger.commit(taken)
				return soldOut, true
			}
		}, order.Pending, true},
		"unknown": {func(_ *testing.T, r *rig, _ []stock.Take) {
			r.ledger.before = func(taken stock.Take) (order.Outcome, bool) {
				return order.Unknown(errors.New("the connection broke")), r.ledger.commit(taken)
			}
		}, order.Pending, true},
		"stale": {func(t *testing.T, r *rig, _ []stock.Take) {
			if err := r.refill(t.Context()); err != nil {
				t.Fatal(err)
			}
			r.ledger.before = func(taken stock.Take) (order.Outcome, bool) {
				return order.Refused(stock.Refuse(sku, stock.ErrStaleEpoch)), taken.Epoch(0) != r.epoch
			}
		}, order.Pending, false},
		"another take's order": {func(_ *testing.T, r *rig, takes []stock.Take) {
			for _, taken := range takes {
				r.ledger.rows[taken.OrderID] = order.Order{ID: taken.OrderID, TakeID: uuid.New(), Status: order.Cancelled}
			}
		}, order.Cancelled, false},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, r *rig) {
				takes := r.queue(t, 3)
				test.prepare(t, r, takes)
				testenv.Background(t, r.consumer().Run)
				r.waitEmpty(t)
				r.check(t, takes, test.want)
				for _, taken := range takes {
					if o := r.ledger.rows[taken.OrderID]; (o.TakeID == taken.TakeID) != test.same {
						t.Errorf("order %s was queued with take %s, and has %s", o.ID, taken.TakeID, o.TakeID)
					}
				}
				for _, taken := range r.ledger.recorded {
					if o := r.ledger.rows[taken.OrderID]; o.TakeID != taken.TakeID && test.want == order.Pending {
						t.Errorf("order %s was recorded with take %s, and has %s", o.ID, taken.TakeID, o.TakeID)
					}
				}
			})
		})
	}
}

// TestBusyLedger checks that an order which one consumer cannot commit stays in the
// journal with its units, and that another consumer commits it.
func TestBusyLedger(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, r *rig) {
		tried := make(chan struct{})
		refuse := sync.OnceFunc(func() { close(tried) })
		r.ledger.before = func(stock.Take) (order.Outcome, bool) {
			refuse()
			return order.Refused(stock.ErrBusy), true
		}
		takes := r.queue(t, 1)
		stop := testenv.Background(t, r.consumer().Run)
		<-tried
		stop()
		if got, ok, err := r.journal.Queued(t.Context(), takes[0].OrderID); err != nil || !ok || got.TakeID != takes[0].TakeID {
			t.Errorf("the journal has %+v, %v", got, err)
		}
		if levels, err := r.counter.Level(t.Context(), sku); err != nil || levels[0].InFlight != 1 {
			t.Errorf("the gate has %+v, %v", levels, err)
		}
		r.ledger.before = nil
		testenv.Background(t, r.consumer().Run)
		r.waitEmpty(t)
		r.check(t, takes, order.Pending)
	})
}

// TestRejectedOrder checks that an order whose content the database refuses ends as
// refused, and is not tried forever.
func TestRejectedOrder(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, r *rig) {
		r.ledger.before = func(stock.Take) (order.Outcome, bool) {
			return order.Refused(errors.Join(stock.ErrBusy, ledger.ErrRejected)), true
		}
		takes, c := r.queue(t, 1), r.consumer()
		var log bytes.Buffer
		c.log = slog.New(slog.NewTextHandler(&log, nil))
		if e := c.end(t.Context(), takes[0]); e.became != refused || e.err != nil {
			t.Errorf("the order is tried again: %+v", e)
		}
		if !strings.Contains(log.String(), "cannot be recorded, and is refused") {
			t.Errorf("logged %q", &log)
		}
		r.check(t, takes, order.TurnedDown)
	})
}

// TestStopFinishesWhatWasRead checks that a consumer that stops finishes the orders that
// it has read, and then leaves the group.
func TestStopFinishesWhatWasRead(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, r *rig) {
		reached, proceed := make(chan struct{}), make(chan struct{})
		first := sync.OnceFunc(func() {
			close(reached)
			<-proceed
		})
		r.ledger.before = func(stock.Take) (order.Outcome, bool) {
			first()
			return order.Outcome{}, false
		}
		takes := r.queue(t, 1)
		c := r.consumer()
		stop := testenv.Background(t, c.Run)
		<-reached
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			stop()
		}()
		close(proceed)
		<-stopped
		r.check(t, takes, order.Pending)
		names, err := r.client.XInfoConsumers(t.Context(), r.key("journal"), "instances").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range names {
			if found.Name == c.name {
				t.Errorf("the stopped consumer is still in the group: %+v", names)
			}
		}
	})
}

// TestFullJournal fills the journal to its limit. Orders must be refused as busy, and cut no units,
// until consumers have trimmed it.
func TestFullJournal(t *testing.T) {
	t.Parallel()
	const limit, steps = 100_000, 20
	r := newRig(t, storetest.Redis(t, testenv.Redis(t)))
	// A consumer that dies before it trims leaves entries without an order. The stream is filled in
	// steps, because other tests use the server too.
	for range steps {
		err := r.client.Eval(t.Context(), "for i = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'order', 'x') end return 1",
			[]string{r.key("journal")}, limit/steps).Err()
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.journal.Queue(t.Context(), oneUnit(), time.Now()); !errors.Is(err, stock.ErrBusy) {
		t.Errorf("a full journal: %v", err)
	}
	r.check(t, nil, "")
	if err := r.client.XTrimMaxLen(t.Context(), r.key("journal"), limit-1).Err(); err != nil {
		t.Fatal(err)
	}
	takes := r.queue(t, 1)
	if _, err := r.journal.Queue(t.Context(), oneUnit(), time.Now()); !errors.Is(err, stock.ErrBusy) {
		t.Errorf("a journal that is full again: %v", err)
	}
	if err := r.client.XTrimMaxLen(t.Context(), r.key("journal"), 2*maxBatch).Err(); err != nil { // the consumer removes the rest
		t.Fatal(err)
	}
	testenv.Background(t, r.consumer().Run)
	r.waitEmpty(t)
	r.check(t, takes, order.Pending)
}

// TestOldRedis checks that no order can be queued on a Redis without XAUTOCLAIM.
func TestOldRedis(t *testing.T) {
	t.Parallel()
	r := &rig{client: storetest.Redis(t, testenv.OwnRedis(t, "--rename-command", "XAUTOCLAIM", "").URL()), ledgerID: uuid.New()}
	r.counter = gate.NewCounter(r.client, r.ledgerID, gate.Layout{})
	r.gate = gate.NewScript(r.counter)
	defer r.gate.Close()
	r.journal = r.gate.Journal()
	if err := r.consumer().Start(t.Context()); err == nil || !strings.Contains(err.Error(), "Redis 6.2 or later is needed") {
		t.Errorf("%v", err)
	}
}
