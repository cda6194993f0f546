package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/reconcile"
	"github.com/holdfast-stock/holdfast/internal/service"
	"github.com/holdfast-stock/holdfast/internal/store"
)

const (
	// checkLimit bounds one check. A server that does not answer within it is a problem.
	checkLimit = 4500 * time.Millisecond
	// closeLimit bounds the closing of what the checks have opened. A frozen server may
	// hold it up.
	closeLimit = time.Second
	// maxOffset is how far a clock may differ from this machine's.
	maxOffset = time.Second
	// lockSessions is how many connections the locks of a database may open.
	lockSessions = 32
	// lowDisk and scarceDisk are the bytes that a ledger in a file should at least find
	// free.
	lowDisk, scarceDisk = 100 << 20, 1 << 30
)

// doctor checks what an instance with these flags would find, and prints it. It changes
// nothing. It returns an error if there is a problem.
func doctor(ctx context.Context, c config, stdout io.Writer) error {
	e := newExamination(c)
	defer e.close()
	e.together(ctx,
		check{"flags", e.checkFlags}, check{"listen", e.checkListen}, check{"access", e.checkAccess}, check{"redis", e.checkRedis},
		check{"database", e.checkDatabase}, check{"disk", e.checkDisk})
	e.together(ctx, check{"schema", e.checkSchema}, check{"clocks", e.checkClocks}, check{"locks", e.checkLockServers})
	e.together(ctx, check{"ledger", e.checkLedger}) // opens locks of its own, if the strategy takes any
	return e.print(stdout)
}

// check is a part of the examination. run must return soon after ctx has ended.
type check struct {
	name string
	run  func(ctx context.Context) store.Findings
}

// result is one line of the output.
type result struct {
	Check  string      `json:"check"`
	Level  store.Level `json:"level"`
	Detail string      `json:"detail"`
	Mend   string      `json:"mend,omitempty"`
}

// examination is one run of the doctor.
type examination struct {
	c       config
	results []result

	mu    sync.Mutex
	sql   *store.SQL            // nil: it cannot be reached, or there is none
	redis redis.UniversalClient // the same
	ready bool                  // the schema is the one that this program needs
	locks bool                  // the lock backend can be reached, or is not needed
}

func newExamination(c config) *examination {
	return &examination{c: c, locks: !c.strategy.NeedsLock()}
}

// together runs the checks at the same time and appends their results in this order. It
// does not wait longer than checkLimit, even if a check does not return.
func (e *examination) together(ctx context.Context, checks ...check) {
	late, cancelLate := context.WithTimeout(context.WithoutCancel(ctx), checkLimit+300*time.Millisecond)
	defer cancelLate()
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	found := make([]chan store.Findings, len(checks))
	for i, c := range checks {
		found[i] = make(chan store.Findings, 1)
		go func() { found[i] <- c.run(ctx) }()
	}
	for i, c := range checks {
		for _, f := range await(late, found[i]) {
			e.results = append(e.results, result{c.name, f.Level, f.Detail, f.Mend})
		}
	}
}

// await returns what a check finds, or a problem if it has not ended when late ends.
func await(late context.Context, check <-chan store.Findings) (found store.Findings) {
	select {
	case found = <-check:
		return found
	case <-late.Done():
	}
	select {
	case found = <-check: // it has ended in time, beside one that has not
	default:
		found.Problem("check the server and the network", "no answer within %v", checkLimit)
	}
	return found
}

// close closes the stores. It does not wait for frozen servers: the process ends.
func (e *examination) close() {
	e.mu.Lock()
	sql, client := e.sql, e.redis
	e.mu.Unlock()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		if client != nil {
			_ = client.Close() // nothing was written
		}
		if sql != nil {
			_ = sql.Close()
		}
	}()
	select {
	case <-closed:
	case <-time.After(closeLimit):
	}
}

// stores returns what the checks could open.
func (e *examination) stores() (sql *store.SQL, client redis.UniversalClient, ready, locks bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.sql, e.redis, e.ready, e.locks
}

// checkFlags reports what the flags say. Those that cannot be used together were
// refused before.
func (e *examination) checkFlags(_ context.Context) (found store.Findings) {
	c := e.c
	found.OK("strategy %s: %s", c.strategy.Name, c.strategy.Detail)
	switch {
	case c.strategy.HasGate() && !c.Guard:
		found.Warn("set --guard on", "the guard is off: if Redis loses writes, units are sold twice")
	case !c.strategy.Sound && !c.strategy.HasGate():
		found.Problem("use another strategy", "strategy %s sells units twice", c.strategy.Name)
	case !c.strategy.Sound:
		found.Warn("use another strategy to sell", "the gate of strategy %s admits too many orders; only the guard refuses them", c.strategy.Name)
	}
	if c.strategy.NeedsLock() {
		for _, warning := range c.lockWarnings() {
			found.Warn("see docs/locks.md", "%s", warning)
		}
	}
	if c.TakeDeadline < requestTimeout {
		found.Warn("set it to 30s", "--take-deadline %v is shorter than a request (%v): recovery may void orders that are still being placed", c.TakeDeadline, requestTimeout)
	}
	if c.embedded() {
		found.Warn("name --redis and --db", "the stores are embedded: all orders are deleted when the process ends")
	}
	if !onLoopback(c.Listen) && c.DrainDelay == 0 {
		found.Warn("set --drain-delay to a little more than the load balancer needs to notice", "--drain-delay is 0: a load balancer still sends requests to an instance that stops")
	}
	return found
}

func (e *examination) checkRedis(ctx context.Context) (found store.Findings) {
	if e.c.Redis == "" {
		if e.c.strategy.HasGate() {
			found.OK("in this process")
		}
		return found
	}
	client, err := store.OpenRedis(ctx, e.c.Redis)
	if err != nil {
		found.Problem("check --redis, the server and the network", "%v", err)
		return found
	}
	e.mu.Lock()
	e.redis = client
	e.mu.Unlock()
	return store.InspectRedis(ctx, client, e.c.strategy.Queues())
}

func (e *examination) checkDatabase(ctx context.Context) (found store.Findings) {
	if e.c.DB == "" {
		found.OK("SQLite in a temporary folder")
		return found
	}
	db, err := store.OpenSQLToInspect(ctx, e.c.DB)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		found.Warn("run api migrate up", "%v", err)
		return found
	case err != nil:
		found.Problem("check --db, the server and the network", "%v", err)
		return found
	}
	e.mu.Lock()
	e.sql = db
	e.mu.Unlock()
	sessions := 0
	if e.c.strategy.NeedsLock() && e.c.Locks.UsesDatabase() {
		sessions = lockSessions
	}
	return db.Inspect(ctx, sessions)
}

// checkDisk reports how much a ledger in a file can still grow.
func (e *examination) checkDisk(_ context.Context) (found store.Findings) {
	folder := os.TempDir()
	if !e.c.embedded() {
		u, err := url.Parse(e.c.DB)
		if err != nil || u.Scheme != "sqlite" {
			return found
		}
		folder = filepath.Dir(u.Path)
	}
	free, ok := freeBytes(folder)
	switch mib := free >> 20; {
	case !ok:
		found.Warn("check that the folder exists", "the free space of %s cannot be read", folder)
	case free < lowDisk:
		found.Problem("make room", "%s has %d MiB free", folder, mib)
	case free < scarceDisk:
		found.Warn("make room", "%s has %d MiB free", folder, mib)
	default:
		found.OK("%s has %d MiB free", folder, mib)
	}
	return found
}

func (e *examination) checkSchema(ctx context.Context) (found store.Findings) {
	sql, _, _, _ := e.stores()
	if sql == nil {
		return found
	}
	err := sql.CheckSchema(ctx)
	switch {
	case errors.Is(err, store.ErrSchemaOld) && e.c.Migrate:
		found.Warn("no action is needed: serve --migrate migrates it", "%v", err)
	case errors.Is(err, store.ErrSchemaOld):
		found.Problem("run api migrate up with the same --db, or serve with --migrate", "%v", err)
	case errors.Is(err, store.ErrSchemaNew):
		found.Problem("use the newer program", "%v", err)
	case errors.Is(err, store.ErrSchemaDirty):
		found.Problem(mendDirty+", with the same --db", "%v", err)
	case err != nil:
		found.Problem("check the rights of the user", "%v", err)
	default:
		found.OK("as this program needs it")
		e.mu.Lock()
		e.ready = true
		e.mu.Unlock()
	}
	return found
}

func (e *examination) checkClocks(ctx context.Context) (found store.Findings) {
	sql, client, _, _ := e.stores()
	var offsets []store.Offset
	if client != nil {
		read, err := store.RedisOffsets(ctx, client)
		if err != nil {
			found.Problem("check the server", "%v", err)
		}
		offsets = append(offsets, read...)
	}
	if sql != nil {
		read, err := sql.Offset(ctx)
		if err != nil {
			found.Problem("check the server", "%v", err)
		} else {
			offsets = append(offsets, read)
		}
	}
	for _, o := range offsets {
		found = append(found, compareClock(o)...)
	}
	return found
}

// compareClock reports whether a clock differs too much from this machine's.
func compareClock(o store.Offset) (found store.Findings) {
	const mend = "synchronise both clocks (NTP)"
	switch {
	case o.Ahead.Abs() <= maxOffset:
		found.OK("%s agrees with this machine", o.Server)
	case o.Ahead > 0:
		found.Warn(mend, "%s is %v ahead of this machine", o.Server, o.Ahead.Round(time.Millisecond))
	default:
		found.Warn(mend, "%s is %v behind this machine", o.Server, -o.Ahead.Round(time.Millisecond))
	}
	return found
}

// checkLockServers reports whether the backend of --lock can be used.
func (e *examination) checkLockServers(ctx context.Context) (found store.Findings) {
	sql, client, ready, _ := e.stores()
	locks := &e.c.Locks
	switch {
	case !e.c.strategy.NeedsLock():
		return found
	case locks.UsesRedis() && client == nil, locks.UsesDatabase() && (sql == nil || !ready):
		return found // the store was checked, or has no tables yet
	}
	_, closeLocks, err := locks.Open(ctx, client, e.c.DB, nil)
	if err != nil {
		found.Problem("check the flags of --lock, the servers and the network", "%v", err)
		return found
	}
	if err := closeLocks(); err != nil {
		found.Warn("check the servers of --lock", "%v", err)
	}
	found.OK("the backend %s can be used", locks.Backend)
	e.mu.Lock()
	e.locks = true
	e.mu.Unlock()
	return found
}

// checkLedger reports whether the ledger, the Redis and the flags belong together.
func (e *examination) checkLedger(ctx context.Context) (found store.Findings) {
	sql, client, ready, locks := e.stores()
	hasGate := e.c.strategy.HasGate()
	if sql == nil || !ready || !locks || hasGate && client == nil {
		return found
	}
	ledgerID, err := sql.LedgerID(ctx)
	if err != nil {
		found.Problem("restore the row of table ledger", "%v", err)
		return found
	}
	opened := stores{sql: sql}
	if hasGate {
		opened.redis = client
	}
	log := slog.New(slog.DiscardHandler)
	built, closeStrategy, err := openStrategy(ctx, e.c, opened, ledgerID, log, prometheus.NewRegistry())
	if err != nil {
		found.Problem("check the flags of --lock", "%v", err)
		return found
	}
	defer func() {
		if err := closeStrategy(); err != nil {
			found.Warn("check the servers of --lock", "%v", err)
		}
	}()
	instance := service.New(sql.Ledger(), ledgerID, built, service.Options{
		TakeDeadline: e.c.TakeDeadline, Log: log, Metrics: prometheus.NewRegistry(),
	})
	defer instance.Close()
	standing, err := instance.Reconciler.Standing(ctx)
	if err != nil {
		found.Problem("check the stores", "%v", err)
		return found
	}
	return judge(ledgerID, standing)
}

// judge reports how the ledger, the Redis and the flags stand to each other.
func judge(ledgerID uuid.UUID, s reconcile.Standing) (found store.Findings) {
	switch {
	case s.Owner.Layout == "":
		found.OK("ledger %s: no instance holds the stock", ledgerID)
	case s.Restored:
		found.Warn("no action is needed: the next start, or a running instance, refills Redis",
			"ledger %s is older than Redis remembers it: it was restored from a backup", ledgerID)
	case s.Owner.Queues && !s.Queues:
		found.Problem("run api drain with the --redis and --db of the instances that queue orders",
			"the stock belongs to %q, whose queued orders may not be in the ledger yet; an instance with these flags cannot start", s.Owner.Layout)
	case s.Owner.Layout != s.Layout:
		found.Warn("use the flags of the running instances, unless you mean to change the strategy",
			"the stock belongs to instances with other flags: theirs are for %q, these are for %q; an instance with these takes the stock over", s.Owner.Layout, s.Layout)
	case !s.Loaded:
		found.Warn("no action is needed: the next start, or a running instance, refills it",
			"Redis has lost generation %d of ledger %s: it was emptied, restarted or replaced", s.Owner.Generation, ledgerID)
	default:
		found.OK("ledger %s, generation %d", ledgerID, s.Owner.Generation)
	}
	return found
}

// print prints the results. It returns an error if one of them is a problem.
func (e *examination) print(w io.Writer) error {
	count := make(map[store.Level]int)
	for _, one := range e.results {
		count[one.Level]++
	}
	write := e.printLines
	if e.c.JSON {
		write = e.printJSON
	}
	if err := write(w, count); err != nil {
		return err
	}
	if n := count[store.Problem]; n > 0 {
		return fmt.Errorf("problems: %d", n)
	}
	return nil
}

func (e *examination) printLines(w io.Writer, count map[store.Level]int) error {
	for _, one := range e.results {
		text := one.Detail
		if one.Mend != "" {
			text += "; " + one.Mend
		}
		if _, err := fmt.Fprintf(w, "%-8s %-9s %s\n", one.Level, one.Check, text); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(w, "problems: %d, warnings: %d\n", count[store.Problem], count[store.Warning])
	return err
}

func (e *examination) printJSON(w io.Writer, count map[store.Level]int) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(struct {
		Checks   []result `json:"checks"`
		Problems int      `json:"problems"`
		Warnings int      `json:"warnings"`
	}{e.results, count[store.Problem], count[store.Warning]})
}
