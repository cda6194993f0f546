package gatetest

import (
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

var fillPromises = []Promise{
	{"FillRefusesOlderEpoch", fillRefusesOlderEpoch},
	{"FillForgetsFlight", fillForgetsFlight},
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
	t.give(given) // its units are not in this count
	t.settle(settled)
	t.take(again(twin), nil) // the void record does not refuse it
	t.counts("a", 6, 4, 1)
	t.counts("b", 20, 0, 0)
	return nil
}
