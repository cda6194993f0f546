// Package gate holds the gates that keep their counts in Redis, each SKU's
// under keys of its own in one hash slot:
//
//	holdfast:{LEDGERID:SKU}:count    hash: left, epoch, flying (units in flight), change (number of the last
//	                                 addition), fence (the greatest fencing token seen)
//	holdfast:{LEDGERID:SKU}:flight   hash: order ID → record of the take in flight
//	holdfast:{LEDGERID:SKU}:burned   sorted set: take IDs by the time they were burned
//
// A record reads `UNITS TAKEID MICROSECONDS BUYER SKU=UNITS,SKU=UNITS`: the
// units of this SKU, when Redis cut them, and the whole order, so that any one
// of an order's records recovers it. A count without an epoch is no count.
//
// Script and ReadWrite differ in Take alone. Locked puts either, or any other
// gate, under locks; Segmented spreads each SKU of one over several counts.
package gate

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// burnTime is how long a burned take stays so. It exceeds by far the time
	// that a take can be under way.
	burnTime = 10 * time.Minute
	// burnMost bounds the burned takes of one SKU; the oldest are forgotten.
	burnMost = 100_000
	// callTimeout bounds the calls that the gate makes on nobody's context,
	// and the compensation that must not run on the caller's.
	callTimeout = 2 * time.Second
	// settleLines bounds the records that one script call settles.
	settleLines = 500
	// levelSKUs bounds the SKUs that one pipeline asks for.
	levelSKUs = 500
	// flightStep is about how many records one step of InFlight looks at.
	flightStep = 500
	// noBuyer stands in a record for the empty buyer.
	noBuyer = "-"
)

// counts is what Script and ReadWrite share: all of a stock.Gate but Take.
type counts struct {
	client  redis.UniversalClient
	cluster bool   // the keys of two SKUs may be on two servers
	prefix  string // of every key, up to the SKU
	scripts *scripts
}

func newCounts(client redis.UniversalClient, ledgerID uuid.UUID) counts {
	_, cluster := client.(*redis.ClusterClient)
	return counts{client: client, cluster: cluster, prefix: keyPrefix(ledgerID), scripts: newScripts()}
}

// keyPrefix begins every key of the ledger's gate, up to the SKU.
func keyPrefix(ledgerID uuid.UUID) string { return "holdfast:{" + ledgerID.String() + ":" }

func (c *counts) count(sku stock.SKU) string  { return c.prefix + string(sku) + "}:count" }
func (c *counts) flight(sku stock.SKU) string { return c.prefix + string(sku) + "}:flight" }
func (c *counts) burned(sku stock.SKU) string { return c.prefix + string(sku) + "}:burned" }

// cut cuts some lines of d, all or none, and sets their epochs. before: it was
// all done when the same take came before.
type cut func(ctx context.Context, d stock.Deduction, lines []stock.Line) (before bool, err error)

// takeInParts takes d: all lines in one cut where one server has all counts,
// else a line at a time in SKU order.
func (c *counts) takeInParts(ctx context.Context, d stock.Deduction, cut cut) (stock.Deduction, error) {
	if err := valid(d); err != nil {
		return stock.Deduction{}, err
	}
	d.Lines = slices.Clone(d.Lines) // the epochs are the answer's
	if !c.cluster {
		if _, err := cut(ctx, d, d.Lines); err != nil {
			return stock.Deduction{}, err
		}
		return d, nil
	}
	var done []stock.Line // by this call: what came before has had its answer
	for i := range d.Lines {
		before, err := cut(ctx, d, d.Lines[i:i+1])
		if err == nil {
			if !before {
				done = append(done, d.Lines[i])
			}
			continue
		}
		if len(done) == 0 || !refused(err) { // an open outcome is the caller's to give back, all of it
			return stock.Deduction{}, err
		}
		d.Lines = done
		ctx, cancel := detached(ctx)
		defer cancel()
		if giveErr := c.Give(ctx, d); giveErr != nil {
			// Not wrapping the refusal: something may be left at the gate.
			return stock.Deduction{}, fmt.Errorf("giving back what was cut before %q: %w", err, giveErr)
		}
		return stock.Deduction{}, err
	}
	return d, nil
}

// errDeduction is a mistake of the caller's.
var errDeduction = errors.New("not a deduction")

// valid is the last look at what no gate could undo. A segmented gate's inner one
// has more lines than an order. An administrator's
// shrinking may have a quantity up to stock.MaxTotal.
func valid(d stock.Deduction) error {
	if len(d.Lines) == 0 || len(d.Lines) > maxParts {
		return fmt.Errorf("%w: %d lines", errDeduction, len(d.Lines))
	}
	for _, line := range d.Lines {
		if line.Quantity < 1 || line.Quantity > stock.MaxTotal {
			return fmt.Errorf("%w: %d units of SKU %s", errDeduction, line.Quantity, line.SKU)
		}
	}
	return nil
}

// refused reports whether err says that nothing was cut.
func refused(err error) bool {
	for _, reason := range []error{stock.ErrSoldOut, stock.ErrNotFilled, stock.ErrInFlight, stock.ErrBurned, stock.ErrBusy} {
		if errors.Is(err, reason) {
			return true
		}
	}
	return false
}

// detached has ctx's values and an end of its own.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
}

// Settle forgets the records of takes that the ledger has. If it fails, some
// may be forgotten and some not; settling again does no harm.
func (c *counts) Settle(ctx context.Context, ds ...stock.Deduction) error {
	type batch struct {
		skus  numbering
		lines []string
	}
	var batches []*batch
	open := make(map[stock.SKU]*batch) // on a cluster by SKU, else all under ""
	for _, d := range ds {
		text := appendIDs(make([]byte, 0, 80), d)
		for _, line := range d.Lines {
			var of stock.SKU
			if c.cluster {
				of = line.SKU
			}
			b := open[of]
			if b == nil || len(b.lines) == settleLines {
				b = new(batch)
				open[of] = b
				batches = append(batches, b)
			}
			b.lines = append(b.lines, string(strconv.AppendInt(text, int64(b.skus.number(line.SKU)), 10)))
		}
	}
	calls := make([]*call, len(batches))
	for i, b := range batches {
		keys := make([]string, 0, 2*len(b.skus.skus))
		for _, sku := range b.skus.skus {
			keys = append(keys, c.count(sku), c.flight(sku))
		}
		calls[i] = newCall(&c.scripts.settle, keys, b.lines)
	}
	if err := c.run(ctx, calls...); err != nil {
		return fmt.Errorf("settling %d takes: %w", len(ds), err)
	}
	return nil
}

// Give returns the take's units once, or burns the take for 10 minutes. If it
// fails, part may be done; giving again does the rest.
func (c *counts) Give(ctx context.Context, d stock.Deduction) error {
	common := []string{
		d.OrderID.String(), d.TakeID.String(),
		strconv.FormatInt(burnTime.Milliseconds(), 10), strconv.Itoa(burnMost),
	}
	var calls []*call
	for lines := range slices.Chunk(d.Lines, c.linesPerCall(d)) {
		var keys []string
		args := slices.Clone(common)
		for _, line := range lines {
			keys = append(keys, c.count(line.SKU), c.flight(line.SKU), c.burned(line.SKU))
			args = append(args, strconv.FormatInt(token(ctx, line.SKU), 10))
		}
		calls = append(calls, newCall(&c.scripts.give, keys, args))
	}
	if err := c.run(ctx, calls...); err != nil {
		return fmt.Errorf("giving take %s back: %w", d.TakeID, err)
	}
	for _, call := range calls {
		if given := call.cmd.Val(); len(given) != 1 || given[0] != 1 {
			return fmt.Errorf("giving take %s back: %w", d.TakeID, fenced(d.Lines[0].SKU))
		}
	}
	return nil
}

// linesPerCall is how many lines of d one script call can do: all of them where
// one server has all counts.
func (c *counts) linesPerCall(d stock.Deduction) int {
	if c.cluster {
		return 1
	}
	return max(len(d.Lines), 1)
}

// Fill replaces the SKU's count. An error other than stock.ErrStaleEpoch
// leaves open whether it did.
func (c *counts) Fill(ctx context.Context, sku stock.SKU, epoch, units int64) error {
	answer, err := c.answer(ctx, &c.scripts.fill, []string{c.count(sku), c.flight(sku)}, epoch, units, token(ctx, sku))
	switch {
	case err != nil:
		return fmt.Errorf("filling SKU %s: %w", sku, err)
	case answer == 0:
		return stock.Refuse(sku, stock.ErrStaleEpoch)
	}
	return nil
}

// Adjust applies an addition once. nil: there is nothing left to do, as it was
// applied or belongs to an epoch before the gate's, whose fill included it.
// stock.ErrNotFilled and stock.ErrChangeGap (as *stock.Refusal): it was not
// applied. The first asks to come again, for the fill of its epoch is still
// under way or never came.
func (c *counts) Adjust(ctx context.Context, change stock.Change) error {
	answer, err := c.answer(ctx, &c.scripts.adjust, []string{c.count(change.SKU)}, change.Epoch, change.Number, change.Delta, token(ctx, change.SKU))
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

// The answers of adjust.lua.
const (
	adjustGap       = 1
	adjustNotFilled = 2
	adjustFenced    = 3
)

// InFlight lists takes of the SKU in no order. It looks at the whole flight in
// bounded steps, and a take that comes or goes meanwhile may be listed or not.
func (c *counts) InFlight(ctx context.Context, sku stock.SKU, olderThan time.Duration, limit int) ([]stock.Deduction, error) {
	var (
		ds     []stock.Deduction
		seen   = make(map[string]bool) // a scan may show a record twice
		cursor = "0"
	)
	for {
		page, err := c.strings(ctx, &c.scripts.flight, []string{c.flight(sku)},
			cursor, strconv.Itoa(flightStep), strconv.FormatInt(olderThan.Microseconds(), 10))
		if err != nil {
			return nil, fmt.Errorf("listing takes of SKU %s in flight: %w", sku, err)
		}
		cursor = page[0]
		for pairs := page[1:]; len(pairs) >= 2; pairs = pairs[2:] {
			order, record := pairs[0], pairs[1]
			if seen[order] {
				continue
			}
			if len(ds) >= limit {
				return ds, nil
			}
			seen[order] = true
			d, err := parseRecord(order, record)
			if err != nil {
				return nil, fmt.Errorf("SKU %s, record of order %q: %w", sku, order, err)
			}
			ds = append(ds, d)
		}
		if cursor == "0" || len(ds) >= limit {
			return ds, nil
		}
	}
}

// Level returns the counts of the SKUs, in their order. Each is read at a
// moment of its own, and its Records at another.
func (c *counts) Level(ctx context.Context, skus ...stock.SKU) ([]stock.Level, error) {
	levels := make([]stock.Level, 0, len(skus))
	for chunk := range slices.Chunk(skus, levelSKUs) {
		pipe := c.client.Pipeline()
		var (
			hashes  = make([]*redis.SliceCmd, len(chunk))
			records = make([]*redis.IntCmd, len(chunk))
		)
		for i, sku := range chunk {
			hashes[i] = pipe.HMGet(ctx, c.count(sku), "epoch", "left", "flying")
			records[i] = pipe.HLen(ctx, c.flight(sku))
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, fmt.Errorf("reading the counts of %d SKUs: %w", len(chunk), err)
		}
		for i, sku := range chunk {
			level := stock.Level{SKU: sku}
			h, err := parseCount(hashes[i].Val())
			if err != nil {
				return nil, fmt.Errorf("the count of SKU %s: %w", sku, err)
			}
			if h.epoch != 0 {
				level.Filled, level.Epoch, level.Available, level.InFlight = true, h.epoch, h.left, h.flying
				level.Records = records[i].Val()
			}
			levels = append(levels, level)
		}
	}
	return levels, nil
}

// countHash is what a count's hash holds. epoch 0: there is no count.
type countHash struct{ epoch, left, flying int64 }

// parseCount reads the fields epoch, left and flying.
func parseCount(fields []any) (countHash, error) {
	var numbers [3]int64
	for i, field := range fields {
		text, ok := field.(string)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return countHash{}, err
		}
		numbers[i] = n
	}
	return countHash{epoch: numbers[0], left: numbers[1], flying: numbers[2]}, nil
}

// appendIDs appends order ID and take ID, each with a space after it.
func appendIDs(b []byte, d stock.Deduction) []byte {
	b = append(appendID(b, d.OrderID), ' ')
	return append(appendID(b, d.TakeID), ' ')
}

func appendID(b []byte, id uuid.UUID) []byte {
	b = append(hex.AppendEncode(b, id[:4]), '-')
	b = append(hex.AppendEncode(b, id[4:6]), '-')
	b = append(hex.AppendEncode(b, id[6:8]), '-')
	b = append(hex.AppendEncode(b, id[8:10]), '-')
	return hex.AppendEncode(b, id[10:])
}

// appendOrder appends what a record says of the whole order: buyer and lines.
func appendOrder(b []byte, d stock.Deduction) []byte {
	buyer := d.Buyer
	if buyer == "" {
		buyer = noBuyer
	}
	b = append(b, buyer...)
	for i, line := range d.Lines {
		if i == 0 {
			b = append(b, ' ')
		} else {
			b = append(b, ',')
		}
		b = append(append(b, line.SKU...), '=')
		b = strconv.AppendInt(b, line.Quantity, 10)
	}
	return b
}

var errRecord = errors.New("not the record of a take")

// parseRecord reads the order back from one of its records.
func parseRecord(order, record string) (stock.Deduction, error) {
	fields := strings.Fields(record)
	if len(fields) != 5 {
		return stock.Deduction{}, errRecord
	}
	var d stock.Deduction
	var err error
	if d.OrderID, err = uuid.Parse(order); err != nil {
		return stock.Deduction{}, fmt.Errorf("%w: order ID: %w", errRecord, err)
	}
	if d.TakeID, err = uuid.Parse(fields[1]); err != nil {
		return stock.Deduction{}, fmt.Errorf("%w: take ID: %w", errRecord, err)
	}
	if fields[3] != noBuyer {
		d.Buyer = fields[3]
	}
	for text := range strings.SplitSeq(fields[4], ",") {
		sku, units, _ := strings.Cut(text, "=")
		quantity, err := strconv.ParseInt(units, 10, 64)
		if err != nil {
			return stock.Deduction{}, fmt.Errorf("%w: line %q: %w", errRecord, text, err)
		}
		d.Lines = append(d.Lines, stock.Line{SKU: stock.SKU(sku), Quantity: quantity})
	}
	return d, nil
}
