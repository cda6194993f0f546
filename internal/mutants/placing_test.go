//go:build mutants

package mutants

const (
	service     = "internal/order/service.go"
	ledger      = "internal/order/ledger.go"
	stockrow    = "internal/order/stockrow.go"
	recovery    = "internal/order/recovery.go"
	refill      = "internal/order/refill.go"
	rows        = "internal/stock/cutter/rows.go"
	merged      = "internal/stock/cutter/merged.go"
	conditional = "internal/stock/cutter/conditional.go"
	optimistic  = "internal/stock/cutter/optimistic.go"
)

// placing are mutants of orders on their way: the service, the ledger and the cutters.
var placing = []mutant{
	{"one more than there is, in one UPDATE", merged, "sql += \" AND available >= ?\"", "sql += \" AND available + 1 >= ?\"", "internal/stock/cutter TestConformance/SQLite/merged/LastUnits"},
	{"one more than there is, under a row lock", rows, "available < line.Quantity", "available+1 < line.Quantity", "internal/stock/cutter TestConformance/SQLite/for-update/LastUnits"},
	{"the last unit kept back", rows, "available < line.Quantity", "available <= line.Quantity", "internal/stock/cutter TestConformance/SQLite/for-update/LastUnits"},
	{"answer before commit", service, "err := s.ledger.Record(ctx, e, d)",
		"var err error\n\tgo func() { _ = s.ledger.Record(context.WithoutCancel(ctx), e, d) }()", "internal/order TestNoAnswerBeforeCommit/SQLite"},
	{"refill without a new epoch", stockrow, "row.Epoch = max(row.Epoch, above) + 1", "row.Epoch = max(row.Epoch, above)", "internal/order TestTakeOutlivesRefill/SQLite"},
	{"refill below the gate's epoch", stockrow, "row.Epoch = max(row.Epoch, above) + 1", "row.Epoch++", "internal/order TestRestoredLedger/SQLite"},
	{"epoch not demanded", rows, "line.Epoch != 0 && r.epoch != line.Epoch", "false", "internal/stock/cutter TestConformance/SQLite/for-update/StaleEpochAlone"},
	{"epoch not demanded in one UPDATE", merged, "if line.Epoch != 0 {\n\t\tsql +=", "if false {\n\t\tsql +=", "internal/order TestTakeOutlivesRefill/SQLite"},
	{"one more than there is, in one UPDATE of several SKUs", merged, "text.WriteString(\" AND available >= ?\")", "text.WriteString(\" AND available + 1 >= ?\")", "internal/stock/cutter TestConformance/SQLite/merged/AllLinesOrNone"},
	{"epoch not demanded in one UPDATE of several SKUs", merged, "if of.epoch != 0 {\n\t\t\ttext", "if false {\n\t\t\ttext", "internal/stock/cutter TestConformance/SQLite/merged/EpochOfEveryLine"},
	{"layout not demanded", rows, "r.layout != layout", "false", "internal/stock/cutter TestConformance/SQLite/for-update/OtherLayout"},
	{"unknown commit resolved by reading", ledger,
		"(recorded bool, err error) {",
		"(recorded bool, err error) {\n\tif found, err := entries(l.db.WithContext(ctx), []uuid.UUID{d.OrderID}); err == nil {\n\t\te := found[d.OrderID]\n\t\treturn e != nil && e.Status != Void && e.takeID == d.TakeID, nil\n\t}",
		"internal/order TestCommitInLimbo/PostgreSQL/lua"},
	{"recovery settles a void", ledger, "return e.Status != Void && e.takeID == d.TakeID, nil", "return e.takeID == d.TakeID, nil", "internal/order TestRecovery/SQLite"},
	{"recovery settles another take's order", ledger, "return e.Status != Void && e.takeID == d.TakeID, nil", "return e.Status != Void, nil", "internal/order TestRecovery/SQLite"},
	{"recovery does not wait for the deadline", recovery, "s.gate.InFlight(ctx, s.takeDeadline,", "s.gate.InFlight(ctx, 0,", "internal/order TestYoungTakesAreLeft"},
	{"line 1 kept when line 2 fails", conditional, "giveBack(tx, d.Lines[:n])", "giveBack(tx, d.Lines[:min(n, 0)])", "internal/stock/cutter TestConformance/SQLite/conditional/AllLinesOrNone"},
	{"a taken primary key answered as sold out", ledger, "r.answer = &existing{e}", "_, r.answer = e, stock.Refuse(r.deduction.Lines[0].SKU, stock.ErrSoldOut)", "internal/order TestSlowTwin/SQLite"},
	{"a refused key is not looked up", service, `if r.Key != "" {
		e, err := s.findKeyed`, `if false {
		e, err := s.findKeyed`, "internal/order TestKeys/SQLite"},
	{"a key keeps its void order", service, "generation++ // a void", "// a void", "internal/order TestSlowTwin/SQLite"},
	{"a lost take is left alone", service, "s.give(ctx, d)\n\t\t\t\treturn Order{}, fmt.Errorf(\"%w: taking", "return Order{}, fmt.Errorf(\"%w: taking", "internal/order TestLostTakeAnswer/SQLite"},
	{"compensation on the request's context", service, "context.WithTimeout(context.WithoutCancel(ctx), compensationTimeout)", "context.WithTimeout(ctx, compensationTimeout)", "internal/order TestCompensationOutlivesTheRequest/SQLite"},
	{"a refused order's units stay at the gate", service, "s.give(ctx, d)\n\tif s.gate != nil && errors.Is", "if s.gate != nil && errors.Is", "internal/order TestNoAnswerBeforeCommit/SQLite"},
	{"a guard refusal proves nothing", service, "s.disbelieve(ctx, d, skuOf(err))", "", "internal/order TestGuardRefusal/SQLite"},
	{"drift is left alone", recovery, "if before[sku] != now {", "if before[sku] != now || true {", "internal/order TestDrift/SQLite"},
	{"a gap between changes is nothing", refill, "case errors.Is(err, stock.ErrChangeGap):", "case false:", "internal/order TestAdditionOnce/SQLite"},
	{"one bad order fails its group", ledger, "case store.IsStatementError(err):\n\t\t\trs = l.divide(rs, err)", "case store.IsStatementError(err):\n\t\t\tfail(rs, fmt.Errorf(\"%w: %w\", stock.ErrBusy, err))\n\t\t\treturn", "internal/order TestPoisonedGroup/MariaDB/merged"},
	{"a moved version is cut all the same", optimistic, "return nil, stock.ErrConflict", "continue", "internal/stock/cutter TestConformance/MariaDB/optimistic/CutsAddUp"},
}
