package gatetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

var oversellPromises = []Promise{
	{"NoOversell", noOversell},
	{"NoOversellOfSeveralLines", noOversellOfSeveralLines},
	{"NoOversellAcrossRefills", noOversellAcrossRefills},
	{"CountsAddUp", countsAddUp},
}

// Rush runs buyers that take one unit after another until the SKU is sold out, and
// returns how many units the gates accepted. A buyer that is answered "busy" waits
// briefly and retries. Any other error is returned.
//
// Rush stops a gate that never sells out at 100,000 units.
func Rush(ctx context.Context, gates []Gate, sku stock.SKU, buyers int) (accepted int64, err error) {
	const maxSold = 100_000
	var (
		sold atomic.Int64
		all  sync.WaitGroup
		errs = make(chan error, buyers)
	)
	for i := range buyers {
		gate := gates[i%len(gates)]
		all.Go(func() {
			for sold.Load() < maxSold {
				_, err := gate.Take(ctx, order(stock.Line{SKU: sku, Quantity: 1}))
				switch {
				case err == nil:
					sold.Add(1)
				case errors.Is(err, stock.ErrSoldOut):
					return
				case errors.Is(err, stock.ErrBusy) && ctx.Err() == nil:
					testenv.Dither()
				default:
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	return sold.Load(), <-errs
}

func noOversell(t *trial) error {
	const units, buyers = 60, 16
	t.fill("a", 1, units)
	if t.err != nil {
		return t.err
	}
	accepted, err := Rush(t.ctx, t.gates.Instances, t.sku("a"), buyers)
	switch {
	case accepted > units:
		return fmt.Errorf("oversold: accepted %d of %d units", accepted, units)
	case err != nil:
		return err
	case accepted < units:
		return fmt.Errorf("undersold: accepted %d of %d units", accepted, units)
	}
	t.counts("a", 0, units, units)
	return nil
}

func noOversellOfSeveralLines(t *trial) error {
	const units, buyers, orders = 40, 16, 10
	t.fill("a", 1, units)
	t.fill("b", 1, units)
	t.fill("c", 1, units)
	baskets := [][]stock.Line{
		{t.line("a", 1), t.line("b", 2)},
		{t.line("b", 1), t.line("c", 1)},
		{t.line("a", 3), t.line("b", 1), t.line("c", 1)},
		{t.line("c", 2)},
	}
	var mu sync.Mutex
	sold := make(map[stock.SKU]int64)
	t.accepted(t.atOnce(buyers, func(gate Gate, i int) error {
		for n := range orders {
			basket := baskets[(i+n)%len(baskets)]
			err := t.retryBusy(func() error {
				_, err := gate.Take(t.ctx, order(basket...))
				return err
			})
			if errors.Is(err, stock.ErrSoldOut) {
				continue
			}
			if err != nil {
				return err
			}
			mu.Lock()
			for _, line := range basket {
				sold[line.SKU] += line.Quantity
			}
			mu.Unlock()
		}
		return nil
	}))
	for _, name := range []string{"a", "b", "c"} {
		level := t.level(name)
		n := sold[t.sku(name)]
		switch {
		case t.err != nil:
			return t.err
		case n > units:
			return fmt.Errorf("oversold: accepted %d of %d units of %s", n, units, name)
		case level.Available != units-n || level.InFlight != n:
			return fmt.Errorf("accepted %d of %d units of %s, and the gate has %+v", n, units, name, level)
		}
	}
	return nil
}

func noOversellAcrossRefills(t *trial) error {
	const units, epochs, buyers, orders = 20, 6, 12, 15
	t.fill("a", 1, units)
	var mu sync.Mutex
	sold := make(map[int64]int64) // units by the epoch in the receipt
	refill := func(gate Gate) error {
		for epoch := int64(2); epoch <= epochs; epoch++ {
			if err := t.retryBusy(func() error { return gate.Fill(t.ctx, t.sku("a"), epoch, units) }); err != nil {
				return err
			}
		}
		return nil
	}
	buy := func(gate Gate) error {
		taken, err := gate.Take(t.ctx, order(t.line("a", 1)))
		if err == nil {
			mu.Lock()
			sold[taken.Epoch(0)]++
			mu.Unlock()
		}
		return err
	}
	t.accepted(t.atOnce(buyers+1, func(gate Gate, i int) error {
		if i == buyers {
			return refill(gate)
		}
		for range orders {
			if err := t.retryBusy(func() error { return buy(gate) }); err != nil && !errors.Is(err, stock.ErrSoldOut) {
				return err
			}
		}
		return nil
	}))
	for epoch, n := range sold {
		if n > units {
			return fmt.Errorf("oversold: accepted %d of %d units under epoch %d", n, units, epoch)
		}
	}
	t.counts("a", units-sold[epochs], sold[epochs], sold[epochs])
	return nil
}

// countsAddUp settles some takes, gives some back and leaves some in flight, all
// at the same time.
func countsAddUp(t *trial) error {
	const units, buyers, orders = 100_000, 16, 9
	t.fill("a", 1, units)
	t.fill("b", 1, units)
	var settled, left atomic.Int64
	t.accepted(t.atOnce(buyers, func(gate Gate, i int) error {
		for n := range orders {
			taken, err := t.retryTake(gate, order(t.line("a", 2), t.line("b", 3)))
			if err != nil {
				return err
			}
			switch (i + n) % 3 {
			case 0:
				settled.Add(1)
				err = gate.Settle(t.ctx, taken)
			case 1:
				err = t.retryGive(gate, taken)
			default:
				left.Add(1)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
	s, f := settled.Load(), left.Load()
	t.counts("a", units-2*(s+f), 2*f, f)
	t.counts("b", units-3*(s+f), 3*f, f)
	return nil
}
