package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxLevelSKUs bounds the SKUs that one command reads, or on a cluster one
// pipeline.
const maxLevelSKUs = 500

// maxFills bounds the counts that one script call fills, or on a cluster one
// pipeline. Redis does nothing else during a call.
const maxFills = 250

// maxLockedFills bounds the counts that one call fills at the same time, each under
// a lock of its own.
const maxLockedFills = 8

// Fill replaces the SKU's count under a new epoch and drops what was in flight. Segments
// share the units evenly. With an error other than stock.ErrStaleEpoch it may have
// replaced the count, or those of some segments, and then the SKU counts as not filled.
//
// stock.ErrStaleEpoch (as *stock.Refusal): the count was filled under this epoch or a
// later one already. stock.ErrBusy: it could not get the lock in time.
func (c *Counter) Fill(ctx context.Context, sku stock.SKU, epoch, units int64) error {
	return c.FillAll(ctx, []stock.Fill{{SKU: sku, Epoch: epoch, Units: units}})[0]
}

// FillAll fills the counts of different SKUs with few script calls, or if locks guard
// them, several at once. Its errors are those of Fill, one for each count, in the order
// of fills.
func (c *Counter) FillAll(ctx context.Context, fills []stock.Fill) []error {
	filled := c.fillUnderLocks(ctx, c.layout.fills(fills))
	if !c.layout.divides() {
		return filled
	}
	errs := make([]error, len(fills))
	n := c.layout.Segments
	for i, f := range fills {
		// One error is enough: any segment that was not filled is a reason.
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
		keys := c.keys(chunk[0].SKU)
		names := []string{keys.count}
		if c.cluster {
			names = append(names, keys.flight)
		}
		calls = append(calls, newCall(&c.scripts().fill, names, args))
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

// The answers of adjust.lua.
const (
	adjustGap       = 1
	adjustNotFilled = 2
	adjustFenced    = 3
)

// Adjust applies an addition once, to every segment its share. It drops the addition if
// the count was filled under a later epoch, because that fill included it. After an error
// it may have applied a part of the addition, if SKUs are divided, or all of it, if the
// answer was lost: call it again, which applies the rest.
//
// Errors: stock.ErrNotFilled (as *stock.Refusal): the count is not filled under the
// change's epoch yet, and the fill under way may not include it. stock.ErrChangeGap (as
// *stock.Refusal): an earlier change is missing. stock.ErrBusy: it could not get a lock in
// time.
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
	answer, err := c.answer(ctx, &c.scripts().adjust, []string{c.keys(change.SKU).count}, change.SKU, change.Epoch, change.Number, change.Delta, token)
	switch {
	case err != nil:
		return fmt.Errorf("adjusting SKU %s: %w", change.SKU, err)
	case answer == adjustGap:
		return stock.Refuse(change.SKU, stock.ErrChangeGap)
	case answer == adjustNotFilled:
		return stock.Refuse(change.SKU, stock.ErrNotFilled)
	case answer == adjustFenced:
		return fmt.Errorf("adjusting SKU %s: %w", change.SKU, fenced(change.SKU))
	}
	return nil
}

// Level returns a count for each of the SKUs, in their order: the sum of its segments. A
// SKU is filled if all its segments are filled under one epoch. The counts are not all
// read at one moment. A count that could not be read has its Err set; the error joins them.
func (c *Counter) Level(ctx context.Context, skus ...stock.SKU) ([]stock.Level, error) {
	levels, err := c.levels(ctx, c.layout.segmentsOf(skus...)...)
	if !c.layout.divides() {
		return levels, err
	}
	sums := make([]stock.Level, len(skus))
	n := c.layout.Segments
	for i, sku := range skus {
		sums[i] = sumOf(sku, levels[i*n:(i+1)*n])
	}
	return sums, err
}

// Segments returns the counts of the SKU's segments, in their order. It returns none if
// SKUs are not divided.
func (c *Counter) Segments(ctx context.Context, sku stock.SKU) ([]stock.Level, error) {
	if !c.layout.divides() {
		return nil, nil
	}
	return c.levels(ctx, c.layout.segmentsOf(sku)...)
}

// levels returns the counts of SKUs or segments.
func (c *Counter) levels(ctx context.Context, names ...stock.SKU) ([]stock.Level, error) {
	levels := make([]stock.Level, 0, len(names))
	var errs []error
	for chunk := range slices.Chunk(names, maxLevelSKUs) {
		read, err := c.readLevels(ctx, chunk)
		levels, errs = append(levels, read...), append(errs, err)
	}
	return levels, errors.Join(errs...)
}

// readLevels reads the levels of the SKUs with one command, or on a cluster with
// one command for each SKU in one pipeline. It joins the commands' errors.
func (c *Counter) readLevels(ctx context.Context, skus []stock.SKU) ([]stock.Level, error) {
	perCommand := len(skus)
	if c.cluster {
		perCommand = 1
	}
	pipe := c.client.Pipeline()
	var reads []*redis.SliceCmd
	for chunk := range slices.Chunk(skus, perCommand) {
		names := make([]string, len(chunk))
		for i, sku := range chunk {
			names[i] = string(sku)
		}
		reads = append(reads, pipe.HMGet(ctx, c.keys(chunk[0]).count, names...))
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	levels := make([]stock.Level, len(skus))
	var errs []error
	for i, sku := range skus {
		read, at := reads[i/perCommand], i%perCommand
		if err := read.Err(); err != nil {
			levels[i] = stock.Level{SKU: sku, Err: fmt.Errorf("reading the count of SKU %s: %w", sku, proven(err))}
			if at == 0 { // once for each command
				errs = append(errs, levels[i].Err)
			}
			continue
		}
		levels[i] = parseCount(c.scripts().generation, sku, read.Val()[at])
	}
	return levels, errors.Join(errs...)
}

// parseCount parses the hash field of the SKU, which is nil if there is none. If
// the count belongs to another generation, it returns only the epoch. It returns
// an unreadable count as missing, so that the count is filled again.
func parseCount(g stock.Generation, sku stock.SKU, count any) stock.Level {
	text, ok := count.(string)
	if !ok {
		return stock.Level{SKU: sku}
	}
	fields := strings.Fields(text)
	if len(fields) != 5 {
		return stock.Level{SKU: sku}
	}
	level := stock.Level{SKU: sku, Filled: true}
	for i, to := range []*int64{&level.Epoch, &level.Available, &level.InFlight} {
		n, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return stock.Level{SKU: sku}
		}
		*to = n
	}
	if !g.Holds(level.Epoch) {
		return stock.Level{SKU: sku, Epoch: level.Epoch}
	}
	return level
}
