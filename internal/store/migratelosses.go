package store

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// loss is data that the schema before a migration cannot hold, and that neither the program nor the
// next migration up can restore.
type loss struct {
	what    string
	table   string
	columns []object // columns of the condition
	where   string   // empty: any row
}

// losses are the losses of each migration. They do not include the rows of jobs, which are claimed
// again, or fencing tokens, which continue from the server's clock.
var losses = map[int][]loss{
	1: {
		{what: "orders", table: "orders"},
		{what: "stock", table: "stock"},
	},
	2: {{
		what: "the generation of a ledger that instances have used", table: "ledger",
		columns: []object{"ledger.generation", "ledger.beat"}, where: "generation > 1 OR beat > 0",
	}},
	3: {
		{what: "payments", table: "payments"},
		{what: "the history of orders", table: "order_history"},
		{
			what: "when orders changed or were queued, and which refunds returned units", table: "orders",
			columns: []object{"orders.version", "orders.restocked", "orders.queued_until"}, where: "version > 0 OR restocked OR queued_until IS NOT NULL",
		},
		{what: "units held by buyers", table: "claims"},
		{
			what: "opening hours", table: "stock",
			columns: []object{"stock.opens_at", "stock.closes_at"}, where: "opens_at IS NOT NULL OR closes_at IS NOT NULL",
		},
	},
	4: {{
		what: "that Redis may have orders which are not in the database (run api drain)", table: "ledger",
		columns: []object{"ledger.queues"}, where: "queues",
	}},
	5: {{
		what: "units that stock rows have lent to parts (start a strategy without parts and set each stock once)", table: "stock_parts",
		columns: []object{"stock_parts.available"}, where: "available > 0",
	}},
	6: {{
		what: "that buyers' claims are being counted (set the buyer limit again, and wait for the answer)", table: "stock",
		columns: []object{"stock.claims_counted_to"}, where: "claims_counted_to IS NOT NULL",
	}},
}

// refuseLosses returns ErrSchemaUsed if reverting the migration would lose data. For a killed
// migration, it checks the objects that exist.
func refuseLosses(ctx context.Context, from rowReader, number int, found schema) error {
	var lost []string
	for _, l := range losses[number] {
		if !found[object(l.table)] || slices.ContainsFunc(l.columns, func(o object) bool { return !found[o] }) {
			continue
		}
		some, err := anyRow(ctx, from, l.table, l.where)
		if err != nil {
			return err
		}
		if some {
			lost = append(lost, l.what)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	return fmt.Errorf("%w: reverting migration %d would lose %s, which no later migration brings back. "+
		"To go back, stop all instances, restore the backup that was made before migration %d, and start the older program",
		ErrSchemaUsed, number, strings.Join(lost, "; "), number)
}
