package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
)

// cleanLimit bounds the duration of a clean-up.
const cleanLimit = time.Minute

// tidy deletes the rows of this run from the stores of the command line. It keeps them with --keep,
// or as evidence after a broken promise.
func (l *lab) tidy(ctx context.Context, broken bool) error {
	if l.sql == nil || l.embedded != nil || len(l.created) == 0 {
		return nil
	}
	if broken || l.Keep {
		l.tell("kept the orders of %s…: go run ./loadtest clean deletes them\n", prefix+l.runID)
		return nil
	}
	return l.clean(ctx, l.created)
}

// loadTestSKU matches the SKUs of load tests and no others.
var loadTestSKU = regexp.MustCompile(`^` + prefix + `[0-9a-z]{10,}-(` + strings.Join(assembly.StrategyNames(), "|") + `)-(crash|keys|(life|history[0-9]+)(-coupon)?|r?[0-9]+(-[0-9]+)?)$`)

// loadTestBuyer is an SQL pattern for the names that buyers returns.
var loadTestBuyer = prefix + strings.Repeat("_", 16)

// cleanAll deletes the rows of all earlier runs.
func (l *lab) cleanAll(ctx context.Context) error {
	var skus []string
	err := l.sql.DB().WithContext(ctx).Raw("SELECT sku FROM stock WHERE sku LIKE ? ORDER BY sku", prefix+"%").Scan(&skus).Error
	if err != nil {
		return fmt.Errorf("listing the SKUs: %w", err)
	}
	var ours []string
	for _, sku := range skus {
		if loadTestSKU.MatchString(sku) {
			ours = append(ours, sku)
		}
	}
	return l.clean(ctx, ours)
}

// clean deletes the SKUs with their orders and counts. It also deletes all void orders
// of load test buyers.
func (l *lab) clean(ctx context.Context, skus []string) error {
	ctx, cancel := context.WithTimeout(ctx, cleanLimit)
	defer cancel()
	var orders int64
	for i, sku := range skus {
		deleted, err := l.deleteSKU(ctx, sku)
		orders += deleted
		if err != nil {
			return fmt.Errorf("cleaning up, after %d of %d SKUs (go run ./loadtest clean continues): %w", i, len(skus), err)
		}
	}
	voids, err := l.deleteOrders(ctx, "SELECT id FROM orders WHERE status = 'void' AND buyer_id LIKE ? LIMIT ?", loadTestBuyer)
	if err != nil {
		return fmt.Errorf("cleaning up void orders: %w", err)
	}
	l.tell("deleted %d SKUs and %d orders\n", len(skus), orders+voids)
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
	for _, table := range []string{"outbox", "claims", "stock_parts", "stock"} {
		if err := db.Exec("DELETE FROM "+table+" WHERE sku = ?", sku).Error; err != nil {
			return orders, fmt.Errorf("deleting %s from table %s: %w", sku, table, err)
		}
	}
	return orders, nil
}

// deleteOrders deletes the orders whose IDs the statement selects, in chunks. The
// parameters of the statement are which and the size of a chunk.
func (l *lab) deleteOrders(ctx context.Context, statement, which string) (deleted int64, err error) {
	db := l.sql.DB().WithContext(ctx)
	for {
		var ids []any
		var payments []string
		err := l.sql.Ledger().QueryEach(ctx, func(rows *sql.Rows) error {
			var id uuid.UUID
			err := rows.Scan(&id)
			ids = append(ids, l.column(id))
			payments = append(payments, paymentIDs(id.String())...)
			return err
		}, statement, which, maxIDs)
		if err != nil {
			return deleted, fmt.Errorf("listing orders of %s: %w", which, err)
		}
		if len(ids) == 0 {
			return deleted, nil
		}
		err = errors.Join(
			db.Exec("DELETE FROM payments WHERE id IN ?", payments).Error,
			db.Exec("DELETE FROM order_history WHERE order_id IN ?", ids).Error,
			db.Exec("DELETE FROM orders WHERE id IN ?", ids).Error,
		)
		if err == nil { // delete the lines last, because a later clean-up finds the orders by them
			err = db.Exec("DELETE FROM order_lines WHERE order_id IN ?", ids).Error
		}
		if err != nil {
			return deleted, fmt.Errorf("deleting orders of %s: %w", which, err)
		}
		deleted += int64(len(ids))
	}
}

// deleteCounts deletes the SKU from the gate, with all its segments.
func (l *lab) deleteCounts(ctx context.Context, sku string) error {
	if l.redis == nil {
		return nil
	}
	g, err := l.gateOf(ctx, sku)
	if err != nil {
		return err
	}
	_, err = l.redis.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, name := range append(segmentsOf(sku, assembly.MaxSegments), sku) {
			if g.cluster {
				p.Del(ctx, g.ownKey(name, "count"))
				p.Del(ctx, g.ownKey(name, "flight"))
				p.Del(ctx, g.ownKey(name, "burned")) // outside a cluster the gate deletes burned IDs itself
				continue
			}
			p.HDel(ctx, g.key(name, "count"), name)
			inFlight := l.redis.HScan(ctx, g.key(name, "flight"), 0, name+" *", maxIDs).Iterator()
			for inFlight.Next(ctx) {
				if field := inFlight.Val(); strings.HasPrefix(field, name+" ") { // the iterator returns fields and values in turn
					p.HDel(ctx, g.key(name, "flight"), field)
				}
			}
			if err := inFlight.Err(); err != nil {
				return err
			}
		}
		p.Del(ctx, g.ownKey(sku, "gathers"))
		return nil
	})
	if err != nil {
		return fmt.Errorf("deleting the gate's counts of %s: %w", sku, err)
	}
	return nil
}
