package cutter

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// A claim is the number of units that a buyer holds of a SKU with a buyer limit. A
// claim changes only under the lock of its stock row, so it can be read without a
// lock of its own once the stock row is locked.

// claim names one row of the table claims.
type claim struct {
	sku   stock.SKU
	buyer string
}

// claims returns what the takes claim of SKUs with a buyer limit: each claim once, in
// SKU order and then in buyer order.
func (rs rows) claims(takes []stock.Take) (claims []claim) {
	for _, t := range takes {
		for _, line := range t.Lines {
			if r, ok := rs[line.SKU]; ok && r.limit > 0 {
				claims = append(claims, claim{line.SKU, t.Buyer})
			}
		}
	}
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.sku, b.sku), cmp.Compare(a.buyer, b.buyer))
	})
	return slices.Compact(claims)
}

// readClaims reads how many units the buyers of the takes hold of SKUs with a buyer
// limit. The caller must hold the row locks.
func (rs rows) readClaims(ctx context.Context, tx *sqltx.Tx, takes []stock.Take) error {
	claims := rs.claims(takes)
	if len(claims) == 0 {
		return nil
	}
	var (
		conditions []string
		args       []any
	)
	for len(claims) > 0 {
		sku := claims[0].sku
		var buyers []string
		for len(claims) > 0 && claims[0].sku == sku {
			buyers = append(buyers, claims[0].buyer)
			claims = claims[1:]
		}
		rs[sku].held = make(map[string]int64, len(buyers))
		for len(buyers)&(len(buyers)-1) != 0 { // few lengths make few statements to prepare
			buyers = append(buyers, buyers[0])
		}
		conditions = append(conditions, "sku = ? AND buyer_id IN ?")
		args = append(args, string(sku), buyers)
	}
	err := tx.QueryEach(ctx, func(found *sql.Rows) error {
		var (
			c     claim
			units int64
		)
		if err := found.Scan(&c.sku, &c.buyer, &units); err != nil {
			return err
		}
		rs[c.sku].held[c.buyer] = units
		return nil
	}, "SELECT sku, buyer_id, units FROM claims WHERE "+strings.Join(conditions, " OR "), args...)
	if err != nil {
		return fmt.Errorf("reading claims: %w", err)
	}
	return nil
}

// writeClaims returns the statement that stores how many units the buyers hold now.
func (rs rows) writeClaims(dialect sqltx.Dialect, claims []claim) sqltx.Statement {
	if dialect.Arrays() {
		return rs.claimArrays(claims)
	}
	statement := rs.claimRows(claims)
	if dialect == sqltx.MySQL {
		statement.SQL += " ON DUPLICATE KEY UPDATE units = VALUES(units)"
	} else {
		statement.SQL += " ON CONFLICT (sku, buyer_id) DO UPDATE SET units = excluded.units"
	}
	return statement
}

func (rs rows) claimRows(claims []claim) sqltx.Statement {
	args := make([]any, 0, 3*len(claims))
	for _, c := range claims {
		args = append(args, string(c.sku), c.buyer, rs[c.sku].held[c.buyer])
	}
	return sqltx.Statement{
		SQL:  "INSERT INTO claims (sku, buyer_id, units) VALUES (?,?,?)" + strings.Repeat(",(?,?,?)", len(claims)-1),
		Args: args,
	}
}

// claimArrays passes the claims as arrays, so that one prepared statement serves
// groups of every size.
func (rs rows) claimArrays(claims []claim) sqltx.Statement {
	var (
		skus   = make([]string, len(claims))
		buyers = make([]string, len(claims))
		units  = make([]int64, len(claims))
	)
	for i, c := range claims {
		skus[i], buyers[i], units[i] = string(c.sku), c.buyer, rs[c.sku].held[c.buyer]
	}
	return sqltx.Statement{Args: []any{skus, buyers, units}, SQL: `INSERT INTO claims (sku, buyer_id, units)
		SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])
		ON CONFLICT (sku, buyer_id) DO UPDATE SET units = excluded.units`}
}
