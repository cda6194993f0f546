package ledger

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// The rules of a stock row say who may buy, and when: the buyer limit, and the
// opening hours. Cutters apply them.

// withRules returns the row with the rules that s sets. It keeps those that s leaves
// out. stock.ErrHours: the row would close before it opens.
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

// changeLimit starts the record of the buyers' claims if the row had no buyer limit
// before and has one now, and ends it if the limit is gone. tx must have locked the
// row.
func changeLimit(ctx context.Context, tx *sqltx.Tx, before, now StockRow) (err error) {
	switch {
	case before.BuyerLimit == 0 && now.BuyerLimit > 0:
		err = recordClaims(ctx, tx, now.SKU)
	case before.BuyerLimit > 0 && now.BuyerLimit == 0:
		_, err = tx.Exec(ctx, "DELETE FROM claims WHERE sku = ?", string(now.SKU))
	}
	if err != nil {
		return fmt.Errorf("changing the buyer limit of %s: %w", now.SKU, err)
	}
	return nil
}
