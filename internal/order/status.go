package order

import (
	"slices"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// movesKeyOn reports whether a key must use its next ID because the order under its
// present ID has this status. A void order stands for an order that was never
// committed, and its ID cannot be used again.
func movesKeyOn(s ledger.Status) bool { return s == ledger.Void }

// replay returns the answer to a request whose key already belongs to the order
// found. It repeats the first answer, even if the order's status has changed since.
// ErrKeyReused: the lines differ.
func replay(r Request, found *Order) (Order, error) {
	if !slices.EqualFunc(r.Lines, found.Lines, sameLine) {
		return Order{}, ErrKeyReused
	}
	first := *found
	first.Status = ledger.Pending
	return first, nil
}

func sameLine(a, b stock.Line) bool { return a == b }
