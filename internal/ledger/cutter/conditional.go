package cutter

import (
	"context"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Conditional returns the cutter that takes each line by UPDATE … WHERE available
// >= n. One statement both checks and cuts, and nothing is read first. Rows with a
// buyer limit are locked and decided instead.
func Conditional() Cutter { return conditional{} }

type conditional struct{}

func (conditional) Plan(_ context.Context, _ *sqltx.DB, g stock.Generation, takes []stock.Take) (Plan, error) {
	return Plan{Cut: func(ctx context.Context, tx *sqltx.Tx) ([]Decision, error) {
		decisions := make([]Decision, len(takes))
		for i, t := range takes {
			var err error
			if decisions[i], err = cutEachLine(ctx, tx, g, t); err != nil {
				return nil, err
			}
		}
		return decisions, nil
	}}, nil
}

// cutEachLine takes the lines one after the other. If one cannot be cut, it undoes the earlier
// ones.
func cutEachLine(ctx context.Context, tx *sqltx.Tx, g stock.Generation, t stock.Take) (Decision, error) {
	for i, line := range linesOf(t) {
		fits, err := conditionally(ctx, tx, g, line)
		if err != nil {
			return Decision{}, err
		}
		if fits {
			continue
		}
		if err := giveBack(ctx, tx, t.Lines[:i]); err != nil {
			return Decision{}, err
		}
		return whyNot(ctx, tx, g, t, line)
	}
	return Decision{Taken: true}, nil
}

// conditionally takes the line's units in one UPDATE, and reports whether the stock row
// met its conditions.
func conditionally(ctx context.Context, tx *sqltx.Tx, g stock.Generation, l line) (bool, error) {
	sql, args := stockRows.condition(tx.Dialect(), g, l, true)
	updated, err := tx.Exec(ctx, sql, args...)
	if err != nil {
		return false, fmt.Errorf("taking units of %s: %w", l.sku, err)
	}
	return updated == 1, nil
}

// giveBack undoes lines of a take after another of its lines was refused. This transaction still
// holds the row locks, so no other transaction has seen the change.
func giveBack(ctx context.Context, tx *sqltx.Tx, lines []stock.Line) error {
	for _, line := range lines {
		_, err := tx.Exec(ctx, "UPDATE stock SET available = available + ? WHERE sku = ?", line.Quantity, string(line.SKU))
		if err != nil {
			return fmt.Errorf("giving units of %s back: %w", line.SKU, err)
		}
	}
	return nil
}

// whyNot returns why no row met the conditions of the line's UPDATE. If the row has a buyer limit,
// or meets the conditions now, whyNot decides the take under the row locks.
func whyNot(ctx context.Context, tx *sqltx.Tx, g stock.Generation, t stock.Take, l line) (Decision, error) {
	rs, err := readSKUs(ctx, tx, []stock.SKU{l.sku}, "")
	if err != nil {
		return Decision{}, err
	}
	if refusal := rs.check(l, g); refusal != nil {
		return Refused(refusal), nil
	}
	if r := rs[l.sku]; r.limit == 0 && r.available < l.units {
		return Refused(stock.Refuse(l.sku, stock.ErrSoldOut)), nil
	}
	decisions, err := underLock(ctx, tx, g, []stock.Take{t})
	if err != nil {
		return Decision{}, err
	}
	return decisions[0], nil
}
