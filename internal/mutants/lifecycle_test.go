//go:build mutants

package mutants

const (
	orderStatus = "internal/order/status.go"
	afterward   = "internal/order/lifecycle.go"
	changes     = "internal/ledger/lifecycle.go"
	returns     = "internal/ledger/returns.go"
)

// lifecycle has mutants of what happens to an order after it was placed.
var lifecycle = []mutant{
	{"a paid order is cancelled", orderStatus, "{ledger.Pending, cancel, ledger.Cancelled, true}", "{ledger.Paid, cancel, ledger.Cancelled, true}", "internal/order TestTransitions"},
	{"a payment revives a cancelled order", orderStatus, "{ledger.Expired, revive, ledger.Paid, false}", "{ledger.Cancelled, revive, ledger.Paid, false}", "internal/order TestPay"},
	{"a payment is forgotten when the order has expired", orderStatus, "return ledger.Change{PaymentID: payment, PaymentStatus: ledger.PaymentRefundDue}, nil", "return ledger.Change{}, nil", "internal/order TestPay"},
	{"a payment is paid by its repeat", orderStatus, "if s.Payment != nil {", "if false {", "internal/order TestAllOrdersOfEvents"},
	{"a due order is paid", orderStatus, "case ok && s.Due:", "case false:", "internal/protocol TestLifecycle/SQLite"},
	{"the payment of a refunded order is kept", orderStatus, "c.PaymentID, c.PaymentStatus = s.Order.PaymentID, ledger.PaymentRefundDue", "_ = c", "internal/order TestAllOrdersOfEvents"},
	{"a late payment cuts no units", afterward, "return s.ledger.Revive(ctx, expired, t, payment)",
		"t.Lines = nil\n\t\treturn s.ledger.Revive(ctx, expired, t, payment)", "internal/order TestPay"},
	{"returned units stay away from the gate", afterward, "s.reconciler.Returned(ctx, o.SKUs()...)", "_ = o", "internal/order TestAllOrdersOfEvents"},
	{"units return without a change in the outbox", returns, "if l.hasGate || !l.Generation().Holds(row.Epoch) {", "if false {", "internal/protocol TestLifecycle/SQLite"},
	{"a claim is not lowered", returns, "if row.BuyerLimit == 0 {", "if true {", "internal/ledger TestChange_LowersClaim/SQLite"},
	{"the stock rows are locked after the order", changes, "if ask.Returns {", "if _, err := lockOrder(ctx, tx, *o, \"\"); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tif ask.Returns {", "internal/ledger TestChange_LocksStockFirst/MariaDB"},
	{"an order is due by the instance's clock", changes, "COALESCE(expires_at <= \"+tx.Dialect().Now()+\", FALSE)", "COALESCE(expires_at <= '\"+time.Now().Add(time.Hour).UTC().Format(\"2006-01-02 15:04:05\")+\"', FALSE)", "internal/ledger TestChange_Due/SQLite"},
	{"a resolved revival commits all the same", changes, "if affected[0] == 0 {", "if affected[0] < 0 {", "internal/ledger TestRevive_Barred/SQLite"},
	{"a history runs backwards", "internal/order/service.go", "step.At.Before(before)", "step.At.IsZero()", "internal/order TestOrder_HistoryInOrder"},
	{"a refused order's take is settled", lookup, "case o.Holds(d.TakeID):", "case o.Status != Void && o.TakeID == d.TakeID:", "internal/ledger TestResolve/SQLite"},
	{"a revival is resolved by reading", changes, "return o.Status == Expired || o.Status == Void", "return o.Status == Void", "internal/ledger TestRevive_Barred/SQLite"},
}
