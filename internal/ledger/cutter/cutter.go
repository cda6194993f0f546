// Package cutter provides the ways in which a ledger transaction takes units from stock rows.
// Cutters differ in how they lock and in which reads they trust. All of them check in the same way
// that rows exist, their generation, their epoch, their opening hours and their buyer limits.
package cutter

import (
	"context"
	"errors"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Cutter takes units from stock rows inside the ledger's transaction.
// Implementations are safe for concurrent use.
type Cutter interface {
	// Plan prepares the cut of a group before its transaction begins. A cutter that must read the
	// stock rows outside the transaction reads them now.
	//
	// A line is cut only from a row whose epoch belongs to generation g and which is open by the
	// database's clock. A line that a gate cut under an epoch is cut only under that epoch. If the
	// row has a buyer limit, the line is cut only under the row's lock, together with a rise of the
	// buyer's claim.
	Plan(ctx context.Context, db *sqltx.DB, g stock.Generation, takes []stock.Take) (Plan, error)
}

// Plan is a cut that has been prepared for one group.
type Plan struct {
	// GroupCut, if not nil, takes the whole group in one statement. It allows the
	// caller to send the whole transaction at once.
	GroupCut *GroupCut

	// Cut takes every deduction that fits whole, in order, inside tx. The decisions have the order
	// of the group. Reasons to refuse are ErrSoldOut, ErrBuyerLimit, ErrNotOpen, ErrClosed,
	// ErrStaleEpoch, ErrUnknownSKU, ErrNotAdopted and ErrLaterGeneration of package stock (as
	// *stock.Refusal). If it returns an error, tx must not be committed. After ErrConflict, the
	// caller must make a new plan and a new transaction.
	Cut func(ctx context.Context, tx *sqltx.Tx) ([]Decision, error)
}

// GroupCut is a statement that takes a whole group.
type GroupCut struct {
	sqltx.Statement
	// Rows is the number of rows that the statement updates if every deduction fits. If it updates
	// fewer, roll the transaction back, and let Plan.Cut decide in another one.
	Rows int64
	// Claims raise the buyers' claims. They must run after Statement in the same
	// transaction, and fail as Dialect.Require does if a buyer would hold more than
	// the limit.
	Claims []sqltx.Statement
}

// ErrConflict means that a stock row changed between being read and being cut.
var ErrConflict = errors.New("the stock row changed since it was read")
