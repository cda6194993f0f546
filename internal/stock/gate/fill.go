package gate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxFills bounds the counts that one script call fills, or on a cluster one pipeline. Redis runs
// no other command during a call.
const maxFills = 250

// maxLockedFills bounds the counts that FillAll fills concurrently, each under its own lock.
const maxLockedFills = 8

// Fill replaces the SKU's count under a new epoch and drops what was in flight. Segments share the
// units evenly. After an error other than stock.ErrStaleEpoch, it may have replaced the count, or
// those of some segments. The SKU then counts as not filled.
//
// stock.ErrStaleEpoch (as *stock.Refusal) means that the count was filled under this epoch or a
// later one already. stock.ErrBusy means that Fill could not get the lock in time.
func (c *Counter) Fill(ctx context.Context, sku stock.SKU, epoch, units int64) error {
	return c.FillAll(ctx, []stock.Fill{{SKU: sku, Epoch: epoch, Units: units}})[0]
}

// FillAll fills the counts of different SKUs with few script calls, or concurrently if locks guard
// them. Its errors are those of Fill, one for each count, in the order of fills.
func (c *Counter) FillAll(ctx context.Context, fills []stock.Fill) []error {
	filled := c.fillUnderLocks(ctx, c.layout.fills(fills))
	if !c.layout.divides() {
		return filled
	}
	errs := make([]error, len(fills))
	n := c.layout.Segments
	for i, f := range fills {
		// One error is enough to report that the SKU is not filled.
		errs[i] = refusalOf(f.SKU, cmp.Or(filled[i*n:(i+1)*n]...))
	}
	return errs
}

// fillUnderLocks fills each count under its lock, if there are locks.
func (c *Counter) fillUnderLocks(ctx context.Context, fills []stock.Fill) []error {
	if c.layout.Locks == nil {
		return c.fill(ctx, unfenced, fills...)
	}
	errs := make([]error, len(fills))
	var all errgroup.Group
	all.SetLimit(maxLockedFills)
	for i, f := range fills {
		all.Go(func() error {
			errs[i] = c.layout.Locks.hold(ctx, []stock.SKU{f.SKU}, func(ctx context.Context, tokens tokenSet) error {
				return c.fill(ctx, tokens, f)[0]
			})
			return nil
		})
	}
	_ = all.Wait()
	return errs
}

func (c *Counter) fill(ctx context.Context, tokens tokenSet, fills ...stock.Fill) []error {
	errs := make([]error, 0, len(fills))
	for some := range slices.Chunk(fills, maxFills) {
		errs = append(errs, c.fillSome(ctx, tokens, some)...)
	}
	return errs
}

// fillSome fills the counts with one script call, or on a cluster with one call for
// each SKU in one pipeline.
func (c *Counter) fillSome(ctx context.Context, tokens tokenSet, fills []stock.Fill) []error {
	errs := make([]error, len(fills))
	perCall := len(fills)
	if c.cluster {
		perCall = 1
	}
	var calls []*call
	for chunk := range slices.Chunk(fills, perCall) {
		args := make([]string, 0, 4*len(chunk))
		for _, f := range chunk {
			token, err := tokens.of(f.SKU)
			if err != nil {
				return slices.Repeat([]error{fmt.Errorf("filling counts: %w", err)}, len(fills))
			}
			args = append(args, string(f.SKU), strconv.FormatInt(f.Epoch, 10), strconv.FormatInt(f.Units, 10), strconv.FormatInt(token, 10))
		}
		calls = append(calls, newCall(ctx, &c.scripts.Load().fill, []string{c.keys(chunk[0].SKU).count}, args))
	}
	_ = c.run(ctx, calls...) // each call has its own error
	for i, f := range fills {
		call, at := calls[i/perCall], i%perCall
		switch filled := call.cmd.Val(); {
		case call.err() != nil:
			errs[i] = fmt.Errorf("filling SKU %s: %w", f.SKU, call.err())
		case at >= len(filled):
			errs[i] = fmt.Errorf("filling SKU %s: %w", f.SKU, errAnswer)
		case filled[at] == 0:
			errs[i] = stock.Refuse(f.SKU, stock.ErrStaleEpoch)
		}
	}
	return errs
}
