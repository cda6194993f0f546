package cutter

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Merged takes the units of a whole group at once: each row is locked for one
// conditional UPDATE a group. A group that does not fit whole is decided under
// row locks, order by order.
func Merged() stock.Cutter { return merged{forUpdate{refuse: true}} }

// Count counts down as Merged does and refuses nothing for lack of stock: the
// count may fall below zero. What it is given, a gate has admitted.
func Count() stock.Cutter { return merged{forUpdate{refuse: false}} }

type merged struct{ decide forUpdate }

var _ stock.Planner = merged{}

// Plan sums the group up by SKU.
func (c merged) Plan(db *gorm.DB, g stock.Generation, ds []stock.Deduction) (stock.Plan, bool) {
	lines, ok := sum(ds)
	if !ok {
		return stock.Plan{}, false
	}
	var (
		sql  string
		args []any
	)
	switch {
	case len(lines) == 1:
		sql, args = condition(g, lines[0], c.decide.refuse)
	case db.Name() == "postgres":
		sql, args = c.joined(g, lines)
	default:
		sql, args = c.alternatives(db, g, lines)
	}
	return stock.Plan{SQL: numbered(db, sql), Args: args, Rows: int64(len(lines))}, true
}

// alternatives names the lines in classes of the same epoch and units: commonly
// a group has one or two, and little is to be parsed. InnoDB visits, and so
// locks, the rows in the order of their key, which is SKU order. SQLite has no
// row locks.
func (c merged) alternatives(db *gorm.DB, g stock.Generation, lines []stock.Line) (sql string, args []any) {
	type class struct{ epoch, units int64 }
	var classes []class
	skus := make(map[class][]any)
	for _, line := range lines {
		of := class{line.Epoch, line.Quantity}
		if skus[of] == nil {
			classes = append(classes, of)
		}
		skus[of] = append(skus[of], string(line.SKU))
	}
	var text strings.Builder
	in := func(of class) {
		text.WriteString("sku IN (?" + strings.Repeat(",?", len(skus[of])-1) + ")")
		args = append(args, skus[of]...)
	}
	text.WriteString("UPDATE stock SET available = available - ")
	last := len(classes) - 1
	if last > 0 {
		text.WriteString("CASE ")
	}
	for _, of := range classes[:last] {
		text.WriteString("WHEN ")
		in(of)
		text.WriteString(" THEN CAST(? AS " + bigint(db) + ") ")
		args = append(args, of.units)
	}
	if last > 0 {
		text.WriteString("ELSE CAST(? AS " + bigint(db) + ") END")
	} else {
		text.WriteString("?")
	}
	text.WriteString(" WHERE epoch BETWEEN ? AND ? AND (")
	first, latest := g.Epochs()
	args = append(args, classes[last].units, first, latest)
	for i, of := range classes {
		if i > 0 {
			text.WriteString(" OR ")
		}
		in(of)
		if of.epoch != 0 {
			text.WriteString(" AND epoch = ?")
			args = append(args, of.epoch)
		}
		if c.decide.refuse {
			text.WriteString(" AND available >= ?")
			args = append(args, of.units)
		}
	}
	text.WriteString(")")
	return text.String(), args
}

// joined passes the lines as arrays, so that one prepared statement serves
// groups of every size, and locks the rows in SKU order before it updates them:
// PostgreSQL updates in the order in which it finds.
func (c merged) joined(g stock.Generation, lines []stock.Line) (sql string, args []any) {
	var (
		skus   = make([]string, len(lines))
		units  = make([]int64, len(lines))
		epochs = make([]int64, len(lines))
	)
	for i, line := range lines {
		skus[i], units[i], epochs[i] = string(line.SKU), line.Quantity, line.Epoch
	}
	sql = `WITH line AS MATERIALIZED (SELECT * FROM unnest(?::text[], ?::bigint[], ?::bigint[]) AS line (sku, units, epoch)),
		locked AS MATERIALIZED (SELECT sku FROM stock WHERE sku = ANY (?::text[]) ORDER BY sku FOR UPDATE)
		UPDATE stock SET available = available - line.units FROM line, locked
		WHERE stock.sku = locked.sku AND stock.sku = line.sku AND stock.epoch BETWEEN ? AND ? AND line.epoch IN (0, stock.epoch)`
	if c.decide.refuse {
		sql += " AND available >= line.units"
	}
	first, last := g.Epochs()
	return sql, []any{skus, units, epochs, skus, first, last}
}

func (c merged) Cut(tx *gorm.DB, g stock.Generation, ds []stock.Deduction) ([]stock.Decision, error) {
	if lines, ok := sum(ds); ok && len(lines) == 1 {
		fits, err := conditionally(tx, g, lines[0], c.decide.refuse)
		if err != nil {
			return nil, err
		}
		if fits {
			decisions := make([]stock.Decision, len(ds))
			for i := range decisions {
				decisions[i] = stock.Taken()
			}
			return decisions, nil
		}
	}
	return c.decide.Cut(tx, g, ds)
}

// sum adds the deductions up to one line a SKU, in SKU order, if they all ask
// for each SKU under one epoch.
func sum(ds []stock.Deduction) (lines []stock.Line, ok bool) {
	if first := ds[0].Lines[0]; !slices.ContainsFunc(ds, func(d stock.Deduction) bool {
		return len(d.Lines) != 1 || d.Lines[0].SKU != first.SKU || d.Lines[0].Epoch != first.Epoch
	}) { // one hot SKU: no need to sort
		for _, d := range ds[1:] {
			first.Quantity += d.Lines[0].Quantity
		}
		return []stock.Line{first}, true
	}
	for _, d := range ds {
		lines = append(lines, d.Lines...)
	}
	stock.SortLines(lines)
	merged := lines[:1]
	for _, line := range lines[1:] {
		last := &merged[len(merged)-1]
		switch {
		case line.SKU != last.SKU:
			merged = append(merged, line)
		case line.Epoch != last.Epoch:
			return nil, false
		default:
			last.Quantity += line.Quantity
		}
	}
	return merged, true
}

// condition is an UPDATE that takes the line's units, and whose conditions say
// everything that must be true of the row.
func condition(g stock.Generation, line stock.Line, refuse bool) (sql string, args []any) {
	first, last := g.Epochs()
	sql = "UPDATE stock SET available = available - ? WHERE sku = ? AND epoch BETWEEN ? AND ?"
	args = []any{line.Quantity, string(line.SKU), first, last}
	if line.Epoch != 0 {
		sql += " AND epoch = ?"
		args = append(args, line.Epoch)
	}
	if refuse {
		sql += " AND available >= ?"
		args = append(args, line.Quantity)
	}
	return sql, args
}

// conditionally takes the line's units by one UPDATE, and reports whether its
// conditions were met.
func conditionally(tx *gorm.DB, g stock.Generation, line stock.Line, refuse bool) (bool, error) {
	sql, args := condition(g, line, refuse)
	updated := tx.Exec(sql, args...)
	if updated.Error != nil {
		return false, fmt.Errorf("taking units of %s: %w", line.SKU, updated.Error)
	}
	return updated.RowsAffected == 1, nil
}

// numbered writes a statement's placeholders as the dialect does.
func numbered(db *gorm.DB, sql string) string {
	if db.Name() != "postgres" {
		return sql
	}
	for n := 1; strings.Contains(sql, "?"); n++ {
		sql = strings.Replace(sql, "?", "$"+strconv.Itoa(n), 1)
	}
	return sql
}
