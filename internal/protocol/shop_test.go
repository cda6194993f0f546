package protocol

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/admin"
	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/async"
	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/reconcile"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/gate"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	store.LogRedis(slog.New(slog.DiscardHandler))
	runMoreInParallel()
	os.Exit(testenv.Main(m))
}

// runMoreInParallel doubles the default of -parallel, because much of the time these tests wait for
// servers, locks and leases.
func runMoreInParallel() {
	flag.Parse()
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		if err := parallel.Value.Set(strconv.Itoa(2 * runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
}

// The kinds of database for the tests.
var (
	servers   = testenv.NetworkDatabases()
	databases = append(testenv.NetworkDatabases(), testenv.Database{Name: "SQLite", URL: sqliteURL})
)

// sqliteURL returns the URL of a new SQLite file. Like the shared test servers, SQLite
// does not wait for the disk: no test of this package cuts the power.
func sqliteURL(t testenv.T) string {
	t.Helper()
	return testenv.SQLite(t) + "?_pragma=synchronous(off)"
}

// outside has the databases of a test whose scenario lies outside the database: at the gate, or
// between two calls to the ledger. The tests of package ledger make each call on all databases.
var outside = oneOf(databases, 2)

// oneOf returns one of the databases, the n-th in turn. In a thorough run it returns all.
func oneOf(among []testenv.Database, n int) []testenv.Database {
	if testenv.Thorough() {
		return among
	}
	n %= len(among)
	return among[n : n+1]
}

// withServer returns SQLite and one of the servers, the n-th in turn. In a thorough run it returns
// all databases. It is for a scenario that stops or holds a transaction.
func withServer(n int) []testenv.Database {
	if testenv.Thorough() {
		return databases
	}
	return []testenv.Database{databases[n%len(servers)], databases[len(servers)]}
}

// takesTurn reports whether the n-th variant of a test runs on the database of s. In a thorough run
// every variant does. Otherwise each variant runs on one of the databases, in turn.
func (s *shop) takesTurn(n int) bool {
	dialects := []sqltx.Dialect{sqltx.MySQL, sqltx.Postgres, sqltx.SQLite}
	return testenv.Thorough() || dialects[n%len(dialects)] == s.sql.Dialect()
}

// runs is like takesTurn for a variant that uses the strategy. The variants take turns only on the
// databases on which the strategy can run.
func (s *shop) runs(spec assembly.Spec, n int) bool {
	switch {
	case !spec.NeedsRowLocks:
		return s.takesTurn(n)
	case s.sql.Dialect() == sqltx.SQLite:
		return false
	}
	return testenv.Thorough() || (n%2 == 0) == (s.sql.Dialect() == sqltx.MySQL)
}

// strategiesOn returns the strategies that run on the database of that name.
func strategiesOn(database string) []assembly.Spec {
	if database == "SQLite" {
		return assembly.EmbeddedStrategies()
	}
	return assembly.Strategies()
}

// eachDatabase runs the test on each of the databases in parallel, with a new ledger.
func eachDatabase(t *testing.T, among []testenv.Database, test func(t *testing.T, s *shop)) {
	t.Helper()
	eachDatabaseOn(t, among, testenv.Redis, test)
}

// eachDatabaseOn is eachDatabase with another Redis.
func eachDatabaseOn(t *testing.T, among []testenv.Database, redisURL func(testenv.T) string, test func(t *testing.T, s *shop)) {
	t.Helper()
	for _, d := range among {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			test(t, newShopOn(t, testenv.Patient(t, d.URL(t)), redisURL(t)))
		})
	}
}

// shop is one ledger and one Redis that any number of instances share.
type shop struct {
	url      string
	sql      *store.SQL
	redis    redis.UniversalClient
	redisURL string
	ledgerID uuid.UUID
	warnings testenv.Buffer // of the instances without a log of their own
}

func newShop(t *testing.T, dbURL string) *shop {
	t.Helper()
	return newShopOn(t, dbURL, testenv.Redis(t))
}

func newShopOn(t *testing.T, dbURL, redisURL string) *shop {
	t.Helper()
	s := &shop{url: dbURL, redisURL: redisURL, sql: storetest.Migrated(t, dbURL)}
	var err error
	if s.ledgerID, err = s.sql.LedgerID(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.redis = storetest.Redis(t, redisURL)
	t.Cleanup(func() { s.emptyGate(t) })
	return s
}

// emptyGate deletes all keys of this ledger from Redis.
func (s *shop) emptyGate(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testenv.Patience)
	defer cancel()
	if err := s.deleteKeys(ctx, "holdfast:{"+s.ledgerID.String()+"*"); err != nil {
		t.Error(err)
	}
}

// deleteKeys deletes the keys that match the pattern from Redis.
func (s *shop) deleteKeys(ctx context.Context, pattern string) error {
	keys := s.redis.Scan(ctx, 0, pattern, 1000).Iterator()
	for keys.Next(ctx) {
		if err := s.redis.Del(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}

// instance is an instance of the service, and the parts of it that tests call.
type instance struct {
	*order.Service
	*admin.Admin
	*reconcile.Reconciler
	gate     gate.Gate       // nil: the strategy has no gate
	counter  *gate.Counter   // nil without a gate
	journal  async.Journal   // nil unless the strategy queues orders
	consumer *async.Consumer // consumer of the journal
	ledger   *ledger.Ledger
	strategy string
	registry *prometheus.Registry
	start    func(context.Context) error // used instead of Reconciler.Start
	closed   sync.Once
	close    func() // closes the instance
	stop     func() // closes the instance's gate and locks
}

// Close finishes the orders under way and closes the instance. It may be called again.
func (i *instance) Close() {
	i.closed.Do(func() {
		i.close()
		i.stop()
	})
}

// settings configure an instance. The zero value of a field is the default.
type settings struct {
	strategy      string
	noGuard       bool
	segments      int
	slots         int
	takeDeadline  time.Duration
	paymentWindow time.Duration
	late          order.Late // treatment of late payments
	clock         func() time.Time
	db            func() *sqltx.DB           // opens the ledger; nil for the connections of the shop
	change        func(s *assembly.Strategy) // replaces the gate or the cutter
	around        faults.Around              // hook for the commands to Redis; nil: no hook
	auditor       bool                       // the instance only audits, while others sell
	idle          bool                       // no consumer commits the queued orders, unless the test does
	log           *slog.Logger               // nil: warnings go to the shop
}

// open starts an instance. The end of the test closes it.
func (s *shop) open(t *testing.T, set settings) *instance {
	t.Helper()
	if set.takeDeadline == 0 {
		set.takeDeadline = testenv.Patience / 2 // recovery settles takes that a busy machine could not settle
	}
	if set.db == nil {
		set.db = s.sql.Ledger
	}
	client := s.redis
	if set.around != nil {
		client = storetest.Redis(t, s.redisURL)
		client.AddHook(set.around)
	}
	i, err := s.build(set.db(), client, redislock.Options{}, set)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(i.Close)
	begin := i.start
	if set.auditor {
		begin = i.Attach
	}
	if err := patiently(func() error { return begin(t.Context()) }); err != nil {
		t.Fatal(err)
	}
	if i.consumer != nil && !set.idle && !set.auditor {
		testenv.Background(t, i.consumer.Run)
	}
	return i
}

// patiently calls do, and repeats it while a busy machine exceeds the timeouts of do's calls to the
// stores.
func patiently(do func() error) (err error) {
	for range 10 {
		timeout := net.Error(nil)
		if err = do(); !errors.Is(err, context.DeadlineExceeded) && !(errors.As(err, &timeout) && timeout.Timeout()) {
			return err
		}
	}
	return err
}

// ready returns an error if the instance cannot place orders.
func ready(t *testing.T, i *instance) error {
	t.Helper()
	return patiently(func() error { return i.Ready(t.Context()) })
}

// build builds an instance that reaches its stores through db and client.
func (s *shop) build(db *sqltx.DB, client redis.UniversalClient, locks redislock.Options, set settings) (*instance, error) {
	spec, ok := assembly.FindStrategy(set.strategy)
	if !ok {
		return nil, fmt.Errorf("unknown strategy %q", set.strategy)
	}
	locker := redislock.New(client, locks)
	built, closeGate := spec.Build(assembly.Backends{
		Redis: client, LedgerID: s.ledgerID, Guard: !set.noGuard,
		Locker: locker, LockName: "redis", Fence: true, Segments: cmp.Or(set.segments, 3), Slots: cmp.Or(set.slots, 3),
	})
	if set.change != nil {
		set.change(&built)
	}
	i := s.assemble(db, built, set)
	i.stop = func() {
		closeGate()
		_ = locker.Close()
	}
	return i, nil
}

// assemble builds an instance from its strategy and some of its settings, as the service
// does.
func (s *shop) assemble(db *sqltx.DB, built assembly.Strategy, set settings) *instance {
	i := &instance{gate: built.Gate, counter: built.Counter, strategy: built.Name, journal: built.Journal, registry: prometheus.NewRegistry()}
	parts := assembly.New(db, s.ledgerID, built, assembly.Options{
		TakeDeadline: set.takeDeadline, PaymentWindow: set.paymentWindow, LatePayments: set.late, Clock: set.clock, Log: cmp.Or(set.log, slog.New(slog.NewTextHandler(&s.warnings, &slog.HandlerOptions{Level: slog.LevelWarn}))), Metrics: i.registry,
	})
	i.Service, i.Admin, i.Reconciler, i.ledger, i.close = parts.Orders, parts.Stock, parts.Reconciler, parts.Ledger, func() { _ = parts.Close() }
	i.consumer, i.start = parts.Consumer, parts.Start
	return i
}

// addStock sets the total of a product.
func addStock(t *testing.T, s *instance, sku stock.SKU, units int64) {
	t.Helper()
	sell(t, s, stock.Setting{SKU: sku, Total: units})
}

// sell sets the total and the rules of a product.
func sell(t *testing.T, i *instance, set stock.Setting) {
	t.Helper()
	set.Kind = stock.Product
	if _, _, err := i.SetStock(t.Context(), set); err != nil {
		t.Fatal(err)
	}
}

// oneUnit returns a request for one unit.
func oneUnit(sku stock.SKU) order.Request { return request(stock.Line{SKU: sku, Quantity: 1}) }

// request returns a request for these lines, without a key.
func request(lines ...stock.Line) order.Request { return order.Request{Buyer: "buyer-1", Lines: lines} }

// withKey returns the request with an idempotency key.
func withKey(r order.Request, key string) order.Request {
	r.Key = key
	return r
}

// placeUntilKnown places an order at i, with a key. If the outcome is unknown, it repeats the
// request until it is known, as a client does, at the instance that next returns.
func placeUntilKnown(t *testing.T, i *instance, next func() *instance, r order.Request) (o order.Order, err error) {
	r.Key = uuid.NewString()
	if o, _, err = i.Place(t.Context(), r); !errors.Is(err, stock.ErrUnavailable) {
		return o, err
	}
	_ = untilAnswered(func() error {
		if o, _, err = next().Place(t.Context(), r); errors.Is(err, stock.ErrSuperseded) {
			return stock.Busy(err) // the next instance decides
		}
		return err
	})
	return o, err
}

// untilAnswered repeats a call, as a client does, while it is busy or its outcome is unknown. It
// returns the last error.
func untilAnswered(call func() error) (err error) {
	_ = testenv.Poll(testenv.Patience, func() error {
		if err = call(); errors.Is(err, stock.ErrBusy) || errors.Is(err, stock.ErrUnavailable) {
			return err
		}
		return nil
	})
	return err
}

// mustPlace places an order. It must be accepted, and must not be a replay.
func mustPlace(t *testing.T, s *instance, r order.Request) order.Order {
	t.Helper()
	o, replayed, err := s.Place(t.Context(), r)
	if err != nil || replayed {
		t.Fatalf("placing %v: replayed %v, %v", r.Lines, replayed, err)
	}
	return o
}

// mustRefuse places an order. It must be refused for the reason.
func mustRefuse(t *testing.T, s *instance, r order.Request, reason error) {
	t.Helper()
	o, _, err := s.Place(t.Context(), r)
	if !errors.Is(err, reason) {
		t.Fatalf("placing %v answered %v and %v, want %q", r.Lines, o.ID, err, reason)
	}
}

// ledgerCounts are the total and available units of a SKU in the ledger, and the units
// of its live orders.
type ledgerCounts struct{ total, available, sold int64 }

// ledgerCounts reads the counts of the SKU without the service.
func (s *shop) ledgerCounts(t *testing.T, sku stock.SKU) (b ledgerCounts) {
	t.Helper()
	db := s.sql.DB()
	if err := db.Raw("SELECT total, available + COALESCE((SELECT SUM(available) FROM stock_parts WHERE stock_parts.sku = stock.sku), 0) FROM stock WHERE sku = ?", string(sku)).Row().Scan(&b.total, &b.available); err != nil {
		t.Fatal(err)
	}
	const sold = `SELECT COALESCE(SUM(quantity), 0) FROM order_lines
		WHERE sku = ? AND order_id IN (SELECT id FROM orders WHERE status IN ('pending', 'paid'))`
	if err := db.Raw(sold, string(sku)).Row().Scan(&b.sold); err != nil {
		t.Fatal(err)
	}
	return b
}

// oversold returns the number of units sold beyond the total.
func (b ledgerCounts) oversold() int64 { return max(0, b.sold-b.total) }

// checkBalance checks that the SKU's counts add up in the ledger and at the gate, that nothing is
// in flight, and that the number of sold units is right. counter may be nil.
func (s *shop) checkBalance(t *testing.T, counter *gate.Counter, sku stock.SKU, sold int64) {
	t.Helper()
	if fault := s.imbalance(t, counter, sku); fault != "" {
		t.Error(fault)
	}
	if b := s.ledgerCounts(t, sku); b.sold != sold {
		t.Errorf("%s: sold %d, want %d", sku, b.sold, sold)
	}
}

// imbalance describes why the SKU's counts do not add up. It returns an empty text if they do.
func (s *shop) imbalance(t *testing.T, counter *gate.Counter, sku stock.SKU) string {
	t.Helper()
	b := s.ledgerCounts(t, sku)
	switch {
	case b.oversold() > 0:
		return fmt.Sprintf("%s: oversold %d units: %+v", sku, b.oversold(), b)
	case b.available+b.sold != b.total:
		return fmt.Sprintf("%s: the ledger's counts do not add up: %+v", sku, b)
	case counter == nil:
		return ""
	}
	levels, err := counter.Level(t.Context(), sku)
	switch {
	case err != nil:
		return err.Error()
	case levels[0].InFlight != 0:
		return fmt.Sprintf("%s: units are still in flight: %+v", sku, levels[0])
	case levels[0].Available != b.available:
		return fmt.Sprintf("%s: the gate has %+v, the ledger %+v", sku, levels[0], b)
	}
	return ""
}

// waitSettled waits until no unit of the SKU is in flight at the instance's gate, if it has one.
// Settles are sent after the answer. On a busy machine, a settle or a return of units may fail. An
// instance warns of that, and then sweeps end the take after its deadline.
func (s *shop) waitSettled(t *testing.T, i *instance, sku stock.SKU) {
	t.Helper()
	if i.counter == nil {
		return
	}
	testenv.Await(t, "nothing is in flight", func() bool {
		levels, err := i.counter.Level(t.Context(), sku)
		if err == nil && levels[0].InFlight == 0 {
			return true
		}
		if warnings := s.warnings.String(); strings.Contains(warnings, "settling takes failed") || strings.Contains(warnings, "giving a take back failed") {
			_ = i.Sweep(t.Context())
		}
		return false
	})
}

// key returns the name of a key of the gate in Redis.
func (s *shop) key(name string) string { return "holdfast:{" + s.ledgerID.String() + "}:" + name }

// checkSettled is checkBalance once no unit of the SKU is in flight at the instance's gate.
func (s *shop) checkSettled(t *testing.T, i *instance, sku stock.SKU, sold int64) {
	t.Helper()
	s.waitSettled(t, i, sku)
	s.checkBalance(t, i.counter, sku, sold)
}

// reply holds the results of Place.
type reply struct {
	order    order.Order
	replayed bool
	err      error
}

// place places an order in a goroutine and sends the reply to the channel.
func place(ctx context.Context, s *instance, r order.Request) <-chan reply {
	answer := make(chan reply, 1)
	go func() {
		o, replayed, err := s.Place(ctx, r)
		answer <- reply{o, replayed, err}
	}()
	return answer
}

// waiting returns the number of sessions of the database that wait for a lock.
func (s *shop) waiting(t *testing.T) (n int) {
	t.Helper()
	query := "SELECT count(*) FROM pg_locks WHERE NOT granted AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database())"
	if s.sql.Dialect() == "mysql" {
		// MariaDB's table of lock waits is a cached snapshot, and frequent reads keep
		// the server from refreshing it. In these tests only a lock makes a statement
		// run for 50 ms.
		query = `SELECT count(*) FROM information_schema.processlist
			WHERE db = database() AND id <> connection_id() AND command IN ('Query', 'Execute') AND time_ms > 50`
	}
	if err := s.sql.DB().Raw(query).Row().Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// immediateDeadline is a take deadline that has always passed.
const immediateDeadline = time.Nanosecond

// takeUnit takes a unit at the gate and leaves it in flight, like an instance that is killed
// between the gate and the ledger.
func takeUnit(t *testing.T, i *instance, sku stock.SKU) stock.Take {
	t.Helper()
	take, err := i.gate.Take(t.Context(), stock.Deduction{
		OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "b", Lines: []stock.Line{{SKU: sku, Quantity: 1}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return take
}

// record commits the order of the take.
func record(t *testing.T, i *instance, take stock.Take) error {
	t.Helper()
	if _, o := i.ledger.Record(t.Context(), take); !o.Committed() {
		return o.Reason()
	}
	return nil
}

// sweep runs a sweep that must succeed.
func sweep(t *testing.T, i *instance) {
	t.Helper()
	if err := patiently(func() error { return i.Sweep(t.Context()) }); err != nil {
		t.Fatal(err)
	}
}

// eachStrategy runs the test for every strategy on every database. Strategies with a gate
// run with the guard and without it. Unless the run is thorough, each of these variants
// runs on one of the databases.
func eachStrategy(t *testing.T, test func(t *testing.T, s *shop, i *instance)) {
	t.Helper()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		variant := -1
		for _, spec := range assembly.Strategies() {
			guards := []bool{true}
			if spec.HasGate() {
				guards = append(guards, false)
			}
			for _, guard := range guards {
				if variant++; !s.runs(spec, variant) {
					continue
				}
				name := spec.Name
				if !guard {
					name += " unguarded"
				}
				t.Run(name, func(t *testing.T) {
					i := s.open(t, settings{strategy: spec.Name, noGuard: !guard})
					test(t, s, i)
					i.Close() // the next strategy adopts the stock
				})
			}
		}
	})
}

// newSKU returns a SKU that no other test uses.
func newSKU(name string) stock.SKU { return stock.SKU(name + "." + uuid.NewString()[:8]) }

// sameOrder reports whether the orders are equal.
func sameOrder(a, b order.Order) bool {
	return a.ID == b.ID && a.Buyer == b.Buyer && a.Status == b.Status && a.Strategy == b.Strategy &&
		a.CreatedAt.Equal(b.CreatedAt) && a.ExpiresAt.Equal(b.ExpiresAt) && slices.Equal(a.Lines, b.Lines)
}
