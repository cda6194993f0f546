package history_test

import (
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/testenv"
	"github.com/holdfast-stock/holdfast/loadtest/history"
)

type call = history.Call

// at returns the call with a begin and an end in milliseconds.
func at(begin, end int64, c call) call {
	c.Begin, c.End = begin*int64(time.Millisecond), end*int64(time.Millisecond)
	return c
}

func lines(units ...int64) (all []client.Line) {
	for i, n := range units {
		if n > 0 {
			all = append(all, client.Line{SKU: string(rune('a' + i)), Quantity: n})
		}
	}
	return all
}

// took returns an accepted order of units of the SKU a, answered 201. The buyer has the order's
// name.
func took(id string, units int64) call {
	return call{Call: history.Take, Outcome: history.Accepted, Buyer: id, Lines: lines(units), OrderID: id}
}

// soldOut returns a refused order of units of the SKU a.
func soldOut(units int64) call {
	return call{Call: history.Take, Outcome: history.Refused, Buyer: "x", Lines: lines(units), SKU: "a"}
}

// tried returns an order of units of the SKU a with another outcome.
func tried(buyer string, units int64, outcome history.Outcome) call {
	return call{Call: history.Take, Outcome: outcome, Buyer: buyer, Lines: lines(units)}
}

func total(n int64) call {
	return call{Call: history.Set, Outcome: history.Accepted, SKU: "a", Total: n}
}

// rest returns an audit of the SKU a whose counts agree.
func rest(total, sold int64) call {
	return call{Call: history.Audit, Outcome: history.Accepted, SKU: "a", Counts: &client.Audit{SKU: "a", Total: total, Sold: sold, LedgerAvailable: total - sold}}
}

// gated returns the audit changed to that of a SKU with a gate.
func gated(c call) call {
	n := *c.Counts
	n.GateAvailable, n.GateInFlight = new(n.LedgerAvailable), new(int64(0))
	c.Counts = &n
	return c
}

// read returns a read of an order of units of the SKU a. steps are its statuses after pending.
func read(id string, units int64, steps ...client.OrderStatus) call {
	steps = append([]client.OrderStatus{client.OrderPending}, steps...)
	return call{Call: history.Order, Outcome: history.Accepted, Status: 200, OrderID: id, Buyer: id, Lines: lines(units), Steps: steps, OrderStatus: steps[len(steps)-1]}
}

func list(buyer string, orders ...client.Order) call {
	return call{Call: history.Orders, Outcome: history.Accepted, Buyer: buyer, Found: orders}
}

func act(kind history.Kind, id string, outcome history.Outcome) call {
	return call{Call: kind, OrderID: id, Outcome: outcome, Restock: true}
}

func keyed(c call, key string) call { c.Key = key; return c }

// TestCheck has a history for each rule.
func TestCheck(t *testing.T) {
	t.Parallel()
	var (
		yes, no, open = history.Linearizable, history.NotLinearizable, history.Undecided
		fault         = call{Call: history.Fault}
		created       = at(0, 1, total(2))
		flying        = gated(rest(2, 0))
		still         = ended("o", client.OrderQueued)
	)
	still.Steps = nil
	flying.Counts.GateAvailable, flying.Counts.GateInFlight = new(int64(0)), new(int64(2))
	for _, test := range []struct {
		name  string
		calls []call
		want  history.Decision
		says  string
	}{
		{"sold", []call{created, at(2, 4, took("o", 1)), at(90, 91, read("o", 1)), at(92, 93, rest(2, 1))}, yes, ""},
		{"sold out", []call{created, at(2, 4, took("o", 2)), at(5, 6, soldOut(1)), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, yes, ""},
		{"refused while another is answered", []call{created, at(2, 9, took("o", 2)), at(3, 4, soldOut(1)), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, yes, ""},
		{"oversold", []call{created, at(2, 4, took("o", 2)), at(5, 6, took("p", 1)), at(90, 91, read("o", 2)), at(90, 91, read("p", 1)), at(92, 93, rest(2, 3))}, no, "order p"},
		{"undersold", []call{created, at(2, 4, took("o", 1)), at(5, 6, soldOut(1)), at(90, 91, read("o", 1)), at(92, 93, rest(2, 1))}, no, "refused"},
		{"refused before the order was sent", []call{created, at(2, 3, soldOut(1)), at(4, 5, took("o", 2)), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, no, "refused"},
		{"too many asked", []call{created, at(5, 6, soldOut(3)), at(92, 93, rest(2, 0))}, yes, ""},

		{"lost", []call{created, at(2, 4, took("o", 1)), at(90, 91, call{Call: history.Order, Status: 404, OrderID: "o"}), at(92, 93, rest(2, 1))}, no, "is not found"},
		{"not read", []call{created, at(2, 4, took("o", 1)), at(92, 93, rest(2, 1))}, open, "was not read"},
		{"read before its answer", []call{created, at(2, 4, took("o", 1)), at(1, 3, read("o", 1)), at(92, 93, rest(2, 1))}, open, "was not read"},
		{"of other lines", []call{created, at(2, 4, took("o", 1)), at(90, 91, read("o", 2)), at(92, 93, rest(2, 1))}, no, "other lines"},
		{"not asked for", []call{created, at(2, 3, tried("y", 1, history.Nothing)), at(90, 91, list("y", client.Order{ID: "q", BuyerID: "y", Lines: lines(1)})), at(92, 93, rest(2, 0))}, no, "no call asked"},
		{"two orders of one key", []call{created, at(2, 3, keyed(took("o", 1), "k")), at(4, 5, call{Call: history.Take, Outcome: history.Accepted, Buyer: "o", Key: "k", Lines: lines(1), OrderID: "p"}), at(90, 91, read("o", 1)), at(90, 91, call{Call: history.Order, Outcome: history.Accepted, Status: 200, OrderID: "p", Buyer: "o", Lines: lines(1), OrderStatus: "pending"}), at(92, 93, rest(2, 2))}, no, "orders o and p were answered to one key"},
		{"one order of one key", []call{created, at(2, 3, keyed(took("o", 1), "k")), at(4, 5, keyed(took("o", 1), "k")), at(90, 91, read("o", 1)), at(92, 93, rest(2, 1))}, yes, ""},
		{"sold when the first of two answers arrived", []call{created, at(1, 2, took("p", 2)), at(2, 9, keyed(took("o", 2), "k")), at(2, 3, keyed(took("o", 2), "k")), at(5, 6, act(history.Cancel, "p", history.Accepted)), at(90, 91, read("p", 2, client.OrderCancelled)), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, no, "order o"},

		{"no rest", []call{created, at(2, 4, took("o", 1)), at(90, 91, read("o", 1))}, open, "no audit at rest"},
		{"a rest before the end", []call{created, at(2, 3, rest(2, 0)), at(4, 5, took("o", 1)), at(90, 91, read("o", 1))}, open, "no audit at rest"},
		{"counts that are not those of the answers", []call{created, at(2, 4, took("o", 1)), at(90, 91, read("o", 1)), at(92, 93, rest(2, 2))}, no, "audit"},
		{"an audit during a call proves nothing", []call{created, at(2, 4, took("o", 1)), at(3, 5, rest(2, 0)), at(90, 91, read("o", 1)), at(92, 93, rest(2, 1))}, yes, ""},
		{"counts that do not agree", []call{created, at(92, 93, call{Call: history.Audit, SKU: "a", Counts: &client.Audit{Total: 2, LedgerAvailable: 2, Drift: 1}})}, open, "no audit at rest"},
		{"an audit during a call ends no hold", []call{created, at(2, 3, tried("o", 2, history.Nothing)), at(2, 3, fault), at(4, 9, tried("y", 1, history.Nothing)), at(5, 6, rest(2, 0)), at(7, 8, soldOut(1)), at(92, 93, rest(2, 0))}, yes, ""},
		{"nor does one with units in flight", []call{created, at(2, 3, tried("o", 2, history.Unknown)), at(4, 5, flying), at(7, 8, soldOut(1)), at(80, 81, list("o")), at(92, 93, gated(rest(2, 0)))}, yes, ""},
		{"a ledger behind its orders", []call{created, at(4, 5, call{Call: history.Audit, SKU: "a", Counts: &client.Audit{Total: 2, LedgerAvailable: 1}}), at(92, 93, rest(2, 0))}, yes, ""},

		{"unknown and found", []call{created, at(2, 3, tried("o", 2, history.Unknown)), at(5, 6, soldOut(1)), at(80, 81, list("o", client.Order{ID: "o", BuyerID: "o", Lines: lines(2)})), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, yes, ""},
		{"unknown and found too much", []call{created, at(1, 2, took("p", 1)), at(2, 3, tried("o", 2, history.Unknown)), at(80, 81, list("o", client.Order{ID: "o", BuyerID: "o", Lines: lines(2)})), at(90, 91, read("o", 2)), at(90, 91, read("p", 1)), at(92, 93, rest(2, 3))}, no, ""},
		{"unknown and not found", []call{created, at(2, 3, tried("o", 2, history.Unknown)), at(80, 81, list("o")), at(92, 93, rest(2, 0))}, yes, ""},
		{"unknown, not found, and refused meanwhile", []call{created, at(2, 3, tried("o", 2, history.Unknown)), at(5, 6, soldOut(1)), at(80, 81, list("o")), at(92, 93, rest(2, 0))}, yes, ""},
		{"unknown, not found, and refused after the rest", []call{created, at(2, 3, tried("o", 2, history.Unknown)), at(80, 81, list("o")), at(82, 83, rest(2, 0)), at(84, 85, soldOut(1)), at(92, 93, rest(2, 0))}, no, "refused"},
		{"unknown and never listed", []call{created, at(2, 3, tried("o", 2, history.Unknown)), at(5, 6, soldOut(1)), at(7, 8, took("p", 2)), at(90, 91, read("p", 2)), at(92, 93, rest(2, 2))}, yes, ""},
		{"unknown, and found by its lines", []call{created, at(2, 3, tried("o", 1, history.Unknown)), at(4, 5, tried("o", 2, history.Unknown)), at(80, 81, list("o", client.Order{ID: "o", BuyerID: "o", Lines: lines(2)})), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, yes, ""},
		{"unknown, answered when it was repeated, and lost", []call{created, at(2, 3, keyed(tried("o", 2, history.Unknown), "k")), at(4, 5, keyed(took("o", 2), "k")), at(90, 91, call{Call: history.Order, Status: 404, OrderID: "o"}), at(92, 93, rest(2, 0))}, no, "is not found"},
		{"unknown and listed too early", []call{created, at(1, 2, list("o")), at(2, 3, tried("o", 2, history.Unknown)), at(92, 93, rest(2, 2))}, yes, ""},
		{"unknown, never listed, and oversold", []call{created, at(2, 3, tried("o", 3, history.Unknown)), at(92, 93, rest(2, 3))}, no, "audit"},

		{"busy, and refused meanwhile", []call{created, at(2, 9, tried("o", 2, history.Nothing)), at(3, 4, soldOut(1)), at(92, 93, rest(2, 0))}, yes, ""},
		{"busy, and refused afterwards", []call{created, at(2, 3, tried("o", 2, history.Nothing)), at(4, 5, soldOut(1)), at(92, 93, rest(2, 0))}, no, "refused"},
		{"busy during a fault, and refused afterwards", []call{created, at(2, 3, tried("o", 2, history.Nothing)), at(2, 3, fault), at(4, 5, soldOut(1)), at(92, 93, rest(2, 0))}, yes, ""},
		{"busy after a fault and a rest, and refused afterwards", []call{created, at(2, 3, fault), at(4, 5, rest(2, 0)), at(6, 7, tried("o", 2, history.Nothing)), at(8, 9, soldOut(1)), at(92, 93, rest(2, 0))}, no, "refused"},
		{"two refusals do not explain each other", []call{created, at(2, 4, soldOut(2)), at(2, 4, soldOut(2)), at(92, 93, rest(2, 0))}, no, "refused"},
		{"refused for the other line", []call{created, at(2, 4, call{Call: history.Take, Outcome: history.Refused, Buyer: "x", Lines: lines(2, 1), SKU: "b"}), at(3, 4, soldOut(1)), at(92, 93, rest(2, 0))}, yes, ""},

		{"queued, committed and refused meanwhile", []call{created, at(2, 3, queued("o", 2)), at(4, 5, soldOut(1)), at(6, 7, read("o", 2)), at(92, 93, rest(2, 2))}, yes, ""},
		{"queued and refused later", []call{created, at(2, 3, queued("o", 2)), at(4, 5, soldOut(1)), at(6, 7, ended("o", client.OrderRefused)), at(92, 93, rest(2, 0))}, yes, ""},
		{"still queued", []call{created, at(2, 3, queued("o", 2)), at(6, 7, ended("o", client.OrderQueued)), at(92, 93, rest(2, 0))}, open, "still queued"},
		{"queued and lost", []call{created, at(2, 3, queued("o", 2)), at(90, 91, call{Call: history.Order, Status: 404, OrderID: "o"}), at(92, 93, rest(2, 0))}, no, "is not found"},

		{"cancelled and sold again", []call{created, at(2, 3, took("o", 2)), at(4, 5, act(history.Cancel, "o", history.Accepted)), at(6, 7, took("p", 2)), at(90, 91, read("o", 2, client.OrderCancelled)), at(90, 91, read("p", 2)), at(92, 93, rest(2, 2))}, yes, ""},
		{"sold again before it was cancelled", []call{created, at(2, 3, took("o", 2)), at(4, 5, took("p", 2)), at(6, 7, act(history.Cancel, "o", history.Accepted)), at(90, 91, read("o", 2, client.OrderCancelled)), at(90, 91, read("p", 2)), at(92, 93, rest(2, 2))}, no, "order p"},
		{"refused after a cancellation", []call{created, at(2, 3, took("o", 2)), at(4, 5, act(history.Cancel, "o", history.Accepted)), at(6, 7, soldOut(1)), at(90, 91, read("o", 2, client.OrderCancelled)), at(92, 93, rest(2, 0))}, no, "refused"},
		{"refused after a cancellation during a fault", []call{created, at(2, 3, took("o", 2)), at(4, 5, act(history.Cancel, "o", history.Accepted)), at(4, 5, fault), at(6, 7, soldOut(1)), at(90, 91, read("o", 2, client.OrderCancelled)), at(92, 93, rest(2, 0))}, yes, ""},
		{"refused after a cancellation, with a gate", []call{created, at(2, 3, took("o", 2)), at(4, 5, act(history.Cancel, "o", history.Accepted)), at(6, 7, soldOut(1)), at(90, 91, read("o", 2, client.OrderCancelled)), at(92, 93, gated(rest(2, 0)))}, yes, ""},
		{"refused after a cancellation and a rest, with a gate", []call{created, at(2, 3, took("o", 2)), at(4, 5, act(history.Cancel, "o", history.Accepted)), at(50, 51, read("o", 2, client.OrderCancelled)), at(52, 53, gated(rest(2, 0))), at(60, 61, soldOut(1)), at(90, 91, read("o", 2, client.OrderCancelled)), at(92, 93, gated(rest(2, 0)))}, no, "refused"},
		{"undersold, with a gate", []call{created, at(2, 3, took("o", 1)), at(6, 7, soldOut(1)), at(90, 91, read("o", 1)), at(92, 93, gated(rest(2, 1)))}, no, "refused"},
		{"cancelled by nobody", []call{created, at(2, 3, took("o", 2)), at(90, 91, read("o", 2, client.OrderCancelled)), at(92, 93, rest(2, 0))}, no, "no call asked for it"},
		{"cancelled before its answer, as a read shows", []call{created, at(2, 3, took("o", 2)), at(4, 20, act(history.Cancel, "o", history.Accepted)), at(10, 11, read("o", 2, client.OrderCancelled)), at(14, 15, soldOut(1)), at(90, 91, read("o", 2, client.OrderCancelled)), at(92, 93, rest(2, 0))}, no, "refused"},
		{"cancelled after its last read", []call{created, at(2, 3, took("o", 2)), at(4, 5, read("o", 2)), at(6, 7, act(history.Cancel, "o", history.Accepted)), at(92, 93, rest(2, 0))}, open, "was not read"},
		{"cancelled by a call that was refused", []call{created, at(2, 3, took("o", 2)), at(4, 5, act(history.Cancel, "o", history.Nothing)), at(90, 91, read("o", 2, client.OrderCancelled)), at(92, 93, rest(2, 0))}, no, "no call asked for it"},
		{"a cancellation that was forgotten", []call{created, at(2, 3, took("o", 2)), at(4, 5, act(history.Cancel, "o", history.Accepted)), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, no, "cancel of order o was accepted"},
		{"a cancellation whose answer was lost", []call{created, at(2, 3, took("o", 2)), at(4, 5, act(history.Cancel, "o", history.Unknown)), at(6, 7, took("p", 2)), at(90, 91, read("o", 2, client.OrderCancelled)), at(90, 91, read("p", 2)), at(92, 93, rest(2, 2))}, yes, ""},
		{"refunded with restock", []call{created, at(2, 3, took("o", 2)), at(4, 5, act(history.Pay, "o", history.Accepted)), at(6, 7, act(history.Refund, "o", history.Accepted)), at(8, 9, took("p", 2)), at(90, 91, read("o", 2, client.OrderPaid, client.OrderRefunded)), at(90, 91, read("p", 2)), at(92, 93, rest(2, 2))}, yes, ""},
		{"refunded without restock", []call{created, at(2, 3, took("o", 2)), at(4, 5, act(history.Pay, "o", history.Accepted)), at(6, 7, call{Call: history.Refund, OrderID: "o", Outcome: history.Accepted}), at(8, 9, took("p", 2)), at(90, 91, read("o", 2, client.OrderPaid, client.OrderRefunded)), at(90, 91, read("p", 2)), at(92, 93, rest(2, 4))}, no, "order p"},

		{"expired and sold again", []call{created, at(2, 3, windowed(took("o", 2), 1000)), at(1003, 1004, took("p", 2)), at(2000, 2001, read("o", 2, client.OrderExpired)), at(2000, 2001, read("p", 2)), at(2092, 2093, rest(2, 2))}, yes, ""},
		{"expired by a faster clock", []call{created, at(2, 3, windowed(took("o", 2), 1000)), at(950, 951, took("p", 2)), at(2000, 2001, read("o", 2, client.OrderExpired)), at(2000, 2001, read("p", 2)), at(2092, 2093, rest(2, 2))}, yes, ""},
		{"sold again before it expired", []call{created, at(2, 3, windowed(took("o", 2), 1000)), at(803, 804, took("p", 2)), at(2000, 2001, read("o", 2, client.OrderExpired)), at(2000, 2001, read("p", 2)), at(2092, 2093, rest(2, 2))}, no, "order p"},
		{"revived", []call{created, at(2, 3, took("o", 2)), at(40, 41, act(history.Pay, "o", history.Accepted)), at(42, 43, soldOut(1)), at(90, 91, read("o", 2, client.OrderExpired, client.OrderPaid)), at(92, 93, rest(2, 2))}, yes, ""},
		{"revived without units", []call{created, at(2, 3, took("o", 2)), at(30, 31, took("p", 2)), at(40, 41, act(history.Pay, "o", history.Accepted)), at(90, 91, read("o", 2, client.OrderExpired, client.OrderPaid)), at(90, 91, read("p", 2)), at(92, 93, rest(2, 4))}, no, ""},
		{"a late payment that was refused holds units for a while", []call{created, at(2, 3, took("o", 2)), at(10, 11, read("o", 2, client.OrderExpired)), at(40, 45, act(history.Pay, "o", history.Nothing)), at(42, 43, soldOut(1)), at(90, 91, read("o", 2, client.OrderExpired)), at(92, 93, rest(2, 0))}, yes, ""},

		{"cancelled in a read, and pending again", []call{created, at(2, 3, took("o", 2)), at(4, 5, act(history.Cancel, "o", history.Unknown)), at(6, 7, read("o", 2, client.OrderCancelled)), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, no, "lacks a step"},
		{"cancelled, and a later read does not show it", []call{created, at(2, 3, took("o", 2)), at(4, 5, act(history.Cancel, "o", history.Accepted)), at(6, 7, read("o", 2)), at(90, 91, read("o", 2, client.OrderCancelled)), at(92, 93, rest(2, 0))}, no, "a later read does not show it"},
		{"cancelled in a read that overlaps another", []call{created, at(2, 3, took("o", 2)), at(4, 5, act(history.Cancel, "o", history.Unknown)), at(6, 9, read("o", 2, client.OrderCancelled)), at(7, 8, read("o", 2)), at(90, 91, read("o", 2, client.OrderCancelled)), at(92, 93, rest(2, 0))}, yes, ""},
		{"found, lost and found", []call{created, at(2, 3, took("o", 2)), at(4, 5, call{Call: history.Order, Status: 404, OrderID: "o"}), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, no, "is not found"},
		{"queued, lost and found", []call{created, at(2, 3, queued("o", 2)), at(4, 5, call{Call: history.Order, Status: 404, OrderID: "o"}), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, no, "is not found"},
		{"not listed", []call{created, at(2, 3, took("o", 2)), at(4, 5, list("o")), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, no, "is not listed"},
		{"queued and not listed yet", []call{created, at(2, 3, queued("o", 2)), at(4, 5, list("o")), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, yes, ""},
		{"listed before it was ordered", []call{created, at(1, 2, list("o", client.Order{ID: "o", BuyerID: "o", Lines: lines(2)})), at(4, 5, tried("o", 2, history.Unknown)), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, no, "no call asked for it"},
		{"a key repeated with other lines", []call{created, at(2, 3, keyed(took("o", 2), "k")), at(4, 5, keyed(call{Call: history.Take, Outcome: history.Accepted, Buyer: "o", Lines: lines(1), OrderID: "o"}, "k")), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, no, "other lines"},
		{"a key used for other lines first", []call{created, at(2, 3, keyed(tried("o", 1, history.Nothing), "k")), at(4, 5, keyed(took("o", 2), "k")), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, yes, ""},
		{"refused for a SKU that was not ordered", []call{created, at(2, 3, call{Call: history.Take, Outcome: history.Refused, Buyer: "x", Lines: lines(1), SKU: "b"}), at(92, 93, rest(2, 0))}, no, "was not ordered"},

		{"restocked", []call{created, at(2, 3, took("o", 2)), at(4, 5, total(3)), at(6, 7, took("p", 1)), at(90, 91, read("o", 2)), at(90, 91, read("p", 1)), at(92, 93, rest(3, 3))}, yes, ""},
		{"sold before the restock", []call{created, at(2, 3, took("o", 2)), at(4, 5, took("p", 1)), at(6, 7, total(3)), at(90, 91, read("o", 2)), at(90, 91, read("p", 1)), at(92, 93, rest(3, 3))}, no, "order p"},
		{"shrunk", []call{created, at(2, 3, total(1)), at(4, 5, soldOut(2)), at(92, 93, rest(1, 0))}, yes, ""},
		{"shrunk below what is sold", []call{created, at(2, 3, took("o", 2)), at(4, 5, total(1)), at(90, 91, read("o", 2)), at(92, 93, rest(1, 2))}, no, "set"},
		{"shrunk below what is sold, and refused meanwhile", []call{created, at(2, 3, took("o", 1)), at(4, 20, total(0)), at(5, 6, soldOut(1)), at(90, 91, read("o", 1)), at(92, 93, rest(0, 1))}, no, "refused"},
		{"refused after a restock, with a gate", []call{created, at(2, 3, took("o", 2)), at(4, 5, total(3)), at(6, 7, soldOut(1)), at(90, 91, read("o", 2)), at(92, 93, gated(rest(3, 2)))}, yes, ""},
		{"sold after a shrink, with a gate", []call{created, at(2, 3, total(0)), at(4, 5, took("o", 2)), at(6, 7, act(history.Cancel, "o", history.Accepted)), at(90, 91, read("o", 2, client.OrderCancelled)), at(92, 93, gated(rest(0, 0)))}, no, "order o"},
		{"refused after the creation, with a gate", []call{created, at(2, 3, soldOut(1)), at(92, 93, gated(rest(2, 0)))}, no, "refused"},
		{"below sold", []call{created, at(2, 3, took("o", 2)), at(4, 5, belowSold(1)), at(90, 91, read("o", 2)), at(92, 93, rest(2, 2))}, yes, ""},
		{"not below sold", []call{created, at(4, 5, belowSold(1)), at(92, 93, rest(2, 0))}, no, "refused"},
		{"a shrink that is refused holds units", []call{created, at(2, 3, took("o", 1)), at(4, 9, belowSold(0)), at(5, 6, soldOut(1)), at(90, 91, read("o", 1)), at(92, 93, rest(2, 1))}, yes, ""},
		{"a change that was repeated", []call{created, at(2, 3, unanswered(3)), at(4, 5, total(3)), at(92, 93, rest(3, 0))}, yes, ""},
		{"a change that was not", []call{created, at(2, 3, unanswered(3)), at(92, 93, rest(3, 0))}, open, "was not repeated"},
		{"a change that was given up for another", []call{created, at(2, 3, unanswered(3)), at(4, 5, total(4)), at(92, 93, rest(4, 0))}, open, "was not repeated"},
		{"revived by a payment without an answer, and sold again", []call{created, at(2, 3, took("o", 2)), at(40, 41, act(history.Pay, "o", history.Unknown)), at(42, 43, call{Call: history.Refund, OrderID: "o", Outcome: history.Accepted}), at(50, 51, read("o", 2, client.OrderExpired, client.OrderPaid, client.OrderRefunded)), at(60, 61, took("p", 2)), at(62, 63, act(history.Cancel, "p", history.Accepted)), at(90, 91, read("o", 2, client.OrderExpired, client.OrderPaid, client.OrderRefunded)), at(90, 91, read("p", 2, client.OrderCancelled)), at(92, 93, rest(2, 2))}, no, "order p"},
		{"expired in a read, and refused afterwards", []call{created, at(2, 3, windowed(took("o", 2), 10)), at(50, 51, read("o", 2, client.OrderExpired)), at(60, 61, soldOut(1)), at(90, 91, read("o", 2, client.OrderExpired)), at(92, 93, rest(2, 0))}, no, "refused"},
		{"of another buyer", []call{created, at(2, 4, took("o", 1)), at(90, 91, func() call { c := read("o", 1); c.Buyer = "x"; return c }()), at(92, 93, rest(2, 1))}, no, "another buyer"},
		{"a list with further pages proves nothing", []call{created, at(2, 4, took("o", 1)), at(5, 6, call{Call: history.Orders, Outcome: history.Unknown, Buyer: "o"}), at(90, 91, read("o", 1)), at(92, 93, rest(2, 1))}, yes, ""},
		{"unknown, found, and undersold", []call{created, at(2, 3, tried("o", 1, history.Unknown)), at(5, 6, soldOut(1)), at(80, 81, list("o", client.Order{ID: "o", BuyerID: "o", Lines: lines(1)})), at(90, 91, read("o", 1)), at(92, 93, rest(2, 1))}, no, "refused"},
		{"unknown, and found before others are sold", []call{created, at(2, 3, tried("o", 2, history.Unknown)), at(50, 51, list("o", client.Order{ID: "o", BuyerID: "o", Lines: lines(2)})), at(60, 61, took("p", 2)), at(62, 63, act(history.Cancel, "p", history.Accepted)), at(90, 91, read("o", 2)), at(90, 91, read("p", 2, client.OrderCancelled)), at(92, 93, rest(2, 2))}, no, "order p"},
		{"unknown, not found, and committed later", []call{created, at(2, 3, tried("o", 2, history.Unknown)), at(4, 5, call{Call: history.Order, Status: 404, OrderID: "o"}), at(6, 7, took("p", 2)), at(8, 9, act(history.Cancel, "p", history.Accepted)), at(80, 81, list("o", client.Order{ID: "o", BuyerID: "o", Lines: lines(2)})), at(90, 91, read("o", 2)), at(90, 91, read("p", 2, client.OrderCancelled)), at(92, 93, rest(2, 2))}, yes, ""},
		{"unknown twice, and listed in between", []call{created, at(2, 3, keyed(tried("o", 2, history.Unknown), "k")), at(5, 6, list("o")), at(10, 11, keyed(tried("o", 2, history.Unknown), "k")), at(92, 93, rest(2, 2))}, yes, ""},
		{"queued, and committed after others", []call{created, at(2, 3, queued("o", 2)), at(4, 5, still), at(6, 7, took("p", 2)), at(8, 9, act(history.Cancel, "p", history.Accepted)), at(90, 91, read("o", 2)), at(90, 91, read("p", 2, client.OrderCancelled)), at(92, 93, rest(2, 2))}, yes, ""},
		{"queued, read, and refused later", []call{created, at(2, 3, queued("o", 2)), at(5, 6, ended("o", client.OrderQueued)), at(7, 8, ended("o", client.OrderRefused)), at(92, 93, rest(2, 0))}, yes, ""},
		{"queued, then accepted, and others are sold", []call{created, at(2, 3, keyed(queued("o", 2), "k")), at(4, 5, keyed(took("o", 2), "k")), at(6, 7, took("p", 2)), at(8, 9, act(history.Cancel, "p", history.Accepted)), at(90, 91, read("o", 2)), at(90, 91, read("p", 2, client.OrderCancelled)), at(92, 93, rest(2, 2))}, no, "order p"},
		{"listed", []call{created, at(2, 3, took("o", 1)), at(4, 5, call{Call: history.Take, Outcome: history.Accepted, Buyer: "o", Lines: lines(1), OrderID: "p"}), at(80, 81, list("o", client.Order{ID: "o", BuyerID: "o", Lines: lines(1)}, client.Order{ID: "p", BuyerID: "o", Lines: lines(1)})), at(90, 91, read("o", 1)), at(90, 91, call{Call: history.Order, Outcome: history.Accepted, Status: 200, OrderID: "p", Buyer: "o", Lines: lines(1), OrderStatus: "pending"}), at(92, 93, rest(2, 2))}, yes, ""},
		{"listed without one of two", []call{created, at(2, 3, took("o", 1)), at(4, 5, call{Call: history.Take, Outcome: history.Accepted, Buyer: "o", Lines: lines(1), OrderID: "p"}), at(80, 81, list("o", client.Order{ID: "p", BuyerID: "o", Lines: lines(1)})), at(90, 91, read("o", 1)), at(90, 91, call{Call: history.Order, Outcome: history.Accepted, Status: 200, OrderID: "p", Buyer: "o", Lines: lines(1), OrderStatus: "pending"}), at(92, 93, rest(2, 2))}, no, "order o was accepted and is not listed"},
		{"cancelled as the last read began", []call{created, at(2, 3, took("o", 1)), at(80, 90, act(history.Cancel, "o", history.Accepted)), at(90, 91, read("o", 1)), at(92, 93, rest(2, 1))}, open, "was not read"},
		{"an audit with another total", []call{created, at(92, 93, rest(3, 1))}, no, "audit"},
		{"an audit of another SKU", []call{created, at(2, 3, call{Call: history.Audit, SKU: "b", Counts: &client.Audit{Total: 9, LedgerAvailable: 9}}), at(92, 93, rest(2, 0))}, yes, ""},
		{"an audit that ends after a call ends no hold", []call{created, at(2, 3, tried("o", 2, history.Nothing)), at(2, 3, fault), at(4, 9, tried("y", 1, history.Nothing)), at(8, 10, rest(2, 0)), at(11, 12, soldOut(1)), at(92, 93, rest(2, 0))}, yes, ""},
		{"an audit during a refund ends no hold", []call{created, at(2, 3, tried("o", 2, history.Nothing)), at(2, 3, fault), at(4, 9, act(history.Refund, "y", history.Nothing)), at(5, 6, rest(2, 0)), at(11, 12, soldOut(1)), at(92, 93, rest(2, 0))}, yes, ""},
		{"sold after a change without an answer", []call{created, at(2, 3, unanswered(3)), at(4, 5, took("p", 3)), at(6, 7, total(3)), at(90, 91, read("p", 3)), at(92, 93, rest(3, 3))}, yes, ""},
		{"refused while another is answered, and units are left", []call{created, at(2, 6, took("o", 1)), at(3, 4, soldOut(1)), at(90, 91, read("o", 1)), at(92, 93, rest(2, 1))}, no, "refused"},
		{"taken twice during a fault", []call{created, at(2, 6, took("o", 1)), at(2, 3, fault), at(3, 4, soldOut(1)), at(90, 91, read("o", 1)), at(92, 93, rest(2, 1))}, yes, ""},
		{"not below sold, by its own units", []call{created, at(4, 5, belowSold(0)), at(92, 93, rest(2, 0))}, no, "refused"},
		{"busy during a refusal", []call{created, at(4, 6, tried("o", 2, history.Nothing)), at(2, 9, soldOut(1)), at(92, 93, rest(2, 0))}, yes, ""},
		{"changes that overlap", []call{created, at(2, 5, total(3)), at(4, 6, total(4)), at(92, 93, rest(4, 0))}, open, "overlap"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			verdicts := history.Check(test.calls, history.Options{Timeout: testenv.Patience})
			v := verdicts[0]
			if v.SKU != "a" || v.Decision != test.want || !strings.Contains(v.Why, test.says) {
				t.Errorf("%s: %s (%s), want %s (%s)", v.SKU, v.Decision, v.Why, test.want, test.says)
			}
			if v.Decision == history.NotLinearizable && v.Why == "" {
				t.Error("no reason")
			}
		})
	}
}

func queued(id string, units int64) call {
	c := took(id, units)
	c.Outcome = history.Queued
	return c
}

func ended(id string, status client.OrderStatus) call {
	c := read(id, 2)
	c.OrderStatus, c.Steps = status, []client.OrderStatus{status}
	return c
}

func windowed(c call, millis int64) call {
	c.Window = millis * int64(time.Millisecond)
	return c
}

func belowSold(total int64) call {
	return call{Call: history.Set, Outcome: history.Refused, SKU: "a", Total: total}
}

func unanswered(n int64) call {
	return call{Call: history.Set, Outcome: history.Unknown, SKU: "a", Total: n}
}

// TestCheck_Memory checks that a refusal may be as old as the service's memory, but not older.
func TestCheck_Memory(t *testing.T) {
	t.Parallel()
	calls := []call{
		at(0, 1, total(2)), at(2, 3, took("o", 2)), at(4, 5, act(history.Cancel, "o", history.Accepted)), at(50, 51, soldOut(1)),
		at(90, 91, read("o", 2, client.OrderCancelled)), at(92, 93, rest(2, 0)),
	}
	for memory, want := range map[time.Duration]history.Decision{
		0: history.NotLinearizable, 20 * time.Millisecond: history.NotLinearizable, 100 * time.Millisecond: history.Linearizable,
	} {
		if got := history.Check(calls, history.Options{Timeout: testenv.Patience, Memory: memory})[0]; got.Decision != want {
			t.Errorf("memory %v: %s (%s), want %s", memory, got.Decision, got.Why, want)
		}
	}
}

// TestCheck_Timeout checks that a search that does not end in time is not a success.
func TestCheck_Timeout(t *testing.T) {
	t.Parallel()
	calls := []call{at(0, 1, total(20))}
	for i := range int64(30) { // any 20 of 30 calls that overlap
		id := string(rune('A' + i))
		calls = append(calls, at(2, 4, took(id, 1)), at(90, 91, read(id, 1)))
	}
	calls = append(calls, at(92, 93, rest(20, 30)))
	if got := history.Check(calls, history.Options{Timeout: 50 * time.Millisecond})[0]; got.Decision != history.Undecided || !strings.Contains(got.Why, "did not end within") {
		t.Errorf("%s (%s)", got.Decision, got.Why)
	}
}

// TestCheck_Part checks that a verdict has the shortest part that cannot be explained.
func TestCheck_Part(t *testing.T) {
	t.Parallel()
	calls := []call{
		at(0, 1, total(3)), at(2, 3, took("o", 1)), at(4, 8, took("p", 1)), at(5, 7, took("q", 1)), at(6, 9, took("r", 1)),
		at(8, 20, took("s", 1)), at(30, 31, took("u", 1)),
		at(92, 93, rest(3, 6)),
	}
	for _, id := range []string{"o", "p", "q", "r", "s", "u"} {
		calls = append(calls, at(80, 81, read(id, 1)))
	}
	v := history.Check(calls, history.Options{Timeout: testenv.Patience})[0]
	var ids []string
	for _, c := range v.Part {
		ids = append(ids, c.OrderID)
	}
	if got := strings.Join(ids, " "); got != "p q r s" || v.Left != 2 || v.Total != 3 || !strings.Contains(v.Why, "order r") {
		t.Errorf("%s; %d left of %d; %s", got, v.Left, v.Total, v.Why)
	}
}
