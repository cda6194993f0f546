package reconcile

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/gate"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// errLost is the error of a call that a test breaks.
var errLost = errors.New("the answer was lost")

// calls numbers the calls to the stores from 1, and breaks one of them.
type calls struct {
	mu     sync.Mutex
	made   int
	broken int         // number of the call that breaks; 0: no call breaks
	kind   faults.Kind // way in which the call breaks: Refused, Lost or Hung
	name   string      // name of the call that was broken

	before func(name string) // called before each call, if not nil
}

// start numbers the calls from 1 again, and breaks one of them.
func (c *calls) start(broken int, kind faults.Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.made, c.broken, c.kind, c.name = 0, broken, kind, ""
}

// stop breaks no more calls. It returns the name of the broken call.
func (c *calls) stop() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken = 0
	return c.name
}

// breaks counts a call, and returns the way in which it breaks. A hung call waits until ctx ends.
func (c *calls) breaks(ctx context.Context, name string) faults.Kind {
	if c.before != nil {
		c.before(name)
	}
	c.mu.Lock()
	if c.made++; c.made != c.broken {
		c.mu.Unlock()
		return faults.None
	}
	c.name = name
	kind := c.kind
	c.mu.Unlock()
	if kind == faults.Hung {
		<-ctx.Done()
	}
	return kind
}

// do makes a call, unless it breaks.
func (c *calls) do(ctx context.Context, name string, call func() error) error {
	_, err := answer(ctx, c, name, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

// answer makes a call that has an answer, unless it breaks.
func answer[T any](ctx context.Context, c *calls, name string, call func() (T, error)) (T, error) {
	var none T
	switch c.breaks(ctx, name) {
	case faults.None:
		return call()
	case faults.Lost:
		_, _ = call()
	}
	return none, errLost
}

// breakableLedger is a ledger with one call that breaks.
type breakableLedger struct {
	*ledger.Ledger
	calls *calls
}

func (l breakableLedger) Owner(ctx context.Context) (ledger.Owner, error) {
	return answer(ctx, l.calls, "Owner", func() (ledger.Owner, error) { return l.Ledger.Owner(ctx) })
}

func (l breakableLedger) Beat(ctx context.Context) (ledger.Owner, error) {
	return answer(ctx, l.calls, "Beat", func() (ledger.Owner, error) { return l.Ledger.Beat(ctx) })
}

func (l breakableLedger) RaiseGeneration(ctx context.Context, seen, next ledger.Owner) error {
	return l.calls.do(ctx, "RaiseGeneration", func() error { return l.Ledger.RaiseGeneration(ctx, seen, next) })
}

func (l breakableLedger) Row(ctx context.Context, sku stock.SKU) (ledger.StockRow, error) {
	return answer(ctx, l.calls, "Row", func() (ledger.StockRow, error) { return l.Ledger.Row(ctx, sku) })
}

func (l breakableLedger) Rows(ctx context.Context, after stock.SKU, limit int) ([]ledger.StockRow, error) {
	return answer(ctx, l.calls, "Rows", func() ([]ledger.StockRow, error) { return l.Ledger.Rows(ctx, after, limit) })
}

func (l breakableLedger) RowsOf(ctx context.Context, skus []stock.SKU) ([]ledger.StockRow, error) {
	return answer(ctx, l.calls, "RowsOf", func() ([]ledger.StockRow, error) { return l.Ledger.RowsOf(ctx, skus) })
}

func (l breakableLedger) RaiseEpoch(ctx context.Context, sku stock.SKU, seen, above int64) (ledger.StockRow, error) {
	return answer(ctx, l.calls, "RaiseEpoch", func() (ledger.StockRow, error) { return l.Ledger.RaiseEpoch(ctx, sku, seen, above) })
}

func (l breakableLedger) RaiseEpochs(ctx context.Context, seen []ledger.StockRow, above int64) ([]ledger.StockRow, error) {
	return answer(ctx, l.calls, "RaiseEpochs", func() ([]ledger.StockRow, error) { return l.Ledger.RaiseEpochs(ctx, seen, above) })
}

func (l breakableLedger) Changes(ctx context.Context, sku stock.SKU, after stock.Change) (changes []stock.Change, last bool, err error) {
	changes, err = answer(ctx, l.calls, "Changes", func() (changes []stock.Change, err error) {
		changes, last, err = l.Ledger.Changes(ctx, sku, after)
		return changes, err
	})
	return changes, last, err
}

func (l breakableLedger) Applied(ctx context.Context, changes ...stock.Change) error {
	if len(changes) == 0 {
		return nil // this call does not use the database
	}
	return l.calls.do(ctx, "Applied", func() error { return l.Ledger.Applied(ctx, changes...) })
}

func (l breakableLedger) Resolve(ctx context.Context, d stock.Deduction) order.Outcome {
	out, err := answer(ctx, l.calls, "Resolve", func() (order.Outcome, error) { return l.Ledger.Resolve(ctx, d), nil })
	if err != nil {
		return order.Unknown(err)
	}
	return out
}

// MeasureClock ends even if it hangs, as the ledger's does.
func (l breakableLedger) MeasureClock(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	return l.calls.do(ctx, "MeasureClock", func() error { return l.Ledger.MeasureClock(ctx) })
}

func (l breakableLedger) Expire(ctx context.Context, held ledger.Job, round *ledger.ExpiryRound, limit int) (ledger.Expiry, error) {
	return answer(ctx, l.calls, "Expire", func() (ledger.Expiry, error) { return l.Ledger.Expire(ctx, held, round, limit) })
}

func (l breakableLedger) Counts(ctx context.Context, skus []stock.SKU) ([]ledger.Count, error) {
	return answer(ctx, l.calls, "Counts", func() ([]ledger.Count, error) { return l.Ledger.Counts(ctx, skus) })
}

func (l breakableLedger) Recount(ctx context.Context, skus []stock.SKU) ([]ledger.Count, error) {
	return answer(ctx, l.calls, "Recount", func() ([]ledger.Count, error) { return l.Ledger.Recount(ctx, skus) })
}

func (l breakableLedger) WrongClaims(ctx context.Context, skus []stock.SKU, limit int) ([]ledger.Claim, error) {
	return answer(ctx, l.calls, "WrongClaims", func() ([]ledger.Claim, error) { return l.Ledger.WrongClaims(ctx, skus, limit) })
}

func (l breakableLedger) Correct(ctx context.Context, sku stock.SKU, above int64) error {
	return l.calls.do(ctx, "Correct", func() error { return l.Ledger.Correct(ctx, sku, above) })
}

// hook breaks one of the commands of a Redis client, and names it after the gate's script that it
// runs. A pipeline counts as one command.
func (c *calls) hook() goredis.Hook {
	return faults.Around(func(ctx context.Context, cmds []goredis.Cmder, run func(context.Context) error) error {
		return c.do(ctx, cmp.Or(gate.ScriptName(cmds[0]), cmds[0].Name()), func() error { return run(ctx) })
	})
}

// shop is an instance with a ledger in SQLite and a gate in Redis. Calls of its
// Reconciler to the ledger can be broken, and all calls to Redis.
type shop struct {
	*Reconciler
	calls   *calls
	ledger  *ledger.Ledger
	counter *gate.Counter
	gate    gate.Gate
	sql     *store.SQL
	redis   goredis.UniversalClient
	id      uuid.UUID // ID of the ledger
}

// inShop calls do in a bubble in which an instance has started.
func inShop(t *testing.T, do func(t *testing.T, s *shop)) {
	t.Helper()
	// These two stay outside of the bubble, because they have goroutines that wait for the end.
	file := testenv.SQLite(t)
	server, err := store.OpenInProcessRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	synctest.Test(t, func(t *testing.T) {
		s := &shop{calls: &calls{}}
		if s.sql, err = store.OpenSQL(t.Context(), file); err != nil {
			t.Fatal(err)
		}
		defer s.sql.Close()
		if err := s.sql.MigrateUp(t.Context()); err != nil {
			t.Fatal(err)
		}
		if s.id, err = s.sql.LedgerID(t.Context()); err != nil {
			t.Fatal(err)
		}
		o, err := goredis.ParseURL(server.URL())
		if err != nil {
			t.Fatal(err)
		}
		// Redis does not run on the bubble's time: a busy machine may take seconds to answer.
		o.ReadTimeout, o.WriteTimeout, o.DialTimeout, o.PoolTimeout, o.MaxRetries = time.Minute, time.Minute, time.Minute, time.Minute, -1
		s.redis = goredis.NewClient(o)
		defer s.redis.Close()
		s.ledger = ledger.New(s.sql.Ledger(), ledger.Options{
			Strategy: "test", Cutter: cutter.Conditional(), HasGate: true, Group: 8, Parallel: 1,
			PaymentWindow: time.Minute, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		})
		defer s.ledger.Close()
		s.redis.AddHook(s.calls.hook())
		s.counter = gate.NewCounter(s.redis, s.id, gate.Layout{Segments: 2})
		s.gate = gate.NewSegmented(s.counter, gate.NewScript(s.counter), ownedLocal{lock.NewLocal()})
		defer s.gate.Close()
		s.Reconciler = s.open("test")
		defer s.Close()
		if err := s.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		do(t, s)
	})
}

// open returns another Reconciler of the shop's stores.
func (s *shop) open(layout string) *Reconciler {
	return New(s.counter, breakableLedger{s.ledger, s.calls}, Options{
		Layout: layout, TakeDeadline: time.Nanosecond, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
}

// exec changes the database behind the ledger.
func (s *shop) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if err := s.sql.DB().WithContext(t.Context()).Exec(sql, args...).Error; err != nil {
		t.Fatal(err)
	}
}

// row returns the stock row.
func (s *shop) row(t *testing.T, sku stock.SKU) ledger.StockRow {
	t.Helper()
	row, err := s.ledger.Row(t.Context(), sku)
	if err != nil {
		t.Fatal(err)
	}
	return row
}

// add adds units to the ledger. The gate does not have them yet, unless the SKU is new.
func (s *shop) add(t *testing.T, sku stock.SKU, units int64) {
	t.Helper()
	limit := int64(stock.MaxTotal)
	row, err := s.ledger.Row(t.Context(), sku)
	if err != nil && !errors.Is(err, stock.ErrUnknownSKU) {
		t.Fatal(err)
	}
	created := err != nil
	if row, _, err = s.ledger.Set(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: row.Total + units, BuyerLimit: &limit}); err != nil {
		t.Fatal(err)
	}
	if created {
		if err := s.counter.Fill(t.Context(), sku, row.Epoch, row.Available); err != nil {
			t.Fatal(err)
		}
	}
}

// take takes a unit at the gate.
func (s *shop) take(t *testing.T, sku stock.SKU) stock.Take {
	t.Helper()
	taken, err := s.gate.Take(t.Context(), takeOf(sku, 0).Deduction)
	if err != nil {
		t.Fatal(err)
	}
	return taken
}

// sell takes a unit at the gate and commits the order.
func (s *shop) sell(t *testing.T, sku stock.SKU) stock.Take {
	t.Helper()
	taken := s.take(t, sku)
	if err := s.ledger.MeasureClock(t.Context()); err != nil { // a hung call may have lasted a minute
		t.Fatal(err)
	}
	if _, out := s.ledger.Record(t.Context(), taken); !out.Committed() {
		t.Fatalf("the order is %s: %v", out.Kind(), out.Reason())
	}
	return taken
}

// damages make the counts of a SKU wrong. The SKU must have at least 5 units.
var damages = map[stock.SKU]func(t *testing.T, s *shop, sku stock.SKU){
	// An addition has not reached the gate.
	"added": func(t *testing.T, s *shop, sku stock.SKU) { s.add(t, sku, 2) },
	// The gate has lost an addition.
	"gap": func(t *testing.T, s *shop, sku stock.SKU) {
		s.add(t, sku, 1)
		s.exec(t, "DELETE FROM outbox WHERE sku = ?", string(sku))
		s.add(t, sku, 1)
	},
	// The gate has no count.
	"lost": func(t *testing.T, s *shop, sku stock.SKU) {
		if err := s.redis.HDel(t.Context(), "holdfast:{"+s.id.String()+"}:count", string(sku)+"/0").Err(); err != nil {
			t.Fatal(err)
		}
	},
	// A take was not committed.
	"taken": func(t *testing.T, s *shop, sku stock.SKU) { s.take(t, sku) },
	// A take was committed and not settled.
	"sold": func(t *testing.T, s *shop, sku stock.SKU) {
		s.add(t, sku, 1)
		if err := s.Deliver(t.Context(), sku); err != nil {
			t.Fatal(err)
		}
		s.sell(t, sku)
	},
	// The gate has too many units, or too few.
	"high": addAtGate(5),
	"low":  addAtGate(-3),
	// The record of a take is lost.
	"unrecorded": func(t *testing.T, s *shop, sku stock.SKU) {
		s.take(t, sku)
		key := "holdfast:{" + s.id.String() + "}:flight"
		for _, field := range s.redis.HKeys(t.Context(), key).Val() {
			if len(field) > len(sku) && field[:len(sku)] == string(sku) {
				s.redis.HDel(t.Context(), key, field)
			}
		}
	},
	// The stock row has too many units.
	"wrong": func(t *testing.T, s *shop, sku stock.SKU) {
		s.exec(t, "UPDATE stock SET available = available + 3 WHERE sku = ?", string(sku))
	},
	// A buyer has a claim without an order.
	"claimed": func(t *testing.T, s *shop, sku stock.SKU) {
		s.exec(t, "DELETE FROM claims WHERE sku = ?", string(sku))
		s.exec(t, "INSERT INTO claims (sku, buyer_id, units) VALUES (?, 'stranger', 2)", string(sku))
	},
}

// addAtGate adds units at the gate that the ledger does not have.
func addAtGate(units int64) func(*testing.T, *shop, stock.SKU) {
	return func(t *testing.T, s *shop, sku stock.SKU) {
		row := s.row(t, sku)
		if err := s.counter.Adjust(t.Context(), stock.Change{SKU: sku, Epoch: row.Epoch, Number: row.Changes + 1, Delta: units}); err != nil {
			t.Fatal(err)
		}
	}
}

// check checks that gate and ledger agree on the SKUs, and that no work is left.
func (s *shop) check(t *testing.T, skus ...stock.SKU) {
	t.Helper()
	slices.Sort(skus)
	counts, err := s.ledger.Recount(t.Context(), skus)
	if err != nil || len(counts) != len(skus) {
		t.Fatalf("%d rows, %v", len(counts), err)
	}
	levels, err := s.counter.Level(t.Context(), skus...)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range counts {
		level := levels[i]
		if c.Available+c.Held != c.Total || c.Undelivered != 0 {
			t.Errorf("%s: the ledger has %+v", c.SKU, c)
		}
		if !level.Filled || level.Epoch != c.Epoch || level.Available != c.Available || level.InFlight != 0 {
			t.Errorf("%s: the gate has %+v, the ledger %+v", c.SKU, level, c)
		}
	}
	claims, err := s.ledger.WrongClaims(t.Context(), skus, 1)
	if err != nil || len(claims) > 0 {
		t.Errorf("wrong claims %+v, %v", claims, err)
	}
}
