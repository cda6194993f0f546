package gatetest

import "github.com/holdfast-stock/holdfast/internal/stock"

var givePromises = []Promise{
	{"GiveOnce", giveOnce},
	{"GiveAtOnce", giveAtOnce},
	{"GiveBeforeTake", giveBeforeTake},
	{"GiveOfAnothersTake", giveOfAnothersTake},
}

func giveOnce(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("b", 1, 10)
	d := order(t.line("a", 2), t.line("b", 3))
	t.take(d, nil)
	for range 3 {
		t.give(d)
		t.counts("a", 10, 0, 0)
		t.counts("b", 10, 0, 0)
	}
	// The gate gives back what it cut, not the quantity that the caller names.
	d = order(t.line("a", 2))
	t.take(d, nil)
	d.Lines = []stock.Line{t.line("a", 9)}
	t.give(d)
	t.counts("a", 10, 0, 0)
	return nil
}

func giveAtOnce(t *trial) error {
	t.fill("a", 1, 10)
	d := order(t.line("a", 2))
	t.take(d, nil)
	t.accepted(t.atOnce(16, func(gate Gate, _ int) error {
		return t.retryGive(gate, unanswered(d))
	}))
	t.counts("a", 10, 0, 0)
	return nil
}

func giveBeforeTake(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("b", 1, 10)
	var d stock.Deduction
	for range 8 { // orders differ in the segment at which their takes begin
		d = order(t.line("a", 2), t.line("b", 1))
		t.give(d)
		t.take(d, stock.ErrBurned)
		t.take(d, stock.ErrBurned)
		t.counts("a", 10, 0, 0)
		t.counts("b", 10, 0, 0)
	}
	t.take(again(d), nil) // only the take is burned, not the order
	t.counts("a", 8, 2, 1)
	return nil
}

func giveOfAnothersTake(t *trial) error {
	t.fill("a", 1, 10)
	d := order(t.line("a", 2))
	t.take(d, nil)
	twin := again(d)
	t.give(twin)
	t.counts("a", 8, 2, 1)
	t.give(d)
	t.take(twin, stock.ErrBurned)
	t.counts("a", 10, 0, 0)
	return nil
}
