//go:build mutants

package mutants

const (
	rules      = "internal/ledger/rules.go"
	readWrites = "internal/ledger/cutter/readwrite.go"
	hours      = "internal/order/hours.go"
)

// limits has mutants of buyer limits and opening hours.
var limits = []mutant{
	{"claims are not checked", rows, "r.held[t.Buyer]+l.units > r.limit", "r.held[t.Buyer]+l.units < 0", "internal/ledger/cutter TestConformance/SQLite/for-update/BuyerLimit"},
	{"claims are not kept", "internal/ledger/cutter/forupdate.go", "len(claims) > 0 {", "false {", "internal/ledger/cutter TestConformance/SQLite/merged/BuyerLimit"},
	{"claims rise without the row's lock", rows, "stock.SKUsOf(takes...), tx.Dialect().RowLock())", "stock.SKUsOf(takes...), \"\")", "internal/ledger/cutter TestConformance/MariaDB/for-update/LimitUnderRush"},
	{"a limited row is cut without its lock", rows, "\"buyer_limit = 0 AND COALESCE(opens_at", "\"COALESCE(opens_at", "internal/ledger/cutter TestConformance/SQLite/merged/BuyerLimit"},
	{"a row that was limited meanwhile is cut", readWrites, " AND buyer_limit = 0\"", "\"", "internal/ledger/cutter TestReadWriteLosesUpdates/SQLite"},
	{"hours by the instance's clock", rows, "\t\trs[r.sku] = &r\n", "\t\trs[r.sku], r.readAt = &r, time.Now().UTC()\n", "internal/ledger/cutter TestHoursByTheDatabasesClock/MariaDB"},
	{"hours by the instance's clock, in one UPDATE", rows, "AND COALESCE(closes_at > \" + d.Now() + \", TRUE)\"", "AND COALESCE(closes_at > '\" + time.Now().UTC().Format(time.DateTime) + \"', TRUE)\"", "internal/ledger/cutter TestHoursByTheDatabasesClock/PostgreSQL"},
	{"a closed row is cut", rows, "!r.closesAt.IsZero() && !r.readAt.Before(r.closesAt)", "false", "internal/ledger/cutter TestConformance/SQLite/optimistic/OpeningHours"},
	{"units sold before the limit are not claimed", rules, "case before.BuyerLimit == 0 && now.BuyerLimit > 0:", "case false:", "internal/protocol TestLimitOnASoldSKU/SQLite"},
	{"claims outlive the limit", rules, "case before.BuyerLimit > 0 && now.BuyerLimit == 0:", "case false:", "internal/protocol TestLimitOnASoldSKU/SQLite"},
	{"a refusal is repeated after the opening", hours, "age = min(age, notOpen.In)", "_ = notOpen.In", "internal/order TestHours/opens_soon"},
}
