package gatetest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

var takePromises = []Promise{
	{"TakeCutsAndRecords", takeCutsAndRecords},
	{"LastUnit", lastUnit},
	{"SameTakeTwice", sameTakeTwice},
	{"SameTakeAtOnce", sameTakeAtOnce},
	{"TwinInFlight", twinInFlight},
	{"TwinsAtOnce", twinsAtOnce},
	{"SoldOutTakesNothing", soldOutTakesNothing},
	{"NotFilledTakesNothing", notFilledTakesNothing},
}

func takeCutsAndRecords(t *trial) error {
	t.fill("a", 3, 10)
	t.fill("b", 8, 20)
	d := order(t.line("a", 2), t.line("b", 5))
	lines := slices.Clone(d.Lines)
	taken := t.take(d, nil)
	t.counts("a", 8, 2, 1)
	t.counts("b", 15, 5, 1)
	if t.err != nil {
		return t.err
	}
	switch {
	case len(taken.Receipt) != 2 || taken.Epoch(0) != 3 || taken.Epoch(1) != 8:
		return fmt.Errorf("the receipt is %v, want epochs 3 and 8", taken.Receipt)
	case taken.OrderID != d.OrderID || taken.TakeID != d.TakeID || taken.Buyer != d.Buyer || !slices.Equal(taken.Lines, lines):
		return fmt.Errorf("%v was taken as %v", d, taken.Deduction)
	case !slices.Equal(d.Lines, lines):
		return errors.New("the gate changed its caller's lines")
	}
	return nil
}

// lastUnit sells the stock to the last unit, with larger orders refused in
// between.
func lastUnit(t *trial) error {
	t.fill("a", 1, 3)
	t.refusedFor(order(t.line("a", 5)), "a", stock.ErrSoldOut)
	t.refusedFor(order(t.line("a", 4)), "a", stock.ErrSoldOut)
	t.take(order(t.line("a", 2)), nil)
	t.refusedFor(order(t.line("a", 2)), "a", stock.ErrSoldOut)
	t.take(order(t.line("a", 1)), nil)
	t.refusedFor(order(t.line("a", 1)), "a", stock.ErrSoldOut)
	t.counts("a", 0, 3, 2)

	t.fill("b", 1, stock.MaxTotal)
	t.take(order(t.line("b", stock.MaxTotal)), nil) // as an administrator can
	t.counts("b", 0, stock.MaxTotal, 1)
	return nil
}

func sameTakeTwice(t *trial) error {
	t.fill("a", 4, 10)
	t.fill("b", 5, 10)
	d := order(t.line("a", 6), t.line("b", 7)) // the count has no room for a second cut of this order
	first := t.take(d, nil)
	second := t.take(d, nil)
	if t.err == nil && (!slices.Equal(first.Lines, second.Lines) || !slices.EqualFunc(first.Receipt, second.Receipt, sameEpoch)) {
		return fmt.Errorf("the same take was answered %v, then %v", first, second)
	}
	t.counts("a", 4, 6, 1)
	t.counts("b", 3, 7, 1)
	return nil
}

// sameEpoch reports whether two cuts have the same epoch. Their segments may differ.
func sameEpoch(a, b stock.Cut) bool { return a.Epoch == b.Epoch }

func sameTakeAtOnce(t *trial) error {
	t.fill("a", 1, 10)
	d := order(t.line("a", 6))
	errs := t.atOnce(16, func(gate Gate, _ int) error {
		return t.retryBusy(func() error {
			_, err := gate.Take(t.ctx, d)
			return err
		})
	})
	if n := t.accepted(errs); t.err == nil && n != 16 {
		return fmt.Errorf("%d of 16 were answered as the first", n)
	}
	t.counts("a", 4, 6, 1)
	return nil
}

func twinInFlight(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("b", 1, 2)
	d := order(t.line("a", 1), t.line("b", 2))
	t.take(d, nil)
	t.take(again(d), stock.ErrInFlight) // although b is sold out now
	t.counts("a", 9, 1, 1)
	t.give(d)
	twin := again(d)
	t.take(twin, nil)
	t.settle(twin)
	t.counts("a", 9, 0, 0)
	t.counts("b", 0, 0, 0)
	return nil
}

func twinsAtOnce(t *trial) error {
	t.fill("a", 1, 100)
	d := order(t.line("a", 1))
	errs := t.atOnce(24, func(gate Gate, _ int) error {
		return t.retryBusy(func() error {
			_, err := gate.Take(t.ctx, again(d))
			return err
		})
	})
	if n := t.accepted(errs, stock.ErrInFlight); t.err == nil && n != 1 {
		return fmt.Errorf("%d takes of one order are in flight", n)
	}
	t.counts("a", 99, 1, 1)
	return nil
}

func soldOutTakesNothing(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("b", 1, 2)
	t.fill("c", 1, 10)
	d := order(t.line("a", 1), t.line("b", 3), t.line("c", 1))
	t.refusedFor(d, "b", stock.ErrSoldOut)
	t.counts("a", 10, 0, 0)
	t.counts("b", 2, 0, 0)
	t.counts("c", 10, 0, 0)
	// A refusal burns nothing: after an addition the order can be taken.
	t.adjust("b", 1, 1, 1, nil)
	t.take(again(d), nil)
	t.counts("a", 9, 1, 1)
	t.counts("b", 0, 3, 1)
	return nil
}

func notFilledTakesNothing(t *trial) error {
	t.fill("a", 1, 10)
	t.refusedFor(order(t.line("a", 1), t.line("b", 1)), "b", stock.ErrNotFilled)
	t.refusedFor(order(t.line("b", 1)), "b", stock.ErrNotFilled)
	t.counts("a", 10, 0, 0)
	t.notFilled("b")
	return nil
}
