// Package gate holds the gates that keep their counts in Redis, under three keys:
//
//	holdfast:{LEDGERID}:count    hash: SKU → `EPOCH LEFT FLYING CHANGE FENCE`: units left, units in flight, the
//	                             number of the last addition, the greatest fencing token seen
//	holdfast:{LEDGERID}:flight   hash: `SKU ORDERID` → record of the take in flight
//	holdfast:{LEDGERID}:burned   sorted set: `SKU TAKEID` by the time it was burned
//
// and a fourth for those who only read, `GENERATION SEGMENTS BEAT`:
//
//	holdfast:{LEDGERID}:generation   the generation in use, how many segments each SKU has (0: it has none), and
//	                                 the ledger's last beat
//
// So a call for many SKUs needs few commands. On a cluster each SKU has three keys
// of its own, holdfast:{LEDGERID:SKU}:count and so on, which may be on any server.
//
// A record reads `TAKEID UNITS EPOCH MICROSECONDS BUYER SKU=UNITS,SKU=UNITS`: the
// units of this SKU, the epoch under which and the time when Redis cut them, and
// the whole order, so that any one of an order's records recovers it. A record of
// another epoch than the count's is void: a fill has forgotten it.
//
// Script and ReadWrite differ in Take alone. Locked puts either, or any other
// gate, under locks; Segmented spreads each SKU of one over several counts.
package gate

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// burnTime is how long a burned take stays so. It exceeds by far the time
	// that a take can be under way.
	burnTime = 10 * time.Minute
	// burnMost bounds the burned takes under one key; the oldest are forgotten.
	burnMost = 100_000
	// callTimeout bounds the calls that the gate makes on nobody's context,
	// and the compensation that must not run on the caller's.
	callTimeout = 2 * time.Second
	// settleLines bounds the records that one script call settles.
	settleLines = 500
	// levelSKUs bounds the SKUs that one command, or on a cluster one pipeline,
	// asks for.
	levelSKUs = 500
	// flightStep is about how many records one step of InFlight looks at.
	flightStep = 500
	// noBuyer stands in a record for the empty buyer.
	noBuyer = "-"
)

// counts is what Script and ReadWrite share: all of a stock.Gate but Take.
type counts struct {
	ledgerID uuid.UUID
	client   redis.UniversalClient
	cluster  bool                     // each SKU has keys of its own
	prefix   string                   // of every key
	shared   keys                     // of all SKUs; nothing on a cluster
	running  *atomic.Pointer[scripts] // of the generation in use
}

func newCounts(client redis.UniversalClient, ledgerID uuid.UUID) counts {
	_, cluster := client.(*redis.ClusterClient)
	c := counts{client: client, ledgerID: ledgerID, cluster: cluster, prefix: "holdfast:{" + ledgerID.String(), running: new(atomic.Pointer[scripts])}
	c.running.Store(newScripts(ledgerID, 0)) // which nobody loads
	if !cluster {
		c.shared = keysIn(c.prefix + "}")
	}
	return c
}

// keys are those of one SKU's hash slot.
type keys struct{ count, flight, burned string }

func keysIn(slot string) keys {
	return keys{count: slot + ":count", flight: slot + ":flight", burned: slot + ":burned"}
}

// keys are where the SKU is kept.
func (c *counts) keys(sku stock.SKU) keys {
	if !c.cluster {
		return c.shared
	}
	return keysIn(c.own(sku))
}

// own begins the keys that only this SKU has.
func (c *counts) own(sku stock.SKU) string { return c.prefix + ":" + string(sku) + "}" }

// field names a record.
func field(sku stock.SKU, order uuid.UUID) string { return string(sku) + " " + order.String() }

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
		if len(done) == 0 || !stock.Refuses(err) { // an open outcome is the caller's to give back, all of it
			return stock.Deduction{}, err
		}
		d.Lines = done
		ctx, cancel := detached(ctx)
		defer cancel()
		if giveErr := c.Give(ctx, d); giveErr != nil {
			return stock.Deduction{}, leftAtTheGate(giveErr)
		}
		return stock.Deduction{}, err
	}
	return d, nil
}

// leftAtTheGate is the error of a take that was refused in part, and whose other
// parts could not be given back. It wraps nothing: why a Give was refused is no
// proof that nothing of the take is at the gate.
func leftAtTheGate(giveErr error) error {
	return fmt.Errorf("giving back what was cut before a refusal: %v", giveErr)
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
		text := appendID(appendID(make([]byte, 0, 80), d.OrderID), d.TakeID)
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
			b.lines = append(b.lines, string(binary.BigEndian.AppendUint16(text, uint16(b.skus.number(line.SKU)))))
		}
	}
	calls := make([]*call, len(batches))
	for i, b := range batches {
		keys := c.keys(b.skus.skus[0])
		calls[i] = newCall(&c.scripts().settle, []string{keys.count, keys.flight}, append(b.skus.arguments(), b.lines...))
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
		keys, args := c.keys(lines[0].SKU), slices.Clone(common)
		for _, line := range lines {
			args = append(args, string(line.SKU), strconv.FormatInt(token(ctx, line.SKU), 10))
		}
		calls = append(calls, newCall(&c.scripts().give, []string{keys.count, keys.flight, keys.burned}, args))
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
	keys := c.keys(sku)
	names := []string{keys.count}
	if c.cluster {
		names = append(names, keys.flight)
	}
	answer, err := c.answer(ctx, &c.scripts().fill, names, sku, epoch, units, token(ctx, sku))
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
	answer, err := c.answer(ctx, &c.scripts().adjust, []string{c.keys(change.SKU).count}, change.SKU, change.Epoch, change.Number, change.Delta, token(ctx, change.SKU))
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

// InFlight lists takes of the SKUs in no order. It looks at all that is in flight
// under their keys in bounded steps, and a take that comes or goes meanwhile may
// be listed or not.
func (c *counts) InFlight(ctx context.Context, olderThan time.Duration, limit int, skus ...stock.SKU) ([]stock.Deduction, error) {
	listing := listing{limit: limit, asked: make(map[stock.SKU]bool), seen: make(map[takeOf]bool)}
	for _, sku := range skus {
		listing.asked[sku] = true
	}
	each := skus // whose keys are looked under
	if !c.cluster {
		each = skus[:min(1, len(skus))] // all have the same
	}
	var errs []error
	for _, sku := range each {
		if err := c.scan(ctx, c.keys(sku), olderThan, &listing); err != nil {
			errs = append(errs, fmt.Errorf("listing takes in flight: %w", err))
		}
	}
	return listing.ds, errors.Join(errs...)
}

// listing gathers takes, each once, until they are as many as its limit.
type listing struct {
	limit int
	asked map[stock.SKU]bool
	seen  map[takeOf]bool // a scan may show a record twice, and a take of several lines has several
	ds    []stock.Deduction
}

// takeOf tells a take by its IDs.
type takeOf struct{ order, take uuid.UUID }

func (l *listing) full() bool { return len(l.ds) >= l.limit }

func (l *listing) add(field, record string) error {
	sku, order, _ := strings.Cut(field, " ")
	if !l.asked[stock.SKU(sku)] {
		return nil
	}
	d, err := parseRecord(order, record)
	if err != nil {
		return fmt.Errorf("SKU %s, record of order %q: %w", sku, order, err)
	}
	if id := (takeOf{d.OrderID, d.TakeID}); !l.seen[id] {
		l.seen[id] = true
		l.ds = append(l.ds, d)
	}
	return nil
}

// scan adds what is in flight under the keys to the listing.
func (c *counts) scan(ctx context.Context, keys keys, olderThan time.Duration, to *listing) error {
	var errs []error
	for cursor := "0"; !to.full(); {
		page, err := c.strings(ctx, &c.scripts().flight, []string{keys.count, keys.flight},
			cursor, strconv.Itoa(flightStep), strconv.FormatInt(olderThan.Microseconds(), 10))
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for pairs := page[1:]; len(pairs) >= 2 && !to.full(); pairs = pairs[2:] {
			if err := to.add(pairs[0], pairs[1]); err != nil {
				errs = append(errs, err)
			}
		}
		if cursor = page[0]; cursor == "0" {
			break
		}
	}
	return errors.Join(errs...)
}

// Level returns the counts of the SKUs, in their order. Each is read at a moment
// of its own.
func (c *counts) Level(ctx context.Context, skus ...stock.SKU) ([]stock.Level, error) {
	levels := make([]stock.Level, 0, len(skus))
	var errs []error
	for chunk := range slices.Chunk(skus, levelSKUs) {
		var (
			pipe  = c.client.Pipeline()
			reads []*redis.SliceCmd
		)
		if c.cluster {
			for _, sku := range chunk {
				reads = append(reads, pipe.HMGet(ctx, c.keys(sku).count, string(sku)))
			}
		} else {
			names := make([]string, len(chunk))
			for i, sku := range chunk {
				names[i] = string(sku)
			}
			reads = append(reads, pipe.HMGet(ctx, c.shared.count, names...))
		}
		_, _ = pipe.Exec(ctx) // each command's error is looked at below
		for i, sku := range chunk {
			read, at := reads[0], i
			if c.cluster {
				read, at = reads[i], 0
			}
			level := stock.Level{SKU: sku}
			if err := read.Err(); err != nil {
				level.Err = fmt.Errorf("reading the count of SKU %s: %w", sku, proven(err))
				if at == 0 { // one error for a command
					errs = append(errs, level.Err)
				}
			} else {
				level = parseCount(c.scripts().generation, sku, read.Val()[at])
			}
			levels = append(levels, level)
		}
	}
	return levels, errors.Join(errs...)
}

// parseCount reads what the hash has of the SKU; nil: nothing. A count of
// another generation tells its epoch and no more. One that makes no sense counts
// as missing, so that it is filled anew.
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

// epochOf is the epoch in a count or a record, where it is the field at this
// place; 0: there is none.
func epochOf(text string, at int) int64 {
	fields := strings.Fields(text)
	if at >= len(fields) {
		return 0
	}
	epoch, _ := strconv.ParseInt(fields[at], 10, 64)
	return epoch
}

var errRecord = errors.New("not the record of a take")

// parseRecord reads the order back from one of its records.
func parseRecord(order, record string) (stock.Deduction, error) {
	fields := strings.Fields(record)
	if len(fields) != 6 {
		return stock.Deduction{}, errRecord
	}
	var d stock.Deduction
	var err error
	if d.OrderID, err = uuid.Parse(order); err != nil {
		return stock.Deduction{}, fmt.Errorf("%w: order ID: %w", errRecord, err)
	}
	if d.TakeID, err = uuid.Parse(fields[0]); err != nil {
		return stock.Deduction{}, fmt.Errorf("%w: take ID: %w", errRecord, err)
	}
	if fields[4] != noBuyer {
		d.Buyer = fields[4]
	}
	for text := range strings.SplitSeq(fields[5], ",") {
		sku, units, _ := strings.Cut(text, "=")
		quantity, err := strconv.ParseInt(units, 10, 64)
		if err != nil {
			return stock.Deduction{}, fmt.Errorf("%w: line %q: %w", errRecord, text, err)
		}
		d.Lines = append(d.Lines, stock.Line{SKU: stock.SKU(sku), Quantity: quantity})
	}
	return d, nil
}
