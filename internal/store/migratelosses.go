package store

import (
	"context"
	"fmt"
	"strings"
)

// loss is data that the schema before a migration cannot hold, and that neither the program nor the
// next migration up can restore.
type loss struct {
	what  string
	table string // one that the migration down drops or changes
	where string // empty: any row
}

// losses are the losses of each migration. They do not include the rows of jobs, which are claimed
// again, or fencing tokens, which continue from the server's clock.
var losses = map[int][]loss{
	1: {
		{what: "orders", table: "orders"},
		{what: "stock", table: "stock"},
	},
	2: {{
		what:  "the generation of a ledger that instances have used",
		table: "ledger", where: "generation > 1 OR beat > 0",
	}},
	3: {
		{what: "payments", table: "payments"},
		{what: "the history of orders", table: "order_history"},
		{
			what:  "when orders changed or were queued, and which refunds returned units",
			table: "orders", where: "version > 0 OR restocked OR queued_until IS NOT NULL",
		},
		{what: "units held by buyers", table: "claims"},
		{what: "opening hours", table: "stock", where: "opens_at IS NOT NULL OR closes_at IS NOT NULL"},
	},
	4: {{
		what:  "that Redis may have orders which are not in the database (run api drain)",
		table: "ledger", where: "queues",
	}},
	5: {{
		what:  "units that stock rows have lent to parts (start a strategy without parts and set each stock once)",
		table: "stock_parts", where: "available > 0",
	}},
	6: {{
		what:  "that buyers' claims are being counted (set the buyer limit again, and wait for the answer)",
		table: "stock", where: "claims_counted_to IS NOT NULL",
	}},
}

// refuseLosses returns ErrSchemaUsed if reverting the migration would lose data.
func refuseLosses(ctx context.Context, from rowReader, number int) error {
	var lost []string
	for _, l := range losses[number] {
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
