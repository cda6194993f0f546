package cutter

import (
	"context"
	"slices"
	"strings"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Merged returns the cutter that takes the units of a whole group at once, in one
// conditional UPDATE. If the group does not fit whole, it is decided under row locks, order
// by order.
func Merged() Cutter { return merged{true, seenLimits{newMemory[int64]()}} }

// Count returns the cutter that counts down as Merged does, but refuses nothing for lack of stock,
// because a gate has admitted the takes. The count may fall below 0.
func Count() Cutter { return merged{false, seenLimits{newMemory[int64]()}} }

type merged struct {
	refuse bool
	seen   seenLimits
}

func (c merged) Plan(_ context.Context, db *sqltx.DB, g stock.Generation, takes []stock.Take) (Plan, error) {
	lines, ok := sum(takes)
	limits := c.seen.of(lines)
	plan := Plan{Cut: func(ctx context.Context, tx *sqltx.Tx) ([]Decision, error) {
		rs, err := lock(ctx, tx, takes)
		if err != nil {
			return nil, err
		}
		c.seen.learn(rs)
		return rs.cut(ctx, tx, g, takes, c.refuse)
	}}
	claims, allowed := raise(db.Dialect(), takes, limits, nil)
	if ok && allowed {
		plan.GroupCut = stockRows.groupCut(db.Dialect(), g, lines, c.refuse)
		plan.GroupCut.Claims = claims
	}
	return plan, nil
}

// rowKind is a kind of row that one UPDATE takes units from.
type rowKind struct {
	table string
	want  string // a column that must have the value line.want
	also  string // a condition of all rows, after AND; or empty
}

var (
	// seenLimits knows no limit of a row whose claims are being counted.
	stockRows = rowKind{"stock", "limit_per_buyer", " AND claims_counted_to IS NULL"}
	partRows  = rowKind{"stock_parts", "part", ""}
)

// groupCut returns the statement that takes all lines. If refuse is false, the count may
// fall below 0.
func (k rowKind) groupCut(dialect sqltx.Dialect, g stock.Generation, lines []line, refuse bool) *GroupCut {
	var (
		sql  string
		args []any
	)
	switch {
	case len(lines) == 1:
		sql, args = k.condition(dialect, g, lines[0], refuse)
	case dialect.Arrays():
		sql, args = k.joined(dialect, g, lines, refuse)
	default:
		sql, args = k.alternatives(dialect, g, lines, refuse)
	}
	return &GroupCut{Statement: sqltx.Statement{SQL: sql, Args: args}, Rows: int64(len(lines))}
}

// alternatives names the lines in classes of the same epoch, units and want. A group
// usually has one or two classes, so the text is short. InnoDB visits, and so
// locks, the rows in the order of their key, which is SKU order. SQLite has no
// row locks.
func (k rowKind) alternatives(dialect sqltx.Dialect, g stock.Generation, lines []line, refuse bool) (sql string, args []any) {
	type class struct{ epoch, units, want int64 }
	var classes []class
	skus := make(map[class][]any)
	for _, line := range lines {
		of := class{line.epoch, line.units, line.want}
		if skus[of] == nil {
			classes = append(classes, of)
		}
		skus[of] = append(skus[of], string(line.sku))
	}
	var text strings.Builder
	in := func(of class) {
		text.WriteString("sku IN (?" + strings.Repeat(",?", len(skus[of])-1) + ")")
		args = append(args, skus[of]...)
	}
	text.WriteString("UPDATE " + k.table + " SET available = available - ")
	last := len(classes) - 1
	if last > 0 {
		text.WriteString("CASE ")
	}
	for _, of := range classes[:last] {
		text.WriteString("WHEN ")
		in(of)
		text.WriteString(" THEN CAST(? AS " + dialect.BigInt() + ") ")
		args = append(args, of.units)
	}
	if last > 0 {
		text.WriteString("ELSE CAST(? AS " + dialect.BigInt() + ") END")
	} else {
		text.WriteString("?")
	}
	text.WriteString(" WHERE " + open(dialect) + k.also + " AND epoch BETWEEN ? AND ? AND (")
	first, latest := g.Epochs()
	args = append(args, classes[last].units, first, latest)
	for i, of := range classes {
		if i > 0 {
			text.WriteString(" OR ")
		}
		in(of)
		text.WriteString(" AND " + k.want + " = ?")
		args = append(args, of.want)
		if of.epoch != 0 {
			text.WriteString(" AND epoch = ?")
			args = append(args, of.epoch)
		}
		if refuse {
			text.WriteString(" AND available >= ?")
			args = append(args, of.units)
		}
	}
	text.WriteString(")")
	return text.String(), args
}

// joined passes the lines as arrays, so that one prepared statement serves groups
// of every size. It locks the rows in SKU order before it updates them, because
// PostgreSQL updates rows in the order in which it finds them.
func (k rowKind) joined(dialect sqltx.Dialect, g stock.Generation, lines []line, refuse bool) (sql string, args []any) {
	var (
		skus   = make([]string, len(lines))
		units  = make([]int64, len(lines))
		epochs = make([]int64, len(lines))
		wants  = make([]int64, len(lines))
	)
	for i, line := range lines {
		skus[i], units[i], epochs[i], wants[i] = string(line.sku), line.units, line.epoch, line.want
	}
	sql = `WITH line AS MATERIALIZED (SELECT * FROM unnest(?::text[], ?::bigint[], ?::bigint[], ?::bigint[]) AS line (sku, units, epoch, want)),
		locked AS MATERIALIZED (SELECT sku FROM ` + k.table + ` WHERE sku = ANY (?::text[]) AND ` + k.want + ` = ANY (?::bigint[]) ORDER BY sku FOR UPDATE)
		UPDATE ` + k.table + ` AS cut SET available = available - line.units FROM line, locked
		WHERE cut.sku = locked.sku AND cut.sku = line.sku AND cut.epoch BETWEEN ? AND ? AND line.epoch IN (0, cut.epoch)
		AND cut.` + k.want + ` = line.want AND ` + open(dialect) + k.also
	if refuse {
		sql += " AND available >= line.units"
	}
	first, last := g.Epochs()
	return sql, []any{skus, units, epochs, wants, skus, wants, first, last}
}

// sum adds up the takes to one line for each SKU, in SKU order. ok is false if two takes were cut
// from one SKU under different epochs.
func sum(takes []stock.Take) (lines []line, ok bool) {
	hot := line{sku: takes[0].Lines[0].SKU, epoch: takes[0].Epoch(0)}
	if !slices.ContainsFunc(takes, func(t stock.Take) bool {
		return len(t.Lines) != 1 || t.Lines[0].SKU != hot.sku || t.Epoch(0) != hot.epoch
	}) { // one hot SKU: no need to sort
		for _, t := range takes {
			hot.units += t.Lines[0].Quantity
		}
		return []line{hot}, true
	}
	for _, t := range takes {
		lines = append(lines, linesOf(t)...)
	}
	slices.SortFunc(lines, func(a, b line) int { return strings.Compare(string(a.sku), string(b.sku)) })
	merged := lines[:1]
	for _, line := range lines[1:] {
		last := &merged[len(merged)-1]
		switch {
		case line.sku != last.sku:
			merged = append(merged, line)
		case line.epoch != last.epoch:
			return nil, false
		default:
			last.units += line.units
		}
	}
	return merged, true
}

// condition returns an UPDATE that takes the line's units. Its conditions state
// everything that must be true of the row.
func (k rowKind) condition(dialect sqltx.Dialect, g stock.Generation, l line, refuse bool) (sql string, args []any) {
	first, last := g.Epochs()
	sql = "UPDATE " + k.table + " SET available = available - ? WHERE sku = ? AND " + k.want + " = ? AND " + open(dialect) + k.also + " AND epoch BETWEEN ? AND ?"
	args = []any{l.units, string(l.sku), l.want, first, last}
	if l.epoch != 0 {
		sql += " AND epoch = ?"
		args = append(args, l.epoch)
	}
	if refuse {
		sql += " AND available >= ?"
		args = append(args, l.units)
	}
	return sql, args
}
