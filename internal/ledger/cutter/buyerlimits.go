package cutter

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// claim is the number of units of a SKU with a buyer limit that a buyer holds or asks for: a row of
// the table claims. A row changes only under the lock of its stock row. So it can be read without a
// lock of its own once the stock row is locked.
type claim struct {
	sku   stock.SKU
	buyer string
	units int64
}

// Counted says up to which order ID the claims on a SKU are counted. If it is not valid, no count
// is under way. During a count, the SKU's buyer limit has no effect, and only counted orders have
// claims. See CountClaims of package ledger.
type Counted struct{ uuid.NullUUID }

// Has reports whether the count has passed the order's ID.
func (c Counted) Has(order uuid.UUID) bool {
	return c.Valid && bytes.Compare(order[:], c.UUID[:]) <= 0
}

// Arg is c as an argument for its column.
func (c Counted) Arg(d sqltx.Dialect) any {
	if !c.Valid {
		return nil
	}
	return d.UUID(c.UUID)
}

// limited reports whether the row has a buyer limit that is in effect.
func (r *row) limited() bool { return r.limit > 0 && !r.counted.Valid }

// limits returns the buyer limits that are in effect.
func (rs rows) limits() map[stock.SKU]int64 {
	limits := make(map[stock.SKU]int64)
	for sku, r := range rs {
		if r.limited() {
			limits[sku] = r.limit
		}
	}
	return limits
}

// claimed reports whether takes of one of the rows raise claims. Such takes must be decided under
// the row locks.
func (rs rows) claimed() bool {
	for _, r := range rs {
		if r.limit != 0 {
			return true
		}
	}
	return false
}

// claimsOf adds up the units that each buyer asks for, of each SKU that has a limit. It returns the
// claims of each SKU, sorted by SKU and buyer. While the claims of a SKU are being counted, claimsOf
// leaves out the orders that the count has not reached. rs are the rows, if they are known.
func claimsOf(takes []stock.Take, limits map[stock.SKU]int64, rs rows) (bySKU [][]claim) {
	if len(limits) == 0 {
		return nil
	}
	var claims []claim
	for _, t := range takes {
		for _, line := range t.Lines {
			if r := rs[line.SKU]; r != nil && r.counted.Valid && !r.counted.Has(t.OrderID) {
				continue
			}
			if limits[line.SKU] > 0 {
				claims = append(claims, claim{line.SKU, t.Buyer, line.Quantity})
			}
		}
	}
	slices.SortFunc(claims, func(a, b claim) int {
		return cmp.Or(cmp.Compare(a.sku, b.sku), cmp.Compare(a.buyer, b.buyer))
	})
	for i, c := range claims {
		last := len(bySKU) - 1
		switch {
		case i == 0 || claims[i-1].sku != c.sku:
			bySKU = append(bySKU, []claim{c})
		case claims[i-1].buyer != c.buyer:
			bySKU[last] = append(bySKU[last], c)
		default:
			sums := bySKU[last]
			sums[len(sums)-1].units += c.units
		}
	}
	return bySKU
}

// readClaims reads how many units of SKUs with a buyer limit the buyers of the takes hold. The
// caller must hold the row locks.
func (rs rows) readClaims(ctx context.Context, tx *sqltx.Tx, takes []stock.Take) error {
	var (
		conditions []string
		args       []any
	)
	for _, claims := range claimsOf(takes, rs.limits(), rs) {
		var buyers []string
		for _, c := range claims {
			buyers = append(buyers, c.buyer)
		}
		for len(buyers)&(len(buyers)-1) != 0 { // round up, so that few different statements are prepared
			buyers = append(buyers, buyers[0])
		}
		sku := claims[0].sku
		rs[sku].held = make(map[string]int64, len(claims))
		conditions = append(conditions, "sku = ? AND buyer_id IN ?")
		args = append(args, string(sku), buyers)
	}
	if len(conditions) == 0 {
		return nil
	}
	err := tx.QueryEach(ctx, func(found *sql.Rows) error {
		var c claim
		if err := found.Scan(&c.sku, &c.buyer, &c.units); err != nil {
			return err
		}
		rs[c.sku].held[c.buyer] = c.units
		return nil
	}, "SELECT sku, buyer_id, units FROM claims WHERE "+strings.Join(conditions, " OR "), args...)
	if err != nil {
		return fmt.Errorf("reading claims: %w", err)
	}
	return nil
}

// raise returns the statements that add the claims of the takes to those that the buyers have, one
// for each SKU. A statement fails, as Dialect.Require does, if a buyer would hold more than the
// limit. The stock rows must be locked before the statements run. ok is false if a claim alone is
// above the limit. rs are the rows, if they are known.
func raise(dialect sqltx.Dialect, takes []stock.Take, limits map[stock.SKU]int64, rs rows) (statements []sqltx.Statement, ok bool) {
	for _, claims := range claimsOf(takes, limits, rs) {
		limit := limits[claims[0].sku]
		if slices.ContainsFunc(claims, func(c claim) bool { return c.units > limit }) {
			return nil, false
		}
		var s sqltx.Statement
		if dialect.Arrays() {
			s = claimArrays(claims)
		} else {
			s = claimRows(claims)
		}
		clause, inserted := dialect.Upsert("sku", "buyer_id")
		sum := "claims.units + " + inserted("units")
		s.SQL = s.SQL + clause + "units = " + dialect.Require(sum+" <= ?", sum)
		s.Args = append(s.Args, limit)
		statements = append(statements, s)
	}
	return statements, true
}

func claimRows(claims []claim) sqltx.Statement {
	args := make([]any, 0, 3*len(claims)+1)
	for _, c := range claims {
		args = append(args, string(c.sku), c.buyer, c.units)
	}
	return sqltx.Statement{
		SQL:  "INSERT INTO claims (sku, buyer_id, units) VALUES (?,?,?)" + strings.Repeat(",(?,?,?)", len(claims)-1),
		Args: args,
	}
}

// claimArrays passes the claims as arrays, so that one prepared statement serves
// groups of every size.
func claimArrays(claims []claim) sqltx.Statement {
	var (
		skus   = make([]string, len(claims))
		buyers = make([]string, len(claims))
		units  = make([]int64, len(claims))
	)
	for i, c := range claims {
		skus[i], buyers[i], units[i] = string(c.sku), c.buyer, c.units
	}
	return sqltx.Statement{
		SQL:  "INSERT INTO claims (sku, buyer_id, units) SELECT * FROM unnest(?::text[], ?::text[], ?::bigint[])",
		Args: []any{skus, buyers, units},
	}
}
