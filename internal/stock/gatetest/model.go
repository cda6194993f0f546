package gatetest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

var modelPromises = []Promise{
	{"AgreesWithModel", agreesWithModel},
}

// modelSteps is the number of calls that one check makes, one after another.
const modelSteps = 400

// agreesWithModel makes random calls and compares every answer and every count with a model in
// memory. It uses few SKUs and few orders, so that the calls often collide.
func agreesWithModel(t *trial) error {
	seed := rand.Uint64()
	m := newModel(t, rand.New(rand.NewPCG(seed, seed)))
	for step := range modelSteps {
		what, err := m.call()
		if err == nil {
			err = m.compare(step%10 == 0) // listing takes costs more than reading levels
		}
		if err != nil {
			return fmt.Errorf("random seed %d, step %d, %s: %w", seed, step, what, err)
		}
	}
	return nil
}

// model is the expected state of three SKUs at the gate.
type model struct {
	*trial
	random *rand.Rand
	names  []string
	counts map[string]*modelCount
	orders []stock.Deduction // takes to choose from
}

// modelCount is the model of one SKU.
type modelCount struct {
	filled           bool
	epoch, available int64
	change           int64
	records          map[uuid.UUID]modelRecord // by order ID
	burned           map[uuid.UUID]bool        // by take ID
}

type modelRecord struct {
	take  uuid.UUID
	units int64
}

func newModel(t *trial, random *rand.Rand) *model {
	m := &model{trial: t, random: random, names: []string{"a", "b", "c"}, counts: make(map[string]*modelCount)}
	for _, name := range m.names {
		m.counts[name] = &modelCount{records: make(map[uuid.UUID]modelRecord), burned: make(map[uuid.UUID]bool)}
	}
	for range 6 {
		var lines []stock.Line
		for _, name := range m.names {
			if random.IntN(2) == 0 {
				lines = append(lines, t.line(name, 1+random.Int64N(4)))
			}
		}
		if len(lines) == 0 {
			lines = append(lines, t.line("a", 1))
		}
		d := order(lines...)
		m.orders = append(m.orders, d, again(d), again(d))
	}
	return m
}

// of returns the count of the line's SKU.
func (m *model) of(line stock.Line) *modelCount {
	for _, name := range m.names {
		if m.sku(name) == line.SKU {
			return m.counts[name]
		}
	}
	panic("no count of SKU " + line.SKU)
}

// call makes a random call on the gate and on the model. what is a text that describes the call.
func (m *model) call() (what string, err error) {
	d := m.orders[m.random.IntN(len(m.orders))]
	name := m.names[m.random.IntN(len(m.names))]
	switch n := m.random.IntN(100); {
	case n < 45:
		return fmt.Sprintf("taking %s of %v", d.TakeID, d.Lines), m.callTake(d)
	case n < 60:
		m.callSettle(d)
		return fmt.Sprintf("settling %s of %v", d.TakeID, d.Lines), m.err
	case n < 75:
		m.callGive(d)
		return fmt.Sprintf("giving back %s of %v", d.TakeID, d.Lines), m.err
	case n < 84:
		return m.callFill(name), m.err
	case n < 98:
		return m.callAdjust(name), m.err
	case n == 98:
		m.expect(m.gates.LoseCount(m.ctx, m.sku(name)), nil, "losing the count")
		m.counts[name].filled = false
		return "losing the count of " + name, m.err
	default:
		m.expect(m.gates.Empty(m.ctx, m.sku(name)), nil, "emptying the store")
		count := m.counts[name]
		count.filled = false
		clear(count.records)
		clear(count.burned)
		return "emptying " + name, m.err
	}
}

func (m *model) callTake(d stock.Deduction) error {
	var reasons []error
	for _, line := range d.Lines {
		reasons = append(reasons, m.of(line).reasons(d, line.Quantity)...)
	}
	if _, err := m.gate().Take(m.ctx, d); err != nil {
		if !slices.ContainsFunc(reasons, func(reason error) bool { return errors.Is(err, reason) }) {
			return fmt.Errorf("got error %w, want one of %v", err, reasons)
		}
		return nil
	}
	if len(reasons) > 0 {
		return fmt.Errorf("got no error, want one of %v", reasons)
	}
	for _, line := range d.Lines {
		count := m.of(line)
		if _, recorded := count.records[d.OrderID]; !recorded {
			count.records[d.OrderID] = modelRecord{take: d.TakeID, units: line.Quantity}
			count.available -= line.Quantity
		}
	}
	return nil
}

// reasons returns the reasons to refuse a take of units by d.
func (c *modelCount) reasons(d stock.Deduction, units int64) (reasons []error) {
	record, recorded := c.records[d.OrderID]
	same := recorded && record.take == d.TakeID
	if c.burned[d.TakeID] {
		reasons = append(reasons, stock.ErrBurned)
	}
	if recorded && !same {
		reasons = append(reasons, stock.ErrInFlight)
	}
	if !c.filled {
		reasons = append(reasons, stock.ErrNotFilled)
	} else if !same && c.available < units {
		reasons = append(reasons, stock.ErrSoldOut)
	}
	return reasons
}

func (m *model) callSettle(d stock.Deduction) {
	m.settle(d)
	for _, line := range d.Lines {
		if count := m.of(line); count.records[d.OrderID].take == d.TakeID {
			delete(count.records, d.OrderID)
		}
	}
}

func (m *model) callGive(d stock.Deduction) {
	m.give(d)
	for _, line := range d.Lines {
		count := m.of(line)
		record := count.records[d.OrderID]
		if record.take != d.TakeID {
			count.burned[d.TakeID] = true
			continue
		}
		delete(count.records, d.OrderID)
		if count.filled {
			count.available += record.units
		} else {
			count.burned[d.TakeID] = true
		}
	}
	// A take that was given back is usually not sent again.
	at := slices.IndexFunc(m.orders, func(o stock.Deduction) bool { return o.TakeID == d.TakeID })
	m.orders[at] = again(d)
	if m.random.IntN(3) == 0 {
		m.orders = append(m.orders, d)
	}
}

func (m *model) callFill(name string) (what string) {
	count := m.counts[name]
	epoch, units := max(count.epoch-1+m.random.Int64N(4), 1), m.random.Int64N(20)
	if !count.filled { // a lost count may be filled only under a new epoch
		epoch = max(epoch, count.epoch+1)
	}
	var want error
	if count.filled && epoch <= count.epoch {
		want = stock.ErrStaleEpoch
	} else {
		count.filled, count.epoch, count.available, count.change = true, epoch, units, 0
		clear(count.records)
	}
	m.fillAgain(name, epoch, units, want)
	return fmt.Sprintf("filling %s with %d under epoch %d", name, units, epoch)
}

func (m *model) callAdjust(name string) (what string) {
	const units = 3
	count := m.counts[name]
	epoch := max(count.epoch-1+m.random.Int64N(3), 1)
	number := max(count.change-1+m.random.Int64N(4), 1)
	var want error
	switch {
	case !count.filled || count.epoch < epoch:
		want = stock.ErrNotFilled
	case count.epoch > epoch || number <= count.change:
	case number > count.change+1:
		want = stock.ErrChangeGap
	default:
		count.change, count.available = number, count.available+units
	}
	m.adjust(name, epoch, number, units, want)
	return fmt.Sprintf("adding change %d of epoch %d to %s", number, epoch, name)
}

// compare compares the gate's levels with the model's, and if list is set also
// the takes in flight of the filled SKUs.
func (m *model) compare(list bool) error {
	var skus []stock.SKU
	var want []stock.Level
	for _, name := range m.names {
		skus = append(skus, m.sku(name))
		want = append(want, m.counts[name].level(m.sku(name)))
	}
	got, err := m.gate().Level(m.ctx, skus...)
	m.expect(err, nil, "reading the levels")
	if m.err == nil && !slices.Equal(got, want) {
		return fmt.Errorf("got %+v, want %+v", got, want)
	}
	for _, name := range m.names {
		count := m.counts[name]
		if !list || !count.filled {
			continue
		}
		if listed := len(m.inFlight(name)); m.err == nil && listed != len(count.records) {
			return fmt.Errorf("got %d takes of %s in flight, want %d", listed, name, len(count.records))
		}
	}
	return m.err
}

func (c *modelCount) level(sku stock.SKU) stock.Level {
	level := stock.Level{SKU: sku}
	if c.filled {
		level.Filled, level.Epoch, level.Available = true, c.epoch, c.available
		for _, record := range c.records {
			level.InFlight += record.units
		}
	}
	return level
}
