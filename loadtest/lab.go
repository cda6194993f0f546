package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/lab/machine"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/loadtest/history"
	"github.com/holdfast-stock/holdfast/loadtest/report"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// lab runs loads on one pair of stores. Its settings name the embedded stores if the
// command line names none.
type lab struct {
	settings
	t              testenv.T
	args           []string
	stdout, stderr io.Writer
	client         *load.Client
	admin          *load.Client // sends requests with --admin-token

	sql      *store.SQL            // nil if the audit cannot read the database
	redis    redis.UniversalClient // nil if the audit cannot read the gate
	embedded *store.InProcessRedis // nil if the stores are servers
	program  string                // the service's program; empty with --target
	runID    string                // part of every SKU, so that runs share no SKUs
	created  []string              // SKUs of this run
	samples  chan struct{}         // its capacity bounds the samples under way
	history  *history.Recorder     // nil without --history
}

// newLab opens the stores and builds the service.
func newLab(ctx context.Context, t testenv.T, s settings, args []string, stdout, stderr io.Writer) (l *lab, err error) {
	l = &lab{
		settings: s, t: t, args: args, stdout: stdout, stderr: stderr, samples: make(chan struct{}, maxSamples),
		runID: strconv.FormatInt(time.Now().UnixMicro(), 36),
	}
	if s.History != "" {
		file, err := os.Create(s.History)
		if err != nil {
			return l, commandline.Usagef("--history: %w", err)
		}
		t.Cleanup(func() { _ = file.Close() })
		l.history = history.NewRecorder(file)
	}
	l.client, l.admin = newClients(s.AdminToken, l.history)
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if s.Out != "" {
		if err := checkOut(s.Out); err != nil {
			return l, commandline.Usagef("--out: %w", err)
		}
	}
	if err := l.openStores(ctx); err != nil {
		return l, err
	}
	if len(s.Targets) > 0 || s.clean {
		return l, nil
	}
	return l, l.buildService()
}

// newClients returns the clients of the buyers and of the administrator. They share their
// connections.
func newClients(adminToken string, recorder *history.Recorder) (buyers, admin *load.Client) {
	const timeout = 30 * time.Second
	transport := &http.Transport{MaxIdleConns: 4096, MaxIdleConnsPerHost: 2048}
	buyers = load.NewClient(transport, client.WithTryTimeout(timeout))
	admin = buyers
	if adminToken != "" {
		admin = load.NewClient(transport, client.WithTryTimeout(timeout), client.WithToken(adminToken))
	}
	if recorder != nil {
		buyers.Observe(recorder.Observe)
		admin.Observe(recorder.Observe)
	}
	return buyers, admin
}

// checkOut creates the folder of --out, and checks that files can be written there.
func checkOut(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	file, err := os.CreateTemp(folder, ".holdfast-")
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// openStores opens the stores of the command line. Without any, it opens an in-process
// Redis and a SQLite file.
func (l *lab) openStores(ctx context.Context) (err error) {
	if l.DB == "" && l.Redis == "" && len(l.Targets) == 0 {
		if l.embedded, err = store.OpenInProcessRedis(ctx); err != nil {
			return err
		}
		l.Redis, l.DB = l.embedded.URL(), "sqlite://"+filepath.Join(testenv.Folder(l.t, "loadtest"), "ledger.db")
		l.redis = l.embedded.Client()
	}
	if l.DB != "" {
		if l.sql, err = store.OpenSQL(ctx, l.DB); err != nil {
			return withFlag("--db", err)
		}
	}
	if l.Redis != "" && l.redis == nil {
		if l.redis, err = store.OpenRedis(ctx, l.Redis); err != nil {
			return withFlag("--redis", err)
		}
	}
	return nil
}

// withFlag adds the name of the flag to an error. A malformed URL is a UsageError.
func withFlag(flag string, err error) error {
	if errors.Is(err, store.ErrBadURL) {
		return commandline.Usagef("%s: %w", flag, err)
	}
	return fmt.Errorf("%s: %w", flag, err)
}

// buildService builds the service, unless --api names a program.
func (l *lab) buildService() (err error) {
	if l.API == "" {
		l.tell("building ./cmd/api\n")
		l.program = testenv.Build(l.t, "./cmd/api")
	} else if l.program, err = filepath.Abs(l.API); err != nil {
		return fmt.Errorf("--api: %w", err)
	}
	return nil
}

func (l *lab) close() {
	l.client.CloseIdleConnections()
	if l.sql != nil {
		_ = l.sql.Close()
	}
	switch {
	case l.embedded != nil:
		_ = l.embedded.Close()
	case l.redis != nil:
		_ = l.redis.Close()
	}
}

// tell reports progress.
func (l *lab) tell(format string, args ...any) { fmt.Fprintf(l.stderr, format, args...) }

// hasColors reports whether w is a terminal that understands escape codes, and NO_COLOR is not set.
func hasColors(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" || os.Getenv("NO_COLOR") != "" {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// run loads the strategies, prints the table, writes the report and deletes the rows of
// the run. It returns errBroken if a promise was broken.
func (l *lab) run(ctx context.Context) error {
	run := l.newRun()
	for _, spec := range l.chosen() {
		result, err := l.drive(ctx, spec)
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", cmp.Or(spec.Name, "--target"), err)
		}
		if result != nil {
			if ctx.Err() != nil && result.Verdict == results.AsPromised && !l.knownToOversell(spec) {
				result.Verdict = results.Undecided // a load that should follow the rush did not run
			}
			l.tell("%-13s %s: %d accepted of %d units, %d oversold, %d failed\n",
				result.Strategy, result.Verdict, result.Accepted, result.Stock, result.Oversold, result.Failed)
			run.Strategies = append(run.Strategies, *result)
		}
		if ctx.Err() != nil {
			run.CutShort = true
			break
		}
	}
	report.WriteTable(l.stdout, run, hasColors(l.stdout))
	err := writeReport(l.Out, run)
	broken := run.Count(results.Broken) > 0
	err = errors.Join(err, l.tidy(context.WithoutCancel(ctx), broken))
	if err == nil && broken {
		return brokenBy(run)
	}
	return err
}

// brokenBy returns errBroken with the first fault of each strategy that broke a promise.
func brokenBy(run *results.Run) error {
	var faults []string
	for _, r := range run.Strategies {
		if r.Verdict == results.Broken {
			faults = append(faults, r.Strategy+": "+r.Faults[0])
		}
	}
	return fmt.Errorf("%w: %s", errBroken, strings.Join(faults, "; "))
}

// newRun returns the record of a run without results.
func (l *lab) newRun() *results.Run {
	run := runOf("go run ./loadtest", l.args)
	run.Seed = l.Seed
	run.Flags = map[string]string{
		"instances": fmt.Sprint(l.Instances), "stock": fmt.Sprint(l.Stock), "clients": fmt.Sprint(l.Clients),
		"guard": fmt.Sprint(l.Guard), "lock": l.Lock, "limit": l.Limit.String(), "rate": fmt.Sprint(l.Rate), "search": fmt.Sprint(l.Search),
		"lifecycle": fmt.Sprint(l.Lifecycle), "payment_window": l.PaymentWindow.String(),
		"probes": fmt.Sprint(l.Probes), "crash": fmt.Sprint(l.killsInstance()), "max_failures": l.MaxFailures.String(),
	}
	l.describeStores(run)
	return run
}

// runOf returns the record of a run of the command on this machine.
func runOf(command string, args []string) *results.Run {
	return &results.Run{
		Command: strings.TrimSpace(command + " " + strings.Join(redacted(args), " ")),
		When:    time.Now().UTC().Truncate(time.Second), Commit: machine.Commit(), Machine: machine.Describe(),
	}
}

// describeStores names the stores in the record of a run.
func (l *lab) describeStores(run *results.Run) {
	switch {
	case l.embedded != nil:
		run.Stores, run.StoresChinese = "embedded (in-process Redis, SQLite)", "内嵌（进程内 Redis、SQLite）"
	case l.sql == nil && l.redis == nil:
		run.Stores, run.StoresChinese = "unknown", "未知"
	default:
		var names []string
		ctx := context.Background() // the names do not depend on an interrupt
		if l.sql != nil {
			run.Addresses = l.sql.Target()
			names = append(names, product(l.sql.Engine(ctx)))
		}
		if l.redis != nil {
			names = append(names, product(store.RedisEngine(ctx, l.redis)))
		}
		run.Stores, run.StoresChinese = strings.Join(names, ", "), strings.Join(names, "、")
	}
	if l.Lock != backends.Default {
		run.Stores += ", locks in " + l.Lock
		run.StoresChinese += "，锁在 " + l.Lock
	}
}

// product returns the name and the version of a store, without what a distribution adds to it.
func product(e store.Engine) string {
	version, _, _ := strings.Cut(e.Version, "-") // "10.11.14-MariaDB-0+deb12u2"
	version, _, _ = strings.Cut(version, " (")   // "15.14 (Debian 15.14-0+deb12u1)"
	return strings.TrimRight(e.Name+" "+version, " ")
}

// writeReport writes results.json and report.html into the folder of --out, if there is one.
func writeReport(folder string, run *results.Run) error {
	if folder == "" {
		return nil
	}
	if err := run.Write(filepath.Join(folder, "results.json")); err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	html, err := os.Create(filepath.Join(folder, "report.html"))
	if err != nil {
		return fmt.Errorf("--out: %w", err)
	}
	return errors.Join(report.WritePage(html, run), html.Close())
}

// chosen returns the strategies to load. For --target it returns one empty entry.
func (l *lab) chosen() []assembly.Spec {
	if len(l.Targets) > 0 {
		return []assembly.Spec{{}}
	}
	var specs []assembly.Spec
	if len(l.Strategies) == 0 {
		for _, spec := range assembly.Strategies() {
			if spec.NeedsRowLocks && (l.DB == "" || strings.HasPrefix(l.DB, "sqlite:")) || l.Lifecycle && (!spec.Sound || spec.Queues) || spec.Queues && store.OnCluster(l.Redis) {
				continue
			}
			specs = append(specs, spec)
		}
	}
	for _, name := range l.Strategies {
		spec, _ := assembly.FindStrategy(name)
		specs = append(specs, spec)
	}
	return specs
}

// drive loads one strategy: on instances that it starts, or at --target.
func (l *lab) drive(ctx context.Context, spec assembly.Spec) (result *results.Result, err error) {
	if len(l.Targets) > 0 {
		f, spec, err := l.targetFleet(ctx)
		if err != nil {
			return nil, err
		}
		return l.loadFleet(ctx, spec, f)
	}
	f := l.startFleet(spec)
	defer func() {
		// Otherwise an instance would wait some seconds for idle connections when it stops.
		l.client.CloseIdleConnections()
		testenv.End(f.apis...)
		if spec.Queues {
			err = errors.Join(err, l.drain())
		}
	}()
	result, err = l.loadFleet(ctx, spec, f)
	if err != nil || ctx.Err() != nil || !spec.Sound || !l.killsInstance() || l.History != "" {
		return result, err
	}
	crash, err := l.crashRush(ctx, spec, f)
	if crash != nil {
		judgeCrash(result, crash)
	}
	return result, err
}

// maxTries is the number of rushes in which a broken strategy may oversell.
const maxTries = 5

// loadFleet runs the load of the command line. It repeats a rush that is not conclusive.
func (l *lab) loadFleet(ctx context.Context, spec assembly.Spec, f *fleet) (*results.Result, error) {
	if l.Lifecycle {
		return l.runLifecycle(ctx, spec, f)
	}
	if l.History != "" {
		return l.runHistory(ctx, spec, f)
	}
	if l.Search {
		return l.highest(ctx, spec, f)
	}
	if l.open() {
		return l.arrive(ctx, spec, f, l.Rate)
	}
	for try := 1; ; try++ {
		result, conclusive, err := l.rush(ctx, spec, f, fmt.Sprint(try), l.Stock, true)
		switch {
		case err != nil, ctx.Err() != nil, l.knownToOversell(spec) && (conclusive || try == maxTries):
			return result, err
		case conclusive || try == maxTries:
			keys, _, err := l.rush(ctx, spec, f, "keys", min(l.Stock, maxKeysStock), false)
			if keys != nil {
				judgeKeys(result, keys)
			}
			return result, err
		}
	}
}
