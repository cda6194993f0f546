package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// maxGatherWait bounds how long a take waits for its turn to gather.
	maxGatherWait = 2 * time.Second
	// maxGatherTries bounds how often a gather plans again because counts changed.
	maxGatherTries = 10
)

// gather cuts parts of several segments. No other take gathers units of the same
// SKUs at the same time. If it finds fewer units than a line needs, the line is
// sold out. If a lock is lost, another gather may have cut parts that it will give
// back, so the take is answered stock.ErrBusy.
func (g *Segmented) gather(ctx context.Context, planned stock.Take) (stock.Take, error) {
	waiting, stopWaiting := context.WithTimeout(ctx, maxGatherWait)
	defer stopWaiting()
	leases := make([]lock.Lease, len(planned.Lines))
	for i, line := range planned.Lines {
		lease, err := g.gatherers.Lock(waiting, "gather:"+string(line.SKU))
		if err != nil {
			return stock.Take{}, fmt.Errorf("%w: waiting to gather units of SKU %s: %w", stock.ErrBusy, line.SKU, err)
		}
		leases[i] = lease
		defer func() { _ = lease.Unlock(ctx) }() // if Unlock fails, the lock ends with its lease
		if err := g.announce(ctx, line.SKU, true); err != nil {
			return stock.Take{}, err
		}
		defer func() {
			if lease.Context().Err() != nil { // the next gather may have begun, and ends itself
				return
			}
			_ = g.announce(ctx, line.SKU, false) // if the call fails, the next gather lowers the counter
		}()
	}
	for range maxGatherTries {
		parts, err := g.collectAll(ctx, planned)
		for i, lease := range leases {
			if lost := context.Cause(lease.Context()); lost != nil {
				return stock.Take{}, fmt.Errorf("%w: gathering units of SKU %s: %w", stock.ErrBusy, planned.Lines[i].SKU, lost)
			}
		}
		if err != nil {
			return stock.Take{}, err
		}
		if parts > maxParts {
			return stock.Take{}, fmt.Errorf("%w: the units are spread over %d segments", stock.ErrBusy, parts)
		}
		taken, short, err := g.cut(ctx, planned)
		if short == noLine {
			return taken, err
		}
	}
	return stock.Take{}, fmt.Errorf("%w: the counts of the order's SKUs change too fast to gather units", stock.ErrBusy)
}

// collectAll plans parts for all lines, and returns their number.
func (g *Segmented) collectAll(ctx context.Context, planned stock.Take) (parts int, err error) {
	for i, line := range planned.Lines {
		collected, err := g.collect(ctx, line)
		if err != nil {
			return 0, err
		}
		planned.Receipt[i].Parts = collected
		parts += len(collected)
	}
	return parts, nil
}

// collect returns the parts that give the line its units. They are from the segments with most
// units, and so from as few as possible.
func (g *Segmented) collect(ctx context.Context, line stock.Line) ([]stock.Part, error) {
	levels, sum, err := g.segmentLevels(ctx, line.SKU)
	if err != nil {
		return nil, err
	}
	if sum < line.Quantity {
		return nil, stock.Refuse(line.SKU, stock.ErrSoldOut)
	}
	parts := make([]stock.Part, len(levels))
	for n, level := range levels {
		parts[n] = stock.Part{Segment: n, Quantity: level.Available}
	}
	slices.SortStableFunc(parts, func(a, b stock.Part) int { return cmp.Compare(b.Quantity, a.Quantity) })
	var collected []stock.Part
	for missing, i := line.Quantity, 0; missing > 0; i++ {
		part := stock.Part{Segment: parts[i].Segment, Quantity: min(parts[i].Quantity, missing)}
		collected = append(collected, part)
		missing -= part.Quantity
	}
	return collected, nil
}

func (g *Segmented) gathersKey(sku stock.SKU) string { return g.counter.keyPrefix(sku) + ":gathers" }

// gathers returns the counter of gathers, which never falls. It is odd while a take gathers units
// of the SKU.
func (g *Segmented) gathers(ctx context.Context, sku stock.SKU) (int64, error) {
	n, err := g.counter.client.Get(ctx, g.gathersKey(sku)).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, fmt.Errorf("reading whether SKU %s is being gathered: %w", sku, err)
	}
	return n, nil
}

// announce raises the counter of gathers, to an odd number when a gather begins and to an even one
// when it ends. It also repairs a counter that a dead process left odd.
func (g *Segmented) announce(ctx context.Context, sku stock.SKU, begins bool) error {
	n, err := g.gathers(ctx, sku)
	if err != nil {
		return fmt.Errorf("announcing a gather of SKU %s: %w", sku, err)
	}
	step := int64(1)
	if odd := n%2 != 0; odd == begins {
		step = 2
	}
	if err := g.counter.client.IncrBy(ctx, g.gathersKey(sku), step).Err(); err != nil {
		return fmt.Errorf("announcing a gather of SKU %s: %w", sku, err)
	}
	return nil
}
