package cutter

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// line is one line of a take, or of several takes added up.
type line struct {
	sku   stock.SKU
	units int64
	epoch int64 // 0: no gate cut the line
	want  int64 // the value that the row must have in the column rowKind.want
}

func linesOf(t stock.Take) []line {
	lines := make([]line, len(t.Lines))
	for i, l := range t.Lines {
		lines[i] = line{sku: l.SKU, units: l.Quantity, epoch: t.Epoch(i)}
	}
	return lines
}

// row has the columns of a stock row, or of one of its parts, that cutters use.
type row struct {
	sku       stock.SKU
	available int64
	epoch     int64
	version   int64
	opensAt   time.Time
	closesAt  time.Time
	readAt    time.Time        // by the database's clock
	limit     int64            // units that one buyer may hold; 0 means no limit
	counted   Counted          // while counted is valid, the limit has no effect
	held      map[string]int64 // units by buyer; nil until the claims are read
	part      int              // number of the part; 0 means a stock row
}

type rows map[stock.SKU]*row

// read reads the stock rows of the takes without locking them.
func read(ctx context.Context, db sqltx.Reader, takes []stock.Take) (rows, error) {
	return readSKUs(ctx, db, stock.SKUsOf(takes...), "")
}

// lock reads the stock rows of the takes and locks them in SKU order, as every
// transaction of the ledger does.
func lock(ctx context.Context, tx *sqltx.Tx, takes []stock.Take) (rows, error) {
	return readSKUs(ctx, tx, stock.SKUsOf(takes...), tx.Dialect().RowLock())
}

func readSKUs(ctx context.Context, db sqltx.Reader, skus []stock.SKU, rowLock string) (rows, error) {
	rs := make(rows, len(skus))
	err := db.QueryEach(ctx, func(found *sql.Rows) error {
		var r row
		err := found.Scan(&r.sku, &r.available, &r.epoch, &r.version, &r.limit, &r.counted,
			(*sqltx.Time)(&r.opensAt), (*sqltx.Time)(&r.closesAt), (*sqltx.Time)(&r.readAt))
		rs[r.sku] = &r
		return err
	}, "SELECT sku, available, epoch, version, limit_per_buyer, claims_counted_to, opens_at, closes_at, "+db.Dialect().Now()+
		" FROM stock WHERE sku IN ? ORDER BY sku"+rowLock, skus)
	if err != nil {
		return nil, fmt.Errorf("reading stock rows: %w", err)
	}
	return rs, nil
}

// takeAll decides the takes one after the other.
func (rs rows) takeAll(takes []stock.Take, g stock.Generation, refuse bool) []Decision {
	decisions := make([]Decision, len(takes))
	for i, t := range takes {
		decisions[i] = rs.take(t, g, refuse)
	}
	return decisions
}

// acceptedTakes returns the takes that were accepted.
func acceptedTakes(takes []stock.Take, decisions []Decision) []stock.Take {
	accepted := make([]stock.Take, 0, len(takes))
	for i, t := range takes {
		if decisions[i].Taken {
			accepted = append(accepted, t)
		}
	}
	return accepted
}

// unitsOf adds up the units of each SKU in the takes. The SKUs are sorted.
func unitsOf(takes []stock.Take) (skus []stock.SKU, units map[stock.SKU]int64) {
	units = make(map[stock.SKU]int64)
	for _, t := range takes {
		for _, line := range t.Lines {
			units[line.SKU] += line.Quantity
		}
	}
	return stock.SKUsOf(takes...), units
}
