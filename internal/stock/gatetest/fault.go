package gatetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

var faultPromises = []Promise{
	{"EmptiedStoreFailsClosed", emptiedStoreFailsClosed},
	{"LostCountInventsNothing", lostCountInventsNothing},
	{"CancelledContext", cancelledContext},
	{"CancelledTakesLeakNothing", cancelledTakesLeakNothing},
}

func emptiedStoreFailsClosed(t *trial) error {
	t.fill("a", 1, 10)
	d := order(t.line("a", 2))
	t.take(d, nil)
	if t.err == nil {
		t.expect(t.gates.Empty(t.ctx, t.sku("a")), nil, "emptying the store")
	}
	t.refusedFor(order(t.line("a", 1)), "a", stock.ErrNotFilled)
	t.give(d)
	t.settle(order(t.line("a", 1)))
	t.adjust("a", 1, 1, 5, stock.ErrNotFilled)
	t.notFilled("a")
	t.fill("a", 2, 10)
	t.counts("a", 10, 0, 0)
	t.take(d, stock.ErrBurned) // burned, because the take was given back
	t.take(again(d), nil)
	return nil
}

func lostCountInventsNothing(t *trial) error {
	t.fill("a", 1, 10)
	given, settled := order(t.line("a", 2)), order(t.line("a", 3))
	t.take(given, nil)
	t.take(settled, nil)
	if t.err == nil {
		t.expect(t.gates.LoseCount(t.ctx, t.sku("a")), nil, "losing the count")
	}
	if takes := t.inFlight("a"); t.err == nil && len(takes) != 2 {
		return fmt.Errorf("in flight after the count was lost: %v, want both takes", takes)
	}
	t.give(given)
	t.settle(settled)
	t.refusedFor(order(t.line("a", 1)), "a", stock.ErrNotFilled)
	t.notFilled("a")
	t.fill("a", 2, 10)
	t.counts("a", 10, 0, 0)
	return nil
}

func cancelledContext(t *trial) error {
	t.fill("a", 1, 10)
	if t.err != nil {
		return t.err
	}
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	d := order(t.line("a", 2))
	for name, call := range map[string]func() error{
		"Take":   func() error { _, err := t.gate().Take(ctx, d); return err },
		"Give":   func() error { return t.gate().Give(ctx, unanswered(d)) },
		"Settle": func() error { return t.gate().Settle(ctx, unanswered(d)) },
		"Fill":   func() error { return t.gate().Fill(ctx, t.sku("a"), 2, 99) },
		"Adjust": func() error {
			return t.gate().Adjust(ctx, stock.Change{SKU: t.sku("a"), Epoch: 1, Number: 1, Delta: 1})
		},
		"FillAll": func() error {
			return t.gate().FillAll(ctx, []stock.Fill{{SKU: t.sku("a"), Epoch: 2, Units: 99}})[0]
		},
		"ScanInFlight": func() error { _, _, err := t.gate().ScanInFlight(ctx, 0, ""); return err },
		"InFlight":     func() error { _, err := t.gate().InFlight(ctx, 1, t.sku("a")); return err },
		"Level":        func() error { _, err := t.gate().Level(ctx, t.sku("a")); return err },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("%s on a cancelled context: %v", name, err)
		}
	}
	t.give(d) // the outcome of the take may be unknown
	if level := t.level("a"); t.err == nil && level.Available+level.InFlight != 10 && level.Available != 99 && level.Available != 11 {
		return fmt.Errorf("after calls on a cancelled context: %+v", level)
	}
	return nil
}

// cancelledTakesLeakNothing cancels takes at random times, and gives back those
// that were not answered, as callers do.
func cancelledTakesLeakNothing(t *trial) error {
	const units, buyers, orders = 10_000, 16, 6
	t.fill("a", 1, units)
	t.fill("b", 1, units)
	var taken atomic.Int64
	t.accepted(t.atOnce(buyers, func(gate Gate, _ int) error {
		for range orders {
			d := order(t.line("a", 1), t.line("b", 2))
			ctx, cancel := context.WithTimeout(t.ctx, rand.N(3*time.Millisecond))
			_, err := gate.Take(ctx, d)
			cancel()
			if err == nil {
				taken.Add(1)
				continue
			}
			if err := t.retryGive(gate, unanswered(d)); err != nil {
				return err
			}
		}
		return nil
	}))
	n := taken.Load()
	t.counts("a", units-n, n, n)
	t.counts("b", units-2*n, 2*n, n)
	return nil
}
