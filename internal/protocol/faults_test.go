package protocol

import (
	"context"
	"database/sql"
	"errors"
	"flag"
	"fmt"
	"iter"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/gate"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

var (
	faultsSearch = flag.Duration("faults.search", 0, "run TestFaults with random rows for this long, instead of its table")
	faultsSeed   = flag.Uint64("faults.seed", 0, "the first seed of the search (0: taken from the clock)")
	faultsOnly   = flag.String("faults.only", "", "the strategies of the search, separated by commas (empty: all)")
)

// faultRuns numbers the runs. They share a Redis, so their SKUs need distinct names.
var faultRuns atomic.Int64

// rig is a shop whose instances reach its stores through fault injectors.
type rig struct {
	*shop
	db       *sqltx.DB
	client   redis.UniversalClient
	sqlFault *faults.Injector
	hook     faults.Hook
	logged   testenv.Buffer // log of the instances
	// unanswered counts the commands that ended without Redis's answer.
	unanswered atomic.Int64
}

func newRig(t *testing.T, d testenv.Database) *rig {
	t.Helper()
	dbURL := d.URL(t)
	r := &rig{shop: newShop(t, dbURL), hook: faults.NewHook(), client: storetest.Redis(t, testenv.Redis(t))}
	r.client.AddHook(r.hook)
	r.client.AddHook(faults.Around(r.countUnanswered))
	if r.sql.Dialect() == sqltx.SQLite {
		const parameters = "_txlock=immediate&_pragma=busy_timeout(300)&_pragma=synchronous(off)"
		var pool *sql.DB
		r.db, pool, r.sqlFault = storetest.FaultySQLite(t, dbURL, parameters, storetest.SQLiteErrors(t))
		pool.SetMaxOpenConns(4)
		return r
	}
	wire, wireURL := faults.NewWire(t, dbURL)
	r.sqlFault, r.db = wire.Injector, storetest.SQL(t, wireURL).Ledger()
	return r
}

// lostUnlockLease is how long a lock stays taken if its unlock is lost.
const lostUnlockLease = time.Second

// start starts an instance that reaches its stores through the fault injectors. Recovery
// ends its takes at once.
func (r *rig) start(ctx context.Context, set settings, locks redislock.Options) (*instance, error) {
	set.takeDeadline, set.log = immediateDeadline, slog.New(slog.NewTextHandler(&r.logged, &slog.HandlerOptions{Level: slog.LevelWarn}))
	i, err := r.build(r.db, r.client, locks, set)
	if err != nil {
		return nil, err
	}
	if err := i.start(ctx); err != nil {
		i.Close()
		return nil, err
	}
	return i, nil
}

// countUnanswered is a hook that counts the commands that ended without an answer from Redis.
// On a slow machine, the client may also give up a command that no fault was meant for.
func (r *rig) countUnanswered(ctx context.Context, _ []redis.Cmder, run func(context.Context) error) error {
	err := run(ctx)
	if err != nil && !errors.As(err, new(redis.Error)) {
		r.unanswered.Add(1)
	}
	return err
}

// clientTimeout bounds the wait of a client for an answer.
const clientTimeout = 7 * time.Second

// run runs the row's scenario, ends the faults, sweeps, and returns an error if a
// promise is broken. It also returns the number of statements and commands that the
// scenario sent.
func (r *rig) run(ctx context.Context, row faultRow) (statements, commands int, broken error) {
	var (
		instances []*instance
		consuming sync.WaitGroup
	)
	running, stop := context.WithCancel(ctx)
	defer func() {
		r.sqlFault.Disarm()
		r.hook.Disarm()
		stop()
		consuming.Wait()
		for _, i := range instances {
			if broken == nil && i.consumer != nil { // the next row may use another strategy
				broken = i.Release(context.WithoutCancel(ctx))
			}
			i.Close()
		}
		if broken == nil {
			broken = r.cleanUp()
		}
	}()
	r.logged.Take()
	var locks redislock.Options
	if len(row.redis) > 0 {
		locks.Lease = lostUnlockLease
	} // without faults in Redis, the default lease: a slow machine must not lose the lock
	for range 2 {
		var i *instance
		err := testenv.Poll(testenv.Patience, func() (err error) { // the previous run may have left a broken connection
			i, err = r.start(ctx, settings{strategy: row.strategy, noGuard: row.noGuard}, locks)
			return err
		})
		if err != nil {
			return 0, 0, fmt.Errorf("starting: %w", err)
		}
		instances = append(instances, i)
		if i.consumer != nil {
			consuming.Go(func() { i.consumer.Run(running) })
		}
	}
	s := newScenario(faultRuns.Add(1), row)
	if err := s.addStock(ctx, instances[0]); err != nil {
		return 0, 0, err
	}

	if err := r.gather(ctx, instances[0], s, &evidence{}); err != nil {
		return 0, 0, err
	}

	r.sqlFault.Arm(row.sql...)
	r.hook.Arm(row.redis...)
	r.unanswered.Store(0)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		ctx, cancel := context.WithTimeout(ctx, clientTimeout)
		defer cancel()
		s.run(ctx, instances)
	}()
	bounded, cancel := context.WithTimeout(ctx, testenv.Patience)
	defer cancel()
	select {
	case <-ended:
	case <-bounded.Done():
		broken = fmt.Errorf("requests without an answer after %v", testenv.Patience)
		r.sqlFault.Disarm()
		r.hook.Disarm()
		<-ended
	}
	statements, sqlFaults := r.sqlFault.Disarm()
	commands, redisFaults := r.hook.Disarm()

	spec, _ := assembly.FindStrategy(row.strategy)
	e := evidence{answers: s.answers, sound: spec.Sound, guarded: spec.HasGate() && !row.noGuard, redisIntact: len(row.redis) == 0 && r.unanswered.Load() == 0}
	broken = errors.Join(broken, r.settle(ctx, instances, s, &e))
	s.retryKeyed(ctx, instances)
	e.answers = s.answers
	broken = errors.Join(broken, r.settle(ctx, instances, s, &e))
	if broken != nil {
		broken = fmt.Errorf("%w\nfaults: %s", broken, strings.Join(append(sqlFaults, redisFaults...), "\n\t"))
		for _, a := range s.answers {
			broken = fmt.Errorf("%w\n\t%s %v: order %v, replayed %v, %v", broken, a.Buyer, a.Lines, a.order.ID, a.replayed, a.err)
		}
		broken = fmt.Errorf("%w\nlog:\n%s", broken, r.logged.Take())
	}
	return statements, commands, broken
}

// settle sweeps until every promise holds. It returns the errors that remain when the
// time is over, or when no sweep can correct them.
func (r *rig) settle(ctx context.Context, instances []*instance, s *scenario, e *evidence) (broken error) {
	_ = testenv.Poll(testenv.Patience, func() error {
		var final bool
		if broken, final = r.sweep(ctx, instances, s, e); final {
			return nil
		}
		return broken
	})
	return broken
}

// sweep sweeps once, and returns the promises that are still broken. final is true if no sweep can
// correct that.
func (r *rig) sweep(ctx context.Context, instances []*instance, s *scenario, e *evidence) (broken error, final bool) {
	var failed error
	for _, i := range instances {
		if err := errors.Join(i.Ready(ctx), i.Sweep(ctx)); err != nil {
			failed = errors.Join(failed, fmt.Errorf("sweeping: %w", err))
		}
	}
	if err := r.gather(ctx, instances[0], s, e); err != nil {
		return err, true
	}
	return errors.Join(failed, e.check()), e.queued == 0 && e.checkOrders() != nil
}

// gather reads the evidence without the service. It reads the journal first, because an order
// leaves the journal when the ledger has it.
func (r *rig) gather(ctx context.Context, i *instance, s *scenario, e *evidence) (err error) {
	db := r.sql.DB().WithContext(ctx)
	e.records, e.counts = nil, make(map[stock.SKU]skuCounts)
	journaling := gate.NewScript(gate.NewCounter(r.shop.redis, r.ledgerID, gate.Layout{}))
	defer journaling.Close()
	if e.queued, _, err = journaling.Journal().Backlog(ctx); err != nil {
		return err
	}
	var rows []struct {
		ID    uuid.UUID
		Buyer string
		State order.Status
	}
	if err := db.Raw("SELECT id, buyer_id AS buyer, status AS state FROM orders").Scan(&rows).Error; err != nil {
		return err
	}
	var lines []struct {
		OrderID  uuid.UUID
		Sku      stock.SKU
		Quantity int64
	}
	if err := db.Raw("SELECT order_id, sku, quantity FROM order_lines ORDER BY order_id, sku").Scan(&lines).Error; err != nil {
		return err
	}
	for _, row := range rows {
		one := storedOrder{id: row.ID, buyer: row.Buyer, status: row.State}
		for _, line := range lines {
			if line.OrderID == one.id {
				one.lines = append(one.lines, stock.Line{SKU: line.Sku, Quantity: line.Quantity})
			}
		}
		e.records = append(e.records, one)
	}
	for sku, totals := range s.totals {
		c := skuCounts{totals: totals}
		var epoch int64
		if err := db.Raw("SELECT total, available + COALESCE((SELECT SUM(available) FROM stock_parts WHERE stock_parts.sku = stock.sku), 0), epoch FROM stock WHERE sku = ?", string(sku)).Row().Scan(&c.total, &c.available, &epoch); err != nil {
			return err
		}
		if _, ok := s.epochs[sku]; !ok { // the stock was just added
			s.epochs[sku] = epoch
		}
		c.epochRise = epoch - s.epochs[sku]
		if i.gate != nil {
			levels, err := i.counter.Level(ctx, sku)
			if err != nil {
				return err
			}
			c.gate = &levels[0]
		}
		e.counts[sku] = c
	}
	return nil
}

// cleanUp deletes the rows and keys of the run.
func (r *rig) cleanUp() error {
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	for _, table := range []string{"order_lines", "orders", "outbox", "stock"} {
		if err := r.sql.DB().WithContext(ctx).Exec("DELETE FROM " + table).Error; err != nil {
			return fmt.Errorf("clearing %s: %w", table, err)
		}
	}
	return r.deleteKeys(ctx, "*"+r.ledgerID.String()+"*")
}

// scenario holds the concurrent requests of several clients and an administrator.
type scenario struct {
	random   *rand.Rand
	skus     []stock.SKU
	requests []order.Request
	sets     []stock.Setting // settings sent one after the other

	mu      sync.Mutex
	answers []exchange
	totals  map[stock.SKU][]int64 // the totals that each SKU may have at the end
	epochs  map[stock.SKU]int64   // the epoch of each SKU after its stock was added
}

// newEmptyScenario returns a scenario without requests.
func newEmptyScenario(skus []stock.SKU) *scenario {
	return &scenario{skus: skus, totals: make(map[stock.SKU][]int64), epochs: make(map[stock.SKU]int64)}
}

// newScenario returns a random scenario: duplicates with three keys, and orders without a key, of
// one line and of several lines. Together they request more units than there are.
func newScenario(run int64, row faultRow) *scenario {
	a, b, c := stock.SKU(fmt.Sprintf("a.%d", run)), stock.SKU(fmt.Sprintf("b.%d", run)), stock.SKU(fmt.Sprintf("c.%d", run))
	s := newEmptyScenario([]stock.SKU{a, b, c})
	s.random = rand.New(rand.NewPCG(row.seed, 1))
	buyers := 0
	add := func(twins int, key string, lines ...stock.Line) {
		buyers++
		for range twins {
			s.requests = append(s.requests, order.Request{Buyer: fmt.Sprintf("buyer-%d-%d", run, buyers), Key: key, Lines: slices.Clone(lines)})
		}
	}
	if row.twins > 0 {
		add(row.twins, "k", stock.Line{SKU: a, Quantity: 1})
		return s
	}
	add(6, "k", stock.Line{SKU: a, Quantity: 1})
	add(3, "k", stock.Line{SKU: a, Quantity: 2}, stock.Line{SKU: b, Quantity: 1})
	add(2, "l", stock.Line{SKU: b, Quantity: 1}, stock.Line{SKU: c, Quantity: 1})
	for range 6 {
		var lines []stock.Line
		for _, sku := range s.skus {
			if s.random.IntN(2) == 0 {
				lines = append(lines, stock.Line{SKU: sku, Quantity: 1 + s.random.Int64N(2)})
			}
		}
		if lines == nil {
			lines = []stock.Line{{SKU: a, Quantity: 1}}
		}
		add(1, "", lines...)
	}
	s.random.Shuffle(len(s.requests), func(i, j int) { s.requests[i], s.requests[j] = s.requests[j], s.requests[i] })
	s.sets = []stock.Setting{
		{SKU: a, Kind: stock.Product, Total: 8},
		{SKU: b, Kind: stock.Product, Total: 4},
		{SKU: b, Kind: stock.Product, Total: 7},
	}
	return s
}

// addStock adds the stock. The gate has it when addStock returns: if SetStock could not fill the
// gate, the first order would refill it.
func (s *scenario) addStock(ctx context.Context, i *instance) error {
	for n, sku := range s.skus {
		total := int64(6 - n)
		err := testenv.Poll(testenv.Patience, func() error { // a busy machine may answer too late
			_, _, err := i.SetStock(ctx, stock.Setting{SKU: sku, Kind: stock.Product, Total: total})
			if err == nil {
				err = i.Refill(ctx, sku)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("adding stock of %s: %w", sku, err)
		}
		s.totals[sku] = []int64{total}
	}
	return nil
}

// run sends all requests at once. Each goes to the next instance.
func (s *scenario) run(ctx context.Context, instances []*instance) {
	var all sync.WaitGroup
	for n, r := range s.requests {
		i := instances[n%len(instances)]
		all.Go(func() { s.place(ctx, i, r) })
	}
	all.Go(func() {
		for _, set := range s.sets {
			_, _, err := instances[0].SetStock(ctx, set)
			switch {
			case err == nil:
				s.totals[set.SKU] = []int64{set.Total}
			default: // the setting may have taken effect, or may do so later
				s.totals[set.SKU] = append(s.totals[set.SKU], set.Total)
			}
		}
	})
	if s.random.IntN(2) == 0 {
		all.Go(func() { _ = instances[1].Sweep(ctx) })
	}
	all.Wait()
}

// place places an order, and records and returns the answer.
func (s *scenario) place(ctx context.Context, i *instance, r order.Request) reply {
	asked := r
	asked.Lines = slices.Clone(r.Lines)
	sent := time.Now()
	o, replayed, err := i.Place(ctx, asked)
	a := reply{o, replayed, err}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, exchange{r, a, sent, time.Now()})
	return a
}

// retryKeyed repeats every request with a key at every instance.
func (s *scenario) retryKeyed(ctx context.Context, instances []*instance) {
	done := make(map[string]bool)
	for _, r := range s.requests {
		if r.Key == "" || done[r.Buyer] {
			continue
		}
		done[r.Buyer] = true
		for _, i := range instances {
			s.place(ctx, i, r)
		}
	}
}

// faultStride is the distance between the rows that a run on one database uses. The number of rows
// of a strategy is not a multiple of it, so the positions vary.
const faultStride = 59

// TestFaults injects faults at one statement or command after another, and then checks every
// promise. It begins with the rows that once broke one. Unless the run is thorough, each database
// gets one in faultStride of the other rows, and no row runs on two databases. With -faults.search
// it runs random rows for that duration instead. The same -faults.seed gives the same rows.
func TestFaults(t *testing.T) {
	t.Parallel()
	for n, d := range databases {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			if *faultsSearch == 0 {
				rows := allRows(d.Name)
				if !testenv.Thorough() {
					rows = slices.DeleteFunc(rows, func(row faultRow) bool { return row.seed%faultStride != uint64(n) })
				}
				found := slices.DeleteFunc(slices.Clone(foundRows), func(row faultRow) bool { return row.database != d.Name })
				runRows(t, d, slices.Values(append(found, rows...)))
				return
			}
			runRows(t, d, func(yield func(faultRow) bool) {
				for seed := range seedsFrom(*faultsSeed, *faultsSearch) {
					if !yield(randomRow(d.Name, seed)) {
						return
					}
				}
			})
		})
	}
}

// seedsFrom returns one seed after another for the duration. If the first is 0, it is taken from
// the clock.
func seedsFrom(first uint64, within time.Duration) iter.Seq[uint64] {
	return func(yield func(uint64) bool) {
		seed := first
		if seed == 0 {
			seed = uint64(time.Now().UnixNano())
		}
		for end := time.Now().Add(within); time.Now().Before(end) && yield(seed); seed++ {
		}
	}
}

// runRows runs the rows.
func runRows(t *testing.T, d testenv.Database, rows iter.Seq[faultRow]) {
	t.Helper()
	rigs := thoroughFaultRigs
	if !testenv.Thorough() && *faultsSearch == 0 {
		rigs = faultRigs
	}
	runAll(t, d, rigs, rows, func(r *rig, row faultRow) error {
		start := time.Now()
		statements, commands, err := r.run(t.Context(), row)
		if testing.Verbose() {
			t.Logf("%v: %d statements and %d commands, %v", time.Since(start).Round(time.Millisecond), statements, commands, row)
		}
		if err != nil {
			return fmt.Errorf("%v\n%w", row, err)
		}
		return nil
	})
}

const (
	// These bound the concurrent runs on one database. Most of the time they wait. Each has its own
	// database, so few runs are faster with few of them.
	faultRigs, thoroughFaultRigs, stormRigs = 3, 6, 12
	// maxBroken is the number of broken runs on one database that ends the test.
	maxBroken = 10
)

// runAll runs all, this number at once.
func runAll[T any](t *testing.T, d testenv.Database, rigs int, each iter.Seq[T], run func(r *rig, one T) error) {
	t.Helper()
	var (
		all    sync.WaitGroup
		queue  = make(chan T)
		ran    atomic.Int64
		broken atomic.Int64
	)
	for range rigs {
		all.Go(func() {
			var r *rig
			for one := range queue {
				if broken.Load() >= maxBroken {
					continue
				}
				if r == nil {
					r = newRig(t, d)
				}
				ran.Add(1)
				if err := run(r, one); err != nil {
					broken.Add(1)
					t.Error(err)
					r = nil // the rig may be unusable now
				}
			}
		})
	}
	for one := range each {
		queue <- one
		if broken.Load() >= maxBroken {
			break
		}
	}
	close(queue)
	all.Wait()
	t.Logf("%d runs", ran.Load())
}
