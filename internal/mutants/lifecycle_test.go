//go:build mutants

package mutants

const (
	revival     = "internal/ledger/revive.go"
	paying      = "internal/order/payment.go"
	orderStatus = "internal/order/transitions.go"
	afterward   = "internal/order/lifecycle.go"
	changes     = "internal/ledger/lifecycle.go"
	returns     = "internal/ledger/returns.go"

	ledgerPayments = "internal/ledger/payments.go"
)

// lifecycle has mutants of payments, cancellations, refunds and expiry.
var lifecycle = []mutant{
	{"payments that do not pay are not counted", paying, "s.metrics.changes.WithLabelValues(refundDue).Inc()", "", "internal/order TestMetrics"},
	{"payments that pay are not counted", paying, "s.metrics.changes.WithLabelValues(string(o.Status)).Inc()", "", "internal/order TestMetrics"},
	{"refunds are not counted", afterward, "s.metrics.changes.WithLabelValues(string(o.Status)).Inc()", "", "internal/order TestMetrics"},
	{"a paid order is cancelled", orderStatus, "{Pending, cancel, Cancelled, true}", "{Paid, cancel, Cancelled, true}", "internal/order TestTransitions"},
	{"a payment revives a cancelled order", orderStatus, "{Expired, revive, Paid, false}", "{Cancelled, revive, Paid, false}", "internal/order TestPay"},
	{"a payment is forgotten when the order has expired", orderStatus, "return Transition{PaymentID: payment, PaymentStatus: PaymentRefundDue}, nil", "return Transition{}, nil", "internal/order TestPay"},
	{"a payment is paid by its repeat", orderStatus, "if l.Payment != nil {", "if false {", "internal/order TestAllOrdersOfEvents"},
	{"a due order is paid", orderStatus, "case ok && l.Due:", "case false:", "internal/protocol TestLifecycle/SQLite"},
	{"the payment of a refunded order is kept", orderStatus, "c.PaymentID, c.PaymentStatus = l.Order.PaymentID, PaymentRefundDue", "_ = c", "internal/order TestAllOrdersOfEvents"},
	{"a late payment does not wait for its own units", paying, "if !errors.Is(out.Reason(), stock.ErrSoldOut) {", "if true {", "internal/protocol TestLatePayment_Undelivered"},
	{"a late payment finds a gate that is being refilled", outbox, "if left > 0 || r.differ(row, level) {", "if false && (left > 0 || r.differ(row, level)) {", "internal/protocol TestLatePayment_Undelivered"},
	{"a late payment finds a gate from before another instance's refill", outbox, "if left > 0 || r.differ(row, level) {", "if left > 0 || false && r.differ(row, level) {", "internal/reconcile TestCatchUpMeetsARefill"},
	{"a late payment finds a gate that was filled without an addition", outbox, "if left > 0 || r.differ(row, level) {", "if false && left > 0 || r.differ(row, level) {", "internal/reconcile TestCatchUpMeetsARefill"},
	{"a late payment does not check the gate after its own refill", outbox, "cmp.Or(r.Refill(ctx, sku), error(stock.Refuse(sku, stock.ErrNotFilled)))", "r.Refill(ctx, sku)", "internal/reconcile TestCatchUpMeetsARefill"},
	{"a late payment for a SKU without a stock row is never recorded", paying, "case stock.Final(err): // the SKU", "case false: // the SKU", "internal/protocol TestLatePayment_NoStockRow"},
	{"a late payment cuts no units", paying, "return s.ledger.Revive(ctx, expired, t, payment)",
		"t.Lines = nil\n\t\treturn s.ledger.Revive(ctx, expired, t, payment)", "internal/order TestPay"},
	{"a take of the administrator is changed", changes, "|| o.Status == shrink ", "", "internal/ledger TestShrinkIsNoOrder/SQLite"},
	{"another buyer's order is changed", changes, " || cmp.Or(options.Buyer, o.Buyer) != o.Buyer", "", "internal/ledger TestFaults_Change"},
	{"another buyer's queued order is in progress", "internal/order/service.go", "case found.Status == Void, buyer != \"\" && buyer != found.Buyer:", "case found.Status == Void:", "internal/order TestCancel_AnotherBuyer"},
	{"returned units stay away from the gate", afterward, "s.reconciler.BringToGate(ctx, returned...)", "_ = returned", "internal/order TestAllOrdersOfEvents"},
	{"changes leave the outbox in any order", "internal/ledger/outbox.go", "cmp.Or(cmp.Compare(a.SKU, b.SKU), ", "cmp.Or(", "internal/ledger TestFaults_AppliedInOrder"},
	{"units return without a change in the outbox", returns, "if forSale > 0 && (l.hasGate || stock.GenerationOf(row.Epoch) != l.Generation()) {", "if false {", "internal/protocol TestLifecycle/SQLite"},
	{"a claim is not lowered", returns, "if row.BuyerLimit == 0 {", "if true {", "internal/ledger TestChange_LowersClaim/SQLite"},
	{"the stock rows are locked after the order", changes, "var rows []StockRow\n\t\tif len(skus) > 0 {", "var rows []StockRow\n\t\tif _, err := lockOrder(ctx, tx, found, \"\"); err != nil {\n\t\t\treturn err\n\t\t}\n\t\tif len(skus) > 0 {", "internal/ledger TestChange_LocksStockFirst/MariaDB"},
	{"an order is due by the instance's clock", expire, "<= \" + d.Now() + \", FALSE)\"", "<= '\" + time.Now().Add(time.Hour).UTC().Format(\"2006-01-02 15:04:05\") + \"', FALSE)\"", "internal/ledger TestChange_Due/SQLite"},
	{"a resolved revival commits anyway", revival, "if updated[0] == 0 {", "if updated[0] < 0 {", "internal/ledger TestRevive_Blocked/SQLite"},
	{"a history runs backwards", "internal/order/service.go", "step.At.Before(before)", "step.At.IsZero()", "internal/order TestOrder_History"},
	{"a repeated change is answered from the primary alone", changes, "err = cmp.Or(l.db.Confirm(ctx), err)", "_ = cmp.Or(err)", "internal/ledger TestAnswersWaitForTheStandby"},
	{"a repeated change is answered though the standby has not confirmed", changes, "err = cmp.Or(l.db.Confirm(ctx), err)", "_ = cmp.Or(l.db.Confirm(ctx), err)", "internal/ledger TestAnswersWaitForTheStandby"},
	{"a refused change is answered from the primary alone", changes, "decided = err != nil || c == (order.Transition{}); decided", "decided = err == nil && c == (order.Transition{}); decided || err != nil", "internal/ledger TestAnswersWaitForTheStandby"},
	{"payments are listed from the primary alone", ledgerPayments, "if err == nil && len(page) > 0 {", "if err == nil && len(page) < 0 {", "internal/ledger TestAnswersWaitForTheStandby"},
	{"a repeated refunded is answered from the primary alone", ledgerPayments, "if err == nil && changed == 0 {", "if err == nil && changed < 0 {", "internal/ledger TestAnswersWaitForTheStandby"},
	{"a repeated refunded changes the payment", ledgerPayments, "WHERE id = ? AND status = ?\",\n\t\t\tstring(order.PaymentRefunded), id, string(order.PaymentRefundDue))", "WHERE id = ? AND status <> ?\",\n\t\t\tstring(order.PaymentRefunded), id, string(order.PaymentPaid))", "internal/ledger TestOrders/SQLite"},
	{"a refused order's take is settled", resolving, "case o.Holds(d.TakeID):", "case o.Status != order.Void && o.TakeID == d.TakeID:", "internal/ledger TestResolve/SQLite"},
	{"a revival does not look for the first take in all segments", paying, "Lines: expired.Lines, Again: true}", "Lines: expired.Lines}", "internal/protocol TestLatePaymentBeforeTheSettle/SQLite"},
	{"an order is taken again beside its first take", "internal/stock/gate/segmentedgate.go", "if d.Again {", "if false {", "internal/stock/gate TestTakenAgain/InProcess"},
	{"the ledger forgets the first take of a revived order", "internal/order/order.go", "(o.TakeID == take || follows(o.TakeID, take))", "o.TakeID == take", "internal/ledger TestRevive_EarlierTake/SQLite"},
	{"any take precedes that of a revival", "internal/order/order.go", "bytes.HasPrefix(take[:], hash[:])", "bytes.HasPrefix(take[:], hash[:0])", "internal/ledger TestRevive_EarlierTake/SQLite"},
	{"two revivals of an order have one take", "internal/order/order.go", "id, hash := uuid.New(), hashOf(o.TakeID)", "id, hash := uuid.Nil, hashOf(o.TakeID)", "internal/ledger TestRevive_EarlierTake/SQLite"},
	{"a revival has a take of its own", paying, "TakeID: expired.NextTake()", "TakeID: uuid.New()", "internal/order TestRevive_FirstTakeInFlight"},
	{"a late payment does not wait for the first take", paying, "errors.Is(reason, stock.ErrInFlight): //", "false: //", "internal/order TestRevive_FirstTakeInFlight"},
	{"a late payment of unknown outcome was not recorded", paying, "return Order{}, fmt.Errorf(\"%w: %w\", stock.ErrUnavailable, reason)", "return Order{}, stock.Busy(reason)", "internal/order TestFailures"},
	{"a report of a payment that is recorded meanwhile fails", paying, "case errors.Is(err, stock.ErrRowChanged): // another report", "case false: // another report", "internal/order TestPay_TwoReportsAtOnce/pending"},
	{"a refused change does not show the order", changes, "return state.Order, nil, fmt.Errorf", "return order.Order{}, nil, fmt.Errorf", "internal/ledger TestChange_Refused"},
	{"a payment of two orders at once fails", changes, "case options.Payment != \"\" && sqltx.IsDuplicate(err):", "case false:", "internal/ledger TestChange_PaymentOfTwoOrders/MariaDB"},
	{"additions of a change that was rolled back go to the gate", changes, "returned = nil // those of an earlier try were rolled back", "", "internal/ledger TestFaults_ReturnedByTheLastTry/change"},
	{"a change that was rolled back may have been made", transacting, "return stock.Busy(err)", "return stock.ErrUnavailable", "internal/ledger TestFaults_AlwaysRolledBack/change"},
	{"a change whose commit was not answered was not made", transacting, "\t\t\treturn err\n\t\t}\n\t\tl.metrics", "\t\t\tif errors.Is(err, sqltx.ErrUnknownOutcome) {\n\t\t\t\treturn stock.Busy(err)\n\t\t\t}\n\t\t\treturn err\n\t\t}\n\t\tl.metrics", "internal/ledger TestFaults_Change"},
	{"a revival is resolved by reading", resolving, "o.Status == order.Expired {", "o.Status == order.Expired && false {", "internal/ledger TestRevive_Blocked/SQLite"},
	{"returned units keep the version", returns, "\t\tforSale := row.add(n)\n\t\trow.Version++\n", "\t\tforSale := row.add(n)\n", "internal/ledger TestFaults_Change/Change_cancels"},
	{"units return to an owner with a gate without an addition", returns, "if forSale > 0 && (l.hasGate || stock.GenerationOf(row.Epoch) != l.Generation()) {", "if forSale > 0 && l.hasGate {", "internal/ledger TestFaults_Change/Change_cancels_an_order_that_is_not_adopted_without_a_gate"},
	{"the history of an order has later changes", "internal/ledger/orders.go", "ORDER BY version\", l.db.Dialect().UUID(id), version)", "ORDER BY version\", l.db.Dialect().UUID(id), version+1)", "internal/ledger TestExpire/SQLite"},
	{"the youngest refund that is due counts as the oldest", ledgerPayments, "MIN(changed_at)", "MAX(changed_at)", "internal/ledger TestRefundsDue/SQLite"},
	{"a late payment does not wait between its tries", paying, "\t\tretry.Wait(ctx, try)\n\t}\n\treturn Order{}, stock.Busy", "\t}\n\treturn Order{}, stock.Busy", "internal/order TestRevive_FirstTakeInFlight"},
	{"a refund that returns units is not marked", orderStatus, "o.Restocked = c.Returns", "_ = c.Returns", "internal/order TestApply"},
	{"a payment that changes no order changes its status", orderStatus, "\tif c.To == \"\" {\n\t\treturn\n\t}\n", "", "internal/order TestApply"},
	{"an order expires before its time", orderStatus, "\tif !l.Due {\n\t\treturn Transition{}\n\t}\n", "", "internal/order TestExpiry"},
	{"a change brings back the take that its order had when it was read", changes, "[]any{&o.TakeID, &o.Status", "[]any{new(uuid.UUID), &o.Status", "internal/ledger TestRevive_EarlierTake/SQLite"},
	{"a change forgets a payment that was recorded after its order was read", changes, "\to.PaymentID = paidBy.String\n", "", "internal/ledger TestRevive_EarlierTake/SQLite"},
	{"a refund always returns the units", orderStatus, "c.Returns = c.Returns && restock", "_ = restock", "internal/order TestOnRefund"},
	{"a revival counts towards nobody's buyer limit", paying, "Buyer: expired.Buyer, Lines", "Lines", "internal/order TestPay"},
	{"a late payment refills only one SKU", paying, "s.reconciler.PrepareRetry(ctx, reason, found.SKUs()...)", "s.reconciler.PrepareRetry(ctx, reason, found.SKUs()[:1]...)", "internal/order TestPay"},
	{"only the first SKU of a returned order is sold again at once", afterward, "s.StockChanged(o.SKUs()...)", "s.StockChanged(o.SKUs()[:min(1, len(o.Lines))]...)", "internal/order TestSoldOutMemory_Returns"},
}
