package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// pageSize bounds the stock rows, or changes, that one statement reads.
const pageSize = 500

// StockRow is one row of the table stock. Available includes the units that the row has lent
// to parts, except where a function says otherwise.
type StockRow struct {
	SKU       stock.SKU
	Kind      stock.Kind
	Total     int64
	Available int64
	// BuyerLimit is how many units one buyer may hold; 0: any number. It has no effect while the
	// claims are counted. See CountClaims.
	BuyerLimit int64
	CountedTo  cutter.Counted
	Epoch      int64     // raised whenever a gate's count of the SKU may be wrong
	Version    int64     // raised by the optimistic cutter, by administrators, and by other changes that an earlier reader must notice
	Changes    int64     // additions committed under the epoch
	OpensAt    time.Time // when sales begin; the zero time: sales have begun
	ClosesAt   time.Time // when sales end; the zero time: sales do not end
}

// LimitHolds reports whether the row has a buyer limit that is in effect: its claims are
// counted.
func (r StockRow) LimitHolds() bool { return r.BuyerLimit > 0 && !r.CountedTo.Valid }

// withRules returns the row with the rules that s sets. Rules that s leaves out stay. It returns
// stock.ErrHours if the row would close before it opens.
func (r StockRow) withRules(s stock.Setting) (StockRow, error) {
	if s.BuyerLimit != nil {
		r.BuyerLimit = *s.BuyerLimit
	}
	if s.OpensAt != nil {
		r.OpensAt = s.OpensAt.UTC().Truncate(time.Microsecond)
	}
	if s.ClosesAt != nil {
		r.ClosesAt = s.ClosesAt.UTC().Truncate(time.Microsecond)
	}
	if !r.ClosesAt.IsZero() && !r.ClosesAt.After(r.OpensAt) {
		return r, stock.ErrHours
	}
	return r, nil
}

// Units returns the row's units, assuming that orders hold all units that are not available.
func (r StockRow) Units() stock.Units {
	return stock.Units{Total: r.Total, Available: r.Available, Held: r.Total - r.Available}
}

// add adds units to the row's available, and returns how many of them the gate must get. A fill
// treats an available below 0 as 0, so units that only make up for oversold ones are not for sale.
func (r *StockRow) add(units int64) (forSale int64) {
	before := max(r.Available, 0)
	r.Available += units
	return max(r.Available, 0) - before
}

// stockColumns are the columns of the table stock. Their available does not include units in parts.
const stockColumns = "sku, kind, total, available, limit_per_buyer, claims_counted_to, epoch, version, changes, opens_at, closes_at"

// columnsWithParts are stockColumns, except that available includes the units in parts. One
// statement reads the row and its parts as of one moment.
func columnsWithParts(d sqltx.Dialect) string {
	columns := "stock." + strings.ReplaceAll(stockColumns, ", ", ", stock.")
	return strings.Replace(columns, "stock.available", "stock.available + "+cutter.InParts(d), 1)
}

func (r *StockRow) columns() []any {
	return []any{
		&r.SKU, &r.Kind, &r.Total, &r.Available, &r.BuyerLimit, &r.CountedTo, &r.Epoch, &r.Version, &r.Changes,
		(*sqltx.Time)(&r.OpensAt), (*sqltx.Time)(&r.ClosesAt),
	}
}

// Row reads one stock row. It returns stock.ErrUnknownSKU (as *stock.Refusal) if there is none.
func (l *Ledger) Row(ctx context.Context, sku stock.SKU) (StockRow, error) {
	return readRow(ctx, l.db, sku, columnsWithParts(l.db.Dialect()), "")
}

// lockRow reads a stock row and locks it. Its Available does not include units in parts.
func lockRow(ctx context.Context, tx *sqltx.Tx, sku stock.SKU) (StockRow, error) {
	return readRow(ctx, tx, sku, stockColumns, tx.Dialect().RowLock())
}

// lockWhole locks a stock row and takes its parts back. A transaction must do so if it needs all
// units of the SKU, or changes the epoch, hours or limit, on which sales from parts rely.
func lockWhole(ctx context.Context, tx *sqltx.Tx, sku stock.SKU) (StockRow, error) {
	row, err := lockRow(ctx, tx, sku)
	if err != nil {
		return row, err
	}
	units, err := cutter.Collect(ctx, tx, sku)
	row.Available += units[sku]
	return row, err
}

func readRow(ctx context.Context, db sqltx.Reader, sku stock.SKU, columns, rowLock string) (row StockRow, err error) {
	err = db.QueryRow(ctx, row.columns(), "SELECT "+columns+" FROM stock WHERE sku = ?"+rowLock, string(sku))
	if errors.Is(err, sql.ErrNoRows) {
		return row, stock.Refuse(sku, stock.ErrUnknownSKU)
	}
	if err != nil {
		return row, fmt.Errorf("reading the stock row of %s: %w", sku, err)
	}
	return row, nil
}

// Rows reads up to limit stock rows with SKUs greater than after, sorted by SKU.
func (l *Ledger) Rows(ctx context.Context, after stock.SKU, limit int) (page []StockRow, err error) {
	page, err = sqltx.ReadAll(ctx, l.db, (*StockRow).columns,
		"SELECT "+columnsWithParts(l.db.Dialect())+" FROM stock WHERE sku > ? ORDER BY sku LIMIT ?", string(after), limit)
	if err != nil {
		return nil, fmt.Errorf("reading stock rows: %w", err)
	}
	return page, nil
}

// RowsOf reads the stock rows of the SKUs, sorted by SKU. It leaves out SKUs that
// have no row.
func (l *Ledger) RowsOf(ctx context.Context, skus []stock.SKU) ([]StockRow, error) {
	return readRows(ctx, l.db, skus, columnsWithParts(l.db.Dialect()), "")
}

// readRows reads the columns of the SKUs' stock rows, in SKU order. rowLock is empty,
// Dialect.RowLock, or Tx.SkipLocked, which skips rows that other transactions have locked.
//
// Every transaction of the ledger locks stock rows in SKU order, and before order rows. An INSERT
// of a duplicate waits for the order row while its group holds stock rows. The available of
// stockColumns does not include units in parts. A transaction that locks such rows may only add
// units to them.
func readRows(ctx context.Context, db sqltx.Reader, skus []stock.SKU, columns, rowLock string) (rows []StockRow, err error) {
	rows, err = sqltx.ReadAll(ctx, db, (*StockRow).columns, "SELECT "+columns+" FROM stock WHERE sku IN ? ORDER BY sku"+rowLock, skus)
	if err != nil {
		return nil, fmt.Errorf("reading stock rows: %w", err)
	}
	return rows, nil
}

// SKUsOf returns the SKUs of the rows, in their order.
func SKUsOf(rows []StockRow) []stock.SKU {
	skus := make([]stock.SKU, len(rows))
	for i, row := range rows {
		skus[i] = row.SKU
	}
	return skus
}

// changeStock runs a transaction that changes one stock row, when the row's turn comes.
func (l *Ledger) changeStock(ctx context.Context, sku stock.SKU, do func(ctx context.Context, tx *sqltx.Tx) error) error {
	end, err := l.turns.take(ctx, sku)
	if err != nil {
		return err
	}
	defer end()
	return l.transact(ctx, transactionTimeout, do)
}

// Set creates the stock row, or raises its total and its available by the same number of units, and
// sets its rules. It returns the changed row. If the new buyer limit, or its removal, is not yet in
// effect there, call CountClaims. A lower total changes nothing: the caller must Shrink by the
// difference to the returned row. stock.ErrRowChanged means that another caller has just created
// the row, and stock.ErrHours that the row would close before it opens.
func (l *Ledger) Set(ctx context.Context, s stock.Setting) (row StockRow, created bool, err error) {
	err = l.changeStock(ctx, s.SKU, func(ctx context.Context, tx *sqltx.Tx) (err error) {
		row, err = lockWhole(ctx, tx, s.SKU)
		if created = errors.Is(err, stock.ErrUnknownSKU); created {
			row, err = l.create(ctx, tx, s)
		}
		if err != nil || created {
			return err
		}
		if err := l.mayChange(row, s); err != nil {
			return err
		}
		before, delta := row, s.Total-row.Total
		if delta < 0 {
			return nil
		}
		if row, err = row.withRules(s); err != nil || delta == 0 && row == before {
			return err
		}
		row.Total += delta
		forSale := row.add(delta)
		row.Version++
		if l.hasGate && forSale > 0 {
			row.Changes++
			tx.AtCommit(insertChange(stock.Change{SKU: row.SKU, Epoch: row.Epoch, Number: row.Changes, Delta: forSale}))
		}
		return changeRow(ctx, tx, before, &row)
	})
	if sqltx.IsDuplicate(err) { // another caller has just created the row
		err = stock.ErrRowChanged
	}
	if err != nil {
		return StockRow{}, false, fmt.Errorf("setting the stock of %s: %w", s.SKU, err)
	}
	return row, created, nil
}

func (l *Ledger) create(ctx context.Context, tx *sqltx.Tx, s stock.Setting) (row StockRow, err error) {
	row, err = StockRow{SKU: s.SKU, Kind: s.Kind, Total: s.Total, Available: s.Total}.withRules(s)
	if err != nil {
		return row, err
	}
	row.Epoch, _ = l.Generation().Renew() // Renew fails only for a later epoch
	_, err = tx.Exec(ctx, "INSERT INTO stock ("+stockColumns+") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", string(row.SKU), string(row.Kind),
		row.Total, row.Available, row.BuyerLimit, row.CountedTo.Arg(tx.Dialect()), row.Epoch, row.Version, row.Changes, sqltx.Nullable(row.OpensAt), sqltx.Nullable(row.ClosesAt))
	return row, err
}

// mayChange returns an error if an administrator may not change the row now.
func (l *Ledger) mayChange(row StockRow, s stock.Setting) error {
	switch owner, g := stock.GenerationOf(row.Epoch), l.Generation(); {
	case owner > g:
		return stock.Refuse(row.SKU, stock.ErrLaterGeneration)
	case owner < g:
		return stock.Refuse(row.SKU, stock.ErrNotAdopted)
	case row.Kind != s.Kind:
		return stock.ErrKindFixed
	}
	return nil
}

// Shrink takes the units of t, an administrator's take, off total and available, sets the rules as
// Set does, and records the take. The rules do not restrict this take. Reasons to refuse:
// stock.ErrRowChanged (the total is not the one that t was computed from); ErrBelowSold, ErrHours,
// ErrStaleEpoch, ErrNotAdopted and ErrLaterGeneration of package stock; an error of the database.
func (l *Ledger) Shrink(ctx context.Context, t stock.Take, s stock.Setting) (row StockRow, out order.Outcome) {
	line, epoch := t.Lines[0], t.Epoch(0)
	err := l.changeStock(ctx, line.SKU, func(ctx context.Context, tx *sqltx.Tx) (err error) {
		if row, err = lockWhole(ctx, tx, line.SKU); err != nil {
			return err
		}
		if err := l.mayChange(row, s); err != nil {
			return err
		}
		switch {
		case row.Total-line.Quantity != s.Total:
			return stock.ErrRowChanged
		case epoch != 0 && epoch != row.Epoch:
			return stock.Refuse(line.SKU, stock.ErrStaleEpoch)
		case row.Available < line.Quantity:
			return stock.ErrBelowSold
		}
		before := row
		if row, err = row.withRules(s); err != nil {
			return err
		}
		row.Total -= line.Quantity
		row.Available -= line.Quantity
		row.Version++
		if err := changeRow(ctx, tx, before, &row); err != nil {
			return err
		}
		return insertOrder(ctx, tx, &order.Order{ID: t.OrderID, TakeID: t.TakeID, Status: shrink, Strategy: l.strategy, CreatedAt: Now()})
	})
	switch {
	case err == nil:
		return row, order.Committed()
	case errors.Is(err, sqltx.ErrUnknownOutcome):
		return row, order.Unknown(err)
	}
	return row, order.Refused(err)
}

// changeRow writes a row that an administrator has changed. tx must have locked it. If the row had
// no buyer limit and gets one, its claims are counted from now on. CountClaims must add up the
// units that buyers already hold before the limit takes effect.
func changeRow(ctx context.Context, tx *sqltx.Tx, before StockRow, row *StockRow) error {
	switch {
	case row.BuyerLimit == 0:
		row.CountedTo = cutter.Counted{}
	case before.BuyerLimit == 0:
		row.CountedTo = cutter.Counted{NullUUID: uuid.NullUUID{Valid: true}} // an ID below those of all orders
	}
	return updateRow(ctx, tx, *row)
}

func updateRow(ctx context.Context, tx *sqltx.Tx, row StockRow) error {
	_, err := tx.Exec(ctx, "UPDATE stock SET total = ?, available = ?, limit_per_buyer = ?, claims_counted_to = ?, opens_at = ?, closes_at = ?, version = ?, changes = ?, epoch = ? WHERE sku = ?",
		row.Total, row.Available, row.BuyerLimit, row.CountedTo.Arg(tx.Dialect()), sqltx.Nullable(row.OpensAt), sqltx.Nullable(row.ClosesAt), row.Version, row.Changes, row.Epoch, string(row.SKU))
	return err
}

// lockedRows returns those of the stock rows that another transaction holds locked. It locks the
// others for a moment. If the database cannot skip locked rows, it waits for them and returns none.
func (l *Ledger) lockedRows(ctx context.Context, skus []stock.SKU) (locked []stock.SKU, err error) {
	tx, err := l.db.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer tx.Rollback()
	_, locked, err = lockFree(ctx, tx, skus)
	return locked, err
}

// lockFree locks those of the stock rows that no other transaction holds locked, and returns them
// in SKU order. It never waits. locked has the SKUs of the others.
func lockFree(ctx context.Context, tx *sqltx.Tx, skus []stock.SKU) (free []StockRow, locked []stock.SKU, err error) {
	free, err = readRows(ctx, tx, skus, stockColumns, tx.SkipLocked())
	if err != nil || len(free) == len(skus) {
		return free, nil, err
	}
	err = tx.QueryEach(ctx, func(rows *sql.Rows) error {
		var sku stock.SKU
		err := rows.Scan(&sku)
		if !slices.ContainsFunc(free, func(row StockRow) bool { return row.SKU == sku }) {
			locked = append(locked, sku)
		}
		return err
	}, "SELECT sku FROM stock WHERE sku IN ? ORDER BY sku", skus)
	if err != nil {
		return nil, nil, fmt.Errorf("reading which stock rows are locked: %w", err)
	}
	return free, locked, nil
}
