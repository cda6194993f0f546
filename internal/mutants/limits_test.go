//go:build mutants

package mutants

const (
	ledgerClaims = "internal/ledger/claims.go"
	claims       = "internal/ledger/cutter/claims.go"
	readWrites   = "internal/ledger/cutter/readwrite.go"
	unitRows     = "internal/ledger/cutter/unitrows.go"
	soldOut      = "internal/order/refusals.go"
)

// limits has mutants of buyer limits and opening hours.
var limits = []mutant{
	{"claims are not checked", cutterRules, "r.held[t.Buyer]+l.units > r.limit", "r.held[t.Buyer]+l.units < 0", "internal/ledger/cutter TestConformance/SQLite/for-update/BuyerLimit"},
	{"claims are not kept", claims, "statements = append(statements, s)", "_ = append(statements, s)", "internal/ledger/cutter TestConformance/SQLite/for-update/BuyerLimit"},
	{"claims rise above the limit, in one statement", claims, "dialect.Require(sum+\" <= ?\", sum)", "dialect.Require(\"0 <= ?\", sum)", "internal/ledger/cutter TestConformance/MariaDB/merged/BuyerLimit"},
	{"claims are not sent with the cut", "internal/ledger/commit.go", "tx.AtCommit(plan.GroupCut.Claims...)", "", "internal/ledger TestRecord_BuyerLimit/SQLite"},
	{"a claim above the limit is an error", sqltxDB, "if err != nil && tx.rows > 0 && isUnmet(err) {", "if false {", "internal/ledger/sqltx TestCommitIf/SQLite"},
	{"claims rise without the row's lock", rows, "stock.SKUsOf(takes...), tx.Dialect().RowLock())", "stock.SKUsOf(takes...), \"\")", "internal/ledger/cutter TestConformance/MariaDB/for-update/LimitUnderRush"},
	{"a limited row is cut without its claims", merged, "\" SET available = available - ? WHERE sku = ? AND \" + k.want + \" = ? AND \"", "\" SET available = available - ? WHERE sku = ? AND ? >= 0 AND \"", "internal/ledger/cutter TestConformance/SQLite/merged/BuyerLimit"},
	{"limited rows are cut without their claims", merged, "text.WriteString(\" AND \" + k.want + \" = ?\")", "text.WriteString(\" AND ? >= 0\")", "internal/ledger/cutter TestConformance/SQLite/merged/LimitOfEveryLine"},
	{"limited rows are cut without their claims, in PostgreSQL", merged, "AND ` + k.want + ` = ANY (?::bigint[]) ORDER BY sku FOR UPDATE)\n\t\tUPDATE ` + k.table + ` AS cut SET available = available - line.units FROM line, locked\n\t\tWHERE cut.sku = locked.sku AND cut.sku = line.sku AND cut.epoch BETWEEN ? AND ? AND line.epoch IN (0, cut.epoch)\n\t\tAND cut.` + k.want + ` = line.want AND `", "AND ?::bigint[] IS NOT NULL ORDER BY sku FOR UPDATE)\n\t\tUPDATE ` + k.table + ` AS cut SET available = available - line.units FROM line, locked\n\t\tWHERE cut.sku = locked.sku AND cut.sku = line.sku AND cut.epoch BETWEEN ? AND ? AND line.epoch IN (0, cut.epoch)\n\t\tAND `", "internal/ledger/cutter TestConformance/PostgreSQL/merged/LimitOfEveryLine"},
	{"a row that was limited meanwhile is cut", readWrites, " AND limit_per_buyer = 0\"", "\"", "internal/ledger/cutter TestReadWriteLosesUpdates/MariaDB"},
	{"hours by the instance's clock", rows, "\t\trs[r.sku] = &r\n", "\t\trs[r.sku], r.readAt = &r, time.Now().UTC()\n", "internal/ledger/cutter TestHoursByTheDatabasesClock/MariaDB"},
	{"hours by the instance's clock, in one UPDATE", cutterRules, "AND COALESCE(closes_at > \" + d.Now() + \", TRUE)\"", "AND COALESCE(closes_at > '\" + time.Now().UTC().Format(time.DateTime) + \"', TRUE)\"", "internal/ledger/cutter TestHoursByTheDatabasesClock/PostgreSQL"},
	{"a closed row is cut", cutterRules, "!r.closesAt.IsZero() && !r.readAt.Before(r.closesAt)", "false", "internal/ledger/cutter TestConformance/SQLite/optimistic/OpeningHours"},
	{"units sold before the limit are not claimed", ledgerClaims, "recordClaims(ctx, tx, sku, which, args...)", "recordClaims(ctx, tx, sku, which+\" AND 1 = 0\", args...)", "internal/protocol TestLimitOnASoldSKU/SQLite"},
	{"claims outlive the limit", admin, "row.BuyerLimit == 0 && set.BuyerLimit != nil", "false && set.BuyerLimit != nil", "internal/protocol TestLimitOnASoldSKU/SQLite"},
	{"a limit is answered before it holds", admin, "(row.CountedTo.Valid || ", "(", "internal/protocol TestLimitOnASoldSKU/SQLite"},
	{"a limit holds before its claims are counted", ledgerClaims, "now.CountedTo = cutter.Counted{NullUUID: uuid.NullUUID{Valid: true}} // below", "// below", "internal/ledger TestCountClaims/0/SQLite"},
	{"an order is counted twice", ledgerClaims, "order_lines.order_id > ?", "order_lines.order_id >= ?", "internal/ledger TestCountClaims/0/SQLite"},
	{"an order that the count has passed has no claim", claims, "r.counted.Valid && !r.counted.Has(t.OrderID)", "r.counted.Valid", "internal/ledger TestCountClaims/0/SQLite"},
	{"an order has a claim before the count comes to it", claims, "r.counted.Valid && !r.counted.Has(t.OrderID)", "false", "internal/ledger TestCountClaims/0/SQLite"},
	{"units return from claims that are not counted", returns, "if row.CountedTo.Valid {", "if false {", "internal/ledger TestCountClaims/0/SQLite"},
	{"the count of a limit that was removed goes on", ledgerClaims, "now.CountedTo = cutter.Counted{}", "_ = now", "internal/ledger TestCountClaims/0/SQLite"},
	{"a limit that is being counted is taken for the same one of before", merged, " AND claims_counted_to IS NULL", "", "internal/ledger TestCountClaims_SameLimitAgain/SQLite"},
	{"a new count begins with the claims of an earlier limit", ledgerClaims, "err != nil || deleted {", "err != nil || deleted && false {", "internal/ledger TestCountClaims/0/SQLite"},
	{"two processes count the same orders", ledgerClaims, " || row.CountedTo != s.row.CountedTo", "", "internal/ledger TestCountClaims_DuringASale/MariaDB"},
	{"a late step counts claims again", ledgerClaims, "if !errors.Is(err, sql.ErrNoRows) {\n\t\t\t\treturn err", "if _ = err; false {\n\t\t\t\treturn err", "internal/ledger TestCountClaims_LateStep/SQLite"},
	{"a count ends with the request", ledgerClaims, "l.countClaims(l.open, sku)", "l.countClaims(ctx, sku)", "internal/ledger TestCountClaims_GoesOn/SQLite"},
	{"a step of the count leaves the row as it is", ledgerClaims, "row.Version++", "row.Version += 0", "internal/ledger TestCountClaims/0/SQLite"},
	{"claims are not counted by the optimistic cutter", optimistic, "seen.claimed()", "len(seen.limits()) > 0", "internal/ledger TestCountClaims/2/SQLite"},
	{"claims are not counted by the cutter that reads first", readWrites, "seen.claimed()", "len(seen.limits()) > 0", "internal/ledger TestCountClaims/4/SQLite"},
	{"a refusal is repeated after a change", soldOut, "rs.remember(sku, repeated{asked: time.Now()})", "", "internal/order TestRefusals_Changed"},
	{"a refusal from before a change is repeated", soldOut, "r.asked.Before(known.asked) || ", "", "internal/order TestRefusals_Changed"},
	{"a change is overlooked because it was forgotten", soldOut, " || r.asked.Before(rs.since)", "", "internal/order TestRefusals_Bound"},
	{"orders are not told of changed stock", admin, "a.orders.StockChanged(set.SKU)", "if err != nil {\n\t\ta.orders.StockChanged(set.SKU)\n\t}", "internal/admin TestStockChanged"},
	{"orders are not told of a change whose answer was lost", admin, "a.orders.StockChanged(set.SKU)", "if err == nil {\n\t\ta.orders.StockChanged(set.SKU)\n\t}", "internal/admin TestStockChanged"},
	{"a refusal is repeated after the opening", soldOut, "age = min(age, notOpen.In-clockError)", "_ = notOpen.In", "internal/order TestRefusals/opens_soon"},
	{"a refusal is repeated until the opening by a clock that is rounded", soldOut, "notOpen.In-clockError", "notOpen.In", "internal/order TestRefusals/opens_soon"},
	{"a refusal of 5 units refuses 1", soldOut, "line.Quantity >= r.units && ", "", "internal/order TestRefusals_SoldOut"},
	{"a larger quantity replaces a smaller one", soldOut, "known.units < r.units && time.Now().Before(known.until)", "false", "internal/order TestRefusals_SoldOut"},
	{"a smaller quantity is refused for ever", soldOut, "known.units < r.units && time.Now().Before(known.until)", "known.units < r.units", "internal/order TestRefusals_SoldOut"},
	{"all SKUs of a refused order are sold out", soldOut, "rs.remember(r.refusal.SKU, r)", "for _, line := range append(lines, stock.Line{SKU: r.refusal.SKU}) {\n\t\trs.remember(line.SKU, r)\n\t}", "internal/order TestRefusals_SoldOut"},
	{"sold out instead of an unknown SKU", soldOut, "(i == 0 || r.units == 0)", "i >= 0", "internal/order TestSoldOutMemory"},
	{"the memory begins with the answer", soldOut, "r.until = asked.Add(age)", "r.until = time.Now().Add(age)", "internal/order TestRefusals"},
	{"the memory begins with the request's answer", service, "s.refusals.learn(asked, r.Lines, out.Reason())", "_ = asked\n\t\t\ts.refusals.learn(time.Now(), r.Lines, out.Reason())", "internal/order TestSoldOutMemory"},
	{"a buyer limit is remembered for all buyers", soldOut, "case errors.Is(reason, stock.ErrSoldOut):", "case errors.Is(reason, stock.ErrSoldOut), errors.Is(reason, stock.ErrBuyerLimit):", "internal/order TestRefusals"},
	{"a key is not looked up before it is refused from memory", service, "if err := s.sellable(ctx, r.Lines); err != nil {\n\t\t\treturn s.refused(ctx, r, voids, err)", "if err := s.sellable(ctx, r.Lines); err != nil {\n\t\t\treturn Order{}, false, err", "internal/order TestSoldOutMemory"},
	{"sold out because of an order that may not be committed", groupCommit, "reason = fmt.Errorf(\"%w: %w\", stock.ErrBusy, err)", "_ = reason", "internal/ledger TestFaults_GroupCommit"},
	{"sold out is remembered with a gate", service, "if gate == nil { // a gate", "if true { // a gate", "internal/order TestSoldOutMemory_Gate"},
	{"returned units are not sold at once", afterward, "s.StockChanged(skus...) // even", "_ = skus // even", "internal/order TestSoldOutMemory_Returns"},
	{"a return whose answer was lost is overlooked", afterward, "s.StockChanged(skus...) // even", "if err == nil {\n\t\ts.StockChanged(skus...)\n\t} // even", "internal/order TestSoldOutMemory_LostAnswer"},
	{"every change is taken for a return", afterward, "if c.Returns {\n\t\t\tskus", "if true {\n\t\t\tskus", "internal/order TestSoldOutMemory_LostAnswer"},
	{"nobody is told of units that return by expiry", expiryLoop, "e.returned(done.SKUs...)", "_ = done.SKUs", "internal/reconcile TestExpiryTells"},
	{"expiry does not say whose units returned", expire, "SKUs: slices.Sorted(maps.Keys(units)), ", "", "internal/ledger TestExpire/SQLite"},
	{"units are sold and their rows stay", unitRows, "tx.AtCommit(deleteUnits(tx.Dialect(), line.sku, free)...)", "_ = free", "internal/ledger/cutter TestConformance/MariaDB/unit-rows/CutsAddUp"},
	{"two refills mint the same units", unitRows, "rs, err := lock(ctx, tx, takes)", "rs, err := read(ctx, tx, takes)", "internal/ledger/cutter TestUnitRows_TwoRefills/MariaDB"},
	{"two refills mint the same units, in PostgreSQL", unitRows, "rs, err := lock(ctx, tx, takes)", "rs, err := read(ctx, tx, takes)", "internal/ledger/cutter TestUnitRows_TwoRefills/PostgreSQL"},
	{"a refill waits for units that are held", unitRows, "available+int64(len(p.locked)) >= wanted {", "false {", "internal/ledger/cutter TestUnitRows_Refill/MariaDB"},
	{"parts of another layout are taken for unit rows", unitRows, "if rs.check(line{sku: sku}, g) != nil || r.limit", "if r == nil || r.limit", "internal/ledger/cutter TestUnitRows_PartsOfAnotherLayout/PostgreSQL"},
	{"a pool that another instance has refilled counts as empty", unitRows, "case p.enough:", "case p.enough && n > 0:", "internal/ledger/cutter TestUnitRows_RefilledByAnother/PostgreSQL"},
	{"sold out though units are held", unitRows, "if p.held == 0 || available", "if true || available", "internal/ledger/cutter TestUnitRows_HeldUnits/MariaDB"},
	{"sold out though the wait for units has failed", unitRows, "return p, fmt.Errorf(\"waiting for units of %s: %w\", sku, err)", "_ = err", "internal/ledger/cutter TestUnitRows_HeldUnits/PostgreSQL"},
	{"units that cannot be locked are sold out", unitRows, "p, err := lockPool(ctx, tx, sku, r.available, wanted[sku])\n\t\tif err != nil {", "p, err := lockPool(ctx, tx, sku, r.available, wanted[sku])\n\t\tif false {", "internal/ledger/cutter TestFailures"},
	{"a database that locks nothing is used", "internal/ledger/sqltx/skiplocked.go", "case err == nil || IsLockTimeout(err):", "case false:", "internal/ledger/sqltx TestCheckSkipLocked/MariaDB"},
}
