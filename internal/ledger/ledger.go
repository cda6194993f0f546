// Package ledger keeps the stock rows, the orders and the outbox in a database.
// It is the only truth about stock: an order exists once its transaction has
// committed here. docs/protocol.md has the rules that it follows.
package ledger

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/group"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

const (
	// maxQueue bounds the orders, and the lookups, that wait for a group.
	maxQueue = 4096
	// maxGroupLines bounds the lines, and so the bytes, of one group.
	maxGroupLines = 1000
	// maxLockWaits bounds how often a group waits for a row lock until the
	// database gives up.
	maxLockWaits = 2
	// maxLookups bounds the groups of lookups at the same time, and maxLookupGroup the IDs in one
	// group.
	maxLookups, maxLookupGroup = 2, 100
)

// Options configure a Ledger.
type Options struct {
	Strategy string // the strategy that the orders of this ledger record
	Cutter   cutter.Cutter
	HasGate  bool // additions to stock go to the outbox for the gate
	// Group is the largest number of orders in one transaction, and Parallel
	// the number of transactions at once.
	Group, Parallel int
	// PaymentWindow is how long an order may be pending before it expires. 0: it
	// does not expire.
	PaymentWindow time.Duration
	// Clock is the time of day on this machine. nil means time.Now.
	Clock   func() time.Time
	Log     *slog.Logger
	Metrics prometheus.Registerer
	Tracer  *tracing.Tracer // nil: there are no traces
}

// Ledger keeps stock and orders in one database. It is safe for concurrent use.
type Ledger struct {
	db       *sqltx.DB
	strategy string
	cutter   cutter.Cutter
	hasGate  bool
	log      *slog.Logger
	metrics  *metrics
	tracer   *tracing.Tracer

	paymentWindow time.Duration // 0: orders do not expire
	clock         clock

	generation atomic.Int64 // generation in use

	records *group.Batcher[*recording]
	slow    slowGroups
	turns   *turns

	groups  sync.WaitGroup // groups under way
	lookups *group.Batcher[*lookup]

	// cutFirst is true if not every take of the last group was cut: stock has run out, a buyer is
	// above the limit, or the gate is stale. Then each group sends its orders after the cut and not
	// along with it, until a group fits again.
	cutFirst atomic.Bool
	// mayWait says that orders may wait for stock rows after their times have been set.
	mayWait bool

	claimsAtOnce int // see maxClaimStep
}

// New returns the ledger in db. The caller closes the ledger, and then db.
func New(db *sqltx.DB, o Options) *Ledger {
	l := &Ledger{
		db: db, strategy: o.Strategy, cutter: o.Cutter, hasGate: o.HasGate,
		paymentWindow: o.PaymentWindow, log: o.Log, tracer: o.Tracer, turns: newTurns(), claimsAtOnce: maxClaimStep,
	}
	l.mayWait = o.PaymentWindow == 0 || o.PaymentWindow >= 2*transactionTimeout
	l.clock.wall = o.Clock
	if o.Clock == nil {
		l.clock.wall = time.Now
	}
	l.records = group.New(
		group.Limits{Size: o.Group, Parallel: o.Parallel, Queue: maxQueue, Weight: maxGroupLines},
		func(r *recording) int { return len(r.take.Lines) },
		l.runGroup)
	l.lookups = group.New(
		group.Limits{Size: maxLookupGroup, Parallel: maxLookups, Queue: maxQueue},
		nil, l.lookUp)
	l.metrics = newMetrics(o.Metrics, l.records.Waiting)
	return l
}

// Close finishes the orders and lookups that are queued. Later calls fail.
func (l *Ledger) Close() {
	l.records.Close()
	l.groups.Wait()
	l.lookups.Close()
}
