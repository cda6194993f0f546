package cuttertest

import (
	"context"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Cut is the type of [cutter.Plan.Cut].
type Cut func(ctx context.Context, tx *sqltx.Tx) ([]cutter.Decision, error)

// Replacement runs in place of a plan's cut, which it may call. takes is the group.
type Replacement func(ctx context.Context, tx *sqltx.Tx, takes []stock.Take, cut Cut) ([]cutter.Decision, error)

// WithCut returns c with the cuts of its plans replaced. The returned cutter never
// takes a whole group in one statement.
func WithCut(c cutter.Cutter, replacement Replacement) cutter.Cutter {
	return withCut{c, replacement}
}

type withCut struct {
	cutter      cutter.Cutter
	replacement Replacement
}

func (c withCut) Plan(ctx context.Context, db *sqltx.DB, g stock.Generation, takes []stock.Take) (cutter.Plan, error) {
	plan, err := c.cutter.Plan(ctx, db, g, takes)
	return cutter.Plan{Cut: func(ctx context.Context, tx *sqltx.Tx) ([]cutter.Decision, error) {
		return c.replacement(ctx, tx, takes, plan.Cut)
	}}, err
}
