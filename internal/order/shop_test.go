package order

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"gorm.io/gorm"

	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) {
	store.LogRedis(slog.New(slog.DiscardHandler))
	os.Exit(testenv.Main(m))
}

// database is one kind of database that a ledger may have.
type database struct {
	name string
	url  func(testenv.T) string
}

// servers are the databases that answer over a network; databases are all.
var (
	servers   = []database{{"MariaDB", testenv.MariaDB}, {"PostgreSQL", testenv.Postgres}}
	databases = append(servers[:2:2], database{"SQLite", testenv.SQLite})
)

// eachDatabase runs the test on each, with a fresh ledger.
func eachDatabase(t *testing.T, among []database, test func(t *testing.T, s *shop)) {
	t.Helper()
	for _, d := range among {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			test(t, newShop(t, d.url(t)))
		})
	}
}

// shop is one ledger and one Redis, for any number of instances.
type shop struct {
	url      string
	sql      *store.SQL
	redis    redis.UniversalClient
	ledgerID uuid.UUID
}

func newShop(t *testing.T, dbURL string) *shop {
	t.Helper()
	return newShopOn(t, dbURL, testenv.Redis(t))
}

func newShopOn(t *testing.T, dbURL, redisURL string) *shop {
	t.Helper()
	s := &shop{url: dbURL, sql: openSQL(t, dbURL)}
	var err error
	if err := s.sql.MigrateUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.ledgerID, err = s.sql.LedgerID(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.redis, err = store.OpenRedis(t.Context(), redisURL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.forget(t)
		_ = s.redis.Close()
	})
	return s
}

func openSQL(t *testing.T, dbURL string) *store.SQL {
	t.Helper()
	sql, err := store.OpenSQL(t.Context(), dbURL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sql.Close() })
	return sql
}

// forget makes Redis forget all it has of this ledger.
func (s *shop) forget(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	keys := s.redis.Scan(ctx, 0, "holdfast:{"+s.ledgerID.String()+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := s.redis.Del(ctx, keys.Val()).Err(); err != nil {
			t.Error(err)
		}
	}
	if err := keys.Err(); err != nil {
		t.Error(err)
	}
}

// instance is one Service, with what the test may reach behind it.
type instance struct {
	*Service
	closed sync.Once
	stop   func()
}

// Close finishes what the instance has accepted. It may be called again.
func (i *instance) Close() {
	i.closed.Do(func() {
		i.Service.Close()
		i.stop()
	})
}

// settings is how an instance differs from the one that everybody has.
type settings struct {
	strategy     string
	noGuard      bool
	segments     int
	takeDeadline time.Duration
	sql          *store.SQL // another way to the same ledger
	change       func(s *stock.Strategy)
}

// open starts an instance, which is closed when the test ends.
func (s *shop) open(t *testing.T, set settings) *instance {
	t.Helper()
	spec, ok := strategy.Find(set.strategy)
	if !ok {
		t.Fatalf("no strategy is called %q", set.strategy)
	}
	if set.takeDeadline == 0 {
		set.takeDeadline = time.Minute
	}
	if set.sql == nil {
		set.sql = s.sql
	}
	locker := redislock.New(s.redis, redislock.Options{})
	built, closeGate := spec.Build(strategy.Backends{
		Redis: s.redis, LedgerID: s.ledgerID, Guard: !set.noGuard,
		Locker: locker, LockName: "redis", Fence: true, Segments: cmp.Or(set.segments, 3),
	})
	stop := func() {
		closeGate()
		_ = locker.Close()
	}
	if set.change != nil {
		set.change(&built)
	}
	i := &instance{stop: stop}
	i.Service = NewService(set.sql.DB(), s.ledgerID, built, set.takeDeadline, slog.New(slog.DiscardHandler), NewMetrics(prometheus.NewRegistry()))
	t.Cleanup(i.Close)
	if err := i.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return i
}

// lay puts units of a product in.
func lay(t *testing.T, s *instance, sku stock.SKU, units int64) {
	t.Helper()
	if _, _, err := s.SetStock(t.Context(), Setting{SKU: sku, Kind: stock.Product, Total: units}); err != nil {
		t.Fatal(err)
	}
}

// ask is a request for one unit.
func ask(sku stock.SKU) Request { return asking(stock.Line{SKU: sku, Quantity: 1}) }

func asking(lines ...stock.Line) Request { return Request{Buyer: "buyer-1", Lines: lines} }

// keyed is the same request under a key.
func (r Request) keyed(key string) Request {
	r.Key = key
	return r
}

// mustPlace places an order that must be accepted and new.
func mustPlace(t *testing.T, s *instance, r Request) Order {
	t.Helper()
	o, replayed, err := s.Place(t.Context(), r)
	if err != nil || replayed {
		t.Fatalf("placing %v: replayed %v, %v", r.Lines, replayed, err)
	}
	return o
}

// mustRefuse asserts that the order is refused for the reason.
func mustRefuse(t *testing.T, s *instance, r Request, reason error) {
	t.Helper()
	o, _, err := s.Place(t.Context(), r)
	if !errors.Is(err, reason) {
		t.Fatalf("placing %v answered %v and %v, want %q", r.Lines, o.ID, err, reason)
	}
}

// books are a SKU's counts in the ledger, read without the service.
type books struct{ total, available, sold int64 }

func (s *shop) books(t *testing.T, sku stock.SKU) (b books) {
	t.Helper()
	db := s.sql.DB()
	if err := db.Raw("SELECT total, available FROM stock WHERE sku = ?", string(sku)).Row().Scan(&b.total, &b.available); err != nil {
		t.Fatal(err)
	}
	const sold = `SELECT COALESCE(SUM(quantity), 0) FROM order_lines
		WHERE sku = ? AND order_id IN (SELECT id FROM orders WHERE status IN ('pending', 'paid'))`
	if err := db.Raw(sold, string(sku)).Row().Scan(&b.sold); err != nil {
		t.Fatal(err)
	}
	return b
}

// oversold is how many units were sold that were never there.
func (b books) oversold() int64 { return max(0, b.sold-b.total) }

// atRest asserts that the SKU's books balance, in the ledger and at the gate,
// with nothing in flight and so many sold.
func (s *shop) atRest(t *testing.T, gate stock.Gate, sku stock.SKU, sold int64) {
	t.Helper()
	if fault := s.unbalanced(t, gate, sku); fault != "" {
		t.Error(fault)
	}
	if b := s.books(t, sku); b.sold != sold {
		t.Errorf("%s: sold %d, want %d", sku, b.sold, sold)
	}
}

// unbalanced says what does not add up of a SKU.
func (s *shop) unbalanced(t *testing.T, gate stock.Gate, sku stock.SKU) string {
	t.Helper()
	b := s.books(t, sku)
	switch {
	case b.oversold() > 0:
		return fmt.Sprintf("%s: oversold %d units: %+v", sku, b.oversold(), b)
	case b.available+b.sold != b.total:
		return fmt.Sprintf("%s: the ledger does not add up: %+v", sku, b)
	case gate == nil:
		return ""
	}
	levels, err := gate.Level(t.Context(), sku)
	switch {
	case err != nil:
		return err.Error()
	case levels[0].InFlight != 0:
		return fmt.Sprintf("%s: still in flight: %+v", sku, levels[0])
	case levels[0].Available != b.available:
		return fmt.Sprintf("%s: the gate has %+v, the ledger %+v", sku, levels[0], b)
	}
	return ""
}

// settled waits until nothing of the SKU is in flight: settles are sent after
// the answer.
func (s *shop) settled(t *testing.T, gate stock.Gate, sku stock.SKU) {
	t.Helper()
	if gate == nil {
		return
	}
	eventually(t, "nothing is in flight", func() bool {
		levels, err := gate.Level(t.Context(), sku)
		return err == nil && levels[0].InFlight == 0
	})
}

// eventually waits until the condition holds, for 20 s at the most.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("not within 20 s: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// hook is a point of the way that a test may stop somebody at.
type hook struct {
	mu      sync.Mutex
	armed   bool
	reached chan struct{}
	proceed chan struct{}
}

// arm stops the next that comes by. reached is closed when it has come, and
// proceed lets it go on.
func (h *hook) arm() (reached <-chan struct{}, proceed func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.armed = true
	here, on := make(chan struct{}), make(chan struct{})
	h.reached, h.proceed = here, on
	return here, sync.OnceFunc(func() { close(on) })
}

func (h *hook) pass() {
	h.mu.Lock()
	armed, reached, proceed := h.armed, h.reached, h.proceed
	h.armed = false
	h.mu.Unlock()
	if armed {
		close(reached)
		<-proceed
	}
}

// hookedCutter stops inside the ledger's transaction.
type hookedCutter struct {
	stock.Cutter
	before, after hook
}

func (c *hookedCutter) Cut(tx *gorm.DB, g stock.Generation, ds []stock.Deduction) ([]stock.Decision, error) {
	c.before.pass()
	decisions, err := c.Cutter.Cut(tx, g, ds)
	c.after.pass()
	return decisions, err
}

// conflicting is a cutter whose rows have moved, so many times.
type conflicting struct {
	stock.Cutter
	left int // only one transaction at a time
}

func (c *conflicting) Cut(tx *gorm.DB, g stock.Generation, ds []stock.Deduction) ([]stock.Decision, error) {
	if c.left > 0 {
		c.left--
		return nil, stock.ErrConflict
	}
	return c.Cutter.Cut(tx, g, ds)
}

// hookedGate stops after a take, and loses answers.
type hookedGate struct {
	stock.Gate
	taken, settling hook

	mu       sync.Mutex
	lose     int  // answers of takes still to lose
	noSettle bool // settles fail
	noAdjust bool // adjusts fail
	noGive   bool // gives fail
}

var errLostAnswer = errors.New("the answer was lost")

func (g *hookedGate) Take(ctx context.Context, d stock.Deduction) (stock.Deduction, error) {
	d, err := g.Gate.Take(ctx, d)
	if err == nil {
		g.taken.pass()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err == nil && g.lose > 0 {
		g.lose--
		return d, errLostAnswer
	}
	return d, err
}

func (g *hookedGate) Settle(ctx context.Context, ds ...stock.Deduction) error {
	g.settling.pass()
	if g.is(&g.noSettle) {
		return errLostAnswer
	}
	return g.Gate.Settle(ctx, ds...)
}

func (g *hookedGate) Give(ctx context.Context, d stock.Deduction) error {
	if g.is(&g.noGive) {
		return errLostAnswer
	}
	return g.Gate.Give(ctx, d)
}

func (g *hookedGate) Adjust(ctx context.Context, c stock.Change) error {
	if g.is(&g.noAdjust) {
		return errLostAnswer
	}
	return g.Gate.Adjust(ctx, c)
}

func (g *hookedGate) is(flag *bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *flag
}

func (g *hookedGate) set(flag *bool, value bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	*flag = value
}

// hooked is an instance with hooks in its gate and its cutter.
type hooked struct {
	*instance
	gate   *hookedGate // nil without a gate
	cutter *hookedCutter
}

func (s *shop) openHooked(t *testing.T, set settings) hooked {
	t.Helper()
	var h hooked
	set.change = func(built *stock.Strategy) {
		if built.Gate != nil {
			h.gate = &hookedGate{Gate: built.Gate}
			built.Gate = h.gate
		}
		h.cutter = &hookedCutter{Cutter: built.Cutter}
		built.Cutter = h.cutter
	}
	h.instance = s.open(t, set)
	return h
}

// reply is what somebody who placed an order in the background heard.
type reply struct {
	order    Order
	replayed bool
	err      error
}

// place places an order in the background.
func place(ctx context.Context, s *instance, r Request) <-chan reply {
	heard := make(chan reply, 1)
	go func() {
		o, replayed, err := s.Place(ctx, r)
		heard <- reply{o, replayed, err}
	}()
	return heard
}

// wait is what comes from the channel within 20 s.
func wait[T any](t *testing.T, what string, from <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-from:
	case <-time.After(20 * time.Second):
		t.Fatalf("not within 20 s: %s", what)
	}
	return v
}
