package main

import (
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

	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// lab is the stores, and what is driven on them.
type lab struct {
	settings
	t       testenv.T
	args    []string
	out     io.Writer
	display *display
	client  *http.Client

	redisURL, dbURL string
	sql             *store.SQL            // nil: no audit of the database
	redis           redis.UniversalClient // nil: no audit of the gate
	embedded        *store.InProcessRedis // nil: real stores
	program         string                // the file of the service; none at targets
	runID           string                // part of every SKU, so that runs do not meet
	laid            []string              // the SKUs of this run
	samples         chan struct{}         // holds as many orders as are looked up at once in mid-rush
}

// newLab opens the stores that are named, or hosts an in-process Redis and a
// SQLite file for the instances, and then builds the service.
func newLab(ctx context.Context, t testenv.T, s settings, args []string, stdout, stderr io.Writer) (l *lab, err error) {
	l = &lab{
		settings: s, t: t, args: args, out: stdout, display: newDisplay(stderr), samples: make(chan struct{}, samplesAtOnce),
		redisURL: s.redis, dbURL: s.db, runID: strconv.FormatInt(time.Now().UnixMicro(), 36),
		client: &http.Client{
			Timeout:   30 * time.Second,
			Transport: &http.Transport{MaxIdleConns: 4096, MaxIdleConnsPerHost: 2048},
		},
	}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	if s.out != "" {
		if err := checkOut(s.out); err != nil {
			return l, usageError{err}
		}
	}
	if err := l.openStores(ctx); err != nil {
		return l, err
	}
	if len(s.targets) > 0 || s.clean {
		return l, nil
	}
	return l, l.buildService(stderr)
}

func (l *lab) openStores(ctx context.Context) (err error) {
	if l.db == "" && l.settings.redis == "" && len(l.targets) == 0 {
		if l.embedded, err = store.OpenInProcessRedis(ctx); err != nil {
			return err
		}
		l.redisURL, l.dbURL = l.embedded.URL(), "sqlite://"+filepath.Join(testenv.Folder(l.t, "loadtest"), "ledger.db")
		l.redis = l.embedded.Client()
	}
	if l.dbURL != "" {
		if l.sql, err = store.OpenSQL(ctx, l.dbURL); err != nil {
			return named("--db", err)
		}
	}
	if l.redisURL != "" && l.redis == nil {
		if l.redis, err = store.OpenRedis(ctx, l.redisURL); err != nil {
			return named("--redis", err)
		}
	}
	return nil
}

// named says which flag an error is about. A URL that cannot be used is a mistake
// in usage.
func named(flag string, err error) error {
	err = fmt.Errorf("%s: %w", flag, err)
	if errors.Is(err, store.ErrBadURL) {
		return usageError{err}
	}
	return err
}

// buildService builds the service, unless there is a program of it, and brings the
// database's schema up to date.
func (l *lab) buildService(stderr io.Writer) (err error) {
	if l.api == "" {
		fmt.Fprintln(stderr, "building ./cmd/api")
		l.program = testenv.Build(l.t, "./cmd/api")
	} else if l.program, err = filepath.Abs(l.api); err != nil {
		return fmt.Errorf("--api: %w", err)
	}
	migrate := testenv.StartFile(l.t, l.program, "migrate", "up", "--db", l.dbURL)
	if code := migrate.Wait(); code != 0 {
		return fmt.Errorf("api migrate up: %s", migrate.Output())
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

// run drives what was asked for, prints the table, writes the report and takes the
// rows away that it left.
func (l *lab) run(ctx context.Context) (broken bool, err error) {
	r := newResults(l)
	for _, spec := range l.chosen() {
		result, err := l.drive(ctx, spec)
		if err != nil && ctx.Err() == nil {
			return false, fmt.Errorf("%s: %w", spec.Name, err)
		}
		if result != nil {
			l.display.done(*result)
			r.Strategies = append(r.Strategies, *result)
		}
		if ctx.Err() != nil {
			r.CutShort = true
			break
		}
	}
	writeTable(l.out, r, terminal(l.out) && os.Getenv("NO_COLOR") == "")
	if l.settings.out != "" {
		err = r.write(l.settings.out)
	}
	return r.Broken() > 0, errors.Join(err, l.tidy(context.WithoutCancel(ctx), r.Broken() > 0))
}

// chosen are the strategies to drive; at targets the one that they run.
func (l *lab) chosen() []strategy.Spec {
	if len(l.targets) > 0 {
		return []strategy.Spec{{}}
	}
	if len(l.strategies) == 0 {
		return strategy.Table()
	}
	var specs []strategy.Spec
	for _, name := range l.strategies {
		spec, _ := strategy.Find(name)
		specs = append(specs, spec)
	}
	return specs
}

// drive loads one strategy: on instances started for it, or at the targets.
func (l *lab) drive(ctx context.Context, spec strategy.Spec) (*Result, error) {
	if len(l.targets) > 0 {
		f, spec, err := l.targetFleet(ctx)
		if err != nil {
			return nil, err
		}
		return l.load(ctx, spec, f)
	}
	f := l.startFleet(spec)
	defer func() {
		// A service that ends waits some seconds for connections that were
		// opened and never used.
		l.client.CloseIdleConnections()
		f.stop()
	}()
	result, err := l.load(ctx, spec, f)
	if err != nil || ctx.Err() != nil || !spec.Sound || !l.kill() {
		return result, err
	}
	crash, err := l.crash(ctx, spec, f)
	if crash != nil {
		result.judgeCrash(crash)
	}
	return result, err
}

// kill reports whether an instance is killed under each sound strategy.
func (l *lab) kill() bool { return l.settings.crash && !l.open() && len(l.targets) == 0 }

// tries is how often a strategy that is known to oversell may fail to.
const tries = 5

// load drives the load that was asked for.
func (l *lab) load(ctx context.Context, spec strategy.Spec, f *fleet) (*Result, error) {
	if l.open() {
		return l.arrivals(ctx, spec, f)
	}
	for try := 1; ; try++ {
		result, err := l.rush(ctx, spec, f, try)
		if err != nil || ctx.Err() != nil || !result.inconclusive || try == tries {
			return result, err
		}
	}
}

const (
	// shortDeadline of takes has recovery resolve what a killed instance left
	// while the harness waits.
	shortDeadline = time.Second
	// shortLease has the locks of a killed instance end while buyers wait.
	shortLease = 3 * time.Second
)

// flags are an instance's.
func (l *lab) flags(spec strategy.Spec) []string {
	flags := []string{
		"--strategy", spec.Name, "--guard", l.guard, "--db", l.dbURL, "--log-level", "error",
		"--lock", l.lock, "--stop-with-stdin",
	}
	if spec.HasGate() {
		flags = append(flags, "--redis", l.redisURL)
	}
	if spec.Sound && l.kill() {
		flags = append(flags, "--take-deadline", shortDeadline.String(), "--lease", shortLease.String())
	}
	for flag, value := range map[string]string{"--zookeeper": l.zookeeper, "--etcd": l.etcd, "--redlock": l.redlock} {
		if value != "" {
			flags = append(flags, flag, value)
		}
	}
	return flags
}

// guarded reports whether a guard stands behind the strategy: it does behind
// gates only.
func (l *lab) guarded(spec strategy.Spec) bool { return l.guard == "on" && spec.HasGate() }

// running asks a target which strategy it runs, and whether with a guard.
func (l *lab) running(ctx context.Context, url string) (spec strategy.Spec, guard bool, err error) {
	var answer struct {
		Running string `json:"running"`
		Guard   bool   `json:"guard"`
	}
	if err := l.getJSON(ctx, url+"/strategies", &answer); err != nil {
		return strategy.Spec{}, false, err
	}
	spec, ok := strategy.Find(answer.Running)
	if !ok {
		return strategy.Spec{}, false, fmt.Errorf("%s runs the strategy %q, which is unknown here", url, answer.Running)
	}
	return spec, answer.Guard, nil
}

// lay puts fresh units in, under a SKU that no other load has.
func (l *lab) lay(ctx context.Context, f *fleet, spec strategy.Spec, load string, units int64) (sku string, err error) {
	sku = fmt.Sprintf(mark+"%s-%s-%s", l.runID, spec.Name, load)
	body := fmt.Sprintf(`{"kind":"product","total":%d}`, units)
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, f.url(0)+"/stock/"+sku, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	if l.adminToken != "" {
		request.Header.Set("Authorization", "Bearer "+l.adminToken)
	}
	response, err := l.client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	l.laid = append(l.laid, sku)
	answer, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusCreated {
		return "", fmt.Errorf("PUT /stock/%s: %s: %s", sku, response.Status, answer)
	}
	return sku, nil
}
