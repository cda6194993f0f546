// Package strategy holds the one table of strategies: which gate stands before
// which cutter, and what the pair promises.
package strategy

import (
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	redislock "github.com/holdfast-stock/holdfast/internal/lock/redis"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock/gate"
)

// MaxSegments bounds the segments of a SKU.
const MaxSegments = gate.MaxSegments

// Default is the strategy that serves unless another is asked for.
const Default = "lua"

const (
	// lockWait bounds how long a take waits for the locks of its SKUs.
	lockWait = 2 * time.Second
	// gatherLease is how long a gatherer that died keeps others from gathering.
	gatherLease = 2 * time.Second

	// A cutter that takes a group at once has one transaction in flight, while
	// the next group gathers: a second would only wait for the hot row, and make
	// both groups smaller. The others have one order to a transaction, and as
	// many transactions as leave connections for reading.
	groupSize, groupParallel = 128, 1
	singleParallel           = 24
)

// Spec is one row of the table.
type Spec struct {
	Name   string
	Gate   string // what stands before the ledger; empty: nothing
	Cutter string
	// Sound says that the strategy by itself, without a guard, never sells a
	// unit twice, however many instances share the stores.
	Sound  bool
	Detail string

	gate   func(Backends) Gate
	cutter func() stock.Cutter
	group  bool
	// What else its layout names.
	locks, segmented bool
}

// HasGate reports whether the strategy needs Redis.
func (s Spec) HasGate() bool { return s.gate != nil }

// NeedsLock reports whether the strategy takes locks between instances.
func (s Spec) NeedsLock() bool { return s.locks }

// Segmented reports whether the strategy divides SKUs.
func (s Spec) Segmented() bool { return s.segmented }

// Backends are what strategies are built on.
type Backends struct {
	Redis    redis.UniversalClient // unused without a gate
	LedgerID uuid.UUID             // names the ledger in the gate's keys
	Guard    bool                  // refuse in the ledger, behind a gate, what does not fit
	// Locker and LockName are the backend of --lock; unused by a strategy that
	// needs no lock.
	Locker   lock.Locker
	LockName string
	Fence    bool // refuse a lock's holder that was outlived, where the backend gives tokens
	Segments int  // of each SKU, 1 to gate.MaxSegments; unused by a strategy that is not segmented
}

// Gate is a gate that runs calls of its own until it is closed.
type Gate interface {
	stock.Gate
	Close()
}

// Table returns every strategy, in the order in which they are taught.
func Table() []Spec {
	return []Spec{
		{
			Name: "none", Gate: "readwrite", Cutter: "count", gate: readWrite, cutter: cutter.Count, group: true,
			Detail: "read, check and write in Redis with nothing to hold them together: oversells at once",
		},
		{
			Name: "mutex", Gate: "locked(readwrite)", Cutter: "count", gate: underMutex, cutter: cutter.Count, group: true,
			Detail: "the same under a process mutex: right in one instance, oversells with two",
		},
		{
			Name: "lock", Gate: "locked(readwrite)", Cutter: "count", Sound: true, gate: underLock, cutter: cutter.Count, group: true, locks: true,
			Detail: "the same under a distributed lock (--lock): right, and slow; with --fence off, or a lock without fencing tokens, it oversells when a lease is outlived",
		},
		{
			Name: "segment-lock", Gate: "segmented(locked(readwrite))", Cutter: "count", Sound: true, gate: underSegmentLocks, cutter: cutter.Count, group: true, locks: true, segmented: true,
			Detail: "the stock in segments with a lock each, so that contention is divided; unfenced as lock is",
		},
		{
			Name: "segment", Gate: "segmented(script)", Cutter: "count", Sound: true, gate: segments, cutter: cutter.Count, group: true, segmented: true,
			Detail: "the stock in segments, chosen by order ID modulo their number: spreads one hot SKU over the servers of a cluster",
		},
		{
			Name: "lua", Gate: "script", Cutter: "count", Sound: true, gate: script, cutter: cutter.Count, group: true,
			Detail: "one atomic script in Redis; without guard its promise ends where Redis loses acknowledged writes unseen",
		},
		{
			Name: "db-none", Cutter: "readwrite", cutter: cutter.ReadWrite,
			Detail: "SELECT, check, UPDATE to the absolute value: lost updates in SQL too",
		},
		{
			Name: "optimistic", Cutter: "optimistic", Sound: true, cutter: cutter.Optimistic,
			Detail: "UPDATE only if the version has not moved, else again in a new transaction: retries under contention",
		},
		{
			Name: "for-update", Cutter: "for-update", Sound: true, cutter: cutter.ForUpdate,
			Detail: "SELECT … FOR UPDATE, then UPDATE: one order at a time holds the row",
		},
		{
			Name: "conditional", Cutter: "conditional", Sound: true, cutter: cutter.Conditional,
			Detail: "UPDATE … WHERE available >= n: check and cut in one statement",
		},
		{
			Name: "merged", Cutter: "merged", Sound: true, cutter: cutter.Merged, group: true,
			Detail: "the conditional UPDATE once for a whole group of orders",
		},
	}
}

func readWrite(b Backends) Gate { return gate.NewReadWrite(b.Redis, b.LedgerID) }

func underLock(b Backends) Gate {
	return gate.NewLocked(gate.NewReadWrite(b.Redis, b.LedgerID), b.Locker, lockWait, b.Fence)
}

func underSegmentLocks(b Backends) Gate { return inSegments(b, underLock(b)) }

func segments(b Backends) Gate { return inSegments(b, script(b)) }

// inSegments divides the gate. Gathers are one at a time under a lock of their
// own, in the gate's Redis.
func inSegments(b Backends, inner Gate) Gate {
	gatherers := redislock.New(b.Redis, redislock.Options{Lease: gatherLease, Fixed: true})
	return segmented{gate.NewSegmented(inner, b.Redis, b.LedgerID, b.Segments, gatherers), gatherers}
}

// segmented is a divided gate with the locks that it owns.
type segmented struct {
	Gate
	gatherers *redislock.Locker
}

func (s segmented) Close() {
	s.Gate.Close()
	_ = s.gatherers.Close()
}

func underMutex(b Backends) Gate {
	return gate.NewLocked(gate.NewReadWrite(b.Redis, b.LedgerID), lock.NewLocal(), lockWait, false)
}

func script(b Backends) Gate { return gate.NewScript(b.Redis, b.LedgerID) }

// Names returns the names of all strategies.
func Names() []string {
	var names []string
	for _, s := range Table() {
		names = append(names, s.Name)
	}
	return names
}

// Find returns the strategy of that name.
func Find(name string) (Spec, bool) {
	for _, s := range Table() {
		if s.Name == name {
			return s, true
		}
	}
	return Spec{}, false
}

// layout names what instances must agree on to share a count.
func (s Spec) layout(b Backends) string {
	layout := s.Name
	if s.segmented {
		layout += fmt.Sprintf(", %d segments", b.Segments)
	}
	if s.locks {
		layout += ", lock " + b.LockName
		if !b.Fence {
			layout += ", unfenced"
		}
	}
	return layout
}

// Build makes the strategy on these backends. close stops what its gate runs,
// and comes after the last call to it.
func (s Spec) Build(b Backends) (built stock.Strategy, close func()) {
	built = stock.Strategy{Name: s.Name, Layout: s.layout(b), Group: 1, Parallel: singleParallel}
	if s.group {
		built.Group, built.Parallel = groupSize, groupParallel
	}
	close = func() {}
	newCutter := s.cutter
	if s.gate != nil {
		g := s.gate(b)
		built.Gate, close = g, g.Close
		if b.Guard {
			newCutter = cutter.Merged
		}
	}
	built.Cutter = newCutter()
	return built, close
}
