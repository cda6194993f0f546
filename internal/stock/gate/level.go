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

// maxLevelSKUs bounds the SKUs of one command, or of one pipeline on a cluster.
const maxLevelSKUs = 500

// Level returns a count for each of the SKUs, in their order: the sum of its segments. A SKU is
// filled if all its segments are filled under one epoch. The counts are not all read at one moment.
// A count that could not be read has its Err set. The returned error joins these errors.
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
			if at == 0 { // only once for each command
				errs = append(errs, levels[i].Err)
			}
			continue
		}
		levels[i] = parseCount(c.scripts.Load().generation, sku, read.Val()[at])
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
	if stock.GenerationOf(level.Epoch) != g {
		return stock.Level{SKU: sku, Epoch: level.Epoch}
	}
	return level
}
