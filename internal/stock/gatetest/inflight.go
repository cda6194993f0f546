package gatetest

import (
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

var inFlightPromises = []Promise{
	{"InFlightHasAllLines", inFlightHasAllLines},
	{"InFlightByAge", inFlightByAge},
	{"InFlightOfMany", inFlightOfMany},
	{"ScanFindsAll", scanFindsAll},
}

func inFlightHasAllLines(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("b", 1, 10)
	t.fill("c", 1, 10_000_000)
	bought := order(t.line("a", 1), t.line("b", 2), t.line("c", 1000))
	removed := order(t.line("c", 5_000_000)) // removed by an administrator
	removed.Buyer = ""
	t.take(bought, nil)
	t.take(removed, nil)
	t.take(again(bought), stock.ErrInFlight)
	for name, want := range map[string][]stock.Deduction{"a": {bought}, "b": {bought}, "c": {bought, removed}} {
		takes := t.inFlight(name)
		if t.err != nil {
			return t.err
		}
		if len(takes) != len(want) {
			return fmt.Errorf("in flight of %s: %v, want %v", name, takes, want)
		}
		for _, d := range want {
			if !slices.ContainsFunc(takes, func(taken stock.Take) bool { return sameDeduction(taken.Deduction, d) }) {
				return fmt.Errorf("in flight of %s: %v, want %v", name, takes, want)
			}
		}
	}
	t.settleTakes(t.inFlight("c")...) // listed takes can be settled
	t.counts("a", 9, 0, 0)
	t.counts("b", 8, 0, 0)
	t.counts("c", 10_000_000-5_000_000-1000, 0, 0)
	return nil
}

func sameDeduction(a, b stock.Deduction) bool {
	return a.OrderID == b.OrderID && a.TakeID == b.TakeID && a.Buyer == b.Buyer && slices.Equal(a.Lines, b.Lines)
}

func inFlightByAge(t *trial) error {
	t.fill("a", 1, 10)
	d := order(t.line("a", 1))
	t.take(d, nil)
	if t.err != nil {
		return t.err
	}
	if found, ok := t.scan(time.Hour)[d.TakeID]; ok {
		return fmt.Errorf("in flight for an hour: %+v", found)
	}
	const age = 30 * time.Millisecond
	return testenv.Poll(testenv.Patience, func() error { // wait, because the gate uses its server's clock
		if _, ok := t.scan(age)[d.TakeID]; t.err == nil && !ok {
			return fmt.Errorf("take %s is not listed as older than %v", d.TakeID, age)
		}
		return t.err
	})
}

func inFlightOfMany(t *trial) error {
	const orders, buyers = 700, 20 // a scan of so many orders takes several steps
	t.fill("a", 1, orders)
	t.accepted(t.atOnce(buyers, func(gate Gate, _ int) error {
		for range orders / buyers {
			if _, err := t.retryTake(gate, order(t.line("a", 1))); err != nil {
				return err
			}
		}
		return nil
	}))
	for _, limit := range []int{1, 600, orders, 5000} {
		if t.err != nil {
			return t.err
		}
		takes, err := t.gate().InFlight(t.ctx, limit, t.sku("a"))
		if err != nil {
			return err
		}
		distinct := make(map[uuid.UUID]bool)
		for _, taken := range takes {
			distinct[taken.TakeID] = true
		}
		if want := min(limit, orders); len(takes) != want || len(distinct) != want {
			return fmt.Errorf("with limit %d of %d takes in flight: got %d takes, %d of them distinct", limit, orders, len(takes), len(distinct))
		}
	}
	return nil
}

func scanFindsAll(t *trial) error {
	const buyers, orders = 20, 30 // a scan of so many orders takes several steps
	names := []string{"a", "b", "c"}
	for _, name := range names {
		t.fill(name, 1, buyers*orders)
	}
	bought := make([][]stock.Deduction, buyers)
	t.accepted(t.atOnce(buyers, func(gate Gate, i int) error {
		for n := range orders {
			d := order(t.line(names[n%3], 1))
			if n == 0 {
				d = order(t.line("a", 1), t.line("b", 2))
			}
			taken, err := t.retryTake(gate, d)
			if err != nil {
				return err
			}
			bought[i] = append(bought[i], taken.Deduction)
		}
		return nil
	}))
	old, all := t.scan(time.Hour), t.scan(0)
	for _, d := range slices.Concat(bought...) {
		if t.err != nil {
			return t.err
		}
		if found, ok := all[d.TakeID]; !ok || !sameDeduction(found.Deduction, d) {
			return fmt.Errorf("the scan found %+v, want %+v", found, d)
		}
		if _, ok := old[d.TakeID]; ok {
			return fmt.Errorf("the scan found %+v, which is not an hour old", d)
		}
	}
	for _, of := range bought { // listed takes can be settled
		var listed []stock.Take
		for _, d := range of {
			listed = append(listed, all[d.TakeID])
		}
		t.settleTakes(listed...)
	}
	for _, name := range names {
		if level := t.level(name); t.err == nil && level.InFlight != 0 {
			return fmt.Errorf("after the settles: %+v", level)
		}
	}
	return nil
}

// scan lists the takes of all SKUs by their ID.
func (t *trial) scan(olderThan time.Duration) map[uuid.UUID]stock.Take {
	found := make(map[uuid.UUID]stock.Take)
	for cursor, first := "", true; t.err == nil && (first || cursor != ""); first = false {
		takes, next, err := t.gate().ScanInFlight(t.ctx, olderThan, cursor)
		t.expect(err, nil, "scanning from %q", cursor)
		for _, taken := range takes {
			found[taken.TakeID] = taken
		}
		cursor = next
	}
	return found
}
