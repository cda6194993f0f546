package gate

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Segmented takes units from the segments of each SKU. Another gate takes them from one segment or
// several, as if segments were SKUs. On a cluster each segment is in its own hash slot. If there
// are locks, each segment has its own. Segmented also keeps in Redis
//
//	holdfast:{LEDGERID:SKU}:gathers   counter: raised when a gather begins and when it ends
//
// A take first tries the segment whose number is its order ID modulo the number of segments, so
// that all takes of an order try the same one. If that segment has too few units, the take reads
// all segments and tries one that has enough. If no single segment has enough but all together do,
// it gathers: under a lock, it cuts parts of several segments. The take is refused as sold out only
// if all segments together had too few units while no gather ran, because a failed gather gives
// units back.
//
// A take of an order that was taken before (Deduction.Again) looks for records of the order in all
// segments first.
//
// A take that is sent twice gets its first answer again, unless units were returned to its first
// segment in between. (The service sends no take twice.)
type Segmented struct {
	counter   *Counter
	segments  int
	inner     Gate // gate of the segments
	gatherers OwnedLocker
}

var _ Gate = (*Segmented)(nil)

// OwnedLocker is a locker that the gate using it closes.
type OwnedLocker interface {
	lock.Locker
	Close() error
}

// NewSegmented returns a gate for a counter whose layout has segments. inner is a gate
// that was built on the same counter. gatherers, whose locks all instances share, makes
// gathers of a SKU run one at a time; its leases should be short. Close closes inner and
// gatherers.
func NewSegmented(counter *Counter, inner Gate, gatherers OwnedLocker) *Segmented {
	return &Segmented{counter: counter, segments: counter.layout.Segments, inner: inner, gatherers: gatherers}
}

// Close closes the inner gate and the locker of gathers.
func (g *Segmented) Close() {
	g.inner.Close()
	_ = g.gatherers.Close()
}

// Take cuts all lines or none, each from as few segments as hold enough.
//
// It plans a take before it cuts it. A planned take has the parts to cut in its
// receipt, and no epochs. The inner gate rejects malformed deductions.
func (g *Segmented) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	if d.Again { // records of an earlier take may be in segments that this take does not try
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
	return g.gather(ctx, planned) // the counts change too fast to plan again
}

// repeat answers a take that was cut earlier, in other segments than the one it tries first.
// repeated is false if the order has no record. A record of another take of the order is an error.
func (g *Segmented) repeat(ctx context.Context, d stock.Deduction) (taken stock.Take, repeated bool, err error) {
	earlier, err := g.findRecord(ctx, d.OrderID, d.Lines)
	if err != nil || earlier == nil {
		return stock.Take{}, false, err
	}
	if earlier.TakeID != d.TakeID {
		return stock.Take{}, false, stock.ErrInFlight
	}
	taken, short, err := g.cut(ctx, undivided(*earlier))
	if short != noLine { // the record was settled since
		err = fmt.Errorf("%w: take %s was settled while its record was read", stock.ErrBusy, d.TakeID)
	}
	return taken, true, err
}

// findRecord returns the order described by the first record of it, with a line for each segment in
// which it was cut. It returns nil if the order has no valid record in any segment of the lines'
// SKUs.
func (g *Segmented) findRecord(ctx context.Context, order uuid.UUID, lines []stock.Line) (*stock.Deduction, error) {
	pipe := g.counter.client.Pipeline()
	var counts, records []*redis.StringCmd
	for _, line := range lines {
		for _, segment := range g.counter.layout.segmentsOf(line.SKU) {
			keys := g.counter.keys(segment)
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
		if stock.GenerationOf(epoch) != g.counter.scripts.Load().generation || epoch != epochOf(record, 2) {
			continue // void record
		}
		found, err := parseRecord(order.String(), record)
		return &found.Deduction, err
	}
	return nil, nil
}

// noLine is returned by cut if no line lacks units.
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

// join returns planned with the epochs of inner, which is the take of its parts. If the parts of a
// line were cut under two epochs, the segments are being refilled. join then gives inner back and
// returns stock.ErrNotFilled.
func (g *Segmented) join(ctx context.Context, planned, inner stock.Take) (stock.Take, error) {
	taken := stock.Take{Deduction: planned.Deduction, Receipt: slices.Clone(planned.Receipt)}
	for i, line := range inner.Lines {
		sku, _ := splitSegment(line.SKU)
		cut, epoch := &taken.Receipt[lineOf(taken.Lines, sku)], inner.Epoch(i)
		if cut.Epoch != 0 && cut.Epoch != epoch {
			if err := g.counter.giveUnderLocks(ctx, inner); err != nil {
				return stock.Take{}, partLeft(err)
			}
			return stock.Take{}, stock.Refuse(sku, stock.ErrNotFilled)
		}
		cut.Epoch = epoch
	}
	return taken, nil
}

// route plans the line again, in a segment that has enough. If no segment has enough but all
// together may, routed is false, and the line must be gathered. For a sold-out line, it returns an
// error.
func (g *Segmented) route(ctx context.Context, planned stock.Take, i int) (routed bool, err error) {
	line, parts := planned.Lines[i], planned.Parts(i)
	before, err := g.gathers(ctx, line.SKU)
	if err != nil {
		return false, err
	}
	levels, sum, err := g.segmentLevels(ctx, line.SKU)
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
	if before%2 == 0 && before == after { // no gather ran during the reads
		return false, stock.Refuse(line.SKU, stock.ErrSoldOut)
	}
	return false, nil // only a gather can decide
}

// segmentLevels returns the levels of the SKU's segments and the sum of the units available. It
// returns stock.ErrNotFilled (as *stock.Refusal) if a segment is not filled.
func (g *Segmented) segmentLevels(ctx context.Context, sku stock.SKU) (levels []stock.Level, sum int64, err error) {
	if levels, err = g.counter.levels(ctx, g.counter.layout.segmentsOf(sku)...); err != nil {
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
