package cutter

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// ForUpdate returns the cutter that locks the stock rows with SELECT … FOR UPDATE, decides, and
// then updates them. The rows stay locked for two statements and the commit.
func ForUpdate() Cutter { return forUpdate{} }

type forUpdate struct{}

func (forUpdate) Plan(_ context.Context, _ *sqltx.DB, g stock.Generation, takes []stock.Take) (Plan, error) {
	return Plan{Cut: func(ctx context.Context, tx *sqltx.Tx) ([]Decision, error) {
		return underLock(ctx, tx, g, takes)
	}}, nil
}

// underLock locks the rows of the takes and cuts.
func underLock(ctx context.Context, tx *sqltx.Tx, g stock.Generation, takes []stock.Take) ([]Decision, error) {
	rs, err := lock(ctx, tx, takes)
	if err != nil {
		return nil, err
	}
	return rs.cut(ctx, tx, g, takes, true)
}

// cut decides the takes, and updates the stock rows and the claims. If refuse is false, it refuses
// nothing for lack of stock, and the count may fall below 0. The rows must be stock rows without
// the units in their parts. The caller must hold the row locks.
func (rs rows) cut(ctx context.Context, tx *sqltx.Tx, g stock.Generation, takes []stock.Take, refuse bool) ([]Decision, error) {
	decisions, accepted, claims, err := rs.decide(ctx, tx, g, takes, refuse)
	if err != nil || len(accepted) == 0 {
		return decisions, err
	}
	skus, units := unitsOf(accepted)
	statements := append([]sqltx.Statement{stockRows.countDown(tx.Dialect(), skus, units)}, claims...)
	updated, err := tx.ExecAll(ctx, statements...)
	if err != nil {
		return nil, fmt.Errorf("counting down: %w", err)
	}
	if updated[0] != int64(len(skus)) {
		return nil, fmt.Errorf("counting down: %d of %d stock rows updated", updated[0], len(skus))
	}
	return decisions, nil
}

// decide decides the takes and changes the rows in memory only. It returns the accepted takes, and
// the statements that raise their claims. The caller must hold the row locks.
func (rs rows) decide(ctx context.Context, tx *sqltx.Tx, g stock.Generation, takes []stock.Take, refuse bool) (decisions []Decision, accepted []stock.Take, claims []sqltx.Statement, err error) {
	if err := rs.readClaims(ctx, tx, takes); err != nil {
		return nil, nil, nil, err
	}
	decisions = rs.takeAll(takes, g, refuse)
	accepted = acceptedTakes(takes, decisions)
	limits := rs.limits()
	for sku, r := range rs {
		if r.counted.Valid {
			limits[sku] = math.MaxInt64 // the take raises its claims, but without a limit
		}
	}
	claims, _ = raise(tx.Dialect(), accepted, limits, rs)
	return decisions, accepted, claims, nil
}

// countDown takes the units from the rows of the SKUs.
func (k rowKind) countDown(dialect sqltx.Dialect, skus []stock.SKU, units map[stock.SKU]int64) sqltx.Statement {
	var (
		sql  strings.Builder
		args []any
	)
	sql.WriteString("UPDATE " + k.table + " SET available = available - ")
	if len(skus) == 1 {
		sql.WriteString("?")
		args = append(args, units[skus[0]])
	} else {
		sql.WriteString("CASE sku")
		for _, sku := range skus {
			sql.WriteString(" WHEN ? THEN CAST(? AS " + dialect.BigInt() + ")")
			args = append(args, string(sku), units[sku])
		}
		sql.WriteString(" END")
	}
	sql.WriteString(" WHERE sku IN (?" + strings.Repeat(",?", len(skus)-1) + ")")
	for _, sku := range skus {
		args = append(args, string(sku))
	}
	return sqltx.Statement{SQL: sql.String(), Args: args}
}
