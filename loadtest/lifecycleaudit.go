package main

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// storedOrder is an order in the ledger with its history and payments.
type storedOrder struct {
	order
	payment   *string // ID of the payment that paid the order; nil: none
	restocked bool
	early     bool                 // the order expired before its time
	history   []client.OrderStatus // the statuses after the first
	payments  map[string]string    // status of each payment, by ID
}

// holdsUnits reports whether the units of the order are cut.
func (o *storedOrder) holdsUnits() bool {
	return o.Status == "pending" || o.Status == "paid" || o.Status == "refunded" && !o.restocked
}

// paidBy reports whether the payment paid the order.
func (o *storedOrder) paidBy(payment string) bool { return o.payment != nil && *o.payment == payment }

// wasRevived reports whether a payment paid the order after it had expired.
func (o *storedOrder) wasRevived() bool {
	return slices.Contains(o.history, "expired") && slices.Contains(o.history, "paid")
}

// audit compares every answer of the load with the ledger, and gate and ledger with each other. It
// uses its own SQL and Redis commands.
func (v *lifecycleLoad) audit(ctx context.Context, r *results.Result, t terms) error {
	if err := v.awaitRest(ctx); err != nil {
		return err
	}
	for _, each := range []struct {
		sku   string
		units int64
	}{{v.goods.product, v.goods.units}, {v.goods.coupon, v.goods.coupons}} {
		if err := v.auditCounts(ctx, r, t, each.sku, each.units); err != nil {
			return err
		}
	}
	stored, err := v.stored(ctx)
	if err != nil {
		return err
	}
	v.checkOrders(stored)
	if err := v.checkClaims(ctx, stored); err != nil {
		return err
	}
	v.checkLimit()
	v.checkWindows()
	v.readAll(ctx, stored)
	r.Lifecycle = countEnds(stored)
	v.rec.addTo(r)
	judgeFindings(r)
	if r.Accepted == 0 {
		r.Fault("no order was accepted", "没有订单被接受")
	}
	return v.rec.sampleErr
}

// awaitRest waits until no order is pending any more. It gives up some time after the last order is
// due to expire. The audit then finds the remaining orders.
func (v *lifecycleLoad) awaitRest(ctx context.Context) (err error) {
	repeatUntil(ctx, v.PaymentWindow+restLimit, 50*time.Millisecond, func() bool {
		var pending int64
		err = v.sql.DB().WithContext(ctx).Raw(`SELECT COUNT(*) FROM order_lines
			JOIN orders ON orders.id = order_lines.order_id
			WHERE order_lines.sku IN ? AND orders.status = 'pending'`, []string{v.goods.product, v.goods.coupon}).Row().Scan(&pending)
		return err != nil || pending == 0
	})
	if err != nil {
		return fmt.Errorf("counting pending orders of %s: %w", v.goods.product, err)
	}
	return nil
}

// auditCounts compares orders, stock row and gate of one SKU. The product's counts become
// those of the result; oversold units of both SKUs add up.
func (v *lifecycleLoad) auditCounts(ctx context.Context, r *results.Result, t terms, sku string, units int64) error {
	one := &results.Result{Stock: units}
	if err := v.addCounts(ctx, one, sku, settled{recoveryLimit, counts.agree}); err != nil {
		return err
	}
	if one.Oversold = max(0, one.Sold-units); one.Oversold > 0 {
		r.Surprise = results.Oversell
		one.Fault("oversold %d units", "超卖 %d 件", one.Oversold)
	}
	judgeCounts(one, t)
	for i, fault := range one.Faults {
		r.AddFault(sku+": "+fault, sku+"："+one.FaultsChinese[i])
	}
	r.Oversold += one.Oversold
	if sku == v.goods.product {
		r.Sold, r.Ledger, r.Gate, r.InFlight = one.Sold, one.Ledger, one.Gate, one.InFlight
	}
	return nil
}

// stored reads the orders of the load by ID. Every order of the load contains the product.
func (v *lifecycleLoad) stored(ctx context.Context) (map[string]*storedOrder, error) {
	stored, err := v.ordersWhere(ctx, "orders.id"+withSKU, v.goods.product)
	if err != nil {
		return nil, err
	}
	return stored, cmp.Or(v.addHistory(ctx, stored), v.addPayments(ctx, stored))
}

func (v *lifecycleLoad) query(ctx context.Context, read func(*sql.Rows) error, statement string) error {
	if err := v.sql.Ledger().QueryEach(ctx, read, statement, v.goods.product); err != nil {
		return fmt.Errorf("reading the orders of %s: %w", v.goods.product, err)
	}
	return nil
}

func (v *lifecycleLoad) addHistory(ctx context.Context, stored map[string]*storedOrder) error {
	return v.query(ctx, func(rows *sql.Rows) error {
		var (
			id     uuid.UUID
			status client.OrderStatus
			early  bool
		)
		err := rows.Scan(&id, &status, &early)
		if o := stored[id.String()]; o != nil {
			o.history = append(o.history, status)
			o.early = o.early || early && status == "expired"
		}
		return err
	}, `SELECT order_history.order_id, order_history.status, COALESCE(order_history.at < orders.expires_at, FALSE)
		FROM order_history JOIN orders ON orders.id = order_history.order_id
		WHERE order_history.order_id`+withSKU+" ORDER BY order_history.order_id, order_history.version")
}

func (v *lifecycleLoad) addPayments(ctx context.Context, stored map[string]*storedOrder) error {
	return v.query(ctx, func(rows *sql.Rows) error {
		var (
			id              uuid.UUID
			payment, status string
		)
		err := rows.Scan(&id, &payment, &status)
		if o := stored[id.String()]; o != nil {
			if o.payments == nil {
				o.payments = make(map[string]string)
			}
			o.payments[payment] = status
		}
		return err
	}, "SELECT order_id, id, status FROM payments WHERE order_id"+withSKU)
}

// checkOrders compares the orders in the ledger with the answers.
func (v *lifecycleLoad) checkOrders(stored map[string]*storedOrder) {
	promised := promisedOrders(v.rec)
	for _, id := range slices.Sorted(maps.Keys(promised)) {
		want := promised[id]
		want.Status = "" // ignore the status of the 201, because the order has changed since
		o, found := stored[id]
		if !found {
			v.rec.find(results.Missing, want.String())
			continue
		}
		if kind := want.differs(o.order); kind != "" {
			v.rec.find(kind, want.String())
		}
		for _, kind := range o.check(v.calls[id]) {
			v.rec.find(kind, fmt.Sprintf("%v, %s", o.order, o.Status))
		}
	}
	unknown := make(map[string]int) // requests by buyer that may each have an order
	for _, a := range v.rec.answers {
		if a.unknown() {
			unknown[a.asked.BuyerID]++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(stored)) {
		o := stored[id]
		if _, known := promised[id]; known {
			continue
		}
		if unknown[o.BuyerID]--; unknown[o.BuyerID] < 0 {
			v.rec.find(results.Unasked, o.String())
		}
		for _, kind := range o.check(nil) {
			v.rec.find(kind, fmt.Sprintf("%v, %s", o.order, o.Status))
		}
	}
}

// ends are the statuses that an order may have at the end.
var ends = []client.OrderStatus{"paid", "cancelled", "expired", "refunded"}

// followers lists the statuses that may follow a status.
var followers = map[client.OrderStatus][]client.OrderStatus{
	"pending": {"paid", "cancelled", "expired"},
	"expired": {"paid"},
	"paid":    {"refunded"},
}

// check compares the order with the answers to the calls that tried to change it.
func (o *storedOrder) check(calls []call) (kinds []results.Kind) {
	if slices.ContainsFunc(calls, func(c call) bool { return c.status == 0 }) {
		kinds = append(kinds, results.Unanswered)
	}
	if !slices.Contains(ends, o.Status) {
		kinds = append(kinds, results.Unfinished)
	}
	if !o.explainedBy(calls) || slices.ContainsFunc(calls, o.contradicts) {
		kinds = append(kinds, results.Contradicted)
	}
	if !o.historyAllowed() {
		kinds = append(kinds, results.BadHistory)
	}
	if o.early {
		kinds = append(kinds, results.ExpiredEarly)
	}
	return append(kinds, o.checkPayments(calls)...)
}

// explainedBy reports whether the calls may have led to the order's status.
func (o *storedOrder) explainedBy(calls []call) bool {
	done := func(action, payment string) bool {
		return slices.ContainsFunc(calls, func(c call) bool {
			return c.action == action && c.payment == payment && (c.status == http.StatusOK || c.status == 0)
		})
	}
	if o.payment == nil {
		return o.Status != "paid" && o.Status != "refunded" && (o.Status != "cancelled" || done(cancel, ""))
	}
	return done(pay, *o.payment) && (o.Status == "paid" || o.Status == "refunded" && done(refund, ""))
}

// allowed lists the statuses that an order may have in the answer 200 to an action. A payment that
// paid its order is answered 200 even after a refund.
var allowed = map[string][]client.OrderStatus{pay: {"paid", "refunded"}, cancel: {"cancelled"}, refund: {"refunded"}}

// contradicts reports whether the order contradicts the answer to the call.
func (o *storedOrder) contradicts(c call) bool {
	switch {
	case c.status == 0:
		return false
	case c.status == http.StatusOK && (c.got.ID != o.ID || !slices.Contains(allowed[c.action], c.got.Status)):
		return true
	case c.status == http.StatusOK && c.action == pay:
		return !o.paidBy(c.payment)
	case c.status == http.StatusOK && c.action == cancel:
		return o.Status != "cancelled"
	case c.status == http.StatusOK:
		return o.Status != "refunded" || o.restocked != c.restock
	case c.action == pay && c.problem == client.RefundDue:
		return o.paidBy(c.payment)
	case c.action == cancel && c.problem == client.WrongStatus:
		return o.Status == "cancelled"
	}
	return true // only this answer is correct, because refunds are sent for paid orders only
}

// historyAllowed reports whether each status of the history may follow the previous one, and the
// last status is the order's.
func (o *storedOrder) historyAllowed() bool {
	status := client.OrderPending
	for _, following := range o.history {
		if !slices.Contains(followers[status], following) {
			return false
		}
		status = following
	}
	return status == o.Status
}

// checkPayments checks that every answered payment is stored once: as paid if it pays the order,
// otherwise as due back to the buyer.
func (o *storedOrder) checkPayments(calls []call) (kinds []results.Kind) {
	reported := make(map[string]bool) // whether the payment was answered, by payment
	for _, c := range calls {
		if c.action == pay {
			reported[c.payment] = reported[c.payment] || c.status != 0
		}
	}
	for id, answered := range reported {
		want := "refund-due"
		if o.paidBy(id) && o.Status == "paid" {
			want = "paid"
		}
		switch status, found := o.payments[id]; {
		case !found && (answered || o.paidBy(id)):
			kinds = append(kinds, results.LostPayment)
		case found && status != want:
			kinds = append(kinds, results.WrongPayment)
		}
	}
	for id := range o.payments {
		if _, known := reported[id]; !known {
			kinds = append(kinds, results.ExtraPayment)
		}
	}
	return kinds
}

// checkClaims compares the coupons that each buyer holds at the end with the buyer's
// claims and with the limit.
func (v *lifecycleLoad) checkClaims(ctx context.Context, stored map[string]*storedOrder) error {
	held := make(map[string]int64)
	for _, o := range stored {
		for _, line := range o.Lines {
			if line.SKU == v.goods.coupon && o.holdsUnits() {
				held[o.BuyerID] += line.Quantity
			}
		}
	}
	var claims []struct {
		BuyerID string
		Units   int64
	}
	err := v.sql.DB().WithContext(ctx).Raw("SELECT buyer_id, units FROM claims WHERE sku = ?", v.goods.coupon).Scan(&claims).Error
	if err != nil {
		return fmt.Errorf("reading the claims on %s: %w", v.goods.coupon, err)
	}
	claimed := make(map[string]int64)
	for _, c := range claims {
		claimed[c.BuyerID] = c.Units
	}
	for _, buyer := range v.buyers {
		if held[buyer] > couponLimit {
			v.rec.find(results.OverLimit, fmt.Sprintf("%q with %d at the end", buyer, held[buyer]))
		}
		if claimed[buyer] != held[buyer] {
			v.rec.find(results.WrongClaim, fmt.Sprintf("%q: holds %d, claims %d", buyer, held[buyer], claimed[buyer]))
		}
	}
	return nil
}

// windowMargin allows for a pause between the two clock readings that make up the time of an
// answer.
const windowMargin = 100 * time.Millisecond

// checkLimit checks that no buyer held more coupons than the limit at any time of the load. An
// order holds its coupon from its 201 on. An order may release its units when the first call that
// changes the order is sent, or when the payment window has passed since the request.
func (v *lifecycleLoad) checkLimit() {
	type change struct {
		at    time.Duration
		units int
	}
	changes := make(map[string][]change) // changes by buyer
	for _, a := range v.rec.answers {
		if a.outcome != accepted || len(a.asked.Lines) == 1 {
			continue
		}
		until := a.at - a.Took + v.PaymentWindow - windowMargin
		for _, c := range v.calls[a.order.ID] {
			until = min(until, c.sent)
		}
		if until > a.at {
			changes[a.asked.BuyerID] = append(changes[a.asked.BuyerID], change{a.at, 1}, change{until, -1})
		}
	}
	for _, buyer := range v.buyers {
		slices.SortFunc(changes[buyer], func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), a.units-b.units) })
		held, most := 0, 0
		for _, c := range changes[buyer] {
			held += c.units
			most = max(most, held)
		}
		if most > couponLimit {
			v.rec.find(results.OverLimit, fmt.Sprintf("%q with %d during the load", buyer, most))
		}
	}
}

// checkWindows checks that every 201 gave the order the payment window of the instances.
func (v *lifecycleLoad) checkWindows() {
	for _, a := range v.rec.answers {
		if a.outcome != accepted {
			continue
		}
		var window time.Duration
		if a.order.ExpiresAt != nil {
			window = a.order.ExpiresAt.Sub(a.order.CreatedAt)
		}
		if window != v.PaymentWindow {
			v.rec.find(results.WrongWindow, fmt.Sprintf("%v, after %v instead of %v", a.order, window, v.PaymentWindow))
		}
	}
}

// readAll compares every order in the ledger with the service's GET.
func (v *lifecycleLoad) readAll(ctx context.Context, stored map[string]*storedOrder) {
	orders := make(map[string]order, len(stored))
	for id, o := range stored {
		orders[id] = o.order
	}
	for _, a := range v.rec.answers { // GET must show the same expiry time as the 201
		if o, found := orders[a.order.ID]; found && a.outcome == accepted {
			o.ExpiresAt = a.order.ExpiresAt
			orders[o.ID] = o
		}
	}
	v.readBack(ctx, orders, v.fleet.url(0))
}

// countEnds counts the ends of the orders and their payments.
func countEnds(stored map[string]*storedOrder) *results.Lifecycle {
	l := &results.Lifecycle{}
	for _, o := range stored {
		l.Orders++
		switch o.Status {
		case "paid":
			l.Paid++
		case "cancelled":
			l.Cancelled++
		case "expired":
			l.Expired++
		case "refunded":
			l.Refunded++
		}
		if o.wasRevived() {
			l.Revived++
		}
		for _, status := range o.payments {
			l.Payments++
			if status == "refund-due" {
				l.RefundsDue++
			}
		}
	}
	return l
}
