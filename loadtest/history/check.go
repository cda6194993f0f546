package history

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/holdfast-stock/holdfast/client"
)

// Decision says whether the answers about a SKU can be explained.
type Decision string

// The decisions.
const (
	Linearizable    Decision = "linearizable"
	NotLinearizable Decision = "not linearizable"
	// Undecided means that the checker gave up at its time limit, or that the history lacks a read.
	// Undecided is not a success.
	Undecided Decision = "not decided"
)

// Verdict is the result of the check for one SKU.
type Verdict struct {
	SKU      string
	Decision Decision
	Why      string // reason for the last two decisions
	// Part is the shortest part of the history that cannot be explained. It begins at a moment
	// without a call under way. Total and Left are the counts at that moment.
	Part        []Call
	Total, Left int64
	Calls       int // number of calls about the SKU
}

// Options are those of a check.
type Options struct {
	// Timeout bounds the search through one part of a history, between two moments at rest.
	Timeout time.Duration
	// Memory is the maximum age of a refusal: a service with --sold-out-memory may refuse from
	// memory for that long.
	Memory time.Duration
}

// Check returns the verdicts on all SKUs of a history, sorted by SKU.
func Check(calls []Call, o Options) (all []Verdict) {
	h := newHistory(calls)
	for _, sku := range slices.Sorted(maps.Keys(h.skus)) {
		all = append(all, h.check(sku, o))
	}
	return all
}

// sale is an order that holds its units from a moment between begin and end.
type sale struct {
	id         string // empty if no answer and no read named the order
	buyer      string
	lines      []client.Line
	begin, end int64
	answered   *Call // the 201 or 202; nil if its answer was lost
	maybe      bool  // it is unknown whether the order exists
	returns    []change
	fault      string // a contradiction about the order
	missing    string // what the history lacks for a decision
}

// clockMargin allows for the database's clock running faster than the recorder's.
const clockMargin = int64(100 * time.Millisecond)

// expires returns the earliest moment at which the order may expire.
func (s *sale) expires() int64 {
	if s.answered == nil {
		return s.begin
	}
	return max(s.begin, s.begin+s.answered.Window-clockMargin)
}

// change returns an order's units, or takes them again. units is 1 or -1 for each unit of the
// order.
type change struct {
	begin, end int64
	units      int64
	call       *Call
}

// hold is a call that may have held units temporarily, once or several times, at any moments
// between begin and end.
type hold struct {
	begin, end int64
	lines      []client.Line
	call       *Call
	open       bool // the units may be held until the next moment at rest
}

// history is a history by SKU and by order.
type history struct {
	calls  []Call
	skus   map[string]int // number of calls about the SKU
	sales  []*sale
	holds  []hold
	faults []Call
	reads  map[string][]*Call // Order calls that were answered, by order
	lists  map[string][]*Call // Orders calls that were answered, by buyer
	acts   map[string][]*Call // Cancel, Pay and Refund calls, by order
	stray  []client.Order     // orders in answers that no call requested
}

// newHistory sorts the calls, finds the orders that they placed, and follows each of them.
func newHistory(calls []Call) *history {
	h := &history{
		calls: calls, skus: make(map[string]int), reads: make(map[string][]*Call),
		lists: make(map[string][]*Call), acts: make(map[string][]*Call),
	}
	for i := range calls {
		h.add(&calls[i])
	}
	for _, reads := range h.reads {
		slices.SortStableFunc(reads, func(a, b *Call) int { return cmp.Compare(a.Begin, b.Begin) })
	}
	h.findSales(intentsOf(calls))
	for _, s := range h.sales {
		h.follow(s)
	}
	return h
}

// add files a call under its SKUs, its order or its buyer.
func (h *history) add(c *Call) {
	switch c.Call {
	case Take:
		for _, line := range c.Lines {
			h.skus[line.SKU]++
		}
	case Set, Audit:
		h.skus[c.SKU]++
	case Fault:
		h.faults = append(h.faults, *c)
	case Order:
		if c.Outcome == Accepted || c.Status == 404 {
			h.reads[c.OrderID] = append(h.reads[c.OrderID], c)
		}
	case Orders:
		if c.Outcome == Accepted {
			h.lists[c.Buyer] = append(h.lists[c.Buyer], c)
		}
	case Cancel, Pay, Refund:
		h.acts[c.OrderID] = append(h.acts[c.OrderID], c)
	}
}

// intentsOf returns the calls that take, by intent. All calls of a buyer with one key are tries of
// one intent. A call without a key is an intent by itself.
func intentsOf(calls []Call) (intents [][]*Call) {
	type name struct{ buyer, key string }
	keyed := make(map[name]int) // indexes of intents
	for i := range calls {
		c := &calls[i]
		if c.Call != Take {
			continue
		}
		n, found := keyed[name{c.Buyer, c.Key}]
		if !found {
			n, intents = len(intents), append(intents, nil)
		}
		if c.Key != "" {
			keyed[name{c.Buyer, c.Key}] = n
		}
		intents[n] = append(intents[n], c)
	}
	return intents
}

// shown returns when a read first showed the order with this status. If status is empty, any status
// of an order that holds or held units counts.
func (h *history) shown(id, buyer string, status client.OrderStatus) int64 {
	first := int64(Forever)
	for _, c := range h.reads[id] {
		if c.Outcome != Accepted {
			continue
		}
		if status == "" && c.OrderStatus != client.OrderQueued && c.OrderStatus != client.OrderRefused ||
			c.OrderStatus == status || slices.Contains(c.Steps, status) {
			first = min(first, c.End)
		}
	}
	for _, c := range h.lists[buyer] {
		for _, o := range c.Found {
			if o.ID == id && (status == "" || o.Status == status) {
				first = min(first, c.End)
			}
		}
	}
	return first
}

// findSales finds the order of each intent. An intent is a call that takes, or all calls of a buyer
// with one key. The other calls may have held units temporarily.
func (h *history) findSales(intents [][]*Call) {
	named := make(map[string]bool)
	for _, tries := range intents {
		for _, c := range tries {
			if c.OrderID != "" {
				named[c.OrderID] = true
			}
		}
	}
	for _, tries := range intents {
		sales := h.salesOf(tries, named)
		h.sales = append(h.sales, sales...)
		for _, c := range tries {
			if len(tries) == 1 && len(sales) == 1 && !sales[0].maybe || slices.ContainsFunc(sales, func(s *sale) bool { return s.answered == c }) {
				continue
			}
			end, open := c.End, c.Outcome == Unknown
			if c.Outcome == Queued { // the order was refused later
				end, open = h.shown(c.OrderID, c.Buyer, client.OrderRefused), true
			}
			h.holds = append(h.holds, hold{c.Begin, end, c.Lines, c, open})
		}
	}
	for _, lists := range h.lists {
		for _, c := range lists {
			for _, o := range c.Found {
				if !named[o.ID] {
					named[o.ID] = true
					h.stray = append(h.stray, o)
				}
			}
		}
	}
}

// salesOf returns the orders of one intent. There may be one at most.
func (h *history) salesOf(tries []*Call, named map[string]bool) []*sale {
	asked := sale{buyer: tries[0].Buyer, lines: tries[0].Lines, begin: tries[0].Begin, end: Forever}
	unknown := false
	for _, c := range tries {
		asked.begin, unknown = min(asked.begin, c.Begin), unknown || c.Outcome == Unknown
	}
	sales := h.answeredSales(asked, tries)
	if len(sales) == 0 && unknown {
		return h.lostSales(asked, tries, named)
	}
	for i := 1; i < len(sales); i++ {
		sales[i].fault = fmt.Sprintf("orders %s and %s were answered to one key", sales[0].id, sales[i].id)
	}
	return sales
}

// answeredSales returns the orders that the answers to the tries name, except queued orders that
// were refused later. Each holds its units at the latest when the first 201 arrives, or without a
// 201, when both the 202 and a read that shows the order have arrived. A try with other lines must
// not be answered with an order.
func (h *history) answeredSales(asked sale, tries []*Call) (sales []*sale) {
	for _, c := range tries {
		if c.Outcome != Accepted && c.Outcome != Queued {
			continue
		}
		i := slices.IndexFunc(sales, func(s *sale) bool { return s.id == c.OrderID })
		if i < 0 {
			if c.Outcome == Queued && h.status(c.OrderID) == client.OrderRefused {
				continue
			}
			s := asked
			s.id, s.lines = c.OrderID, c.Lines
			i, sales = len(sales), append(sales, &s)
		}
		s := sales[i]
		if !slices.Equal(sorted(c.Lines), sorted(s.lines)) {
			s.fault = fmt.Sprintf("order %s was answered to a repeat of its key with other lines", s.id)
		}
		if c.Outcome == Accepted && (s.answered == nil || s.answered.Outcome == Queued || c.End < s.end) {
			s.answered, s.end = c, min(s.end, c.End)
		} else if s.answered == nil {
			s.answered, s.end = c, max(c.End, h.shown(c.OrderID, c.Buyer, ""))
		}
	}
	return sales
}

// lostSales returns the order of an intent whose answers were lost. It is the buyer's first order
// with the intent's lines that no other call names, in a list that was read after the first try was
// sent. If a later list does not have such an order, lostSales returns none. Without such a list,
// it returns an order that may exist.
func (h *history) lostSales(lost sale, tries []*Call, named map[string]bool) []*sale {
	end := tries[0].End
	for _, c := range tries {
		end = max(end, c.End)
	}
	complete := false
	for _, c := range h.lists[lost.buyer] {
		if c.End < lost.begin {
			continue
		}
		for _, o := range c.Found {
			if !named[o.ID] && slices.Equal(o.Lines, sorted(lost.lines)) {
				named[o.ID] = true
				lost.id, lost.end = o.ID, h.shown(o.ID, o.BuyerID, "")
				return []*sale{&lost}
			}
		}
		complete = complete || c.Begin >= end
	}
	if complete {
		return nil
	}
	lost.maybe = true
	return []*sale{&lost}
}

func sorted(lines []client.Line) []client.Line {
	return slices.SortedFunc(slices.Values(lines), func(a, b client.Line) int { return cmp.Compare(a.SKU, b.SKU) })
}

// status returns the status of an order at its last read.
func (h *history) status(id string) client.OrderStatus {
	reads := h.reads[id]
	if len(reads) == 0 {
		return ""
	}
	return reads[len(reads)-1].OrderStatus
}

// follow determines when an order's units changed, and whether its last read contradicts an answer.
func (h *history) follow(s *sale) {
	if s.maybe || s.fault != "" {
		return
	}
	if s.missing, s.fault = h.unfit(s); s.missing != "" || s.fault != "" {
		return
	}
	reads := h.reads[s.id]
	last := reads[len(reads)-1]
	h.followSteps(s, last)
	h.followActs(s)
}

// unfit returns why the last read of an order does not show where its units are: what the history
// lacks, or the contradiction.
func (h *history) unfit(s *sale) (missing, fault string) {
	reads := h.reads[s.id]
	if len(reads) == 0 {
		return fmt.Sprintf("order %s was not read at the end", s.id), ""
	}
	last := reads[len(reads)-1]
	after := func(c *Call) bool { return last.Begin <= c.End }
	back := h.stepsBack(s)
	switch {
	case s.answered != nil && after(s.answered) || slices.ContainsFunc(h.acts[s.id], after):
		missing = fmt.Sprintf("order %s was not read at the end", s.id)
	case back != "":
		fault = back
	case !h.listed(s):
		fault = fmt.Sprintf("order %s was accepted and is not listed", s.id)
	case last.Buyer != s.buyer || !slices.Equal(last.Lines, sorted(s.lines)):
		fault = fmt.Sprintf("order %s has another buyer or other lines than its request", s.id)
	case last.OrderStatus == client.OrderQueued:
		missing = fmt.Sprintf("order %s is still queued", s.id)
	}
	return missing, fault
}

// stepsBack returns how a read of an order contradicts an earlier answer, or "". Every read after
// the order was accepted must have the order. Its steps in a read must begin with those of each
// earlier read, and include those of the calls that were accepted before.
func (h *history) stepsBack(s *sale) string {
	reads := h.reads[s.id]
	for i, c := range reads {
		if c.Outcome != Accepted && c.Begin > s.acceptedAt() {
			return fmt.Sprintf("order %s was accepted and is not found", s.id)
		}
		for _, earlier := range reads[:i] {
			if n := len(earlier.Steps); earlier.End < c.Begin && (len(c.Steps) < n || !slices.Equal(c.Steps[:n], earlier.Steps)) {
				return fmt.Sprintf("a read of order %s lacks a step of an earlier read", s.id)
			}
		}
		for _, act := range h.acts[s.id] {
			if act.Outcome == Accepted && act.End < c.Begin && !slices.Contains(c.Steps, leadsTo[act.Call]) {
				return fmt.Sprintf("%s of order %s was accepted, and a later read does not show it", act.Call, s.id)
			}
		}
	}
	return ""
}

// listed reports whether all lists after the order was accepted have the order.
func (h *history) listed(s *sale) bool {
	for _, c := range h.lists[s.buyer] {
		if c.Begin > s.end && !slices.ContainsFunc(c.Found, func(o client.Order) bool { return o.ID == s.id }) {
			return false
		}
	}
	return true
}

// acceptedAt returns when the client knew that the order exists, even if it was still queued.
func (s *sale) acceptedAt() int64 {
	if s.answered == nil {
		return s.end
	}
	return s.answered.End
}

// followSteps adds the changes of an order's units according to the steps of its last read.
func (h *history) followSteps(s *sale, last *Call) {
	expired := false
	for _, step := range last.Steps {
		switch step {
		case client.OrderExpired:
			expired = true
			s.returns = append(s.returns, change{s.expires(), h.shown(s.id, s.buyer, step), 1, last})
		case client.OrderCancelled:
			h.change(s, Cancel, step, 1)
		case client.OrderPaid:
			if expired { // the order's units were cut again
				h.change(s, Pay, step, -1)
			}
		case client.OrderRefunded:
			h.change(s, Refund, step, 1)
		}
	}
}

// leadsTo has, for each kind of call, the status of the order after an accepted call.
var leadsTo = map[Kind]client.OrderStatus{Cancel: client.OrderCancelled, Pay: client.OrderPaid, Refund: client.OrderRefunded}

// followActs adds units that late payments may hold temporarily.
func (h *history) followActs(s *sale) {
	for _, c := range h.acts[s.id] {
		if c.Call == Pay && c.Outcome != Accepted { // a late payment may take the units again, and return them
			h.holds = append(h.holds, hold{c.Begin, c.End, s.lines, c, c.Outcome == Unknown})
		}
	}
}

// change adds a change of an order's units by calls of a kind. A refund without restock
// changes nothing.
func (h *history) change(s *sale, kind Kind, status client.OrderStatus, units int64) {
	c := change{begin: Forever, end: h.shown(s.id, s.buyer, status), units: units}
	for _, act := range h.acts[s.id] {
		if act.Call != kind || act.Outcome == Nothing {
			continue
		}
		if kind == Refund && !act.Restock {
			return
		}
		c.begin = min(c.begin, act.Begin)
		if act.Outcome == Accepted && act.End <= c.end {
			c.end, c.call = act.End, act
		} else if c.call == nil {
			c.call = act
		}
	}
	if c.begin == Forever {
		s.fault = fmt.Sprintf("order %s is %s, and no call asked for it", s.id, status)
		return
	}
	s.returns = append(s.returns, c)
}

// quantity returns the units of the SKU in the lines.
func quantity(lines []client.Line, sku string) (n int64) {
	for _, line := range lines {
		if line.SKU == sku {
			n += line.Quantity
		}
	}
	return n
}

// unasked looks for an answer that names something that no call asked for: another SKU in a refusal
// of the SKU, or an order. It returns a description, and the call if it is known.
func (h *history) unasked(sku string) (why string, part []Call) {
	for i := range h.calls {
		if c := &h.calls[i]; c.Call == Take && c.Outcome == Refused && quantity(c.Lines, sku) > 0 && quantity(c.Lines, c.SKU) == 0 {
			return fmt.Sprintf("a refusal names the SKU %q, which was not ordered: %v", c.SKU, *c), []Call{*c}
		}
	}
	for _, order := range h.stray {
		if quantity(order.Lines, sku) > 0 {
			return fmt.Sprintf("order %s exists, and no call asked for it", order.ID), nil
		}
	}
	return "", nil
}

// check returns the verdict on one SKU.
func (h *history) check(sku string, o Options) Verdict {
	v := Verdict{SKU: sku, Calls: h.skus[sku], Decision: Linearizable}
	p := h.project(sku, o)
	for _, s := range h.sales {
		switch {
		case quantity(s.lines, sku) == 0:
		case s.fault != "":
			v.Decision, v.Why = NotLinearizable, s.fault
			if s.answered != nil {
				v.Part = []Call{*s.answered}
			}
			return v
		case s.missing != "" && v.Decision == Linearizable:
			v.Decision, v.Why = Undecided, s.missing
		}
	}
	if why, part := h.unasked(sku); why != "" {
		v.Decision, v.Why, v.Part = NotLinearizable, why, part
		return v
	}
	if v.Decision == Linearizable && p.missing != "" {
		v.Decision, v.Why = Undecided, p.missing
	}
	if v.Decision != Linearizable { // it is unknown which units were returned or added
		return v
	}
	if found := p.search(o.Timeout); found.Decision != Linearizable {
		found.SKU, found.Calls = v.SKU, v.Calls
		return found
	}
	if !p.endsAtRest() {
		v.Decision, v.Why = Undecided, "no audit at rest ends the history: counts that agree, with nothing in flight and no call under way"
	}
	return v
}
