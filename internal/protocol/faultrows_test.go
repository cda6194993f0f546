package protocol

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/faults"
)

// faultRow is one run: a strategy, a database, and the faults of its stores.
type faultRow struct {
	database string
	strategy string
	noGuard  bool
	sql      []faults.Fault
	redis    []faults.Fault
	twins    int // the number of requests, all with one key; 0 for a mixed scenario
	seed     uint64
}

// String returns the row as Go source text for foundRows.
func (r faultRow) String() string {
	list := func(name string, fs []faults.Fault) string {
		if len(fs) == 0 {
			return ""
		}
		text := make([]string, len(fs))
		for i, f := range fs {
			text[i] = f.String()
		}
		return fmt.Sprintf(", %s: []faults.Fault{%s}", name, strings.Join(text, ", "))
	}
	guard := ""
	if r.noGuard {
		guard = ", noGuard: true"
	}
	twins := ""
	if r.twins > 0 {
		twins = fmt.Sprintf(", twins: %d", r.twins)
	}
	return fmt.Sprintf("{database: %q, strategy: %q%s%s%s%s, seed: %d}", r.database, r.strategy, guard, list("sql", r.sql), list("redis", r.redis), twins, r.seed)
}

// databaseKinds are the errors that each database can return.
var databaseKinds = map[string][]faults.Kind{
	"MariaDB":    {faults.Deadlock, faults.LockTimeout, faults.ReadOnly, faults.Duplicate, faults.BadValue, faults.DiskFull, faults.Killed},
	"PostgreSQL": {faults.Deadlock, faults.LockTimeout, faults.ReadOnly, faults.Duplicate, faults.BadValue, faults.DiskFull, faults.Killed, faults.RolledBack, faults.Serialization},
	"SQLite":     {faults.LockTimeout, faults.ReadOnly, faults.Duplicate, faults.BadValue, faults.DiskFull},
}

var (
	// lostKinds lose the connection and take little time.
	lostKinds = []faults.Kind{faults.Refused, faults.Lost, faults.Late, faults.Gone}
	// slowKinds last until a time limit of the service ends them.
	slowKinds = []faults.Kind{faults.Hung, faults.HungDone}
	// redisKinds are the errors that Redis can return.
	redisKinds = []faults.Kind{faults.OutOfMemory, faults.ReadOnly, faults.Loading, faults.NoScript}
)

const (
	begins    = "BEGIN"              // part of the statement that begins a transaction of SQLite
	commits   = "COMMIT"             // part of every statement that commits
	rollbacks = "ROLLBACK"           // part of every statement that rolls back
	voids     = "void"               // part of every statement that records a void order
	shrinks   = "shrink"             // part of every statement that records a shrink
	reads     = "SELECT id, take_id" // part of every statement that reads orders
)

// foundRows are rows that broke a promise before it was fixed.
var foundRows = []faultRow{
	// The database could not be reached. All but one of the duplicates in a group had an empty
	// outcome, which counted as accepted.
	{database: "MariaDB", strategy: "merged", sql: []faults.Fault{{Kind: faults.Gone, Nth: 1}}, twins: 60},
	{database: "PostgreSQL", strategy: "merged", sql: []faults.Fault{{Kind: faults.Gone, Nth: 1}}, twins: 60},
	{database: "SQLite", strategy: "merged", sql: []faults.Fault{{Kind: faults.Gone, Nth: 1}}, twins: 60},
	// The same, after ten deadlocks.
	{database: "MariaDB", strategy: "merged", sql: []faults.Fault{{Kind: faults.Deadlock, Nth: 1, Times: 100}}, twins: 60},
	{database: "PostgreSQL", strategy: "merged", sql: []faults.Fault{{Kind: faults.Deadlock, Nth: 1, Times: 100}}, twins: 60},
	// A COMMIT that SQLite refused with "busy" left its transaction open on a
	// connection that was returned to the pool.
	{database: "SQLite", strategy: "conditional", sql: []faults.Fault{{Kind: faults.LockTimeout, Nth: 1, Only: commits}}, seed: 1},
	// After a BEGIN that SQLite refused with "busy", the row was read outside the transaction. A
	// change of the stock then overwrote concurrent cuts.
	{database: "SQLite", strategy: "conditional", sql: []faults.Fault{{Kind: faults.LockTimeout, Nth: 1, Times: 20, Only: begins}}, seed: 2},
}

// allRows returns a bounded selection of rows on a database. Every strategy gets a fault at each of
// its first statements and commands, and every kind of fault occurs at each of them for some
// strategy. Every strategy loses COMMITs in every way, and void orders after them.
func allRows(database string) (rows []faultRow) {
	const first = 8 // number of statements
	kinds := slices.Concat(lostKinds, databaseKinds[database])
	for i, spec := range strategiesOn(database) {
		row := faultRow{database: database, strategy: spec.Name}
		add := func(sql, redis []faults.Fault) {
			row.sql, row.redis, row.seed = sql, redis, uint64(len(rows))
			row.noGuard = spec.HasGate() && len(rows)%2 == 0
			rows = append(rows, row)
		}
		add([]faults.Fault{{Kind: slowKinds[i%2], Nth: 1, Only: commits}}, nil)
		for n := 1; n <= first; n++ {
			add([]faults.Fault{{Kind: kinds[(n+i)%len(kinds)], Nth: n}}, nil)
		}
		lost := []faults.Kind{faults.Lost, faults.Late, faults.Refused}
		for m, void := range slices.Concat(lostKinds, databaseKinds[database][i%3:i%3+1]) {
			add([]faults.Fault{
				{Kind: lost[(i+m)%len(lost)], Nth: 1 + (i+m)%2, Only: commits},
				{Kind: void, Nth: 1, Times: 1 + m%3, Only: voids},
			}, nil)
		}
		for _, read := range []faults.Kind{faults.Refused, faults.Gone} {
			add([]faults.Fault{
				{Kind: faults.Lost, Nth: 1, Only: commits},
				{Kind: read, Nth: 1, Times: 3, Only: reads, After: voids},
			}, nil)
		}
		for n := 1; n <= 2; n++ { // the transaction is still open: its connection must not be used again
			add([]faults.Fault{{Kind: faults.LockTimeout, Nth: n, Only: commits}}, nil)
			add([]faults.Fault{{Kind: faults.BadValue, Nth: n, Times: 3, Only: rollbacks}}, nil)
		}
		if !spec.HasGate() {
			continue
		}
		for m, void := range lostKinds {
			add([]faults.Fault{
				{Kind: []faults.Kind{faults.Lost, faults.Late}[m%2], Nth: 1, Only: commits, After: shrinks},
				{Kind: void, Nth: 1, Times: 1 + m%3, Only: voids, After: shrinks},
			}, nil)
		}
		kinds := slices.Concat(lostKinds, redisKinds)
		for n := 1; n <= first; n++ {
			add(nil, []faults.Fault{{Kind: kinds[(n+i)%len(kinds)], Nth: n}})
		}
	}
	return rows
}

// randomRow returns a random row on a database. A seed always gives the same row.
func randomRow(database string, seed uint64) faultRow {
	random := rand.New(rand.NewPCG(seed, 2))
	table := strategiesOn(database)
	if *faultsOnly != "" {
		table = slices.DeleteFunc(table, func(s assembly.Spec) bool { return !slices.Contains(strings.Split(*faultsOnly, ","), s.Name) })
	}
	spec := table[random.IntN(len(table))]
	row := faultRow{database: database, strategy: spec.Name, seed: seed}
	row.noGuard = spec.HasGate() && random.IntN(2) == 0
	draw := func(kinds []faults.Kind, only ...string) (fs []faults.Fault) {
		for range 1 + random.IntN(3) {
			f := faults.Fault{Kind: kinds[random.IntN(len(kinds))], Nth: 1 + random.IntN(40)}
			if random.IntN(3) == 0 {
				f.Times = 1 + random.IntN(5)
			}
			if random.IntN(2) == 0 && only != nil {
				f.Only, f.Nth = only[random.IntN(len(only))], 1+random.IntN(6)
				if random.IntN(4) == 0 {
					f.After, f.Nth = shrinks, 1
				}
			}
			fs = append(fs, f)
		}
		return fs
	}
	slow := func(kinds []faults.Kind) []faults.Kind {
		if random.IntN(20) == 0 {
			return slices.Concat(kinds, slowKinds)
		}
		return kinds
	}
	which := random.IntN(3)
	if which < 2 || !spec.HasGate() {
		row.sql = draw(slow(slices.Concat(lostKinds, databaseKinds[database])), commits, voids)
	}
	if which > 0 && spec.HasGate() {
		row.redis = draw(slow(slices.Concat(lostKinds, redisKinds)))
	}
	return row
}
