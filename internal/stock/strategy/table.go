// Package strategy holds the one table of strategies: which gate stands before
// which cutter, and what the pair promises.
package strategy

import (
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock/gate"
)

// Default is the strategy that serves unless another is asked for.
const Default = "lua"

const (
	// lockWait bounds how long a take waits for the locks of its SKUs.
	lockWait = 2 * time.Second

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
	cutter func(layout string) stock.Cutter
	group  bool
}

// HasGate reports whether the strategy needs Redis.
func (s Spec) HasGate() bool { return s.gate != nil }

// Backends are what strategies are built on.
type Backends struct {
	Redis    redis.UniversalClient // unused without a gate
	LedgerID uuid.UUID             // names the ledger in the gate's keys
	Guard    bool                  // refuse in the ledger, behind a gate, what does not fit
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

// Build makes the strategy on these backends. close stops what its gate runs,
// and comes after the last call to it.
func (s Spec) Build(b Backends) (built stock.Strategy, close func()) {
	built = stock.Strategy{Name: s.Name, Layout: s.Name, Group: 1, Parallel: singleParallel}
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
	built.Cutter = newCutter(built.Layout)
	return built, close
}
