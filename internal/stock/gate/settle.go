package gate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxSettleLines bounds the records that one script call settles.
const maxSettleLines = 500

// Settle removes the records of takes that the ledger has. It changes no units available,
// and needs no locks. It ignores a take that is not in flight, or whose order another take
// holds. If it fails, it may have removed some records. Settling a take again does no harm.
func (c *Counter) Settle(ctx context.Context, takes ...stock.Take) error {
	if c.layout.divides() {
		whole := takes
		takes = make([]stock.Take, len(whole))
		for i, t := range whole {
			takes[i] = c.layout.everywhere(t)
		}
	}
	return c.settle(ctx, nil, takes)
}

// settle is Settle for the records of SKUs or segments. If journal has the journal's keys,
// the orders of the takes also leave the queue.
func (c *Counter) settle(ctx context.Context, journal []string, takes []stock.Take) error {
	type batch struct {
		skus  numbering
		lines []string
	}
	var batches []*batch
	open := make(map[stock.SKU]*batch) // by SKU on a cluster; otherwise all under ""
	for i := range takes {
		t := &takes[i]
		text := appendID(appendID(make([]byte, 0, 80), t.OrderID), t.TakeID)
		for lines := range slices.Chunk(t.Lines, c.linesPerCall(t.Deduction)) {
			var of stock.SKU
			if c.cluster {
				of = lines[0].SKU
			}
			b := open[of]
			// The lines of a call stay together: an order leaves the queue with all of
			// its records.
			if b == nil || len(b.lines)+len(lines) > maxSettleLines {
				b = new(batch)
				open[of] = b
				batches = append(batches, b)
			}
			for _, line := range lines {
				b.lines = append(b.lines, string(binary.BigEndian.AppendUint16(text, uint16(b.skus.number(line.SKU)))))
			}
		}
	}
	calls := make([]*call, len(batches))
	for i, b := range batches {
		keys := c.keys(b.skus.skus[0])
		names := append([]string{keys.count, keys.flight}, journal...)
		calls[i] = newCall(&c.scripts().settle, names, append(b.skus.arguments(), b.lines...))
	}
	if err := c.run(ctx, calls...); err != nil {
		return fmt.Errorf("settling %d takes: %w", len(takes), err)
	}
	return nil
}

// Give returns the units that the take's records name, once. Where it has no record, it
// burns the take for 10 minutes, so that the take cannot arrive later. If it fails, part of
// the units may be returned. Call it again to return the rest. stock.ErrBusy: it could not
// get a lock in time.
func (c *Counter) Give(ctx context.Context, t stock.Take) error {
	return c.giveUnderLocks(ctx, c.layout.everywhere(t))
}

// giveUnderLocks gives t, whose lines are SKUs or segments, back. If there are locks, it
// gives each line back under its lock, and never holds more than one.
func (c *Counter) giveUnderLocks(ctx context.Context, t stock.Take) error {
	if c.layout.Locks == nil {
		return c.give(ctx, unfenced, t)
	}
	var errs []error
	for i := range t.Lines {
		one := t
		one.Lines = t.Lines[i : i+1]
		errs = append(errs, c.layout.Locks.hold(ctx, one.SKUs(), func(ctx context.Context, tokens tokenSet) error {
			return c.give(ctx, tokens, one)
		}))
	}
	return errors.Join(errs...)
}

func (c *Counter) give(ctx context.Context, tokens tokenSet, t stock.Take) error {
	common := []string{
		t.OrderID.String(), t.TakeID.String(),
		strconv.FormatInt(burnTime.Milliseconds(), 10), strconv.Itoa(maxBurned),
	}
	var calls []*call
	for lines := range slices.Chunk(t.Lines, c.linesPerCall(t.Deduction)) {
		keys, args := c.keys(lines[0].SKU), slices.Clone(common)
		for _, line := range lines {
			token, err := tokens.of(line.SKU)
			if err != nil {
				return fmt.Errorf("giving take %s back: %w", t.TakeID, err)
			}
			args = append(args, string(line.SKU), strconv.FormatInt(token, 10))
		}
		calls = append(calls, newCall(&c.scripts().give, []string{keys.count, keys.flight, keys.burned}, args))
	}
	if err := c.run(ctx, calls...); err != nil {
		return fmt.Errorf("giving take %s back: %w", t.TakeID, err)
	}
	for _, call := range calls {
		switch given := call.cmd.Val(); {
		case slices.Equal(given, []int64{0}):
			return fmt.Errorf("giving take %s back: %w", t.TakeID, fenced(t.Lines[0].SKU))
		case !slices.Equal(given, []int64{1}):
			return fmt.Errorf("giving take %s back: %w", t.TakeID, errAnswer)
		}
	}
	return nil
}

// linesPerCall returns how many lines of d one script call can handle: one on a
// cluster, otherwise all.
func (c *Counter) linesPerCall(d stock.Deduction) int {
	if c.cluster {
		return 1
	}
	return max(len(d.Lines), 1)
}
