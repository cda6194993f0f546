package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// maxLevelSKUs bounds the SKUs that one command reads, or on a cluster one
// pipeline.
const maxLevelSKUs = 500

// maxFills bounds the counts that one script call fills, or on a cluster one
// pipeline. Redis does nothing else during a call.
const maxFills = 250

// Fill replaces the SKU's count. With an error other than stock.ErrStaleEpoch it
// may have replaced it.
func (c *counts) Fill(ctx context.Context, sku stock.SKU, epoch, units int64) error {
	return c.fill(ctx, unfenced, stock.Fill{SKU: sku, Epoch: epoch, Units: units})
}

// FillAll fills many counts with few script calls.
func (c *counts) FillAll(ctx context.Context, fills []stock.Fill) []error {
	return c.fillAll(ctx, unfenced, fills)
}

func (c *counts) fill(ctx context.Context, tokens tokenSet, f stock.Fill) error {
	return c.fillAll(ctx, tokens, []stock.Fill{f})[0]
}

func (c *counts) fillAll(ctx context.Context, tokens tokenSet, fills []stock.Fill) []error {
	errs := make([]error, 0, len(fills))
	for some := range slices.Chunk(fills, maxFills) {
		errs = append(errs, c.fillSome(ctx, tokens, some)...)
	}
	return errs
}

// fillSome fills the counts with one script call, or on a cluster with one call for
// each SKU in one pipeline.
func (c *counts) fillSome(ctx context.Context, tokens tokenSet, fills []stock.Fill) []error {
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

// Adjust applies an addition once. It returns nil if it applied the addition now
// or earlier, and also if a later fill included it.
func (c *counts) Adjust(ctx context.Context, change stock.Change) error {
	return c.adjust(ctx, unfenced, change)
}

func (c *counts) adjust(ctx context.Context, tokens tokenSet, change stock.Change) error {
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

// Level returns the counts of the SKUs, in their order. It does not read them all
// at one moment.
func (c *counts) Level(ctx context.Context, skus ...stock.SKU) ([]stock.Level, error) {
	levels := make([]stock.Level, 0, len(skus))
	var errs []error
	for chunk := range slices.Chunk(skus, maxLevelSKUs) {
		read, err := c.readLevels(ctx, chunk)
		levels, errs = append(levels, read...), append(errs, err)
	}
	return levels, errors.Join(errs...)
}

// readLevels reads the levels of the SKUs with one command, or on a cluster with
// one command for each SKU in one pipeline. It joins the commands' errors.
func (c *counts) readLevels(ctx context.Context, skus []stock.SKU) ([]stock.Level, error) {
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
