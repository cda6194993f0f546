package stocktest

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// modelSteps is how many calls one model check makes, one after the other.
const modelSteps = 400

// agreesWithModel makes random calls on few SKUs and orders, so that they meet
// often, and holds every answer and count against a model in memory.
func agreesWithModel(t *trial) error {
	seed := rand.Uint64()
	if err := modelRun(t, rand.New(rand.NewPCG(seed, seed))); err != nil {
		return fmt.Errorf("random seed %d: %w", seed, err)
	}
	return nil
}

// modelCount is the model of one SKU.
type modelCount struct {
	filled      bool
	epoch, left int64
	change      int64
	flight      map[uuid.UUID]modelRecord // by order ID
	burned      map[uuid.UUID]bool        // by take ID
}

type modelRecord struct {
	take  uuid.UUID
	units int64
}

func (c *modelCount) level(sku stock.SKU) stock.Level {
	level := stock.Level{SKU: sku}
	if c.filled {
		level.Filled, level.Epoch, level.Available = true, c.epoch, c.left
		for _, record := range c.flight {
			level.InFlight += record.units
		}
	}
	return level
}

// reasons are what speaks against a take of the line.
func (c *modelCount) reasons(d stock.Deduction, units int64) (reasons []error) {
	record, flying := c.flight[d.OrderID]
	mine := flying && record.take == d.TakeID
	if c.burned[d.TakeID] {
		reasons = append(reasons, stock.ErrBurned)
	}
	if flying && !mine {
		reasons = append(reasons, stock.ErrInFlight)
	}
	if !c.filled {
		reasons = append(reasons, stock.ErrNotFilled)
	} else if !mine && c.left < units {
		reasons = append(reasons, stock.ErrSoldOut)
	}
	return reasons
}

func modelRun(t *trial, random *rand.Rand) error {
	names := []string{"a", "b", "c"}
	model := make(map[stock.SKU]*modelCount)
	for _, name := range names {
		model[t.sku(name)] = &modelCount{flight: make(map[uuid.UUID]modelRecord), burned: make(map[uuid.UUID]bool)}
	}
	var orders []stock.Deduction
	for range 6 {
		var lines []stock.Line
		for _, name := range names {
			if random.IntN(2) == 0 {
				lines = append(lines, t.line(name, 1+random.Int64N(4)))
			}
		}
		if len(lines) == 0 {
			lines = append(lines, t.line("a", 1))
		}
		d := order(lines...)
		orders = append(orders, d, again(d), again(d))
	}
	for step := range modelSteps {
		var what string
		d := orders[random.IntN(len(orders))]
		name := names[random.IntN(len(names))]
		count := model[t.sku(name)]
		switch n := random.IntN(100); {
		case n < 45:
			what = fmt.Sprintf("take %s of %v", d.TakeID, d.Lines)
			_, err := t.gate().Take(t.ctx, d)
			if err := modelTake(model, d, err); err != nil {
				return fmt.Errorf("step %d, %s: %w", step, what, err)
			}
		case n < 60:
			what = fmt.Sprintf("settling %s of %v", d.TakeID, d.Lines)
			t.settle(d)
			for _, line := range d.Lines {
				if c := model[line.SKU]; c.flight[d.OrderID].take == d.TakeID {
					delete(c.flight, d.OrderID)
				}
			}
		case n < 75:
			what = fmt.Sprintf("giving %s of %v", d.TakeID, d.Lines)
			t.give(d)
			for _, line := range d.Lines {
				c := model[line.SKU]
				record := c.flight[d.OrderID]
				if record.take != d.TakeID {
					c.burned[d.TakeID] = true
					continue
				}
				delete(c.flight, d.OrderID)
				if c.filled {
					c.left += record.units
				} else {
					c.burned[d.TakeID] = true
				}
			}
			fresh := again(d) // a given take is not sent any more, but now and then
			orders[slices.IndexFunc(orders, func(o stock.Deduction) bool { return o.TakeID == d.TakeID })] = fresh
			if random.IntN(3) == 0 {
				orders = append(orders, d)
			}
		case n < 84:
			epoch, units := count.epoch-1+random.Int64N(4), random.Int64N(20)
			epoch = max(epoch, 1)
			if !count.filled { // a count that was lost is filled under an epoch that never was
				epoch = max(epoch, count.epoch+1)
			}
			what = fmt.Sprintf("filling %s with %d under epoch %d", name, units, epoch)
			var want error
			if count.filled && epoch <= count.epoch {
				want = stock.ErrStaleEpoch
			} else {
				count.filled, count.epoch, count.left, count.change = true, epoch, units, 0
				clear(count.flight)
			}
			t.fillAgain(name, epoch, units, want)
		case n < 98:
			epoch, number := max(count.epoch-1+random.Int64N(3), 1), max(count.change-1+random.Int64N(4), 1)
			what = fmt.Sprintf("change %d of epoch %d for %s", number, epoch, name)
			var want error
			switch {
			case !count.filled || count.epoch < epoch:
				want = stock.ErrNotFilled
			case count.epoch > epoch || number <= count.change:
			case number > count.change+1:
				want = stock.ErrChangeGap
			default:
				count.change, count.left = number, count.left+3
			}
			t.adjust(name, epoch, number, 3, want)
		case n == 98:
			what = "losing the count of " + name
			t.expect(t.gates.LoseCount(t.ctx, t.sku(name)), nil, "%s", what)
			count.filled = false
		default:
			what = "emptying " + name
			t.expect(t.gates.Empty(t.ctx, t.sku(name)), nil, "%s", what)
			count.filled = false
			clear(count.flight)
			clear(count.burned)
		}
		for _, name := range names {
			want := model[t.sku(name)].level(t.sku(name))
			if level := t.level(name); t.err == nil && level != want {
				return fmt.Errorf("step %d, %s: got %+v, want %+v", step, what, level, want)
			}
			if step%10 != 0 || !want.Filled { // a list costs more than a level
				continue
			}
			if listed, flying := len(t.inFlight(name)), len(model[t.sku(name)].flight); t.err == nil && listed != flying {
				return fmt.Errorf("step %d, %s: %d takes of %s in flight, want %d", step, what, listed, name, flying)
			}
		}
		if t.err != nil {
			return fmt.Errorf("step %d, %s: %w", step, what, t.err)
		}
	}
	return nil
}

// modelTake holds a take's answer against the model, and takes there too.
func modelTake(model map[stock.SKU]*modelCount, d stock.Deduction, answer error) error {
	var reasons []error
	for _, line := range d.Lines {
		reasons = append(reasons, model[line.SKU].reasons(d, line.Quantity)...)
	}
	if answer != nil {
		if !slices.ContainsFunc(reasons, func(reason error) bool { return errors.Is(answer, reason) }) {
			return fmt.Errorf("answered %w, and only %v may be", answer, reasons)
		}
		return nil
	}
	if len(reasons) > 0 {
		return fmt.Errorf("taken, in spite of %v", reasons)
	}
	for _, line := range d.Lines {
		c := model[line.SKU]
		if _, flying := c.flight[d.OrderID]; !flying {
			c.flight[d.OrderID] = modelRecord{take: d.TakeID, units: line.Quantity}
			c.left -= line.Quantity
		}
	}
	return nil
}
