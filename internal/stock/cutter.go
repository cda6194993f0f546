package stock

import "gorm.io/gorm"

// Cutter takes units from stock rows inside the ledger's transaction.
// Implementations are safe for concurrent use.
type Cutter interface {
	// Cut takes every deduction that fits whole, in the order given. The
	// answers stand in the order of ds: nil where the units were taken, else
	// ErrSoldOut, ErrStaleEpoch, ErrUnknownSKU or ErrLayout (as *Refusal).
	// An error beside them means that nothing of the transaction may be
	// committed; ErrConflict asks for another transaction.
	//
	// A line whose Epoch is not 0 is cut only under that epoch.
	Cut(tx *gorm.DB, ds []Deduction) ([]error, error)
}

// A Viewer is a Cutter that must see the stock rows before the transaction
// begins, on a connection of its own. The ledger cuts with what View returns.
type Viewer interface {
	View(db *gorm.DB, ds []Deduction) (Cutter, error)
}

// A Planner is a Cutter that can often take a whole group by one statement that
// it knows beforehand, so that the statement travels with the others of the
// transaction.
type Planner interface {
	// Plan returns the statement, with ? for its arguments: where it updates
	// one row, every deduction of ds was taken whole; where it updates none,
	// nothing was, and Cut must decide. ok is false where there is none.
	Plan(ds []Deduction) (sql string, args []any, ok bool)
}
