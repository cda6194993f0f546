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

// Fill replaces the SKU's count. With an error other than stock.ErrStaleEpoch it
// may have replaced it.
func (c *counts) Fill(ctx context.Context, sku stock.SKU, epoch, units int64) error {
	return c.fill(ctx, unfenced, sku, epoch, units)
}

func (c *counts) fill(ctx context.Context, tokens tokenSet, sku stock.SKU, epoch, units int64) error {
	token, err := tokens.of(sku)
	if err != nil {
		return fmt.Errorf("filling SKU %s: %w", sku, err)
	}
	keys := c.keys(sku)
	names := []string{keys.count}
	if c.cluster {
		names = append(names, keys.flight)
	}
	answer, err := c.answer(ctx, &c.scripts().fill, names, sku, epoch, units, token)
	switch {
	case err != nil:
		return fmt.Errorf("filling SKU %s: %w", sku, err)
	case answer == 0:
		return stock.Refuse(sku, stock.ErrStaleEpoch)
	}
	return nil
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
			err = fmt.Errorf("reading the count of SKU %s: %w", sku, proven(err))
			levels[i] = stock.Level{SKU: sku, Err: err}
			if at == 0 { // once for each command
				errs = append(errs, err)
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
