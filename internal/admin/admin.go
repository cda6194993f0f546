// Package admin sets, lists and audits stock.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxTries bounds the tries of one change of stock. A try fails on a concurrent change or a stale
// gate. After the last one, the change is answered stock.ErrBusy.
const maxTries = 10

// Stock is the count of one SKU as it stands.
type Stock struct {
	SKU        stock.SKU
	Kind       stock.Kind
	Total      int64
	Available  int64     // the gate's count, or the stock row's without a gate
	Sold       int64     // Total less the stock row's available
	BuyerLimit int64     // units that one buyer may hold; 0: any number, or the limit does not hold yet
	OpensAt    time.Time // when sales begin; the zero time: sales have begun
	ClosesAt   time.Time // when sales end; the zero time: sales do not end
}

// Audit compares the counts of one SKU. It is exact when no order is under way.
type Audit struct {
	SKU             stock.SKU
	Total           int64
	Sold            int64  // recounted from the lines of the orders that hold their units
	Oversold        int64  // units sold beyond Total
	GateAvailable   *int64 // nil without a gate
	GateInFlight    *int64 // units; nil without a gate
	LedgerAvailable int64
	Drift           int64 // as in stock.Comparison
}

// Gate is the part of a gate that Admin uses.
type Gate interface {
	Take(ctx context.Context, d stock.Deduction) (stock.Take, error)
}

// Ledger is the part of the ledger that Admin uses.
type Ledger interface {
	Row(ctx context.Context, sku stock.SKU) (ledger.StockRow, error)
	Rows(ctx context.Context, after stock.SKU, limit int) ([]ledger.StockRow, error)
	Recount(ctx context.Context, skus []stock.SKU) ([]ledger.Count, error)
	Set(ctx context.Context, s stock.Setting) (row ledger.StockRow, created bool, err error)
	Shrink(ctx context.Context, t stock.Take, s stock.Setting) (ledger.StockRow, order.Outcome)
	CountClaims(ctx context.Context, sku stock.SKU) (ledger.StockRow, error)
}

// Reconciler brings changes of stock to the gate and reads its counts.
type Reconciler interface {
	Usable(ctx context.Context) error
	Levels(ctx context.Context, rows []ledger.StockRow) ([]stock.Level, error)
	PrepareRetry(ctx context.Context, reason error, skus ...stock.SKU) error
	Refill(ctx context.Context, sku stock.SKU) error
	Deliver(ctx context.Context, sku stock.SKU) error
	CatchUp(ctx context.Context, skus ...stock.SKU) error
	FinishTake(ctx context.Context, t stock.Take, out order.Outcome) order.Outcome
	GiveBack(ctx context.Context, t stock.Take) bool
}

// Orders is the part of order.Service that Admin uses.
type Orders interface {
	// StockChanged is called when units may have been added to the SKUs, or their rules
	// may have been changed.
	StockChanged(skus ...stock.SKU)
}

// Admin sets, lists and audits stock. It is safe for concurrent use.
type Admin struct {
	gate       Gate // nil: the strategy has no gate
	ledger     Ledger
	reconciler Reconciler
	orders     Orders
	log        *slog.Logger
}

// New returns an Admin. gate is nil if the strategy has none.
func New(gate Gate, l Ledger, r Reconciler, o Orders, log *slog.Logger) *Admin {
	return &Admin{gate: gate, ledger: l, reconciler: r, orders: o, log: log}
}

// SetStock creates the SKU, or sets its total and its rules. It changes available by as much as
// total, also during a sale. created reports whether the SKU is new.
//
// A buyer limit holds when SetStock returns nil. On a SKU with very many orders, ctx may end before
// that. The next call then continues to count the units that buyers hold. See ledger.CountClaims.
//
// Errors: ErrBelowSold, ErrKindFixed, ErrHours, ErrBusy, ErrSuperseded and ErrUnavailable of
// package stock. A retry is safe.
func (a *Admin) SetStock(ctx context.Context, set stock.Setting) (st Stock, created bool, err error) {
	row, created, err := a.setRow(ctx, set)
	a.orders.StockChanged(set.SKU) // even after an error, which may hide a commit
	if err == nil && (row.CountedTo.Valid || row.BuyerLimit == 0 && set.BuyerLimit != nil) {
		// The change is committed, so not even ErrBusy means that nothing was changed.
		if row, err = a.ledger.CountClaims(ctx, row.SKU); err != nil {
			err = fmt.Errorf("%w: %w", stock.ErrUnavailable, err)
		}
	}
	if err != nil {
		return Stock{}, false, a.adminError(err)
	}
	st, err = a.asStock(ctx, row)
	return st, created, err
}

func (a *Admin) setRow(ctx context.Context, set stock.Setting) (row ledger.StockRow, created bool, err error) {
	for try := 1; try <= maxTries; try++ {
		if err := a.reconciler.Usable(ctx); err != nil {
			return row, false, err
		}
		row, created, err = a.ledger.Set(ctx, set)
		switch {
		case created && err == nil:
			a.fillNew(ctx, row.SKU)
			return row, true, nil
		case err == nil && row.Total <= set.Total:
			a.deliver(ctx, row.SKU)
			return row, false, nil
		case err == nil:
			row, err = a.shrink(ctx, set, row.Total-set.Total)
		}
		switch {
		case stock.Reconcilable(err):
			if err := a.reconciler.PrepareRetry(ctx, err, set.SKU); err != nil {
				return row, false, err
			}
		case !errors.Is(err, stock.ErrRowChanged):
			return row, false, err
		}
		retry.Wait(ctx, try)
	}
	return row, false, stock.Busy(err)
}

// fillNew fills the gate with a new SKU. If that fails, the first take requests the fill.
func (a *Admin) fillNew(ctx context.Context, sku stock.SKU) {
	if err := a.reconciler.Refill(ctx, sku); err != nil {
		a.log.WarnContext(ctx, "filling the gate with a new SKU failed; the first order will fill it", "sku", sku, "error", err)
	}
}

// deliver applies the SKU's additions at the gate. If that fails, a sweep applies them.
func (a *Admin) deliver(ctx context.Context, sku stock.SKU) {
	if err := a.reconciler.Deliver(ctx, sku); err != nil {
		a.log.WarnContext(ctx, "applying added stock at the gate failed and will be retried", "sku", sku, "error", err)
	}
}

// shrink removes n units as an order would: at the gate first, so that they cannot be sold
// meanwhile, and then in the ledger. stock.ErrRowChanged means that the total has changed. After a
// stock.Reconcilable error, call PrepareRetry.
func (a *Admin) shrink(ctx context.Context, set stock.Setting, n int64) (ledger.StockRow, error) {
	take := stock.Take{Deduction: stock.Deduction{
		OrderID: uuid.New(), TakeID: uuid.New(),
		Lines: []stock.Line{{SKU: set.SKU, Quantity: n}},
	}}
	if a.gate != nil {
		taken, err := a.gate.Take(ctx, take.Deduction)
		if errors.Is(err, stock.ErrSoldOut) { // added or returned units may not have reached the gate
			if err := a.reconciler.CatchUp(ctx, set.SKU); err != nil {
				return ledger.StockRow{}, err
			}
			taken, err = a.gate.Take(ctx, take.Deduction)
		}
		switch {
		case errors.Is(err, stock.ErrSoldOut):
			return ledger.StockRow{}, stock.ErrBelowSold // units in flight count as sold
		case stock.NothingTaken(err):
			return ledger.StockRow{}, err
		case err != nil:
			a.reconciler.GiveBack(ctx, take)
			return ledger.StockRow{}, err
		}
		take = taken
	}
	row, out := a.ledger.Shrink(ctx, take, set)
	switch ended := a.reconciler.FinishTake(ctx, take, out); {
	case !ended.Committed():
		return ledger.StockRow{}, ended.Reason()
	case !out.Committed(): // row is from before the transaction
		return a.ledger.Row(ctx, set.SKU)
	}
	return row, nil
}

func (a *Admin) adminError(err error) error {
	switch {
	case errors.Is(err, stock.ErrUnavailable), errors.Is(err, stock.ErrBelowSold), errors.Is(err, stock.ErrKindFixed), errors.Is(err, stock.ErrHours),
		errors.Is(err, stock.ErrSuperseded):
		return err
	case stock.NothingTaken(err): // ErrBusy, too
		return stock.Busy(err)
	default:
		return fmt.Errorf("%w: %w", stock.ErrUnavailable, err)
	}
}

// Stock returns the counts of a SKU as they stand.
//
// Errors: stock.ErrUnknownSKU (as *stock.Refusal), stock.ErrUnavailable.
func (a *Admin) Stock(ctx context.Context, sku stock.SKU) (Stock, error) {
	row, err := a.ledger.Row(ctx, sku)
	if err != nil {
		return Stock{}, readError(err)
	}
	return a.asStock(ctx, row)
}

// ListStock returns up to limit SKUs greater than after, sorted. next is the SKU to continue after,
// and empty at the end.
func (a *Admin) ListStock(ctx context.Context, after stock.SKU, limit int) (page []Stock, next stock.SKU, err error) {
	rows, err := a.ledger.Rows(ctx, after, limit+1)
	if err != nil {
		return nil, "", readError(err)
	}
	if len(rows) > limit {
		rows = rows[:limit]
		next = rows[limit-1].SKU
	}
	page, err = a.asStocks(ctx, rows)
	return page, next, err
}

func (a *Admin) asStock(ctx context.Context, row ledger.StockRow) (Stock, error) {
	page, err := a.asStocks(ctx, []ledger.StockRow{row})
	if err != nil {
		return Stock{}, err
	}
	return page[0], nil
}

// asStocks returns the rows with the gate's available counts. Where the gate has no count, it
// returns the row's: the next order fills the gate.
func (a *Admin) asStocks(ctx context.Context, rows []ledger.StockRow) ([]Stock, error) {
	levels := make([]stock.Level, len(rows)) // not filled
	if a.gate != nil && len(rows) > 0 {
		var err error
		if levels, err = a.reconciler.Levels(ctx, rows); err != nil {
			return nil, readError(err)
		}
	}
	page := make([]Stock, len(rows))
	for i, row := range rows {
		page[i] = Stock{
			SKU: row.SKU, Kind: row.Kind, Total: row.Total, Available: row.Available,
			Sold: row.Total - row.Available, OpensAt: row.OpensAt, ClosesAt: row.ClosesAt,
		}
		if row.LimitHolds() {
			page[i].BuyerLimit = row.BuyerLimit
		}
		if levels[i].Filled {
			page[i].Available = levels[i].Available
		}
	}
	return page, nil
}

// Audit compares the counts of a SKU.
//
// Errors: stock.ErrUnknownSKU (as *stock.Refusal), stock.ErrUnavailable.
func (a *Admin) Audit(ctx context.Context, sku stock.SKU) (Audit, error) {
	counts, err := a.ledger.Recount(ctx, []stock.SKU{sku})
	switch {
	case err != nil:
		return Audit{}, readError(err)
	case len(counts) == 0:
		return Audit{}, stock.Refuse(sku, stock.ErrUnknownSKU)
	}
	level, err := a.filledLevel(ctx, counts[0].StockRow)
	if err != nil {
		return Audit{}, readError(err)
	}
	units := counts[0].Units()
	audit := Audit{SKU: sku, Total: units.Total, Sold: units.Held, LedgerAvailable: units.Available}
	if level != nil {
		audit.GateAvailable, audit.GateInFlight = &level.Available, &level.InFlight
	}
	found := stock.Compare(units, level, units)
	audit.Oversold, audit.Drift = found.Oversold, found.Drift
	return audit, nil
}

// filledLevel reads the gate's count of the row, and fills it first if the gate lacks it. It
// returns nil without a gate.
func (a *Admin) filledLevel(ctx context.Context, row ledger.StockRow) (*stock.Level, error) {
	if a.gate == nil {
		return nil, nil
	}
	levels, err := a.reconciler.Levels(ctx, []ledger.StockRow{row})
	if err == nil && !levels[0].Filled {
		if err = a.reconciler.Refill(ctx, row.SKU); err == nil {
			levels, err = a.reconciler.Levels(ctx, []ledger.StockRow{row})
		}
	}
	if err != nil {
		return nil, err
	}
	return &levels[0], nil
}

func readError(err error) error {
	if errors.Is(err, stock.ErrUnknownSKU) || errors.Is(err, stock.ErrSuperseded) {
		return err
	}
	return fmt.Errorf("%w: %w", stock.ErrUnavailable, err)
}
