package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Give returns the units in the take's records, once. Where there is no record, it burns the take
// for 10 minutes, so that the take cannot arrive later. If it fails, part of the units may be
// returned. Call it again to return the rest. stock.ErrBusy means that Give could not get a lock in
// time.
func (c *Counter) Give(ctx context.Context, t stock.Take) error {
	return c.giveUnderLocks(ctx, c.layout.everywhere(t))
}

// giveUnderLocks gives back t, whose lines are SKUs or segments. If there are locks, it gives back
// each line under its lock, and never holds more than one.
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
		calls = append(calls, newCall(ctx, &c.scripts.Load().give, []string{keys.count, keys.flight, keys.burned}, args))
	}
	if err := c.run(ctx, calls...); err != nil {
		return fmt.Errorf("giving take %s back: %w", t.TakeID, err)
	}
	for _, call := range calls {
		switch given := call.cmd.Val(); {
		case slices.Equal(given, []int64{answerFenced}):
			return fmt.Errorf("giving take %s back: %w", t.TakeID, fenced(t.Lines[0].SKU))
		case !slices.Equal(given, []int64{answerDone}):
			return fmt.Errorf("giving take %s back: %w", t.TakeID, errAnswer)
		}
	}
	return nil
}
