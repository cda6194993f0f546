package assembly

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/async"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/lock"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/stock/gate"
)

// MaxSegments bounds the segments of a SKU.
const MaxSegments = gate.MaxSegments

// MaxSlots bounds the slots of a SKU.
const MaxSlots = gate.MaxSegments

// DefaultStrategy is the strategy that the service uses unless a flag names another.
const DefaultStrategy = "lua"

const (
	// lockWait bounds how long a take waits for the locks of its SKUs.
	lockWait = 2 * time.Second
	// turnLease is how long the lease of a crashed instance keeps other instances from
	// consuming the queue of a SKU.
	turnLease = 2 * time.Second
	// gatherLease is how long the lock of a crashed instance keeps other instances
	// from gathering.
	gatherLease = 2 * time.Second

	// A cutter that cuts a whole group runs one transaction at a time, while the next group fills.
	// A second transaction would wait for the hot row and make both groups smaller. With slots, a
	// second transaction would not wait, but it would also make groups smaller, which costs more
	// than it gains. The other cutters have one order in each transaction. Their transactions are
	// few enough to leave connections for reading.
	groupSize, groupParallel = 128, 1
	singleParallel           = 24

	// ledgerRules is the version of the rules by which the ledger sells, and is part of every
	// layout. Raise it with each new rule that an earlier build would not follow. 0.1.0 knows no
	// buyer limits, hours and parts, and its layouts have no rules. Later builds need columns that
	// have been renamed, but still sold unit rows.
	ledgerRules = 1
)

// Strategy is a gate, or none, paired with a cutter.
type Strategy struct {
	Name string
	// Layout names the settings on which instances must agree to sell the same
	// stock. The ledger stores the layout of its generation.
	Layout string
	Gate   gate.Gate // nil: the strategy has no gate
	// Counter keeps the counts that Gate takes units from. It is nil without a gate.
	Counter *gate.Counter
	// Journal keeps orders that are answered before the ledger has them. nil: orders are
	// answered afterwards.
	Journal async.Journal
	Cutter  cutter.Cutter
	// Group is the largest number of orders in one ledger transaction, and
	// Parallel the number of transactions at once.
	Group, Parallel int
}

// Spec is one row of the table.
type Spec struct {
	Name   string
	Gate   string // the name of the gate; empty: the strategy has no gate
	Cutter string
	// Sound means that the strategy never sells a unit twice, even without a guard
	// and with any number of instances on the same stores.
	Sound  bool
	Detail string
	// Promise says what a client can rely on once its order was answered 201, or 202.
	Promise string
	// NeedsLock means that the strategy takes locks between instances.
	NeedsLock bool
	// Queues means that the strategy answers orders once the gate's journal has them, before the
	// ledger does. It cannot run on a Redis Cluster: there a count and the journal may be on
	// different servers.
	Queues bool
	// Segmented and Slotted mean that the strategy divides the stock of a SKU into segments, or into
	// slots of the ledger. The cutter of slots is Slots instead of the field cutter.
	Segmented, Slotted bool
	// NeedsRowLocks means that the strategy runs only on a database whose SELECT … FOR UPDATE SKIP
	// LOCKED locks rows: not on SQLite, and so not on embedded stores.
	NeedsRowLocks bool

	gate   func(Backends) (*gate.Counter, gate.Gate)
	cutter func() cutter.Cutter
	group  bool
}

// HasGate reports whether the strategy needs Redis.
func (s Spec) HasGate() bool { return s.gate != nil }

// Backends are the stores and locks that strategies are built on.
type Backends struct {
	Redis    redis.UniversalClient // may be nil without a gate
	LedgerID uuid.UUID             // identifies the ledger in the gate's keys
	Guard    bool                  // behind a gate, the ledger refuses orders that do not fit its count
	// Locker and LockName are the backend of --lock. Strategies without locks do not
	// use them.
	Locker   lock.Locker
	LockName string
	Fence    bool // refuse a lock holder whose lease has ended; needs a backend with fencing tokens
	Segments int  // the number of segments of a SKU, 1 to gate.MaxSegments; only for segmented strategies
	Slots    int  // the number of slots of a SKU, 1 to MaxSlots; only for strategies with slots
}

// Strategies returns every strategy, in the order of the documents.
func Strategies() []Spec {
	specs := []Spec{
		{
			Name: "none", Gate: "readwrite", Cutter: "count", gate: readWrite, cutter: cutter.Count, group: true,
			Detail: "read, check and write in Redis as separate steps: oversells at once",
		},
		{
			Name: "mutex", Gate: "locked(readwrite)", Cutter: "count", gate: underMutex, cutter: cutter.Count, group: true,
			Detail: "the same under a mutex of the process: correct with one instance, oversells with two",
		},
		{
			Name: "lock", Gate: "locked(readwrite)", Cutter: "count", Sound: true, gate: underLock, cutter: cutter.Count, group: true, NeedsLock: true,
			Detail: "the same under a distributed lock (--lock): correct and slow; with --fence off, or a lock without fencing tokens, it oversells if a holder continues after its lease has ended",
		},
		{
			Name: "segment-lock", Gate: "segmented(locked(readwrite))", Cutter: "count", Sound: true, gate: underSegmentLocks, cutter: cutter.Count, group: true, NeedsLock: true, Segmented: true,
			Detail: "the stock in segments with a lock for each, which divides the contention; without fencing it oversells as lock does",
		},
		{
			Name: "segment", Gate: "segmented(script)", Cutter: "count", Sound: true, gate: segments, cutter: cutter.Count, group: true, Segmented: true,
			Detail: "the stock in segments, chosen by order ID modulo their number: spreads one hot SKU over the servers of a cluster",
		},
		{
			Name: "lua", Gate: "script", Cutter: "count", Sound: true, gate: script, cutter: cutter.Count, group: true,
			Detail: "one atomic script in Redis; without guard it can oversell if Redis loses acknowledged writes unnoticed",
		},
		{
			Name: "db-none", Cutter: "readwrite", cutter: cutter.ReadWrite,
			Detail: "SELECT, check, UPDATE to the absolute value: lost updates in SQL too",
		},
		{
			Name: "optimistic", Cutter: "optimistic", Sound: true, cutter: cutter.Optimistic,
			Detail: "UPDATE only if the version has not changed, else retry in a new transaction: many retries under contention",
		},
		{
			Name: "for-update", Cutter: "for-update", Sound: true, cutter: cutter.ForUpdate,
			Detail: "SELECT … FOR UPDATE, then UPDATE: one order at a time locks the row",
		},
		{
			Name: "conditional", Cutter: "conditional", Sound: true, cutter: cutter.Conditional,
			Detail: "UPDATE … WHERE available >= n: check and cut in one statement",
		},
		{
			Name: "merged", Cutter: "merged", Sound: true, cutter: cutter.Merged, group: true,
			Detail: "the conditional UPDATE once for a whole group of orders",
		},
		{
			Name: "slots", Cutter: "slots", Sound: true, group: true, Slotted: true,
			Detail: "merged over one of several rows of the SKU (--slots): while one group commits, groups with other rows go on; for several instances and slow commits",
		},
		{
			Name: "unit-rows", Cutter: "unit-rows", Sound: true, cutter: cutter.UnitRows, NeedsRowLocks: true,
			Detail: "one row for each unit, SELECT … FOR UPDATE SKIP LOCKED: no order waits for the row of another; a connection is held for a round trip more; needs a database with row locks",
		},
		{
			Name: "queue", Gate: "queue(readwrite)", Cutter: "count", Sound: true, gate: queue, cutter: cutter.Count, group: true,
			Detail: "a queue for each SKU, consumed by one instance at a time: many orders decided with one read and one write; refuses at once what does not fit behind the queue",
		},
		{
			Name: "async", Gate: "script", Cutter: "count", Sound: true, gate: script, cutter: cutter.Count, group: true, Queues: true,
			Detail:  "the script also journals the order in Redis, and the answer is 202; a consumer commits it: goes on selling while the ledger is slow and, to requests without a key, while it is unreachable; an acknowledged order is as durable as Redis",
			Promise: queuedPromise,
		},
	}
	for i := range specs {
		specs[i].Promise = cmp.Or(specs[i].Promise, committedPromise)
	}
	return specs
}

// The promises of an answer. The table in docs/operations.md and store.QueueWarning say the
// same of a 202.
const (
	committedPromise = "a 201 is never lost: the database has committed the order"
	queuedPromise    = "a 202 is as durable as Redis: with appendfsync always it survives a crash of Redis; with everysec a crash loses about the last second of 202s, with appendfsync no a crash of its machine loses those that are not on disk yet, with snapshots only those since the last snapshot, without persistence all that are queued; a failover loses what the replica does not have yet; an in-process Redis loses all that are queued when its process ends. " +
		"A queued order may still be refused if Redis lost its counts, an instance of another build took over, or the ledger has fewer units; GET /orders/{id} says so"
)

func readWrite(b Backends) (*gate.Counter, gate.Gate) { return b.readWrite(gate.Layout{}) }

func underMutex(b Backends) (*gate.Counter, gate.Gate) {
	return b.readWrite(gate.Layout{Locks: gate.NewLocks(lock.NewLocal(), lockWait, false)})
}

func underLock(b Backends) (*gate.Counter, gate.Gate) {
	return b.readWrite(gate.Layout{Locks: b.locks()})
}

func underSegmentLocks(b Backends) (*gate.Counter, gate.Gate) {
	return b.inSegments(b.readWrite(gate.Layout{Segments: b.Segments, Locks: b.locks()}))
}

func script(b Backends) (*gate.Counter, gate.Gate) { return b.script(gate.Layout{}) }

func segments(b Backends) (*gate.Counter, gate.Gate) {
	return b.inSegments(b.script(gate.Layout{Segments: b.Segments}))
}

// queue has a queue for each SKU. Only the instance that holds the SKU's lock consumes it. The
// locks are in the gate's Redis.
func queue(b Backends) (*gate.Counter, gate.Gate) {
	leases := redislock.New(b.Redis, redislock.Options{Lease: turnLease})
	return gate.NewQueue(b.Redis, b.LedgerID, leases, lockWait)
}

func (b Backends) readWrite(layout gate.Layout) (*gate.Counter, gate.Gate) {
	counter := gate.NewCounter(b.Redis, b.LedgerID, layout)
	return counter, gate.NewReadWrite(counter)
}

func (b Backends) script(layout gate.Layout) (*gate.Counter, gate.Gate) {
	counter := gate.NewCounter(b.Redis, b.LedgerID, layout)
	return counter, gate.NewScript(counter)
}

// locks returns the locks of --lock.
func (b Backends) locks() *gate.Locks { return gate.NewLocks(b.Locker, lockWait, b.Fence) }

// inSegments returns a gate that takes from the segments of inner's SKUs. A lock in the
// gate's Redis allows one gather at a time.
func (b Backends) inSegments(counter *gate.Counter, inner gate.Gate) (*gate.Counter, gate.Gate) {
	gatherers := redislock.New(b.Redis, redislock.Options{Lease: gatherLease})
	return counter, gate.NewSegmented(counter, inner, gatherers)
}

// EmbeddedStrategies returns the strategies that run on embedded stores.
func EmbeddedStrategies() []Spec {
	return slices.DeleteFunc(Strategies(), func(s Spec) bool { return s.NeedsRowLocks })
}

// StrategyNames returns the names of all strategies.
func StrategyNames() []string {
	var names []string
	for _, s := range Strategies() {
		names = append(names, s.Name)
	}
	return names
}

// Queueing returns the strategy that answers orders before the ledger has them.
func Queueing() Spec {
	all := Strategies()
	return all[slices.IndexFunc(all, func(s Spec) bool { return s.Queues })]
}

// FindStrategy returns the strategy with this name. ok is false if there is none.
func FindStrategy(name string) (spec Spec, ok bool) {
	for _, s := range Strategies() {
		if s.Name == name {
			return s, true
		}
	}
	return Spec{}, false
}

// layout returns the Layout of the strategy that Build returns.
func (s Spec) layout(b Backends) string {
	layout := fmt.Sprintf("%s, rules %d", s.Name, ledgerRules)
	if s.HasGate() {
		layout += ", scripts " + gate.ScriptsVersion()
	}
	if s.Segmented {
		layout += fmt.Sprintf(", %d segments", b.Segments)
	}
	if s.Slotted {
		layout += fmt.Sprintf(", %d slots", b.Slots)
	}
	if s.NeedsLock {
		layout += ", lock " + b.LockName
		if !b.Fence {
			layout += ", unfenced"
		}
	}
	return layout
}

// Build returns the strategy on these backends. The caller must call close after the
// last use of its gate.
func (s Spec) Build(b Backends) (built Strategy, close func()) {
	built = Strategy{Name: s.Name, Layout: s.layout(b), Group: 1, Parallel: singleParallel}
	if s.group {
		built.Group, built.Parallel = groupSize, groupParallel
	}
	close = func() {}
	newCutter := s.cutter
	if s.Slotted {
		newCutter = func() cutter.Cutter { return cutter.Slots(b.Slots) }
	}
	if s.gate != nil {
		counter, g := s.gate(b)
		built.Counter, built.Gate, close = counter, g, g.Close
		if script, ok := g.(*gate.Script); ok && s.Queues {
			if journal := script.Journal(); journal != nil { // a nil pointer is not a nil interface
				built.Journal = journal
			}
		}
		if b.Guard {
			newCutter = cutter.Merged
		}
	}
	built.Cutter = newCutter()
	return built, close
}
