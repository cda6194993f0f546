package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/lab/machine"
	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// hugeTotal is a stock that never sells out.
const hugeTotal = 1_000_000_000

// lab measures variants on one Redis and one database server.
type lab struct {
	settings
	t                testenv.T
	database         string
	api              string // file of the service's program
	report, progress io.Writer

	redis          *testenv.RedisServer
	client         *redis.Client
	server         *testenv.DatabaseServer
	db             *sql.DB
	driver, source string // driver and data source of database/sql
	script         string // file of order.lua
	calls          *load.Client
	runs           int // measured so far
}

// newLab starts servers of its own. api is the file of the service's program.
func newLab(ctx context.Context, t testenv.T, s settings, database, api string, report, progress io.Writer) (*lab, error) {
	l := &lab{
		settings: s, t: t, database: database, api: api, report: report, progress: progress,
		redis: testenv.OwnRedis(t), calls: load.NewClient(http.DefaultTransport),
	}
	l.client = redis.NewClient(&redis.Options{Addr: l.redis.Addr()})
	if database == "mariadb" {
		l.server = testenv.OwnMariaDB(t)
	} else {
		l.server = testenv.OwnPostgres(t)
	}
	var err error
	if l.driver, l.source, err = testenv.DataSource(l.server.URL()); err != nil {
		return nil, err
	}
	if l.db, err = sql.Open(l.driver, l.source); err != nil {
		return nil, err
	}
	l.script = filepath.Join(testenv.Folder(t, "bench"), "order.lua")
	if err := os.WriteFile(l.script, orderLua, 0o600); err != nil {
		return nil, err
	}
	migrate := testenv.StartFile(t, api, "migrate", "up", "--db", l.server.URL())
	if code := migrate.Wait(); code != 0 {
		return nil, fmt.Errorf("migrate up: %s", migrate.Output())
	}
	_, err = l.db.ExecContext(ctx, "CREATE TABLE reference_orders (id CHAR(36) PRIMARY KEY, buyer VARCHAR(64) NOT NULL, quantity INT NOT NULL)")
	return l, err
}

func (l *lab) close() {
	l.db.Close()
	l.client.Close()
	l.redis.Kill()
	l.server.Kill()
}

// measure runs one measurement and writes its tables.
func (l *lab) measure(ctx context.Context, set string) error {
	fmt.Fprintf(l.report, "### %s, %s\n\n", set, l.database)
	defer fmt.Fprintln(l.report)
	switch set {
	case "targets":
		return l.targets(ctx)
	case "versions":
		return l.versions(ctx)
	case "spread":
		return l.compareSituations(ctx, situation{name: "one SKU", skus: 1}, situation{name: fmt.Sprintf("%d SKUs", l.SKUs), skus: l.SKUs})
	case "bulk":
		return l.compareSituations(ctx, situation{name: "an empty table", skus: 1}, situation{name: fmt.Sprintf("%d orders", l.Bulk), skus: 1, bulk: l.Bulk})
	case "expiry":
		return l.compareSituations(ctx, situation{name: "nothing expires", skus: 1}, situation{name: fmt.Sprintf("%d orders are due", l.Due), skus: 1, due: l.Due})
	case "instances":
		most := slices.Max(l.Instances)
		return l.compareSituations(ctx, situation{name: "one instance", skus: 1}, situation{name: fmt.Sprintf("%d instances", most), skus: 1, instances: most})
	case "console":
		return l.console(ctx)
	case "memory":
		return l.memory(ctx)
	case "slots":
		return l.slots(ctx)
	default:
		return l.many(ctx)
	}
}

// situation describes the stores in which a run places its orders.
type situation struct {
	name      string
	skus      int // 1: all orders are for one SKU
	bulk      int // number of orders in the table at the start
	due       int // number of them that are due to expire
	instances int // instances of the service; 0 means one
}

// targets measures all variants and compares them with their targets.
func (l *lab) targets(ctx context.Context) error {
	chosen := l.chosen(false)
	samples, err := l.inTurns(ctx, chosen, situation{skus: 1})
	if err != nil {
		return err
	}
	writeTable(l.report, names(chosen), samples)
	fmt.Fprintln(l.report)
	writeVerdicts(l.report, samples)
	return nil
}

// inTurns measures the variants in turns, and returns their samples by name.
func (l *lab) inTurns(ctx context.Context, chosen []variant, in situation) (map[string][]sample, error) {
	samples := make(map[string][]sample)
	for round, v := range measure.Interleaved(l.Rounds, chosen) {
		s, err := l.sample(ctx, v, in)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.name, err)
		}
		l.tell(round, in.name+v.name, s)
		samples[v.name] = append(samples[v.name], s)
	}
	return samples, nil
}

// side is one side of a comparison: a lab, and the situation of its stores.
type side struct {
	*lab
	situation
}

// compareSituations compares two situations of this lab.
func (l *lab) compareSituations(ctx context.Context, first, second situation) error {
	return l.compare(ctx, side{l, first}, side{l, second})
}

// compare measures each strategy on two sides. It reports the cost of an order if the sides differ
// in the program or in the number of instances. It reports the rate of expiry if orders expire on
// the second side.
func (l *lab) compare(ctx context.Context, first, second side) error {
	samples, err := l.alternate(ctx, first, second)
	if err != nil {
		return err
	}
	costs, expiry := first.lab != second.lab || second.instances > 0, second.due > 0
	titles := []string{"", "orders/s: " + first.name, second.name, "ratio"}
	if costs {
		titles = append(titles, "µs of CPU per order: "+first.name, second.name, "ratio", "orders a group: "+first.name, second.name)
	}
	titles = append(titles, "p99 ms: "+first.name, second.name)
	if expiry {
		titles = append(titles, "expired/s", "batches over 50 ms")
	}
	rows := table.New(titles...)
	for _, v := range l.chosen(true) {
		before, after := samples[first.name][v.name], samples[second.name][v.name]
		x, y := median(before), median(after)
		if x.fault+y.fault != "" {
			rows.Add(v.name, "failed: "+x.fault+y.fault)
			continue
		}
		ratio, _ := measure.Compared(after, before, rate)
		cells := []any{v.name, whole(x.perSecond), whole(y.perSecond), fmt.Sprintf("%.2f", ratio)}
		if costs {
			more, _ := measure.Compared(after, before, cost)
			cells = append(cells, whole(x.cpu()), whole(y.cpu()), fmt.Sprintf("%.2f", more),
				table.Figure("%.1f", x.grouped), table.Figure("%.1f", y.grouped))
		}
		cells = append(cells, millis(x.p99), millis(y.p99))
		if expiry {
			cells = append(cells, whole(y.expired), whole(y.slow))
		}
		rows.Add(cells...)
	}
	rows.WriteMarkdown(l.report)
	return nil
}

// alternate measures each strategy on two sides, one right after the other. The sides take turns at
// going first. alternate returns the samples by side name and strategy name.
func (l *lab) alternate(ctx context.Context, first, second side) (map[string]map[string][]sample, error) {
	samples := map[string]map[string][]sample{first.name: {}, second.name: {}}
	pair := []side{second, first}
	for round, v := range measure.Interleaved(l.Rounds, l.chosen(true)) {
		slices.Reverse(pair)
		for _, in := range pair {
			s, err := in.sample(ctx, v, in.situation)
			if err != nil {
				return nil, fmt.Errorf("%s, %s: %w", v.name, in.name, err)
			}
			l.tell(round, v.name+", "+in.name, s)
			samples[in.name][v.name] = append(samples[in.name][v.name], s)
		}
	}
	return samples, nil
}

// tell reports one run on the terminal.
func (l *lab) tell(round int, what string, s sample) {
	if s.fault != "" {
		fmt.Fprintf(l.progress, "%s round %d/%d %s: %s\n", l.database, round+1, l.Rounds, what, s.fault)
		return
	}
	fmt.Fprintf(l.progress, "%s round %d/%d %-28s %6.0f/s, µs of CPU: %.0f app, %.0f Redis, %.0f database; p99 %s ms, groups of %s\n",
		l.database, round+1, l.Rounds, what, s.perSecond, s.app, s.redis, s.db, millis(s.p99), table.Figure("%.1f", s.grouped))
}

// sample measures one variant once. It begins with empty tables.
func (l *lab) sample(ctx context.Context, v variant, in situation) (sample, error) {
	if err := l.reset(ctx, v, in); err != nil {
		return sample{}, err
	}
	api, err := l.start(ctx, v, in)
	if err != nil {
		return sample{}, err
	}
	defer testenv.End(api...)
	l.runs++
	run := wrkLoad{urls: api.urls(), connections: l.Connections, skus: in.skus, keyed: v.keyed, run: fmt.Sprint("r", l.runs)}
	var warmedUp result
	if l.WarmUp > 0 {
		run.run += "w"
		if warmedUp, err = generate(ctx, l.script, run, time.Duration(l.WarmUp)*time.Second); err != nil {
			return sample{}, err
		}
		run.run += "m"
	}
	before, err := l.usage(ctx, v, api)
	if err != nil {
		return sample{}, err
	}
	r, err := generate(ctx, l.script, run, time.Duration(l.Seconds)*time.Second)
	if err != nil {
		return sample{}, err
	}
	after, err := l.usage(ctx, v, api)
	if err != nil {
		return sample{}, err
	}
	if fault := l.audit(ctx, v, in, api, warmedUp.Created+r.Created); fault != "" {
		return sample{fault: fault}, nil
	}
	if fault := unexpected(v, r); fault != "" {
		return sample{fault: fault}, nil
	}
	return evaluate(v, r, before, after), nil
}

// service is the instances of one program.
type service []*testenv.APIServer

func (s service) urls() (urls []string) {
	for _, api := range s {
		urls = append(urls, api.URL())
	}
	return urls
}

func (s service) pids() (pids []int) {
	for _, api := range s {
		pids = append(pids, api.PIDs()...)
	}
	return pids
}

// counters returns the counters of all instances, added up.
func (s service) counters(ctx context.Context) (map[string]float64, error) {
	sum := make(map[string]float64)
	for _, api := range s {
		counters, err := measure.Counters(ctx, api.URL()+"/metrics")
		if err != nil {
			return nil, err
		}
		for name, value := range counters {
			sum[name] += value
		}
	}
	return sum, nil
}

// usage is what the processes have used and counted so far.
type usage struct {
	cpu
	counters map[string]float64
}

// cpu is the CPU time of the processes so far.
type cpu struct{ app, redis, db time.Duration }

func (l *lab) cpu(api service) cpu {
	return cpu{machine.CPUTime(api.pids()), machine.CPUTime(l.redis.PIDs()), machine.CPUTime(l.server.PIDs())}
}

func (l *lab) usage(ctx context.Context, v variant, api service) (u usage, err error) {
	u.cpu = l.cpu(api)
	if v.program == "" {
		u.counters, err = api.counters(ctx)
	}
	return u, err
}

// evaluate computes the figures of a run from the answers to it and the usage before
// and after it.
func evaluate(v variant, r result, before, after usage) sample {
	each := func(before, after time.Duration) float64 {
		return float64((after - before).Microseconds()) / float64(r.answers())
	}
	s := sample{
		perSecond: float64(r.answers()) / r.Elapsed.Seconds(),
		app:       each(before.app, after.app), redis: each(before.redis, after.redis), db: each(before.db, after.db),
		p50: r.P50, p99: r.P99, retries: math.NaN(), grouped: math.NaN(),
	}
	if v.program == "" && !v.soldOut {
		counted := func(name string) float64 { return after.counters[name] - before.counters[name] }
		s.expired, s.slow = counted("holdfast_expired_orders_total")/r.Elapsed.Seconds(), counted("holdfast_expiry_slow_batches_total")
		s.retries = counted("holdfast_ledger_retries_total") / float64(r.Created)
		s.grouped = counted("holdfast_ledger_group_orders_sum") / counted("holdfast_ledger_group_orders_count")
		s.held50, s.held99 = quantile(heldMetric, 0.50, before.counters, after.counters), quantile(heldMetric, 0.99, before.counters, after.counters)
	}
	return s
}

// unexpected describes the answers that the variant should not have given, if there are any.
func unexpected(v variant, r result) string {
	wrong := r.Broken
	if v.soldOut {
		wrong += r.Created
	} else {
		wrong += r.Refused
	}
	// Under contention for one row, optimistic exhausts its retries and answers "busy".
	if v.strategy != "optimistic" {
		wrong += r.Other
	}
	if wrong == 0 && r.answers() > 0 {
		return ""
	}
	return fmt.Sprintf("%d orders, %d sold out, %d other answers, %d broken connections", r.Created, r.Refused, r.Other, r.Broken)
}

// tables returns the names of the database's tables.
func (l *lab) tables(ctx context.Context) (names []string, err error) {
	schema := "DATABASE()"
	if l.driver == "pgx" {
		schema = "CURRENT_SCHEMA()"
	}
	rows, err := l.db.QueryContext(ctx, "SELECT table_name FROM information_schema.tables WHERE table_schema = "+schema)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, rows.Err()
}

// reset empties Redis and the tables, and inserts the rows that the situation needs.
func (l *lab) reset(ctx context.Context, v variant, in situation) error {
	if err := l.client.FlushAll(ctx).Err(); err != nil {
		return err
	}
	tables, err := l.tables(ctx)
	if err != nil {
		return err
	}
	for _, name := range []string{"order_lines", "orders", "order_history", "outbox", "stock_parts", "stock", "reference_orders"} {
		if !slices.Contains(tables, name) { // the schema is that of an older commit
			continue
		}
		if _, err := l.db.ExecContext(ctx, "TRUNCATE TABLE "+name); err != nil {
			return err
		}
	}
	if v.program != "" {
		return l.client.Set(ctx, "stock", hugeTotal, 0).Err()
	}
	if in.skus > 1 {
		if err := l.insertSKUs(ctx, v.strategy, in.skus); err != nil {
			return err
		}
	}
	switch {
	case in.due > 0:
		return l.insertDue(ctx, v.strategy, in.due)
	case in.bulk > 0:
		return l.insertOrders(ctx, in.bulk)
	}
	return nil
}

// A stock row that is inserted belongs to this generation.
const generation, epoch = 2, 2 << 28 // the upper bits of an epoch are its generation

// insertSKUs inserts stock rows as the strategy would leave them, so that the service
// has nothing to convert when it starts.
func (l *lab) insertSKUs(ctx context.Context, strategy string, count int) error {
	name := "'s' || seq"
	if l.database == "mariadb" {
		name = "CONCAT('s', seq)"
	}
	return l.exec(ctx,
		fmt.Sprintf("UPDATE ledger SET generation = %d, layout = '%s'", generation, strategy),
		fmt.Sprintf(`INSERT INTO stock (sku, kind, total, available, epoch)
			SELECT %s, 'product', %d, %d, %d FROM %s`, name, hugeTotal, hugeTotal, epoch+1, l.sequence(count)))
}

// insertOrders inserts pending orders of one unit each.
func (l *lab) insertOrders(ctx context.Context, count int) error {
	id, take := "md5('o' || seq)::uuid", "md5('t' || seq)::uuid"
	if l.database == "mariadb" {
		id, take = "UNHEX(MD5(CONCAT('o', seq)))", "UNHEX(MD5(CONCAT('t', seq)))"
	}
	statements := []string{
		fmt.Sprintf(`INSERT INTO orders (id, take_id, buyer_id, status, strategy, created_at)
			SELECT %s, %s, 'bulk', 'pending', 'lua', CURRENT_TIMESTAMP FROM %s`, id, take, l.sequence(count)),
		fmt.Sprintf(`INSERT INTO order_lines (order_id, sku, quantity) SELECT %s, 'hot', 1 FROM %s`, id, l.sequence(count)),
	}
	if l.database == "postgres" {
		statements = append(statements, "VACUUM ANALYZE orders, order_lines")
	}
	return l.exec(ctx, statements...)
}

// insertDue inserts orders of one unit that were due at different times some time ago, and
// the stock row that they have cut.
func (l *lab) insertDue(ctx context.Context, strategy string, count int) error {
	if err := l.insertOrders(ctx, count); err != nil {
		return err
	}
	due := "CURRENT_TIMESTAMP - INTERVAL '1 hour' - RANDOM() * INTERVAL '1 minute'"
	if l.database == "mariadb" {
		due = "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR - INTERVAL FLOOR(60000000 * RAND()) MICROSECOND"
	}
	return l.exec(ctx,
		"UPDATE orders SET expires_at = "+due,
		fmt.Sprintf("UPDATE ledger SET generation = %d, layout = '%s'", generation, strategy),
		fmt.Sprintf("INSERT INTO stock (sku, kind, total, available, epoch) VALUES ('hot', 'product', %d, %d, %d)", hugeTotal, hugeTotal-count, epoch+1))
}

// sequence is a table whose column seq counts from 1.
func (l *lab) sequence(count int) string {
	if l.database == "mariadb" {
		return fmt.Sprintf("seq_1_to_%d", count)
	}
	return fmt.Sprintf("generate_series(1, %d) AS s(seq)", count)
}

func (l *lab) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := l.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// start starts the variant's program and creates the stock that it sells.
func (l *lab) start(ctx context.Context, v variant, in situation) (service, error) {
	if v.program != "" {
		return service{testenv.ServeFile(l.t, testenv.Build(l.t, "./bench/reference"), "--program", v.program, "--redis", l.redis.Addr(), "--driver", l.driver, "--source", l.source)}, nil
	}
	var api service
	for range max(in.instances, 1) {
		api = append(api, l.serve(v.strategy))
	}
	if in.skus > 1 || in.due > 0 {
		return api, nil // reset has inserted the stock
	}
	total := int64(hugeTotal)
	if v.soldOut {
		total = 1
	}
	if err := l.calls.Create(ctx, api[0].URL(), "hot", client.Setting{Kind: client.Product, Total: total}); err != nil {
		return nil, err
	}
	if v.soldOut {
		return api, l.order(ctx, api[0].URL(), "first", "hot")
	}
	return api, nil
}

// serve starts an instance of the service.
func (l *lab) serve(strategy string) *testenv.APIServer {
	return testenv.ServeFile(l.t, l.api, "--strategy", strategy, "--db", l.server.URL(), "--redis", l.redis.URL(), "--log-level", "error")
}

// order orders one unit. It fails unless the order is accepted.
func (l *lab) order(ctx context.Context, url, buyer, sku string) error {
	a := l.calls.Place(ctx, url, client.OrderRequest{BuyerID: buyer, Lines: []client.Line{{SKU: sku, Quantity: 1}}})
	if a.Outcome() != load.Accepted {
		return fmt.Errorf("ordering %s: %s", sku, a.Failure())
	}
	return nil
}

// audit compares the orders that were answered with the database, and describes what is wrong. When
// the load ends, each connection has a request under way. Its order may be in the database without
// an answer.
func (l *lab) audit(ctx context.Context, v variant, in situation, api service, created int64) string {
	if v.program == "a" || v.program == "b" {
		return "" // programs a and b store nothing
	}
	query := "SELECT COUNT(*) FROM orders WHERE buyer_id <> 'bulk' AND status = 'pending'"
	if v.program != "" {
		query = "SELECT COUNT(*) FROM reference_orders"
	}
	var rows int64
	if err := l.db.QueryRowContext(ctx, query).Scan(&rows); err != nil {
		return err.Error()
	}
	if v.soldOut {
		created++ // the order that took the only unit
	}
	const loads = 2 // the warm-up and the measured run
	if rows < created || rows > created+loads*int64(l.Connections) {
		return fmt.Sprintf("%d orders were answered, %d are in the database", created, rows)
	}
	if v.program != "" || in.skus > 1 {
		return ""
	}
	first, err := l.calls.At(api[0].URL())
	if err != nil {
		return err.Error()
	}
	stock, err := first.Audit(ctx, "hot")
	if err != nil {
		return err.Error()
	}
	if stock.Oversold > 0 {
		return fmt.Sprintf("oversold %d", stock.Oversold)
	}
	return ""
}

// memory measures the memory of the service and of Redis while orders accumulate.
func (l *lab) memory(ctx context.Context) error {
	v, in := variant{name: "lua", strategy: "lua"}, situation{skus: 1}
	if err := l.reset(ctx, v, in); err != nil {
		return err
	}
	api, err := l.start(ctx, v, in)
	if err != nil {
		return err
	}
	defer testenv.End(api...)
	rows := table.New("orders", "api, resident MiB", "Redis, used_memory MiB")
	defer func() { rows.WriteMarkdown(l.report) }()
	for placed := int64(0); ; {
		used, err := l.redisMiB(ctx)
		if err != nil {
			return err
		}
		rows.Add(placed, fmt.Sprintf("%.1f", machine.ResidentMiB(api[0].PID())), fmt.Sprintf("%.2f", used))
		if placed >= int64(l.Orders) {
			return nil
		}
		for target := min(int64(l.Orders), placed+int64(l.Orders)/10); placed < target; {
			r, err := generate(ctx, l.script, wrkLoad{urls: api.urls(), connections: l.Connections, skus: 1}, 3*time.Second)
			if err != nil {
				return err
			}
			if fault := unexpected(v, r); fault != "" {
				return fmt.Errorf("after %d orders: %s", placed, fault)
			}
			placed += r.Created
		}
		fmt.Fprintf(l.progress, "%s memory: %d orders\n", l.database, placed)
	}
}

// redisMiB returns the memory that Redis has allocated.
func (l *lab) redisMiB(ctx context.Context) (float64, error) {
	info := l.client.InfoMap(ctx, "memory")
	if info.Err() != nil {
		return 0, info.Err()
	}
	bytes, err := strconv.ParseFloat(info.Item("Memory", "used_memory"), 64)
	return bytes / (1 << 20), err
}
