package main

import (
	"context"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/lab/table"
)

// expiry measures each strategy while no order expires, and while it works off a
// backlog of orders of the SKU that is sold.
func (l *lab) expiry(ctx context.Context) error {
	quiet := situation{name: "nothing expires", skus: 1}
	backlog := situation{name: fmt.Sprintf("%d orders are due", l.due), skus: 1, due: l.due}
	chosen := l.chosen(true)
	samples, err := l.alternate(ctx, chosen, quiet, backlog)
	if err != nil {
		return err
	}
	rows := table.New("", "orders/s: "+quiet.name, backlog.name, "ratio", "p99 ms: "+quiet.name, backlog.name, "expired/s", "batches over 50 ms")
	for _, v := range chosen {
		before, during := samples[quiet.name][v.name], samples[backlog.name][v.name]
		x, y := median(before), median(during)
		if x.fault+y.fault != "" {
			rows.Add(v.name, "failed: "+x.fault+y.fault)
			continue
		}
		ratio, _ := compared(during, before, rate)
		rows.Add(v.name, whole(x.perSecond), whole(y.perSecond), fmt.Sprintf("%.2f", ratio), millis(x.p99), millis(y.p99), whole(y.expired), whole(y.slow))
	}
	rows.WriteMarkdown(l.report)
	return nil
}

// insertDue inserts orders of one unit that were due some time ago, and the stock row
// that they have cut.
func (l *lab) insertDue(ctx context.Context, strategy string, count int) error {
	if err := l.insertOrders(ctx, count); err != nil {
		return err
	}
	due := "CURRENT_TIMESTAMP - INTERVAL '1 hour'"
	if l.database == "mariadb" {
		due = "UTC_TIMESTAMP(6) - INTERVAL 1 HOUR"
	}
	return l.exec(ctx,
		"UPDATE orders SET expires_at = "+due,
		fmt.Sprintf("UPDATE ledger SET generation = %d, layout = '%s'", generation, strategy),
		fmt.Sprintf("INSERT INTO stock (sku, kind, total, available, epoch) VALUES ('hot', 'product', %d, %d, %d)", hugeTotal, hugeTotal-count, epoch+1))
}
