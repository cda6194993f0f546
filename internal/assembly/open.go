package assembly

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
)

// Parts name what an instance is built from.
type Parts struct {
	Strategy Spec
	Guard    bool   // behind a gate, the ledger refuses orders that do not fit its count
	Redis    string // the URL of the gate's Redis; empty with DB: one in this process, if there is a gate
	DB       string // the URL of the ledger; empty: embedded stores, which end with the instance
	Migrate  bool   // migrate an old or missing schema
	// Locks are the backend of the strategy's locks. Strategies without locks do not use Locks and
	// Fence.
	Locks    backends.Flags
	Fence    bool // refuse a lock holder whose lease has ended
	Segments int  // the number of segments of a SKU, 1 to MaxSegments; only for segmented strategies
	Slots    int  // the number of slots of a SKU, 1 to MaxSlots; only for strategies with slots
	// Draining keeps instances that serve from sharing the stock with this one, so that no instance
	// queues orders while this one commits the queued orders.
	Draining bool
}

// Embedded reports whether the stores are embedded.
func (p Parts) Embedded() bool { return p.DB == "" && p.Redis == "" }

// Open opens the stores, prepares the schema, and builds an instance on them. The
// instance's Close closes the stores, too.
func Open(ctx context.Context, p Parts, o Options) (i *Instance, err error) {
	stores, err := OpenStores(ctx, p, o.Log)
	if err != nil {
		return nil, err
	}
	if err = stores.PrepareSchema(ctx, p.Migrate); err == nil {
		i, err = Build(ctx, stores, p, o)
	}
	if err != nil {
		return nil, errors.Join(err, stores.Close())
	}
	i.closers = append(i.closers, stores.Close)
	return i, nil
}

// Build opens the locks, builds the strategy, and joins them with the stores into an instance. It
// warns of locks that are too weak for the strategy. The schema must be prepared. The caller closes
// the stores, after the instance.
func Build(ctx context.Context, stores Stores, p Parts, o Options) (*Instance, error) {
	ledgerID, err := stores.SQL.LedgerID(ctx)
	if err != nil {
		return nil, err
	}
	if p.Strategy.NeedsRowLocks {
		if err := stores.SQL.Ledger().CheckSkipLocked(ctx, "SELECT beat FROM ledger"); err != nil {
			return nil, fmt.Errorf("strategy %s needs row locks: %w; use MariaDB, MySQL or PostgreSQL, or another strategy", p.Strategy.Name, err)
		}
	}
	locker, closeLocks, err := openLocks(ctx, p, stores.Redis, o.Metrics)
	if err != nil {
		return nil, err
	}
	for _, warning := range p.LockWarnings() {
		o.Log.Warn(warning)
	}
	strategy, closeGate := p.Strategy.Build(Backends{
		Redis: stores.Redis, LedgerID: ledgerID, Guard: p.Guard,
		Locker: locker, LockName: p.Locks.Backend, Fence: p.Fence, Segments: p.Segments, Slots: p.Slots,
	})
	if p.Draining {
		strategy.Layout += ", draining"
	}
	i := New(stores.SQL.Ledger(), ledgerID, strategy, o)
	i.Stores = stores
	i.closers = []func() error{func() error { closeGate(); return nil }, closeLocks}
	return i, nil
}
