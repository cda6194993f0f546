package main

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/machine"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// hugeTotal never sells out.
const hugeTotal = 1_000_000_000

// lab is one Redis and one database server, and what is measured on them.
type lab struct {
	settings
	t        testenv.T
	database string
	report   io.Writer

	redis     *testenv.RedisServer
	client    *redis.Client
	server    *testenv.DatabaseServer
	db        *sql.DB
	driver    string
	source    string
	generator *generator
	folder    string
	runs      int
}

func newLab(ctx context.Context, t testenv.T, s settings, database string, report io.Writer) (*lab, error) {
	l := &lab{settings: s, t: t, database: database, report: report, redis: testenv.OwnRedis(t)}
	l.client = redis.NewClient(&redis.Options{Addr: l.redis.Addr()})
	if database == "mariadb" {
		l.server = testenv.OwnMariaDB(t)
	} else {
		l.server = testenv.OwnPostgres(t)
	}
	var err error
	if l.driver, l.source, err = dataSource(l.server.URL()); err != nil {
		return nil, err
	}
	if l.db, err = sql.Open(l.driver, l.source); err != nil {
		return nil, err
	}
	if l.folder, err = os.MkdirTemp("", "holdfast-bench-"); err != nil {
		return nil, err
	}
	t.Cleanup(func() { os.RemoveAll(l.folder) })
	if l.generator, err = newGenerator(l.folder); err != nil {
		return nil, err
	}
	migrate := testenv.StartAPI(t, "migrate", "up", "--db", l.server.URL())
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

// dataSource writes a URL of the service as database/sql's driver takes it.
func dataSource(dbURL string) (driver, source string, err error) {
	u, err := url.Parse(dbURL)
	if err != nil || u.Scheme != "mysql" {
		return "pgx", dbURL, err
	}
	return "mysql", fmt.Sprintf("%s@tcp(%s)%s", u.User.Username(), u.Host, u.Path), nil
}

// measure runs one set and writes its tables.
func (l *lab) measure(ctx context.Context, set string) error {
	fmt.Fprintf(l.report, "\n### %s, %s\n\n", set, l.database)
	switch set {
	case "targets":
		return l.targets(ctx)
	case "spread":
		return l.compare(ctx, "one SKU", fmt.Sprintf("%d SKUs", l.skus), placing{skus: 1}, placing{skus: l.skus})
	case "bulk":
		return l.compare(ctx, "an empty table", fmt.Sprintf("%d orders", l.bulk), placing{skus: 1}, placing{skus: 1, bulk: l.bulk})
	default:
		return l.memory(ctx)
	}
}

// targets interleaves all variants, round by round. Each round has an order of
// its own, so that none is always measured long after its reference.
func (l *lab) targets(ctx context.Context) error {
	chosen := l.chosen(false)
	samples := make(map[string][]sample)
	var names []string
	for round := range l.rounds {
		for _, i := range rand.Perm(len(chosen)) {
			v := chosen[i]
			s, err := l.sample(ctx, v, placing{skus: 1})
			if err != nil {
				return fmt.Errorf("%s: %w", v.name, err)
			}
			l.progress(round, v.name, s)
			samples[v.name] = append(samples[v.name], s)
		}
	}
	for _, v := range chosen {
		names = append(names, v.name)
	}
	writeTable(l.report, names, samples)
	fmt.Fprintln(l.report)
	writeVerdicts(l.report, samples)
	return nil
}

// compare runs each strategy in two situations, interleaved.
func (l *lab) compare(ctx context.Context, first, second string, a, b placing) error {
	chosen := l.chosen(true)
	before, after := make(map[string][]sample), make(map[string][]sample)
	for round := range l.rounds {
		for _, v := range chosen {
			for _, side := range []struct {
				placing
				name    string
				samples map[string][]sample
			}{{a, first, before}, {b, second, after}} {
				s, err := l.sample(ctx, v, side.placing)
				if err != nil {
					return fmt.Errorf("%s, %s: %w", v.name, side.name, err)
				}
				l.progress(round, v.name+", "+side.name, s)
				side.samples[v.name] = append(side.samples[v.name], s)
			}
		}
	}
	fmt.Fprintf(l.report, "| | orders/s: %s | %s | ratio | p99 ms: %s | %s |\n|---|---|---|---|---|---|\n", first, second, first, second)
	for _, v := range chosen {
		x, y := median(before[v.name]), median(after[v.name])
		if x.fault+y.fault != "" {
			fmt.Fprintf(l.report, "| %s | failed: %s | | | | |\n", v.name, x.fault+y.fault)
			continue
		}
		kept, _ := compared(after[v.name], before[v.name], rate)
		fmt.Fprintf(l.report, "| %s | %.0f | %.0f | %.2f | %.1f | %.1f |\n", v.name, x.perSecond, y.perSecond, kept, millis(x.p99), millis(y.p99))
	}
	return nil
}

func (l *lab) progress(round int, what string, s sample) {
	if s.fault != "" {
		fmt.Fprintf(os.Stderr, "%s round %d/%d %s: %s\n", l.database, round+1, l.rounds, what, s.fault)
		return
	}
	fmt.Fprintf(os.Stderr, "%s round %d/%d %-28s %6.0f/s, µs of CPU: %.0f app, %.0f Redis, %.0f database; p99 %.1f ms, groups of %.1f\n",
		l.database, round+1, l.rounds, what, s.perSecond, s.app, s.redis, s.db, millis(s.p99), s.grouped)
}

// placing is the situation in which orders are placed.
type placing struct {
	skus int // 1: one, hot
	bulk int // orders that are there already
}

// sample measures one variant once, from empty tables.
func (l *lab) sample(ctx context.Context, v variant, p placing) (sample, error) {
	if err := l.reset(ctx, v, p); err != nil {
		return sample{}, err
	}
	server, err := l.start(ctx, v, p)
	if err != nil {
		return sample{}, err
	}
	defer func() {
		server.Interrupt()
		server.Wait()
	}()
	l.runs++
	load := load{url: server.URL(), connections: l.connections, skus: p.skus, keyed: v.keyed, run: fmt.Sprint("r", l.runs)}
	var before result
	if l.warmUp > 0 {
		load.run += "w"
		if before, err = l.generator.run(ctx, load, time.Duration(l.warmUp)*time.Second); err != nil {
			return sample{}, err
		}
		load.run += "m"
	}
	metrics := l.metrics(ctx, v, server)
	app, cache, database := machine.CPUTime(server.PIDs()), machine.CPUTime(l.redis.PIDs()), machine.CPUTime(l.server.PIDs())
	r, err := l.generator.run(ctx, load, time.Duration(l.seconds)*time.Second)
	if err != nil {
		return sample{}, err
	}
	app, cache, database = machine.CPUTime(server.PIDs())-app, machine.CPUTime(l.redis.PIDs())-cache, machine.CPUTime(l.server.PIDs())-database
	counted := l.metrics(ctx, v, server)

	if fault := l.audit(ctx, v, p, server, before.Created+r.Created); fault != "" {
		return sample{fault: fault}, nil
	}
	if fault := expected(v, r); fault != "" {
		return sample{fault: fault}, nil
	}
	each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(r.answers()) }
	s := sample{
		perSecond: float64(r.answers()) / r.Elapsed.Seconds(),
		app:       each(app), redis: each(cache), db: each(database),
		p50: r.P50, p99: r.P99, retries: -1, grouped: -1,
	}
	if v.program == "" && !v.soldOut {
		s.retries = (counted["holdfast_ledger_retries_total"] - metrics["holdfast_ledger_retries_total"]) / float64(r.Created)
		groups := counted["holdfast_ledger_group_orders_count"] - metrics["holdfast_ledger_group_orders_count"]
		s.grouped = (counted["holdfast_ledger_group_orders_sum"] - metrics["holdfast_ledger_group_orders_sum"]) / groups
	}
	return s, nil
}

// expected says what is wrong with the answers.
func expected(v variant, r result) string {
	wrong := r.Other
	if v.soldOut {
		wrong += r.Created
	} else {
		wrong += r.Refused
	}
	// A row that everybody wants makes some wait too long: "busy" is one of the
	// answers of a strategy that tries again and again.
	if v.strategy == "optimistic" {
		wrong -= r.Other
	}
	if wrong+r.Broken > 0 || r.answers() == 0 {
		return fmt.Sprintf("%d orders, %d sold out, %d other answers, %d broken connections", r.Created, r.Refused, r.Other, r.Broken)
	}
	return ""
}

// reset empties Redis and the tables, and lays in what the run needs.
func (l *lab) reset(ctx context.Context, v variant, p placing) error {
	if err := l.client.FlushAll(ctx).Err(); err != nil {
		return err
	}
	for _, table := range []string{"order_lines", "orders", "outbox", "stock", "reference_orders"} {
		if _, err := l.db.ExecContext(ctx, "TRUNCATE TABLE "+table); err != nil {
			return err
		}
	}
	if v.program != "" {
		return l.client.Set(ctx, "stock", hugeTotal, 0).Err()
	}
	var statements []string
	sequence := func(n int) string { return fmt.Sprintf("generate_series(1, %d) AS s(seq)", n) }
	id, take := "md5('o' || seq)::uuid", "md5('t' || seq)::uuid"
	if l.database == "mariadb" {
		sequence = func(n int) string { return fmt.Sprintf("seq_1_to_%d", n) }
		id, take = "UNHEX(MD5(CONCAT('o', seq)))", "UNHEX(MD5(CONCAT('t', seq)))"
	}
	if p.skus > 1 {
		name := "'s' || seq"
		if l.database == "mariadb" {
			name = "CONCAT('s', seq)"
		}
		// As if the strategy had sold them before: there is nothing to adopt.
		const generation, epoch = 2, 2 << 28 // an epoch's upper bits are its generation
		statements = append(statements,
			fmt.Sprintf("UPDATE ledger SET generation = %d, layout = '%s'", generation, v.strategy),
			fmt.Sprintf(`INSERT INTO stock (sku, kind, total, available, epoch)
				SELECT %s, 'product', %d, %d, %d FROM %s`, name, hugeTotal, hugeTotal, epoch+1, sequence(p.skus)))
	}
	if p.bulk > 0 {
		statements = append(statements,
			fmt.Sprintf(`INSERT INTO orders (id, take_id, buyer_id, status, strategy, created_at)
				SELECT %s, %s, 'bulk', 'pending', 'lua', CURRENT_TIMESTAMP FROM %s`, id, take, sequence(p.bulk)),
			fmt.Sprintf(`INSERT INTO order_lines (order_id, sku, quantity) SELECT %s, 'hot', 1 FROM %s`, id, sequence(p.bulk)))
	}
	for _, statement := range statements {
		if _, err := l.db.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	if p.bulk > 0 && l.database == "postgres" {
		_, err := l.db.ExecContext(ctx, "VACUUM ANALYZE orders, order_lines")
		return err
	}
	return nil
}

// start starts the variant's program and, for the service, lays its stock in.
func (l *lab) start(ctx context.Context, v variant, p placing) (*testenv.APIServer, error) {
	if v.program != "" {
		return testenv.Serve(l.t, "./bench/reference", "--program", v.program, "--redis", l.redis.Addr(), "--driver", l.driver, "--source", l.source), nil
	}
	server := testenv.API(l.t, "--strategy", v.strategy, "--db", l.server.URL(), "--redis", l.redis.URL(), "--log-level", "error")
	if p.skus > 1 {
		return server, nil
	}
	total := hugeTotal
	if v.soldOut {
		total = 1
	}
	if err := call(ctx, http.MethodPut, server.URL()+"/stock/hot", fmt.Sprintf(`{"kind":"product","total":%d}`, total), nil); err != nil {
		return nil, err
	}
	if v.soldOut {
		return server, call(ctx, http.MethodPost, server.URL()+"/orders", `{"buyer_id":"first","lines":[{"sku":"hot","quantity":1}]}`, nil)
	}
	return server, nil
}

// audit holds what was answered against what is in the database. The load ends
// in mid-request: an order of each connection may be there that nobody heard of.
func (l *lab) audit(ctx context.Context, v variant, p placing, server *testenv.APIServer, created int64) string {
	if v.program == "a" || v.program == "b" {
		return ""
	}
	table, where := "orders", " WHERE buyer_id <> 'bulk' AND status = 'pending'"
	if v.program != "" {
		table, where = "reference_orders", ""
	}
	var rows int64
	if err := l.db.QueryRowContext(ctx, "SELECT COUNT(*) FROM "+table+where).Scan(&rows); err != nil {
		return err.Error()
	}
	loads := int64(2)
	if v.soldOut {
		created++ // the first
	}
	if rows < created || rows > created+loads*int64(l.connections) {
		return fmt.Sprintf("%d orders were answered, %d are in the database", created, rows)
	}
	if v.program != "" || p.skus > 1 {
		return ""
	}
	var a struct{ Oversold int64 }
	if err := call(ctx, http.MethodGet, server.URL()+"/stock/hot/audit", "", &a); err != nil {
		return err.Error()
	}
	if a.Oversold > 0 {
		return fmt.Sprintf("oversold %d", a.Oversold)
	}
	return ""
}

// metrics reads the figures without labels.
func (l *lab) metrics(ctx context.Context, v variant, server *testenv.APIServer) map[string]float64 {
	if v.program != "" {
		return nil
	}
	var text string
	if err := call(ctx, http.MethodGet, server.URL()+"/metrics", "", &text); err != nil {
		return nil
	}
	return parseMetrics(text)
}

func parseMetrics(text string) map[string]float64 {
	figures := make(map[string]float64)
	for line := range strings.Lines(text) {
		var (
			name   string
			figure float64
		)
		if _, err := fmt.Sscanf(line, "%s %g", &name, &figure); err == nil && !strings.HasPrefix(line, "#") {
			figures[name] = figure
		}
	}
	return figures
}

// call sends one request that must succeed. into is nil, a *string or decoded
// from JSON.
func call(ctx context.Context, method, url, body string, into any) error {
	r, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode >= 300 {
		return fmt.Errorf("%s %s: %s: %s", method, url, response.Status, answer)
	}
	switch into := into.(type) {
	case nil:
		return nil
	case *string:
		*into = string(answer)
		return nil
	default:
		return json.Unmarshal(answer, into)
	}
}

// memory watches the service and Redis over many orders.
func (l *lab) memory(ctx context.Context) error {
	v, _ := findVariant("lua")
	if err := l.reset(ctx, v, placing{skus: 1}); err != nil {
		return err
	}
	server, err := l.start(ctx, v, placing{skus: 1})
	if err != nil {
		return err
	}
	defer func() {
		server.Interrupt()
		server.Wait()
	}()
	fmt.Fprintln(l.report, "| orders | api, resident MiB | Redis, used_memory MiB |\n|---|---|---|")
	var placed int64
	for step := 0; ; step++ {
		used, err := l.client.Info(ctx, "memory").Result()
		if err != nil {
			return err
		}
		fmt.Fprintf(l.report, "| %d | %.1f | %.2f |\n", placed, machine.ResidentMiB(server.PID()), usedMiB(used))
		if placed >= int64(l.orders) {
			return nil
		}
		for target := min(int64(l.orders), placed+int64(l.orders)/10); placed < target; {
			r, err := l.generator.run(ctx, load{url: server.URL(), connections: l.connections, skus: 1}, 3*time.Second)
			if err != nil {
				return err
			}
			if fault := expected(v, r); fault != "" {
				return fmt.Errorf("after %d orders: %s", placed, fault)
			}
			placed += r.Created
		}
		fmt.Fprintf(os.Stderr, "%s memory: %d orders\n", l.database, placed)
	}
}

func usedMiB(info string) float64 {
	for line := range strings.Lines(info) {
		var n float64
		if _, err := fmt.Sscanf(line, "used_memory:%f", &n); err == nil {
			return n / (1 << 20)
		}
	}
	return 0
}
