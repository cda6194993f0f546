package gate

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// MaxSegments bounds the segments of one SKU.
const MaxSegments = 64

// Segmented divides the stock of each SKU into segments. It keeps each segment as
// a SKU of its own, named SKU/SEGMENT, at an inner gate: on a cluster in a hash
// slot of its own, and if the inner gate locks, under a lock of its own. It also
// keeps in Redis
//
//	holdfast:{LEDGERID:SKU}:gathers   counter: raised when a gather begins and when it ends
//
// The number of segments is part of the layout, and so of the generation. It is
// not stored with the counts.
//
// A take first asks one segment, its order ID modulo the number of segments, so
// that all takes of an order ask the same one. If that segment has too few units,
// the take reads all segments and asks one that has enough. If no single segment
// has enough but all together do, it gathers: under a lock, it cuts parts of
// several segments. It is refused as sold out only if all segments together had
// too few while no gather ran, because a gather that fails gives units back.
//
// A take of an order that was taken before (Deduction.Again) looks for records of the
// order in all segments first.
//
// A take that is sent twice gets its first answer, unless units came back in
// between to the segment that it asks first. (The service sends no take twice.)
type Segmented struct {
	counts    counts // of the segments
	inner     Gate
	gatherers OwnedLocker
	segments  int
}

var _ Gate = (*Segmented)(nil)

// OwnedLocker is a locker that its user closes.
type OwnedLocker interface {
	lock.Locker
	Close() error
}

// NewSegmented divides the SKUs of inner into segments, 1 to MaxSegments. inner
// keeps its counts in the Redis of client. gatherers, whose locks all instances
// share, makes gathers of a SKU run one at a time; its leases should be short.
// Close closes inner and gatherers.
func NewSegmented(inner Gate, client redis.UniversalClient, ledgerID uuid.UUID, segments int, gatherers OwnedLocker) *Segmented {
	return &Segmented{counts: newCounts(client, ledgerID), inner: inner, gatherers: gatherers, segments: segments}
}

// Close closes the inner gate and the locker of gathers.
func (g *Segmented) Close() {
	g.inner.Close()
	_ = g.gatherers.Close()
}

// separator cannot be part of a SKU.
const separator = "/"

// segmentOf returns the SKU under which the inner gate keeps segment n of sku.
func segmentOf(sku stock.SKU, n int) stock.SKU { return sku + separator + stock.SKU(strconv.Itoa(n)) }

// splitSegment returns the SKU and the number of a segment.
func splitSegment(segment stock.SKU) (sku stock.SKU, n int) {
	at := strings.LastIndex(string(segment), separator)
	if at < 0 {
		return segment, 0
	}
	n, _ = strconv.Atoi(string(segment[at+1:]))
	return segment[:at], n
}

// segmentsOf returns the segments of the SKUs, those of each SKU together.
func (g *Segmented) segmentsOf(skus ...stock.SKU) []stock.SKU {
	segments := make([]stock.SKU, 0, len(skus)*g.segments)
	for _, sku := range skus {
		for n := range g.segments {
			segments = append(segments, segmentOf(sku, n))
		}
	}
	return segments
}

// Use makes the inner gate run under generation to.
func (g *Segmented) Use(to stock.Generation) {
	g.counts.Use(to)
	g.inner.Use(to)
}

// Load enables the inner gate's store to run generation to.
func (g *Segmented) Load(ctx context.Context, to stock.Generation) error {
	return g.inner.Load(ctx, to)
}

// Loaded reports whether the inner gate's store can run the generation in use.
func (g *Segmented) Loaded(ctx context.Context) (bool, error) { return g.inner.Loaded(ctx) }

// Mark returns the mark of the inner gate's store.
func (g *Segmented) Mark(ctx context.Context) (stock.Mark, error) { return g.inner.Mark(ctx) }

// SetMark replaces the mark. The mark in Redis includes the number of segments.
func (g *Segmented) SetMark(ctx context.Context, m stock.Mark) error {
	return g.counts.setMark(ctx, m, g.segments)
}

// Take cuts all lines or none, each from as few segments as hold enough.
//
// It plans a take before it cuts it. A planned take has the parts to cut in its
// receipt, and no epochs. The inner gate rejects malformed deductions.
func (g *Segmented) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	if d.Again { // the records of the earlier take may be in segments that this take does not ask
		if taken, repeated, err := g.repeat(ctx, d); repeated || err != nil {
			return taken, err
		}
	}
	planned := stock.Take{Deduction: d, Receipt: make(stock.Receipt, len(d.Lines))}
	first := int(binary.BigEndian.Uint32(d.OrderID[12:]) % uint32(g.segments))
	for i, line := range d.Lines {
		planned.Receipt[i].Parts = []stock.Part{{Segment: first, Quantity: line.Quantity}}
	}
	for try := range len(d.Lines) * (g.segments + 1) {
		taken, short, err := g.cut(ctx, planned)
		if short == noLine {
			return taken, err
		}
		if try == 0 {
			if taken, repeated, err := g.repeat(ctx, d); repeated || err != nil {
				return taken, err
			}
		}
		switch routed, err := g.route(ctx, planned, short); {
		case err != nil:
			return stock.Take{}, err
		case !routed:
			return g.gather(ctx, planned)
		}
	}
	return g.gather(ctx, planned) // the counts change too fast to follow
}

// repeat answers a take that was cut earlier, in segments other than the one that
// it asks first. repeated is false if there is no record of the order. A record of
// another take of the order is an error.
func (g *Segmented) repeat(ctx context.Context, d stock.Deduction) (taken stock.Take, repeated bool, err error) {
	earlier, err := g.findRecord(ctx, d.OrderID, d.Lines)
	if err != nil || earlier == nil {
		return stock.Take{}, false, err
	}
	if earlier.TakeID != d.TakeID {
		return stock.Take{}, false, stock.ErrInFlight
	}
	taken, short, err := g.cut(ctx, undivided(*earlier))
	if short != noLine { // settled since
		err = fmt.Errorf("%w: take %s was settled while its record was read", stock.ErrBusy, d.TakeID)
	}
	return taken, true, err
}

// findRecord returns what the first record of the order describes, with a line
// for each segment that it was cut in. It returns nil if the order has no valid
// record in any segment of the lines' SKUs.
func (g *Segmented) findRecord(ctx context.Context, order uuid.UUID, lines []stock.Line) (*stock.Deduction, error) {
	pipe := g.counts.client.Pipeline()
	var counts, records []*redis.StringCmd
	for _, line := range lines {
		for _, segment := range g.segmentsOf(line.SKU) {
			keys := g.counts.keys(segment)
			counts = append(counts, pipe.HGet(ctx, keys.count, string(segment)))
			records = append(records, pipe.HGet(ctx, keys.flight, recordField(segment, order)))
		}
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	for i := range records {
		count, countErr := counts[i].Result()
		record, err := records[i].Result()
		if errors.Is(countErr, redis.Nil) || errors.Is(err, redis.Nil) {
			continue
		}
		if err := cmp.Or(countErr, err); err != nil {
			return nil, fmt.Errorf("looking for the order's record: %w", proven(err))
		}
		epoch := epochOf(count, 0)
		if !g.counts.scripts().generation.Holds(epoch) || epoch != epochOf(record, 2) {
			continue // void
		}
		found, err := parseRecord(order.String(), record)
		return &found.Deduction, err
	}
	return nil, nil
}

// noLine is returned by cut if no line is short of units.
const noLine = -1

// cut cuts the planned parts. short is the index of a line whose segment has too
// few units, or noLine.
func (g *Segmented) cut(ctx context.Context, planned stock.Take) (taken stock.Take, short int, err error) {
	inner, err := g.inner.Take(ctx, divided(planned))
	if err == nil {
		taken, err := g.join(ctx, planned, inner)
		return taken, noLine, err
	}
	var refusal *stock.Refusal
	if !errors.As(err, &refusal) {
		return stock.Take{}, noLine, err
	}
	sku, _ := splitSegment(refusal.SKU)
	for line := range planned.Lines {
		if planned.Lines[line].SKU == sku && errors.Is(err, stock.ErrSoldOut) {
			return stock.Take{}, line, nil
		}
	}
	return stock.Take{}, noLine, stock.Refuse(sku, refusal.Reason)
}

// lineOf returns the index of the SKU's line, or -1.
func lineOf(lines []stock.Line, sku stock.SKU) int {
	return slices.IndexFunc(lines, func(line stock.Line) bool { return line.SKU == sku })
}

// join returns planned with the epochs of inner, which is the take of its parts.
// If the parts of a line were cut under two epochs, the segments are being
// refilled: it gives inner back and returns stock.ErrNotFilled.
func (g *Segmented) join(ctx context.Context, planned, inner stock.Take) (stock.Take, error) {
	taken := stock.Take{Deduction: planned.Deduction, Receipt: slices.Clone(planned.Receipt)}
	for i, line := range inner.Lines {
		sku, _ := splitSegment(line.SKU)
		cut, epoch := &taken.Receipt[lineOf(taken.Lines, sku)], inner.Epoch(i)
		if cut.Epoch != 0 && cut.Epoch != epoch {
			ctx, cancel := detached(ctx)
			defer cancel()
			if err := g.inner.Give(ctx, inner); err != nil {
				return stock.Take{}, partLeft(err)
			}
			return stock.Take{}, stock.Refuse(sku, stock.ErrNotFilled)
		}
		cut.Epoch = epoch
	}
	return taken, nil
}

// divided returns the deduction that the inner gate is asked for: a line for each
// part.
func divided(t stock.Take) stock.Deduction {
	var lines []stock.Line
	for i, line := range t.Lines {
		for _, part := range t.Parts(i) {
			lines = append(lines, stock.Line{SKU: segmentOf(line.SKU, part.Segment), Quantity: part.Quantity})
		}
	}
	stock.SortLines(lines)
	d := t.Deduction
	d.Lines = lines
	return d
}

// undivided returns the take whose parts are the lines of inner. Its receipt has
// no epochs.
func undivided(inner stock.Deduction) stock.Take {
	byLine := make(map[stock.SKU][]stock.Part)
	t := stock.Take{Deduction: inner}
	t.Lines = nil
	for _, line := range inner.Lines {
		sku, n := splitSegment(line.SKU)
		at := lineOf(t.Lines, sku)
		if at < 0 {
			at = len(t.Lines)
			t.Lines = append(t.Lines, stock.Line{SKU: sku})
		}
		t.Lines[at].Quantity += line.Quantity
		byLine[sku] = append(byLine[sku], stock.Part{Segment: n, Quantity: line.Quantity})
	}
	stock.SortLines(t.Lines)
	for _, line := range t.Lines {
		t.Receipt = append(t.Receipt, stock.Cut{Parts: byLine[line.SKU]})
	}
	return t
}

// route plans the line again, in a segment that has enough. routed is false if no
// segment has enough but all together may: then the line must be gathered. A line
// that is sold out is an error.
func (g *Segmented) route(ctx context.Context, planned stock.Take, i int) (routed bool, err error) {
	line, parts := planned.Lines[i], planned.Parts(i)
	before, err := g.gathers(ctx, line.SKU)
	if err != nil {
		return false, err
	}
	levels, sum, err := g.levels(ctx, line.SKU)
	if err != nil {
		return false, err
	}
	for n := range g.segments {
		if at := (parts[0].Segment + n) % g.segments; levels[at].Available >= line.Quantity {
			planned.Receipt[i].Parts = []stock.Part{{Segment: at, Quantity: line.Quantity}}
			return true, nil
		}
	}
	if sum >= line.Quantity {
		return false, nil
	}
	after, err := g.gathers(ctx, line.SKU)
	if err != nil {
		return false, err
	}
	if before%2 == 0 && before == after { // no gather ran meanwhile
		return false, stock.Refuse(line.SKU, stock.ErrSoldOut)
	}
	return false, nil // only a gather can tell
}

// levels returns the levels of the SKU's segments and the sum of the units
// available. stock.ErrNotFilled (as *stock.Refusal): a segment is not filled.
func (g *Segmented) levels(ctx context.Context, sku stock.SKU) (levels []stock.Level, sum int64, err error) {
	if levels, err = g.inner.Level(ctx, g.segmentsOf(sku)...); err != nil {
		return nil, 0, err
	}
	for _, level := range levels {
		if !level.Filled {
			return nil, 0, stock.Refuse(sku, stock.ErrNotFilled)
		}
		sum += level.Available
	}
	return levels, sum, nil
}

// everywhere returns the inner gate's take of t. A line whose parts are not known
// becomes a line in every segment, and the inner gate uses those that it has
// records of.
func (g *Segmented) everywhere(t stock.Take) stock.Take {
	receipt := make(stock.Receipt, len(t.Lines))
	for i, line := range t.Lines {
		if receipt[i].Parts = t.Parts(i); receipt[i].Parts != nil {
			continue
		}
		for n := range g.segments {
			receipt[i].Parts = append(receipt[i].Parts, stock.Part{Segment: n, Quantity: line.Quantity})
		}
	}
	return stock.Take{Deduction: divided(stock.Take{Deduction: t.Deduction, Receipt: receipt})}
}

// Settle removes the records of takes in all their segments.
func (g *Segmented) Settle(ctx context.Context, takes ...stock.Take) error {
	inner := make([]stock.Take, len(takes))
	for i, t := range takes {
		inner[i] = g.everywhere(t)
	}
	return g.inner.Settle(ctx, inner...)
}

// Give returns the take's units to the segments that they came from, or burns the
// take in all of them. If it fails, it may have done a part. Giving again does the
// rest.
func (g *Segmented) Give(ctx context.Context, t stock.Take) error {
	inner := g.everywhere(t)
	var errs []error
	for i := range inner.Lines { // one by one, so that it never holds more than one lock
		one := inner
		one.Lines = inner.Lines[i : i+1]
		errs = append(errs, g.inner.Give(ctx, one))
	}
	return errors.Join(errs...)
}

// share returns the units that segment n of count gets. The remainder goes to the
// segments from first on.
func share(units int64, n, count, first int) int64 {
	part := units / int64(count)
	if int64((n-first+count)%count) < units%int64(count) {
		part++
	}
	return part
}

// Fill spreads the units evenly, and the remainder over the first segments. If it
// fails, only some segments are under the new epoch, and the SKU counts as not
// filled.
func (g *Segmented) Fill(ctx context.Context, sku stock.SKU, epoch, units int64) error {
	return g.FillAll(ctx, []stock.Fill{{SKU: sku, Epoch: epoch, Units: units}})[0]
}

// FillAll fills the segments of all SKUs with one call of the inner gate.
func (g *Segmented) FillAll(ctx context.Context, fills []stock.Fill) []error {
	parts := make([]stock.Fill, 0, len(fills)*g.segments)
	for _, f := range fills {
		for n := range g.segments {
			parts = append(parts, stock.Fill{SKU: segmentOf(f.SKU, n), Epoch: f.Epoch, Units: share(f.Units, n, g.segments, 0)})
		}
	}
	inner := g.inner.FillAll(ctx, parts)
	errs := make([]error, len(fills))
	for i, f := range fills {
		// One error is enough: any segment that was not filled is a reason.
		errs[i] = refusalOf(f.SKU, cmp.Or(inner[i*g.segments:(i+1)*g.segments]...))
	}
	return errs
}

// Adjust gives every segment its share of the addition, each once.
func (g *Segmented) Adjust(ctx context.Context, change stock.Change) error {
	for n := range g.segments {
		part := change
		part.SKU = segmentOf(change.SKU, n)
		part.Delta = share(change.Delta, n, g.segments, int(change.Number%int64(g.segments)))
		if err := g.inner.Adjust(ctx, part); err != nil {
			return refusalOf(change.SKU, err)
		}
	}
	return nil
}

// refusalOf turns the refusal of a segment into a refusal of its SKU. It returns
// any other error as it is.
func refusalOf(sku stock.SKU, err error) error {
	var refusal *stock.Refusal
	if errors.As(err, &refusal) {
		return stock.Refuse(sku, refusal.Reason)
	}
	return err
}

// InFlight lists the takes that have a record in any segment of the SKUs.
func (g *Segmented) InFlight(ctx context.Context, olderThan time.Duration, limit int, skus ...stock.SKU) ([]stock.Take, error) {
	takes, err := g.inner.InFlight(ctx, olderThan, limit, g.segmentsOf(skus...)...)
	for i, t := range takes {
		takes[i] = undivided(t.Deduction)
		takes[i].Recorded = undivided(stock.Deduction{Lines: t.Recorded}).Lines
	}
	return takes, err
}

// ScanInFlight lists the takes that have a record in any segment of any SKU.
func (g *Segmented) ScanInFlight(ctx context.Context, olderThan time.Duration, cursor string) ([]stock.Take, string, error) {
	takes, next, err := g.inner.ScanInFlight(ctx, olderThan, cursor)
	for i, t := range takes {
		takes[i] = undivided(t.Deduction)
	}
	return takes, next, err
}

// Level returns the sums over the segments. A SKU is filled if all its segments
// are filled under one epoch.
func (g *Segmented) Level(ctx context.Context, skus ...stock.SKU) ([]stock.Level, error) {
	inner, err := g.inner.Level(ctx, g.segmentsOf(skus...)...)
	levels := make([]stock.Level, len(skus))
	for i, sku := range skus {
		levels[i] = sumOf(sku, inner[i*g.segments:(i+1)*g.segments])
	}
	return levels, err
}

// Segments returns the counts of the SKU's segments, in their order.
func (g *Segmented) Segments(ctx context.Context, sku stock.SKU) ([]stock.Level, error) {
	return g.inner.Level(ctx, g.segmentsOf(sku)...)
}

// sumOf returns the level of the SKU whose segments have the levels given.
func sumOf(sku stock.SKU, segments []stock.Level) stock.Level {
	sum := stock.Level{SKU: sku, Filled: true}
	for _, segment := range segments {
		if segment.Err != nil {
			return stock.Level{SKU: sku, Err: segment.Err}
		}
		sum.Epoch = max(sum.Epoch, segment.Epoch)
		sum.Available += segment.Available
		sum.InFlight += segment.InFlight
	}
	for _, segment := range segments {
		if !segment.Filled || segment.Epoch != sum.Epoch {
			return stock.Level{SKU: sku, Epoch: sum.Epoch}
		}
	}
	return sum
}
