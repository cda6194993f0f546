package gatetest

import (
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

var fillPromises = []Promise{
	{"FillRefusesOlderEpoch", fillRefusesOlderEpoch},
	{"FillForgetsFlight", fillForgetsFlight},
	{"FillAllFillsEach", fillAllFillsEach},
}

func fillRefusesOlderEpoch(t *trial) error {
	t.fill("a", 5, 10)
	t.take(order(t.line("a", 1)), nil)
	t.fillAgain("a", 5, 10, stock.ErrStaleEpoch)
	t.fillAgain("a", 4, 99, stock.ErrStaleEpoch)
	t.counts("a", 9, 1, 1)
	t.fill("a", 6, 20)
	t.counts("a", 20, 0, 0)
	if level := t.level("a"); t.err == nil && level.Epoch != 6 {
		return fmt.Errorf("after a fill under epoch 6: %+v", level)
	}
	return nil
}

func fillForgetsFlight(t *trial) error {
	t.fill("a", 1, 20)
	t.fill("b", 1, 20)
	given, settled := order(t.line("a", 2), t.line("b", 2)), order(t.line("a", 3))
	left, twin := order(t.line("a", 1)), order(t.line("a", 4))
	for _, d := range []stock.Deduction{given, settled, left, twin} {
		t.take(d, nil)
	}
	t.fill("a", 2, 10)
	if level := t.level("a"); t.err == nil && (level.Available != 10 || level.InFlight != 0) {
		return fmt.Errorf("after a fill with 10 units: %+v", level)
	}
	t.give(given) // the new count does not include the units of the take
	t.settle(settled)
	t.take(again(twin), nil) // the void record does not refuse the take
	t.counts("a", 6, 4, 1)
	t.counts("b", 20, 0, 0)
	return nil
}

func fillAllFillsEach(t *trial) error {
	const many = 260 // so many orders need more than one script call
	name := func(i int) string { return fmt.Sprint("many-", i) }
	t.fill(name(1), 5, 10)
	t.take(order(t.line(name(1), 1)), nil)
	if t.err != nil {
		return t.err
	}
	fills := make([]stock.Fill, many)
	for i := range fills {
		fills[i] = stock.Fill{SKU: t.sku(name(i)), Epoch: 5, Units: int64(i)}
	}
	errs := t.gate().FillAll(t.ctx, fills)
	if len(errs) != many {
		return fmt.Errorf("%d errors of %d fills", len(errs), many)
	}
	for i, err := range errs {
		var want error
		if i == 1 {
			want = stock.ErrStaleEpoch
		}
		t.expect(err, want, "filling %s", name(i))
	}
	t.counts(name(0), 0, 0, 0)
	t.counts(name(1), 9, 1, 1)
	t.counts(name(2), 2, 0, 0)
	t.counts(name(many-1), many-1, 0, 0)
	return nil
}
