package stock

import "gorm.io/gorm"

// Cutter takes units from stock rows inside the ledger's transaction.
// Implementations are safe for concurrent use.
type Cutter interface {
	// Cut takes every deduction that fits whole, in the order given. The
	// decisions stand in the order of ds. Reasons to refuse are ErrSoldOut,
	// ErrStaleEpoch, ErrUnknownSKU, ErrNotAdopted and ErrSuperseded (as
	// *Refusal). An error beside the decisions means that nothing of the
	// transaction may be committed; ErrConflict asks for another transaction.
	//
	// A line is cut only from a row whose epoch belongs to the generation g.
	// A line whose Epoch is not 0 is cut only under that epoch.
	Cut(tx *gorm.DB, g Generation, ds []Deduction) ([]Decision, error)
}

// A Viewer is a Cutter that must see the stock rows before the transaction
// begins, on a connection of its own. The ledger cuts with what View returns.
type Viewer interface {
	View(db *gorm.DB, g Generation, ds []Deduction) (Cutter, error)
}

// A Planner is a Cutter that can often take a whole group by one statement that
// it knows beforehand, so that the statement travels with the others of the
// transaction.
type Planner interface {
	// Plan plans the cut of ds. ok is false where there is no plan, and Cut
	// must decide.
	Plan(db *gorm.DB, g Generation, ds []Deduction) (plan Plan, ok bool)
}

// Plan is one statement, with its placeholders as the dialect writes them.
// Where it updates Rows rows, every deduction was taken whole. Where it updates
// fewer, the transaction must be rolled back, and Cut decides in another.
type Plan struct {
	SQL  string
	Args []any
	Rows int64
}
