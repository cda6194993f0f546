package gate

import (
	"context"
	"fmt"
	"strconv"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// The answers of adjust.lua.
const (
	adjustGap       = 1
	adjustNotFilled = 2
	adjustFenced    = 3
)

// Adjust applies an addition once. Every segment gets its share. It drops the addition if the count
// was filled under a later epoch, because that fill included it. After an error it may have applied
// the addition, or a part of it if SKUs are divided. Call it again to apply the rest.
//
// Errors: stock.ErrNotFilled (as *stock.Refusal) means that the count is not filled under the
// change's epoch yet, and the fill under way may not include the change. stock.ErrChangeGap (as
// *stock.Refusal) means that an earlier change is missing. stock.ErrBusy means that Adjust could
// not get a lock in time.
func (c *Counter) Adjust(ctx context.Context, change stock.Change) error {
	for _, part := range c.layout.changes(change) {
		err := c.layout.Locks.hold(ctx, []stock.SKU{part.SKU}, func(ctx context.Context, tokens tokenSet) error {
			return c.adjust(ctx, tokens, part)
		})
		if err != nil {
			return refusalOf(change.SKU, err)
		}
	}
	return nil
}

func (c *Counter) adjust(ctx context.Context, tokens tokenSet, change stock.Change) error {
	token, err := tokens.of(change.SKU)
	if err != nil {
		return fmt.Errorf("adjusting SKU %s: %w", change.SKU, err)
	}
	args := []string{string(change.SKU)}
	for _, n := range []int64{change.Epoch, change.Number, change.Delta, token} {
		args = append(args, strconv.FormatInt(n, 10))
	}
	call := newCall(ctx, &c.scripts.Load().adjust, []string{c.keys(change.SKU).count}, args)
	if err = c.run(ctx, call); err == nil && len(call.cmd.Val()) != 1 {
		err = errAnswer
	}
	if err != nil {
		return fmt.Errorf("adjusting SKU %s: %w", change.SKU, err)
	}
	switch call.cmd.Val()[0] {
	case adjustGap:
		return stock.Refuse(change.SKU, stock.ErrChangeGap)
	case adjustNotFilled:
		return stock.Refuse(change.SKU, stock.ErrNotFilled)
	case adjustFenced:
		return fmt.Errorf("adjusting SKU %s: %w", change.SKU, fenced(change.SKU))
	}
	return nil
}
