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
	// Undecided means that the checker gave up at its time limit, or that the history lacks
	// a read. It is no success.
	Undecided Decision = "not decided"
)

// Verdict is what the check found about one SKU.
type Verdict struct {
	SKU      string
	Decision Decision
	Why      string // of the last two decisions
	// Part is the shortest part that cannot be explained, from a moment at which no call was
	// under way. Total and Left are the counts at that moment.
	Part        []Call
	Total, Left int64
	Calls       int // about the SKU
}

// Options are those of a check.
type Options struct {
	// Timeout bounds the search through one part of a history, between two moments at rest.
	Timeout time.Duration
	// Memory is how old a refusal may be: a service with --sold-out-memory may refuse from
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
	id         string // empty: no answer and no read named it
	buyer      string
	lines      []client.Line
	begin, end int64
	answered   *Call // the 201 or 202; nil: its answer was lost
	maybe      bool  // nothing says whether there is such an order
	returns    []change
	fault      string // what is wrong with it
	missing    string // what the history lacks to decide
}

// clockMargin allows for a database whose clock runs faster than the recorder's.
const clockMargin = int64(100 * time.Millisecond)

// expires returns the earliest moment at which the order may expire.
func (s *sale) expires() int64 {
	if s.answered == nil {
		return s.begin
	}
	return max(s.begin, s.begin+s.answered.Window-clockMargin)
}

// change gives an order's units back, or takes them again: units is 1 or -1 for each unit
// of the order.
type change struct {
	begin, end int64
	units      int64
	call       *Call
}

// hold is a call that may have held units for a while and given them back, at any moments
// between begin and end, also several times.
type hold struct {
	begin, end int64
	lines      []client.Line
	call       *Call
	open       bool // the units may be held until the next moment at rest
}

// history is a history by SKU and by order.
type history struct {
	calls  []Call
	skus   map[string]int // the number of calls about it
	sales  []*sale
	holds  []hold
	faults []Call
	reads  map[string][]*Call // Order calls that were answered, by order
	lists  map[string][]*Call // Orders calls that were answered, by buyer
	acts   map[string][]*Call // Cancel, Pay and Refund calls, by order
	stray  []client.Order     // orders that no call asked for
}

func newHistory(calls []Call) *history {
	h := &history{
		calls: calls, skus: make(map[string]int), reads: make(map[string][]*Call),
		lists: make(map[string][]*Call), acts: make(map[string][]*Call),
	}
	intents := make(map[string][]*Call)
	var order []string // of intents
	for i := range calls {
		c := &calls[i]
		switch c.Call {
		case Take:
			name := fmt.Sprint(i)
			if c.Key != "" {
				name = c.Buyer + " " + c.Key
			}
			if intents[name] == nil {
				order = append(order, name)
			}
			intents[name] = append(intents[name], c)
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
	for _, reads := range h.reads {
		slices.SortStableFunc(reads, func(a, b *Call) int { return cmp.Compare(a.Begin, b.Begin) })
	}
	h.findSales(intents, order)
	for _, s := range h.sales {
		h.follow(s)
	}
	return h
}

// shown returns when a read first showed the order with this status, or with any that
// holds or held units if status is empty.
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

// findSales finds the order of each intent: of each call that takes, or of all calls of a
// buyer with one key. The other calls may have held units for a while.
func (h *history) findSales(intents map[string][]*Call, order []string) {
	named := make(map[string]bool)
	for _, name := range order {
		for _, c := range intents[name] {
			if c.OrderID != "" {
				named[c.OrderID] = true
			}
		}
	}
	for _, name := range order {
		tries := intents[name]
		sales := h.salesOf(tries, named)
		h.sales = append(h.sales, sales...)
		for _, c := range tries {
			if len(tries) == 1 && len(sales) == 1 && !sales[0].maybe || slices.ContainsFunc(sales, func(s *sale) bool { return s.answered == c }) {
				continue
			}
			end, open := c.End, c.Outcome == Unknown
			if c.Outcome == Queued { // it was refused later
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

// salesOf returns the orders of one intent. There should be one at most.
func (h *history) salesOf(tries []*Call, named map[string]bool) (sales []*sale) {
	first := tries[0]
	begin, end, unknown := first.Begin, first.End, false
	for _, c := range tries {
		begin, end, unknown = min(begin, c.Begin), max(end, c.End), unknown || c.Outcome == Unknown
	}
	s := func(id string) *sale {
		return &sale{id: id, buyer: first.Buyer, lines: first.Lines, begin: begin, end: Forever}
	}
	for _, c := range tries {
		if c.Outcome != Accepted && c.Outcome != Queued {
			continue
		}
		i := slices.IndexFunc(sales, func(s *sale) bool { return s.id == c.OrderID })
		if i < 0 {
			if c.Outcome == Queued && h.status(c.OrderID) == client.OrderRefused {
				continue
			}
			i, sales = len(sales), append(sales, s(c.OrderID))
		}
		sale := sales[i]
		if c.Outcome == Accepted && (sale.answered == nil || sale.answered.Outcome == Queued || c.End < sale.end) {
			sale.answered, sale.end = c, min(sale.end, c.End)
		} else if sale.answered == nil {
			sale.answered, sale.end = c, max(c.End, h.shown(c.OrderID, c.Buyer, ""))
		}
	}
	if len(sales) > 0 || !unknown {
		return sales
	}
	for _, c := range h.lists[first.Buyer] {
		for _, o := range c.Found {
			if !named[o.ID] && slices.Equal(o.Lines, sorted(first.Lines)) {
				named[o.ID] = true
				found := s(o.ID)
				found.end = h.shown(o.ID, o.BuyerID, "")
				return append(sales, found)
			}
		}
	}
	for _, c := range h.lists[first.Buyer] {
		if c.Begin >= end {
			return nil // it is not among the buyer's orders
		}
	}
	lost := s("")
	lost.maybe = true
	return append(sales, lost)
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

// follow finds out what became of an order's units, and whether its last read contradicts
// an answer.
func (h *history) follow(s *sale) {
	reads := h.reads[s.id]
	switch {
	case s.maybe:
		return
	case len(reads) == 0:
		s.missing = fmt.Sprintf("order %s was not read at the end", s.id)
		return
	}
	last := reads[len(reads)-1]
	switch {
	case s.answered != nil && last.Begin < s.answered.End:
		s.missing = fmt.Sprintf("order %s was not read at the end", s.id)
		return
	case last.Outcome != Accepted:
		s.fault = fmt.Sprintf("order %s was accepted and is not found", s.id)
		return
	case last.Buyer != s.buyer || !slices.Equal(last.Lines, sorted(s.lines)):
		s.fault = fmt.Sprintf("order %s has another buyer or other lines than its request", s.id)
		return
	case last.OrderStatus == client.OrderQueued:
		s.missing = fmt.Sprintf("order %s is still queued", s.id)
		return
	}
	expired := false
	for _, step := range last.Steps {
		switch step {
		case client.OrderExpired:
			expired = true
			s.returns = append(s.returns, change{s.expires(), h.shown(s.id, s.buyer, step), 1, last})
		case client.OrderCancelled:
			h.change(s, Cancel, step, 1)
		case client.OrderPaid:
			if expired { // its units were cut again
				h.change(s, Pay, step, -1)
			}
		case client.OrderRefunded:
			h.change(s, Refund, step, 1)
		}
	}
	for _, c := range h.acts[s.id] {
		if c.Call == Pay && c.Outcome != Accepted { // a late payment may take the units again, and give them back
			h.holds = append(h.holds, hold{c.Begin, c.End, s.lines, c, c.Outcome == Unknown})
		}
		for kind, want := range map[Kind]client.OrderStatus{Cancel: client.OrderCancelled, Pay: client.OrderPaid, Refund: client.OrderRefunded} {
			if c.Call == kind && c.Outcome == Accepted && c.End <= last.Begin && !slices.Contains(last.Steps, want) {
				s.fault = fmt.Sprintf("%s of order %s was accepted, and its history does not have it", kind, s.id)
			}
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
	for _, order := range h.stray {
		if quantity(order.Lines, sku) > 0 {
			v.Decision, v.Why = NotLinearizable, fmt.Sprintf("order %s exists, and no call asked for it", order.ID)
			return v
		}
	}
	if v.Decision == Linearizable && p.missing != "" {
		v.Decision, v.Why = Undecided, p.missing
	}
	if v.Decision != Linearizable { // it is not known which units came back, or were added
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
