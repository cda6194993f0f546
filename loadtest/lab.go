package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
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
}

// newLab opens the stores that are named, or hosts an in-process Redis and a
// SQLite file for the instances.
func newLab(ctx context.Context, t testenv.T, s settings, args []string, stdout, stderr io.Writer) (l *lab, err error) {
	l = &lab{
		settings: s, t: t, args: args, out: stdout, display: newDisplay(stderr),
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
	if len(s.targets) == 0 {
		if s.api == "" {
			fmt.Fprintln(stderr, "building ./cmd/api")
			l.program = testenv.Build(t, "./cmd/api")
		} else if l.program, err = filepath.Abs(s.api); err != nil {
			return l, fmt.Errorf("--api: %w", err)
		}
	}
	if s.db == "" && s.redis == "" && len(s.targets) == 0 {
		if l.embedded, err = store.OpenInProcessRedis(ctx); err != nil {
			return l, err
		}
		l.redisURL, l.dbURL = l.embedded.URL(), "sqlite://"+filepath.Join(testenv.Folder(t, "loadtest"), "ledger.db")
		l.redis = l.embedded.Client()
	}
	if l.dbURL != "" {
		if len(s.targets) == 0 {
			migrate := testenv.StartFile(t, l.program, "migrate", "up", "--db", l.dbURL)
			if code := migrate.Wait(); code != 0 {
				return l, fmt.Errorf("api migrate up: %s", migrate.Output())
			}
		}
		if l.sql, err = store.OpenSQL(ctx, l.dbURL); err != nil {
			return l, fmt.Errorf("--db: %w", err)
		}
	}
	if l.redisURL != "" && l.redis == nil {
		if l.redis, err = store.OpenRedis(ctx, l.redisURL); err != nil {
			return l, fmt.Errorf("--redis: %w", err)
		}
	}
	return l, nil
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

// run drives what was asked for, prints the table and writes the report.
func (l *lab) run(ctx context.Context) (broken bool, err error) {
	r := newResults(l)
	specs := l.chosen()
	for _, spec := range specs {
		result, err := l.drive(ctx, spec)
		if err != nil && ctx.Err() == nil {
			return false, fmt.Errorf("%s: %w", spec.Name, err)
		}
		if result != nil {
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
	return r.Broken() > 0, err
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

// tries is how often a strategy that is known to oversell may fail to.
const tries = 5

// drive starts the instances, loads them, audits and stops them.
func (l *lab) drive(ctx context.Context, spec strategy.Spec) (*Result, error) {
	var (
		urls = l.targets
		apis []*testenv.APIServer
		pids []int
	)
	if len(urls) == 0 {
		for range l.settings.instances {
			api := testenv.ServeFile(l.t, l.program, l.flags(spec)...)
			apis, urls, pids = append(apis, api), append(urls, api.URL()), append(pids, api.PIDs()...)
		}
		defer func() {
			// A service that ends waits some seconds for connections that were
			// opened and never used.
			l.client.CloseIdleConnections()
			for _, api := range apis {
				api.Interrupt()
			}
			for _, api := range apis {
				api.Wait()
			}
		}()
	} else {
		for i, url := range urls {
			running, guard, err := l.running(ctx, url)
			if err != nil {
				return nil, err
			}
			if i > 0 && guard != (l.guard == "on") {
				return nil, fmt.Errorf("%s and %s differ in --guard", urls[0], url)
			}
			l.guard = "off"
			if guard {
				l.guard = "on"
			}
			if i > 0 && running.Name != spec.Name {
				return nil, fmt.Errorf("%s runs %s, %s runs %s: instances share their stores only with one strategy", urls[0], spec.Name, url, running.Name)
			}
			spec = running
		}
	}
	if l.open() {
		return l.arrivals(ctx, spec, urls, pids)
	}
	for try := 1; ; try++ {
		result, err := l.rush(ctx, spec, urls, pids, try)
		if err != nil || ctx.Err() != nil || result.Verdict == asPromised || spec.Sound || try == tries {
			return result, err
		}
	}
}

// flags are an instance's.
func (l *lab) flags(spec strategy.Spec) []string {
	flags := []string{
		"--strategy", spec.Name, "--guard", l.guard, "--db", l.dbURL, "--log-level", "error",
		"--lock", l.lock, "--stop-with-stdin",
	}
	if spec.HasGate() {
		flags = append(flags, "--redis", l.redisURL)
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

// lay puts fresh units in.
func (l *lab) lay(ctx context.Context, url, sku string, units int64) error {
	body := fmt.Sprintf(`{"kind":"product","total":%d}`, units)
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, url+"/stock/"+sku, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	if l.adminToken != "" {
		request.Header.Set("Authorization", "Bearer "+l.adminToken)
	}
	response, err := l.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, _ := io.ReadAll(response.Body)
	if response.StatusCode != http.StatusCreated {
		return fmt.Errorf("PUT /stock/%s: %s: %s", sku, response.Status, answer)
	}
	return nil
}
