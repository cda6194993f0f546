//go:build mutants

package mutants

const (
	ledgerClaims = "internal/ledger/claims.go"
	claims       = "internal/ledger/cutter/claims.go"
	readWrites   = "internal/ledger/cutter/readwrite.go"
	hours        = "internal/order/hours.go"
)

// limits has mutants of buyer limits and opening hours.
var limits = []mutant{
	{"claims are not checked", rows, "r.held[t.Buyer]+l.units > r.limit", "r.held[t.Buyer]+l.units < 0", "internal/ledger/cutter TestConformance/SQLite/for-update/BuyerLimit"},
	{"claims are not kept", claims, "statements = append(statements, s)", "_ = append(statements, s)", "internal/ledger/cutter TestConformance/SQLite/for-update/BuyerLimit"},
	{"claims rise above the limit, in one statement", claims, "dialect.Require(sum+\" <= ?\", sum)", "dialect.Require(\"0 <= ?\", sum)", "internal/ledger/cutter TestConformance/MariaDB/merged/BuyerLimit"},
	{"claims are not sent with the cut", "internal/ledger/group.go", "tx.AtCommit(plan.GroupCut.Claims...)", "", "internal/ledger TestRecord_BuyerLimit/SQLite"},
	{"a claim above the limit is an error", sqltxDB, "if err != nil && tx.rows > 0 && isUnmet(err) {", "if false {", "internal/ledger/sqltx TestCommitIf/SQLite"},
	{"claims rise without the row's lock", rows, "stock.SKUsOf(takes...), tx.Dialect().RowLock())", "stock.SKUsOf(takes...), \"\")", "internal/ledger/cutter TestConformance/MariaDB/for-update/LimitUnderRush"},
	{"a limited row is cut without its claims", merged, "\" SET available = available - ? WHERE sku = ? AND \" + k.want + \" = ? AND \"", "\" SET available = available - ? WHERE sku = ? AND ? >= 0 AND \"", "internal/ledger/cutter TestConformance/SQLite/merged/BuyerLimit"},
	{"limited rows are cut without their claims", merged, "text.WriteString(\" AND \" + k.want + \" = ?\")", "text.WriteString(\" AND ? >= 0\")", "internal/ledger/cutter TestConformance/SQLite/merged/LimitOfEveryLine"},
	{"limited rows are cut without their claims, in PostgreSQL", merged, "AND ` + k.want + ` = ANY (?::bigint[]) ORDER BY sku FOR UPDATE)\n\t\tUPDATE ` + k.table + ` AS cut SET available = available - line.units FROM line, locked\n\t\tWHERE cut.sku = locked.sku AND cut.sku = line.sku AND cut.epoch BETWEEN ? AND ? AND line.epoch IN (0, cut.epoch)\n\t\tAND cut.` + k.want + ` = line.want AND `", "AND ?::bigint[] IS NOT NULL ORDER BY sku FOR UPDATE)\n\t\tUPDATE ` + k.table + ` AS cut SET available = available - line.units FROM line, locked\n\t\tWHERE cut.sku = locked.sku AND cut.sku = line.sku AND cut.epoch BETWEEN ? AND ? AND line.epoch IN (0, cut.epoch)\n\t\tAND `", "internal/ledger/cutter TestConformance/PostgreSQL/merged/LimitOfEveryLine"},
	{"a row that was limited meanwhile is cut", readWrites, " AND buyer_limit = 0\"", "\"", "internal/ledger/cutter TestReadWriteLosesUpdates/SQLite"},
	{"hours by the instance's clock", rows, "\t\trs[r.sku] = &r\n", "\t\trs[r.sku], r.readAt = &r, time.Now().UTC()\n", "internal/ledger/cutter TestHoursByTheDatabasesClock/MariaDB"},
	{"hours by the instance's clock, in one UPDATE", rows, "AND COALESCE(closes_at > \" + d.Now() + \", TRUE)\"", "AND COALESCE(closes_at > '\" + time.Now().UTC().Format(time.DateTime) + \"', TRUE)\"", "internal/ledger/cutter TestHoursByTheDatabasesClock/PostgreSQL"},
	{"a closed row is cut", rows, "!r.closesAt.IsZero() && !r.readAt.Before(r.closesAt)", "false", "internal/ledger/cutter TestConformance/SQLite/optimistic/OpeningHours"},
	{"units sold before the limit are not claimed", ledgerClaims, "recordClaims(ctx, tx, sku, which, args...)", "recordClaims(ctx, tx, sku, which+\" AND 1 = 0\", args...)", "internal/protocol TestLimitOnASoldSKU/SQLite"},
	{"claims outlive the limit", admin, "row.BuyerLimit == 0 && set.BuyerLimit != nil", "false && set.BuyerLimit != nil", "internal/protocol TestLimitOnASoldSKU/SQLite"},
	{"a limit is answered before it holds", admin, "(row.BuyerLimit < 0 ||", "(row.BuyerLimit < -1_000_000_000 ||", "internal/protocol TestLimitOnASoldSKU/SQLite"},
	{"a limit holds before its claims are counted", ledgerClaims, "now.BuyerLimit = -now.BuyerLimit", "_ = now", "internal/ledger TestCountClaims/0/SQLite"},
	{"an order is counted twice", ledgerClaims, "order_lines.order_id > ?", "order_lines.order_id >= ?", "internal/ledger TestCountClaims/0/SQLite"},
	{"an order that the count has passed has no claim", claims, "r.limit < 0 && !r.counted.Has(t.OrderID)", "r.limit < 0", "internal/ledger TestCountClaims/0/SQLite"},
	{"an order has a claim before the count comes to it", claims, "r.limit < 0 && !r.counted.Has(t.OrderID)", "false", "internal/ledger TestCountClaims/0/SQLite"},
	{"units return from claims that are not counted", returns, "if row.BuyerLimit < 0 {", "if false {", "internal/ledger TestCountClaims/0/SQLite"},
	{"the count of a limit that was removed goes on", ledgerClaims, "c.Buyer())\n\t}", "c.Buyer()+\"-\")\n\t}", "internal/ledger TestCountClaims/0/SQLite"},
	{"two processes count the same orders", ledgerClaims, "!maps.Equal(counted, s.counted)", "!maps.Equal(counted, counted)", "internal/ledger TestCountClaims_DuringASale/MariaDB"},
	{"a late step counts claims again", ledgerClaims, "if err := tx.QueryRow(ctx, []any{&end}, find, sku, 0); !errors.Is(err, sql.ErrNoRows) {", "if false {", "internal/ledger TestCountClaims_LateStep/SQLite"},
	{"a count ends with the request", ledgerClaims, "l.countClaims(l.open, sku)", "l.countClaims(ctx, sku)", "internal/ledger TestCountClaims_GoesOn/SQLite"},
	{"a step of the count leaves the row as it is", ledgerClaims, "row.Version++", "row.Version += 0", "internal/ledger TestCountClaims/0/SQLite"},
	{"claims are not counted by the optimistic cutter", optimistic, "seen.claimed()", "len(seen.limits()) > 0", "internal/ledger TestCountClaims/2/SQLite"},
	{"claims are not counted by the cutter that reads first", readWrites, "seen.claimed()", "len(seen.limits()) > 0", "internal/ledger TestCountClaims/4/SQLite"},
	{"a refusal is repeated after a change of the hours", hours, "h.remember(sku, repeated{asked: time.Now()})", "", "internal/order TestHours_Changed"},
	{"a refusal from before a change of the hours is repeated", hours, "if r.asked.Before(h.refusals[sku].asked) {", "if false {", "internal/order TestHours_Changed"},
	{"orders are not told of changed hours", admin, "a.orders.RulesChanged(set.SKU)", "if err != nil {\n\t\ta.orders.RulesChanged(set.SKU)\n\t}", "internal/admin TestRulesChanged"},
	{"orders are not told of a change whose answer was lost", admin, "a.orders.RulesChanged(set.SKU)", "if err == nil {\n\t\ta.orders.RulesChanged(set.SKU)\n\t}", "internal/admin TestRulesChanged"},
	{"a refusal is repeated after the opening", hours, "age = min(age, notOpen.In-clockError)", "_ = notOpen.In", "internal/order TestHours/opens_soon"},
}
