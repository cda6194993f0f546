//go:build mutants

package mutants

const (
	rowLimits  = "internal/ledger/limits.go"
	claims     = "internal/ledger/cutter/claims.go"
	readWrites = "internal/ledger/cutter/readwrite.go"
	hours      = "internal/order/hours.go"
)

// limits has mutants of buyer limits and opening hours.
var limits = []mutant{
	{"claims are not checked", rows, "r.held[t.Buyer]+l.units > r.limit", "r.held[t.Buyer]+l.units < 0", "internal/ledger/cutter TestConformance/SQLite/for-update/BuyerLimit"},
	{"claims are not kept", claims, "statements = append(statements, s)", "_ = append(statements, s)", "internal/ledger/cutter TestConformance/SQLite/for-update/BuyerLimit"},
	{"claims rise above the limit, in one statement", claims, "dialect.Require(sum+\" <= ?\", sum)", "dialect.Require(\"0 <= ?\", sum)", "internal/ledger/cutter TestConformance/MariaDB/merged/BuyerLimit"},
	{"claims are not sent with the cut", "internal/ledger/group.go", "append(inserts(l.db.Dialect(), orders, guard), cut.Claims...)", "inserts(l.db.Dialect(), orders, guard)", "internal/ledger TestRecord_BuyerLimit/SQLite"},
	{"a claim above the limit is an error", sqltxDB, "if isUnmet(err) {", "if false {", "internal/ledger/sqltx TestCommitIf/SQLite"},
	{"claims rise without the row's lock", rows, "stock.SKUsOf(takes...), tx.Dialect().RowLock())", "stock.SKUsOf(takes...), \"\")", "internal/ledger/cutter TestConformance/MariaDB/for-update/LimitUnderRush"},
	{"a limited row is cut without its claims", merged, "sku = ? AND buyer_limit = ? AND", "sku = ? AND ? >= 0 AND", "internal/ledger/cutter TestConformance/SQLite/merged/BuyerLimit"},
	{"limited rows are cut without their claims", merged, "\" AND buyer_limit = ?\"", "\" AND ? >= 0\"", "internal/ledger/cutter TestConformance/SQLite/merged/LimitOfEveryLine"},
	{"limited rows are cut without their claims, in PostgreSQL", merged, "AND stock.buyer_limit = line.buyer_limit AND", "AND", "internal/ledger/cutter TestConformance/PostgreSQL/merged/LimitOfEveryLine"},
	{"a row that was limited meanwhile is cut", readWrites, " AND buyer_limit = 0\"", "\"", "internal/ledger/cutter TestReadWriteLosesUpdates/SQLite"},
	{"hours by the instance's clock", rows, "\t\trs[r.sku] = &r\n", "\t\trs[r.sku], r.readAt = &r, time.Now().UTC()\n", "internal/ledger/cutter TestHoursByTheDatabasesClock/MariaDB"},
	{"hours by the instance's clock, in one UPDATE", rows, "AND COALESCE(closes_at > \" + d.Now() + \", TRUE)\"", "AND COALESCE(closes_at > '\" + time.Now().UTC().Format(time.DateTime) + \"', TRUE)\"", "internal/ledger/cutter TestHoursByTheDatabasesClock/PostgreSQL"},
	{"a closed row is cut", rows, "!r.closesAt.IsZero() && !r.readAt.Before(r.closesAt)", "false", "internal/ledger/cutter TestConformance/SQLite/optimistic/OpeningHours"},
	{"units sold before the limit are not claimed", rowLimits, "case before.BuyerLimit == 0 && now.BuyerLimit > 0:", "case false:", "internal/protocol TestLimitOnASoldSKU/SQLite"},
	{"claims outlive the limit", rowLimits, "case before.BuyerLimit > 0 && now.BuyerLimit == 0:", "case false:", "internal/protocol TestLimitOnASoldSKU/SQLite"},
	{"a refusal is repeated after the opening", hours, "age = min(age, notOpen.In-clockError)", "_ = notOpen.In", "internal/order TestHours/opens_soon"},
}
