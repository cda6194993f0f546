package reconcile

import (
	"context"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Ownership says who owns the stock, and whether the gate's store and this instance agree
// with that.
type Ownership struct {
	// Layout is this instance's. Owner.Layout is that of the instances that sell the
	// stock; it is empty if none holds it.
	Layout string
	Queues bool // this instance's strategy queues orders; Owner.Queues is the owner's
	Owner  ledger.Owner
	Mark   stock.Mark // what the gate's store has seen of the ledger
	// Loaded reports whether the gate's store can run the owner's generation. It is true
	// without a gate.
	Loaded bool
	// Restored reports whether the ledger is older than the mark: it was restored from a
	// backup.
	Restored bool
}

// Ownership reads the owner of the stock from the ledger, and what the gate's store has of
// it. It changes nothing. This instance must not serve.
func (r *Reconciler) Ownership(ctx context.Context) (s Ownership, err error) {
	s.Layout, s.Queues = r.generations.layout, r.generations.queues
	if s.Mark, err = r.generations.mark(ctx); err != nil {
		return s, err
	}
	if s.Owner, err = r.ledger.Owner(ctx); err != nil {
		return s, err
	}
	// The beat was not raised, so it may equal the mark's.
	s.Restored = s.Mark.Beat > s.Owner.Beat || s.Mark.Generation > s.Owner.Generation
	if r.counter != nil {
		r.counter.Use(s.Owner.Generation)
	}
	s.Loaded, err = r.generations.loaded(ctx)
	return s, err
}
