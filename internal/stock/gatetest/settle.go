package gatetest

import (
	"slices"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

var settlePromises = []Promise{
	{"SettleForgets", settleForgets},
	{"SettleOfAnothersTake", settleOfAnothersTake},
	{"SettleTwiceInOneCall", settleTwiceInOneCall},
	{"SettleManyAtOnce", settleManyAtOnce},
}

func settleForgets(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("b", 1, 10)
	d := order(t.line("a", 2), t.line("b", 3))
	t.take(d, nil)
	for range 2 {
		t.settle(d)
		t.counts("a", 8, 0, 0)
		t.counts("b", 7, 0, 0)
	}
	t.give(d) // too late: the take is settled
	t.counts("a", 8, 0, 0)
	t.settle()
	return nil
}

func settleOfAnothersTake(t *trial) error {
	t.fill("a", 1, 10)
	d := order(t.line("a", 2))
	t.take(d, nil)
	t.settle(again(d), order(t.line("a", 1)))
	t.counts("a", 8, 2, 1)
	t.settle(again(d), d, again(d)) // only d has a record
	t.counts("a", 8, 0, 0)
	return nil
}

func settleTwiceInOneCall(t *trial) error {
	t.fill("a", 1, 10)
	d, other := order(t.line("a", 2)), order(t.line("a", 3))
	t.take(d, nil)
	t.take(other, nil)
	t.settle(d, d, d)
	t.counts("a", 5, 3, 1)
	return nil
}

// settleManyAtOnce settles the takes of the first orders many times, so that one script call is not
// enough: another call settles the takes of the last orders.
func settleManyAtOnce(t *trial) error {
	const orders = 40
	t.fill("a", 1, orders)
	t.fill("b", 1, orders)
	t.fill("c", 1, orders)
	ds := make([]stock.Deduction, orders)
	t.accepted(t.atOnce(orders, func(gate Gate, i int) error {
		taken, err := t.retryTake(gate, order(t.line("a", 1), t.line([]string{"b", "c"}[i%2], 1)))
		ds[i] = taken.Deduction
		return err
	}))
	first, last := ds[:orders/2], ds[orders/2:]
	t.settle(append(slices.Repeat(first, 13), last...)...)
	t.counts("a", 0, 0, 0)
	t.counts("b", orders/2, 0, 0)
	t.counts("c", orders/2, 0, 0)
	return nil
}
