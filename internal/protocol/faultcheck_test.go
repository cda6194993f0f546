package protocol

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// exchange is a request and its answer.
type exchange struct {
	order.Request
	reply
	sent, answered time.Time
}

// storedOrder is an order in the ledger.
type storedOrder struct {
	id     uuid.UUID
	buyer  string
	status order.Status
	lines  []stock.Line
}

func (r storedOrder) live() bool { return r.status == order.Pending || r.status == order.Paid }

// skuCounts are the counts of one SKU in the ledger and at the gate, read while no
// request is under way.
type skuCounts struct {
	ledgerCounts
	gate      *stock.Level // nil without a gate
	totals    []int64      // the totals that may be correct
	epochRise int64        // number of epochs since the stock was added
}

// evidence is the state after a run and its sweeps. Every key has its own buyer, and so has every
// request without a key.
type evidence struct {
	answers []exchange
	records []storedOrder
	counts  map[stock.SKU]skuCounts
	sound   bool // the strategy is sound: no unit is sold twice, and the counts agree
	guarded bool // the strategy has a guard: no unit is sold twice
	// redisIntact is true if Redis answered every command, so no count may be refilled.
	redisIntact bool
	queued      int64 // orders in the journal
	// queueLost is true if Redis may have lost queued orders permanently.
	queueLost bool
	// takenOver is true if instances of another strategy took over the stock. The earlier instances
	// then answer that they are superseded.
	takenOver bool
}

// check returns an error for every broken promise.
func (e evidence) check() error {
	return errors.Join(e.checkOrders(), e.checkRefusals(), e.checkCounts(), e.checkJournal())
}

// checkOrders checks what no sweep corrects once the journal is empty.
func (e evidence) checkOrders() error {
	return errors.Join(e.checkAccepted(), e.checkFresh(), e.checkReplays(), e.checkOneLive())
}

// checkJournal checks that every queued order has reached its final state.
func (e evidence) checkJournal() error {
	if e.queued != 0 {
		return fmt.Errorf("the journal still has %d orders", e.queued)
	}
	return nil
}

// checkAccepted checks that every accepted order is in the ledger with the buyer and the lines of
// its request, and that all requests with one key got the same order. An order that was answered
// while it was queued may be refused in the end. Then its key may get another order.
func (e evidence) checkAccepted() error {
	var errs []error
	first := make(map[string]uuid.UUID)
	for _, a := range e.answers {
		if a.err != nil {
			continue
		}
		i := slices.IndexFunc(e.records, func(r storedOrder) bool { return r.id == a.order.ID })
		switch {
		case e.mayBeGone(a, i):
			continue
		case i < 0:
			errs = append(errs, fmt.Errorf("accepted, but not in the ledger: order %s of %s", a.order.ID, a.Buyer))
			continue
		case !e.records[i].live():
			errs = append(errs, fmt.Errorf("accepted, but %s in the ledger: order %s of %s", e.records[i].status, a.order.ID, a.Buyer))
		case e.records[i].buyer != a.Buyer || a.order.Buyer != a.Buyer:
			errs = append(errs, fmt.Errorf("order %s of %s has the buyer %s in its answer and %s in the ledger", a.order.ID, a.Buyer, a.order.Buyer, e.records[i].buyer))
		case !slices.Equal(e.records[i].lines, a.Lines) || !slices.Equal(a.order.Lines, a.Lines):
			errs = append(errs, fmt.Errorf("order %s of %s asked for %v, has %v in its answer and %v in the ledger", a.order.ID, a.Buyer, a.Lines, a.order.Lines, e.records[i].lines))
		}
		if before, ok := first[a.Buyer]; ok && before != a.order.ID {
			errs = append(errs, fmt.Errorf("%s got order %s and order %s for one key", a.Buyer, before, a.order.ID))
		}
		first[a.Buyer] = a.order.ID
	}
	return errors.Join(errs...)
}

// mayBeGone reports whether the order of an answer may have ended: it was queued, and then refused
// or lost. i is the index of its record, or negative if there is none.
func (e evidence) mayBeGone(a exchange, i int) bool {
	refused := i >= 0 && e.records[i].status == order.TurnedDown
	return a.order.Status == order.Queued && (refused || e.queueLost && (i < 0 || !e.records[i].live()))
}

// checkFresh checks that a key gets at most one answer with a new order. A queued order
// is left out: another request may be committed at the same moment.
func (e evidence) checkFresh() error {
	var errs []error
	fresh := make(map[string]int)
	for _, a := range e.answers {
		if a.err == nil && !a.replayed && a.order.Status != order.Queued {
			fresh[a.Buyer]++
		}
	}
	for buyer, n := range fresh {
		if n > 1 {
			errs = append(errs, fmt.Errorf("%s got %d answers with a new order for one key", buyer, n))
		}
	}
	return errors.Join(errs...)
}

// checkReplays checks that a request that was sent after its key's order had been answered
// gets this order as a replay.
func (e evidence) checkReplays() error {
	var errs []error
	for _, a := range e.answers {
		if a.err != nil || a.replayed {
			continue
		}
		earlier := func(b exchange) bool {
			return b.Buyer == a.Buyer && b.err == nil && b.answered.Before(a.sent) && b.order.ID == a.order.ID && (b.order.Status != order.Queued || !e.queueLost)
		}
		if slices.ContainsFunc(e.answers, earlier) {
			errs = append(errs, fmt.Errorf("%s was answered with order %s, and then with the same one as a new order", a.Buyer, a.order.ID))
		}
	}
	return errors.Join(errs...)
}

// checkOneLive checks that no key, and no request without a key, has more than one
// live order.
func (e evidence) checkOneLive() error {
	var errs []error
	live := make(map[string][]uuid.UUID)
	for _, r := range e.records {
		if r.live() {
			live[r.buyer] = append(live[r.buyer], r.id)
		}
	}
	for buyer, ids := range live {
		if len(ids) > 1 {
			errs = append(errs, fmt.Errorf("%s has %d live orders: %v", buyer, len(ids), ids))
		}
	}
	return errors.Join(errs...)
}

// checkRefusals checks that a buyer has no live order if every request was refused.
// An unavailable answer leaves the outcome open.
func (e evidence) checkRefusals() error {
	var errs []error
	open := make(map[string]bool)
	last := make(map[string]error)
	for _, a := range e.answers {
		switch {
		case a.err == nil, errors.Is(a.err, stock.ErrUnavailable):
			open[a.Buyer] = true
		case errors.Is(a.err, stock.ErrBusy), errors.Is(a.err, order.ErrInProgress), errors.Is(a.err, stock.ErrSoldOut):
		case e.takenOver && errors.Is(a.err, stock.ErrSuperseded):
		default:
			errs = append(errs, fmt.Errorf("%s got an unexpected error: %w", a.Buyer, a.err))
		}
		last[a.Buyer] = a.err
	}
	for _, r := range e.records {
		if err, ok := last[r.buyer]; ok && r.live() && !open[r.buyer] {
			errs = append(errs, fmt.Errorf("%s was refused with %q, but order %s is %s", r.buyer, err, r.id, r.status))
		}
	}
	return errors.Join(errs...)
}

// checkCounts checks that the counts of ledger and gate agree with the orders, that
// nothing is in flight, and that no unit is sold twice.
func (e evidence) checkCounts() error {
	var errs []error
	sold := make(map[stock.SKU]int64)
	for _, r := range e.records {
		if r.live() {
			for _, line := range r.lines {
				sold[line.SKU] += line.Quantity
			}
		}
	}
	for sku, c := range e.counts {
		fault := func(format string, args ...any) {
			errs = append(errs, fmt.Errorf("%s: %s; ledger %+v, orders of %d units, gate %+v", sku, fmt.Sprintf(format, args...), c.ledgerCounts, sold[sku], c.gate))
		}
		if (e.sound || e.guarded) && sold[sku] > c.total {
			fault("%d oversold", sold[sku]-c.total)
		}
		if !slices.Contains(c.totals, c.total) {
			fault("the total is none of %v", c.totals)
		}
		if !e.sound {
			continue
		}
		if c.available+sold[sku] != c.total {
			fault("the ledger's counts do not add up")
		}
		if c.gate == nil {
			continue
		}
		if e.redisIntact && c.epochRise != 0 {
			fault("refilled %d times, but Redis answered every command", c.epochRise)
		}
		if c.gate.InFlight != 0 {
			fault("units in flight after the sweeps")
		}
		if c.gate.Available+c.gate.InFlight+sold[sku] != c.total {
			fault("the gate's counts do not add up")
		}
	}
	return errors.Join(errs...)
}

// TestFaultsChecker checks that the checker accepts the evidence of a correct run, and finds each
// fault that the test adds to it.
func TestFaultsChecker(t *testing.T) {
	t.Parallel()
	const sku = stock.SKU("a")
	bought, paid := uuid.New(), uuid.New()
	line := []stock.Line{{SKU: sku, Quantity: 2}}
	sound := func() evidence {
		placed := func(id uuid.UUID, buyer string) order.Order {
			return order.Order{ID: id, Buyer: buyer, Status: order.Pending, Lines: line}
		}
		waited := placed(uuid.New(), "queued")
		waited.Status = order.Queued
		return evidence{
			answers: []exchange{
				{Request: order.Request{Buyer: "with-key", Key: "k", Lines: line}, reply: reply{order: placed(bought, "with-key")}},
				{Request: order.Request{Buyer: "with-key", Key: "k", Lines: line}, reply: reply{order: placed(bought, "with-key"), replayed: true}},
				{Request: order.Request{Buyer: "with-key", Key: "k", Lines: line}, reply: reply{err: order.ErrInProgress}},
				{Request: order.Request{Buyer: "without-key", Lines: line}, reply: reply{order: placed(paid, "without-key")}},
				{Request: order.Request{Buyer: "late", Lines: line}, reply: reply{err: stock.Refuse(sku, stock.ErrSoldOut)}},
				{Request: order.Request{Buyer: "refused", Lines: line}, reply: reply{err: stock.ErrBusy}},
				{Request: order.Request{Buyer: "queued", Key: "k", Lines: line}, reply: reply{order: waited}},
			},
			records: []storedOrder{
				{bought, "with-key", order.Pending, line},
				{paid, "without-key", order.Paid, line},
				{uuid.New(), "refused", order.Void, nil},
				{waited.ID, "queued", order.TurnedDown, line},
			},
			counts: map[stock.SKU]skuCounts{sku: {
				ledgerCounts: ledgerCounts{total: 5, available: 1}, gate: &stock.Level{SKU: sku, Filled: true, Available: 1}, totals: []int64{5},
			}},
			sound: true, redisIntact: true,
		}
	}
	if err := sound().check(); err != nil {
		t.Errorf("the correct run: %v", err)
	}
	lost := sound()
	lost.queueLost, lost.takenOver = true, true
	lost.records, lost.answers[5].err = lost.records[:3], stock.ErrSuperseded
	if err := lost.check(); err != nil {
		t.Errorf("the correct run after Redis lost a queued order, and another strategy took over: %v", err)
	}
	count := func(e *evidence, change func(c *skuCounts)) {
		c := e.counts[sku]
		change(&c)
		e.counts[sku] = c
	}
	for _, test := range []struct {
		fault string
		add   func(e *evidence)
	}{
		{"accepted, but not in the ledger", func(e *evidence) { e.records = e.records[1:] }},
		{"accepted, but void", func(e *evidence) { e.records[0].status = order.Void }},
		{"has the buyer", func(e *evidence) { e.records[0].buyer = "without-key" }},
		{"has the buyer", func(e *evidence) { e.answers[0].order.Buyer = "without-key" }},
		{"asked for", func(e *evidence) { e.records[1].lines = nil }},
		{"asked for", func(e *evidence) { e.answers[3].order.Lines = nil }},
		{"for one key", func(e *evidence) { e.answers[1].order.ID = paid }},
		{"got 2 answers with a new order", func(e *evidence) { e.answers[1].replayed = false }},
		{"with the same one as a new order", func(e *evidence) {
			again := e.answers[6]
			again.sent = time.Unix(1, 0)
			e.answers = append(e.answers, again)
		}},
		{"2 live orders", func(e *evidence) {
			e.records = append(e.records, storedOrder{uuid.New(), "with-key", order.Pending, line})
		}},
		{`refused with "nothing was changed`, func(e *evidence) { e.records[2].status = order.Pending }},
		{"got an unexpected error", func(e *evidence) { e.answers[5].err = errors.New("a nil map") }},
		{"oversold", func(e *evidence) { count(e, func(c *skuCounts) { c.total, c.available = 3, -1 }) }},
		{"the total is none of", func(e *evidence) { count(e, func(c *skuCounts) { c.totals = []int64{4} }) }},
		{"the ledger's counts do not add up", func(e *evidence) { count(e, func(c *skuCounts) { c.available = 2 }) }},
		{"units in flight after the sweeps", func(e *evidence) { count(e, func(c *skuCounts) { c.gate.Available, c.gate.InFlight = 0, 1 }) }},
		{"the gate's counts do not add up", func(e *evidence) { count(e, func(c *skuCounts) { c.gate.Available = 2 }) }},
		{"accepted, but refused", func(e *evidence) { e.answers[6].order.Status = order.Pending }},
		{"accepted, but void", func(e *evidence) { e.records[3].status = order.Void }},
		{"accepted, but not in the ledger", func(e *evidence) { e.records = e.records[:3] }},
		{"accepted, but not in the ledger", func(e *evidence) { e.records, e.queueLost = e.records[1:], true }},
		{"got an unexpected error", func(e *evidence) { e.answers[5].err = stock.ErrSuperseded }},
		{"the journal still has 1 orders", func(e *evidence) { e.queued = 1 }},
		{"refilled 1 times", func(e *evidence) { count(e, func(c *skuCounts) { c.epochRise = 1 }) }},
	} {
		e := sound()
		test.add(&e)
		if err := e.check(); err == nil || !strings.Contains(err.Error(), test.fault) {
			t.Errorf("added the fault %q, found %v", test.fault, err)
		}
	}
}
