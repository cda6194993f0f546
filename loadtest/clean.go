package main

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
)

// cleanLimit bounds the clean-up.
const cleanLimit = time.Minute

// tidy deletes what the run left in the stores that the user named. What broke a
// promise stays: it is the evidence.
func (l *lab) tidy(ctx context.Context, broken bool) error {
	if l.sql == nil || l.embedded != nil || len(l.laid) == 0 {
		return nil
	}
	if broken || l.keep {
		fmt.Fprintf(l.display.w, "kept the orders of %s…: go run ./loadtest clean deletes them\n", mark+l.runID)
		return nil
	}
	return l.clean(ctx, l.laid)
}

// laidBefore matches the SKUs that runs of the harness lay, and no others.
var laidBefore = regexp.MustCompile(`^` + mark + `[0-9a-z]{10,}-(` + strings.Join(strategy.Names(), "|") + `)-(crash|r?[0-9]+(-[0-9]+)?)$`)

// madeUpBuyers matches the names that buyers makes up.
var madeUpBuyers = mark + strings.Repeat("_", 16)

// cleanAll deletes what runs have left, this one and those before.
func (l *lab) cleanAll(ctx context.Context) error {
	var skus []string
	err := l.sql.DB().WithContext(ctx).Raw("SELECT sku FROM stock WHERE sku LIKE ? ORDER BY sku", mark+"%").Scan(&skus).Error
	if err != nil {
		return fmt.Errorf("listing the SKUs: %w", err)
	}
	var ours []string
	for _, sku := range skus {
		if laidBefore.MatchString(sku) {
			ours = append(ours, sku)
		}
	}
	return l.clean(ctx, ours)
}

// clean deletes the SKUs with their orders and counts, and the void orders of the
// harness's buyers.
func (l *lab) clean(ctx context.Context, skus []string) error {
	ctx, cancel := context.WithTimeout(ctx, cleanLimit)
	defer cancel()
	var orders int64
	for i, sku := range skus {
		deleted, err := l.deleteSKU(ctx, sku)
		orders += deleted
		if err != nil {
			return fmt.Errorf("cleaning up, with %d of %d SKUs done (go run ./loadtest clean goes on): %w", i, len(skus), err)
		}
	}
	voids, err := l.deleteOrders(ctx, "SELECT id FROM orders WHERE status = 'void' AND buyer_id LIKE ? LIMIT ?", madeUpBuyers)
	if err != nil {
		return fmt.Errorf("cleaning up void orders: %w", err)
	}
	fmt.Fprintf(l.display.w, "deleted %d SKUs and %d orders\n", len(skus), orders+voids)
	return nil
}

func (l *lab) deleteSKU(ctx context.Context, sku string) (orders int64, err error) {
	if err := l.deleteCounts(ctx, sku); err != nil {
		return 0, err
	}
	orders, err = l.deleteOrders(ctx, "SELECT order_id FROM order_lines WHERE sku = ? LIMIT ?", sku)
	if err != nil {
		return orders, err
	}
	db := l.sql.DB().WithContext(ctx)
	for _, table := range []string{"outbox", "stock"} {
		if err := db.Exec("DELETE FROM "+table+" WHERE sku = ?", sku).Error; err != nil {
			return orders, fmt.Errorf("deleting %s from table %s: %w", sku, table, err)
		}
	}
	return orders, nil
}

// deleteOrders deletes the orders that the query lists, as many at once as its
// second parameter says.
func (l *lab) deleteOrders(ctx context.Context, query, which string) (deleted int64, err error) {
	db := l.sql.DB().WithContext(ctx)
	for {
		rows, err := db.Raw(query, which, ordersAtOnce).Rows()
		if err != nil {
			return deleted, fmt.Errorf("listing orders of %s: %w", which, err)
		}
		var ids []any
		for rows.Next() {
			var id uuid.UUID
			if err = rows.Scan(&id); err != nil {
				break
			}
			ids = append(ids, l.column(id))
		}
		rows.Close()
		if err != nil || rows.Err() != nil {
			return deleted, fmt.Errorf("listing orders of %s: %w %w", which, err, rows.Err())
		}
		if len(ids) == 0 {
			return deleted, nil
		}
		// The lines last: what is left of a clean-up cut short is found by them.
		for _, statement := range []string{"DELETE FROM orders WHERE id IN ?", "DELETE FROM order_lines WHERE order_id IN ?"} {
			if err := db.Exec(statement, ids).Error; err != nil {
				return deleted, fmt.Errorf("deleting orders of %s: %w", which, err)
			}
		}
		deleted += int64(len(ids))
	}
}

// deleteCounts deletes the SKU's counts at the gate, of all segments.
func (l *lab) deleteCounts(ctx context.Context, sku string) error {
	if l.redis == nil {
		return nil
	}
	g, err := l.gateOf(ctx, sku)
	if err != nil {
		return err
	}
	_, err = l.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, name := range append(segmentsOf(sku, strategy.MaxSegments), sku) {
			if g.cluster {
				p.Del(ctx, g.own(name, "count"))
				p.Del(ctx, g.own(name, "flight"))
				p.Del(ctx, g.own(name, "burned")) // else the gate forgets it by itself
				continue
			}
			p.HDel(ctx, g.key(name, "count"), name)
			inFlight := l.redis.HScan(ctx, g.key(name, "flight"), 0, name+" *", ordersAtOnce).Iterator()
			for inFlight.Next(ctx) {
				if field := inFlight.Val(); strings.HasPrefix(field, name+" ") { // the records are between the fields
					p.HDel(ctx, g.key(name, "flight"), field)
				}
			}
			if err := inFlight.Err(); err != nil {
				return err
			}
		}
		p.Del(ctx, g.own(sku, "gathers"))
		return nil
	})
	if err != nil {
		return fmt.Errorf("deleting the gate's counts of %s: %w", sku, err)
	}
	return nil
}
