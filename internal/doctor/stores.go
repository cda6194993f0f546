package doctor

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/reconcile"
	"github.com/holdfast-stock/holdfast/internal/store"
)

const (
	// maxOffset is how far a clock may differ from this machine's.
	maxOffset = time.Second
	// lockSessions is how many connections the locks of a database may open.
	lockSessions = 32
	// lowDisk and scarceDisk are the free bytes below which a ledger in a file gets a problem or a
	// warning.
	lowDisk, scarceDisk = 100 << 20, 1 << 30
)

func (e *examination) checkRedis(ctx context.Context) (found store.Findings) {
	switch {
	case !e.o.Strategy.HasGate(): // the instance does not open it
		return found
	case e.o.Redis == "":
		found.OK("in this process")
		return found
	}
	client, err := store.OpenRedis(ctx, e.o.Redis)
	if err != nil {
		found.Problem("check --redis, the server and the network", "%v", err)
		return found
	}
	e.mu.Lock()
	e.redis = client
	e.mu.Unlock()
	return store.InspectRedis(ctx, client, store.RedisUse{Queues: e.o.Strategy.Queues(), Guard: e.o.Guard})
}

func (e *examination) checkDatabase(ctx context.Context) (found store.Findings) {
	if e.o.DB == "" {
		found.OK("SQLite in a temporary folder")
		return found
	}
	db, err := store.OpenSQLToInspect(ctx, e.o.DB)
	switch {
	case errors.Is(err, fs.ErrNotExist) && e.o.Migrate:
		found.Warn("no action is needed: serve --migrate creates it", "%v", err)
		return found
	case errors.Is(err, fs.ErrNotExist):
		found.Problem("run api migrate up with the same --db, or serve with --migrate", "%v", err)
		return found
	case err != nil:
		found.Problem("check --db, the server and the network", "%v", err)
		return found
	}
	e.mu.Lock()
	e.sql = db
	e.mu.Unlock()
	sessions := 0
	if e.o.Strategy.NeedsLock() && e.o.Locks.UsesDatabase() {
		sessions = lockSessions
	}
	return db.Inspect(ctx, sessions)
}

// checkDisk reports how much a ledger in a file can still grow.
func (e *examination) checkDisk(_ context.Context) (found store.Findings) {
	folder := os.TempDir()
	if !e.o.Embedded() {
		u, err := url.Parse(e.o.DB)
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
	sql, _ := e.stores()
	if sql == nil {
		return found
	}
	err := sql.CheckSchema(ctx)
	switch {
	case errors.Is(err, store.ErrSchemaOld) && e.o.Migrate:
		found.Warn("no action is needed: serve --migrate migrates it", "%v", err)
	case errors.Is(err, store.ErrSchemaOld), errors.Is(err, store.ErrSchemaNew), errors.Is(err, store.ErrSchemaDirty):
		found.Problem(sql.FixSchema(err), "%v", err)
	case err != nil:
		found.Problem("check the rights of the user", "%v", err)
	default:
		found.OK("as this program needs it")
	}
	return found
}

func (e *examination) checkClocks(ctx context.Context) (found store.Findings) {
	sql, client := e.stores()
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
	const fix = "synchronise both clocks (NTP)"
	switch {
	case o.Ahead.Abs() <= maxOffset:
		found.OK("%s agrees with this machine", o.Server)
	case o.Ahead > 0:
		found.Warn(fix, "%s is %v ahead of this machine", o.Server, o.Ahead.Round(time.Millisecond))
	default:
		found.Warn(fix, "%s is %v behind this machine", o.Server, -o.Ahead.Round(time.Millisecond))
	}
	return found
}

// checkLockServers reports whether the backend of --lock can be used. ready: the schema is
// the one that this program needs.
func (e *examination) checkLockServers(ctx context.Context, ready bool) (found store.Findings) {
	_, client := e.stores()
	locks := &e.o.Locks
	if locks.UsesRedis() && client == nil || locks.UsesDatabase() && !ready {
		return found // the store was checked, or has no tables yet
	}
	_, closeLocks, err := locks.Open(ctx, client, e.o.DB, nil)
	if err != nil {
		found.Problem("check the flags of --lock, the servers and the network", "%v", err)
		return found
	}
	if err := closeLocks(); err != nil {
		found.Warn("check the servers of --lock", "%v", err)
	}
	found.OK("the backend %s can be used", locks.Backend)
	return found
}

// checkLedger reports whether the ledger, the Redis and the flags belong together. The
// schema and the locks must be ready.
func (e *examination) checkLedger(ctx context.Context) (found store.Findings) {
	sql, client := e.stores()
	if e.o.Strategy.HasGate() && client == nil {
		return found
	}
	ledgerID, err := sql.LedgerID(ctx)
	if err != nil {
		found.Problem("restore the row of table ledger", "%v", err)
		return found
	}
	instance, err := assembly.Build(ctx, assembly.Stores{SQL: sql, Redis: client}, e.o.Parts, assembly.Options{
		TakeDeadline: e.o.TakeDeadline, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
	})
	if err != nil {
		advice := "check the flags of --lock"
		if e.o.Strategy.NeedsRowLocks() { // it has no locks of its own
			advice = "choose another --strategy, or another database"
		}
		found.Problem(advice, "%v", err)
		return found
	}
	defer func() {
		if err := instance.Close(); err != nil {
			found.Warn("check the servers of --lock", "%v", err)
		}
	}()
	ownership, err := instance.Reconciler.Ownership(ctx)
	if err != nil {
		found.Problem("check the stores", "%v", err)
		return found
	}
	return judge(ledgerID, ownership)
}

// judge reports whether the ledger, the Redis and the flags fit together.
func judge(ledgerID uuid.UUID, s reconcile.Ownership) (found store.Findings) {
	switch {
	case s.Owner.Unowned():
		found.OK("ledger %s: no instance holds the stock", ledgerID)
	case s.Restored:
		found.Warn("no action is needed: the next start, or a running instance, refills Redis",
			"ledger %s is older than Redis remembers it: it was restored from a backup", ledgerID)
	case s.Owner.Queues && !s.Queues:
		found.Problem("run api drain with the --redis and --db of the instances that queue orders",
			"the stock belongs to %q, whose queued orders may not be in the ledger yet; an instance with these flags cannot start", s.Owner.Layout)
	case s.Owner.Layout != s.Layout:
		found.Warn("use the flags of the running instances, unless you mean to change the strategy",
			"the stock belongs to instances with other flags, or of another build: theirs are for %q, these are for %q; an instance with these takes the stock over", s.Owner.Layout, s.Layout)
	case !s.Loaded:
		found.Warn("no action is needed: the next start, or a running instance, refills it",
			"Redis has lost generation %d of ledger %s: it was emptied, restarted or replaced", s.Owner.Generation, ledgerID)
	default:
		found.OK("ledger %s, generation %d", ledgerID, s.Owner.Generation)
	}
	return found
}
