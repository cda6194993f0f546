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

const (
	// MaxSegments bounds the segments of one SKU.
	MaxSegments = 64
	// maxParts bounds the parts of one take, as the script's encoding does.
	maxParts = 255
	// gatherWait bounds how long a take waits for its turn to gather.
	gatherWait = 2 * time.Second
	// gatherTries bounds how often a gather meets counts that moved.
	gatherTries = 10
)

// Segmented divides each SKU's stock into segments, and keeps each segment as a
// SKU of its own, named SKU/SEGMENT, at another gate: under keys of its own, on
// a cluster in a hash slot of its own, and where that gate locks, under a lock of
// its own. Beside them it keeps in Redis
//
//	holdfast:{LEDGERID:SKU}:gathers    counter: raised when a gather begins and when it ends
//
// How many segments there are is part of the layout, and so of the generation:
// it is not stored.
//
// A take asks one segment, chosen by its order ID modulo their number, so that
// tries of one order meet. If that has too few units, it looks at all of them
// and asks one that has enough. If none has alone, but all together do, it
// gathers: one take of a SKU at a time, under a lock, cuts parts of several. It
// is sold out only if all segments together had too few while nobody gathered,
// for a gather that fails gives units back.
//
// A take that comes twice gets its first answer as long as no units came back in
// between to the segment it asks first. (The service sends no take twice.)
type Segmented struct {
	counts   // of the segments
	inner    stock.Gate
	locker   lock.Locker // gathers
	segments int
}

var _ stock.Gate = (*Segmented)(nil)

// NewSegmented divides the SKUs of inner, a gate in the same Redis, into so many
// segments, 1 to MaxSegments. locker, shared by all instances, makes gathers one
// at a time; its leases should be short.
func NewSegmented(inner stock.Gate, client redis.UniversalClient, ledgerID uuid.UUID, segments int, locker lock.Locker) *Segmented {
	return &Segmented{counts: newCounts(client, ledgerID), inner: inner, locker: locker, segments: segments}
}

// Close closes the inner gate, if it is one to be closed. The locker stays the
// caller's.
func (g *Segmented) Close() {
	if inner, ok := g.inner.(interface{ Close() }); ok {
		inner.Close()
	}
}

// separator cannot be part of a SKU.
const separator = "/"

// segment is the SKU under which the inner gate keeps a segment.
func segment(sku stock.SKU, n int) stock.SKU { return sku + separator + stock.SKU(strconv.Itoa(n)) }

// whole is the SKU that a segment is of.
func whole(segment stock.SKU) (sku stock.SKU, n int) {
	at := strings.LastIndex(string(segment), separator)
	if at < 0 {
		return segment, 0
	}
	n, _ = strconv.Atoi(string(segment[at+1:]))
	return segment[:at], n
}

func (g *Segmented) gathersKey(sku stock.SKU) string { return g.own(sku) + ":gathers" }

// Use makes the inner gate run under the generation.
func (g *Segmented) Use(to stock.Generation) {
	g.counts.Use(to)
	g.inner.Use(to)
}

// Load enables the inner gate's store to run the generation.
func (g *Segmented) Load(ctx context.Context, to stock.Generation) error {
	return g.inner.Load(ctx, to)
}

// SetMark replaces the mark, with the number of segments in it.
func (g *Segmented) SetMark(ctx context.Context, m stock.Mark) error {
	return g.setMark(ctx, m, g.segments)
}

// Take cuts all lines or none, each from as few segments as hold enough.
func (g *Segmented) Take(ctx context.Context, d stock.Deduction) (stock.Deduction, error) {
	if err := valid(d); err != nil {
		return stock.Deduction{}, err
	}
	d.Lines = slices.Clone(d.Lines)
	start := binary.BigEndian.Uint32(d.OrderID[12:])
	for i := range d.Lines {
		line := &d.Lines[i]
		line.Parts = []stock.Part{{Segment: int(start % uint32(g.segments)), Quantity: line.Quantity}}
	}
	for try := range len(d.Lines) * (g.segments + 1) {
		taken, short, err := g.cut(ctx, d)
		if short == nil {
			return taken, err
		}
		if try == 0 {
			again, err := g.before(ctx, &d)
			if err != nil {
				return stock.Deduction{}, err
			}
			if again {
				taken, short, err := g.cut(ctx, d)
				if short != nil { // settled since
					err = fmt.Errorf("%w: the record of take %s went while it was looked at", stock.ErrBusy, d.TakeID)
				}
				return taken, err
			}
		}
		switch decided, err := g.route(ctx, short); {
		case err != nil:
			return stock.Deduction{}, err
		case !decided:
			return g.gather(ctx, d)
		}
	}
	return g.gather(ctx, d) // the counts move too fast to be followed
}

// before reports whether the same take came before and was cut where d's segments
// would not show it, and then gives d the parts it was cut in. Another take of
// the order in flight is an error.
func (g *Segmented) before(ctx context.Context, d *stock.Deduction) (bool, error) {
	pipe := g.client.Pipeline()
	var counts, records []*redis.StringCmd
	for _, line := range d.Lines {
		for n := range g.segments {
			part := segment(line.SKU, n)
			keys := g.keys(part)
			counts = append(counts, pipe.HGet(ctx, keys.count, string(part)))
			records = append(records, pipe.HGet(ctx, keys.flight, field(part, d.OrderID)))
		}
	}
	_, _ = pipe.Exec(ctx) // its error may be a missing record's
	for i := range records {
		count, countErr := counts[i].Result()
		record, err := records[i].Result()
		if errors.Is(countErr, redis.Nil) || errors.Is(err, redis.Nil) {
			continue
		}
		if err := cmp.Or(countErr, err); err != nil {
			return false, fmt.Errorf("looking for the order's record: %w", proven(err))
		}
		if epoch := epochOf(count, 0); !g.scripts().generation.Holds(epoch) || epoch != epochOf(record, 2) {
			continue // of what a fill has forgotten
		}
		found, err := parseRecord(d.OrderID.String(), record)
		if err != nil {
			return false, err
		}
		if found.TakeID != d.TakeID {
			return false, stock.ErrInFlight
		}
		*d = undivided(found)
		return true, nil
	}
	return false, nil
}

// cut takes the parts as they are. short is the line whose segment has too few.
func (g *Segmented) cut(ctx context.Context, d stock.Deduction) (taken stock.Deduction, short *stock.Line, err error) {
	inner, err := g.inner.Take(ctx, divided(d))
	var refusal *stock.Refusal
	switch {
	case err == nil:
		return g.joined(ctx, d, inner)
	case !errors.As(err, &refusal):
		return stock.Deduction{}, nil, err
	}
	sku, _ := whole(refusal.SKU)
	if errors.Is(err, stock.ErrSoldOut) {
		for i := range d.Lines {
			if d.Lines[i].SKU == sku {
				return stock.Deduction{}, &d.Lines[i], nil
			}
		}
	}
	return stock.Deduction{}, nil, stock.Refuse(sku, refusal.Reason)
}

// divided is d with a line for each part.
func divided(d stock.Deduction) stock.Deduction {
	var lines []stock.Line
	for _, line := range d.Lines {
		for _, part := range line.Parts {
			lines = append(lines, stock.Line{SKU: segment(line.SKU, part.Segment), Quantity: part.Quantity, Epoch: line.Epoch})
		}
	}
	d.Lines = lines
	stock.SortLines(d.Lines)
	return d
}

// joined is d with the epochs under which its parts were cut. Parts of one line
// that were cut under two epochs are no cut: the segments are being refilled.
func (g *Segmented) joined(ctx context.Context, d, inner stock.Deduction) (stock.Deduction, *stock.Line, error) {
	d.Lines = slices.Clone(d.Lines)
	for i := range d.Lines {
		d.Lines[i].Epoch = 0
	}
	for _, cut := range inner.Lines {
		sku, _ := whole(cut.SKU)
		for i := range d.Lines {
			line := &d.Lines[i]
			if line.SKU != sku {
				continue
			}
			if line.Epoch != 0 && line.Epoch != cut.Epoch {
				ctx, cancel := detached(ctx)
				defer cancel()
				if err := g.inner.Give(ctx, inner); err != nil {
					return stock.Deduction{}, nil, leftAtTheGate(err)
				}
				return stock.Deduction{}, nil, stock.Refuse(sku, stock.ErrNotFilled)
			}
			line.Epoch = cut.Epoch
		}
	}
	return d, nil, nil
}

// route moves the line to a segment that holds enough. decided is false where
// none does and all together might: then the line must be gathered. A line that
// is sold out is an error.
func (g *Segmented) route(ctx context.Context, line *stock.Line) (decided bool, err error) {
	before, err := g.gathers(ctx, line.SKU)
	if err != nil {
		return false, err
	}
	levels, sum, err := g.levels(ctx, line.SKU)
	if err != nil {
		return false, err
	}
	from := line.Parts[0].Segment
	for i := range g.segments {
		if at := (from + i) % g.segments; levels[at].Available >= line.Quantity {
			line.Parts = []stock.Part{{Segment: at, Quantity: line.Quantity}}
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
	if before%2 == 0 && before == after { // nobody gathered meanwhile
		return false, stock.Refuse(line.SKU, stock.ErrSoldOut)
	}
	return false, nil // after that gather it is decided
}

// gathers is even while nobody gathers units of the SKU, and rises.
func (g *Segmented) gathers(ctx context.Context, sku stock.SKU) (int64, error) {
	n, err := g.client.Get(ctx, g.gathersKey(sku)).Int64()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, fmt.Errorf("reading whether SKU %s is being gathered: %w", sku, err)
	}
	return n, nil
}

// levels are the levels of the SKU's segments, and the sum of what is left.
func (g *Segmented) levels(ctx context.Context, sku stock.SKU) (levels []stock.Level, sum int64, err error) {
	if levels, err = g.inner.Level(ctx, g.all([]stock.SKU{sku})...); err != nil {
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

// gather cuts parts of several segments, while no other gather does of the same
// SKUs. What it finds sold out is.
func (g *Segmented) gather(ctx context.Context, d stock.Deduction) (stock.Deduction, error) {
	waiting, stopWaiting := context.WithTimeout(ctx, gatherWait)
	defer stopWaiting()
	for _, line := range d.Lines {
		lease, err := g.locker.Lock(waiting, "gather:"+string(line.SKU))
		if err != nil {
			return stock.Deduction{}, fmt.Errorf("%w: waiting to gather units of SKU %s: %w", stock.ErrBusy, line.SKU, err)
		}
		defer unlock(ctx, lease)
		if err := g.announce(ctx, line.SKU, 1); err != nil {
			return stock.Deduction{}, err
		}
		defer func() {
			ctx, cancel := detached(ctx)
			defer cancel()
			_ = g.announce(ctx, line.SKU, 0) // else the next gather does
		}()
	}
	for range gatherTries {
		for i := range d.Lines {
			if err := g.collect(ctx, &d.Lines[i]); err != nil {
				return stock.Deduction{}, err
			}
		}
		if inner := divided(d); len(inner.Lines) > maxParts {
			return stock.Deduction{}, fmt.Errorf("%w: the units lie in %d segments", stock.ErrBusy, len(inner.Lines))
		}
		taken, short, err := g.cut(ctx, d)
		if short == nil {
			return taken, err
		}
	}
	return stock.Deduction{}, fmt.Errorf("%w: units of the order's SKUs go faster than they can be gathered", stock.ErrBusy)
}

// announce makes the counter of gathers odd, for the time of a gather, or even,
// whatever a gatherer that died has left.
func (g *Segmented) announce(ctx context.Context, sku stock.SKU, odd int64) error {
	n, err := g.gathers(ctx, sku)
	if err == nil && n%2 != odd {
		err = g.client.Incr(ctx, g.gathersKey(sku)).Err()
	} else if err == nil {
		err = g.client.IncrBy(ctx, g.gathersKey(sku), 2).Err() // it rises all the same
	}
	if err != nil {
		return fmt.Errorf("announcing a gather of SKU %s: %w", sku, err)
	}
	return nil
}

// collect finds parts for the line: one segment that has enough, or those that
// have most.
func (g *Segmented) collect(ctx context.Context, line *stock.Line) error {
	levels, sum, err := g.levels(ctx, line.SKU)
	if err != nil {
		return err
	}
	if sum < line.Quantity {
		return stock.Refuse(line.SKU, stock.ErrSoldOut)
	}
	parts := make([]stock.Part, len(levels))
	for i, level := range levels {
		parts[i] = stock.Part{Segment: i, Quantity: level.Available}
	}
	slices.SortStableFunc(parts, func(a, b stock.Part) int { return cmp.Compare(b.Quantity, a.Quantity) })
	line.Parts = nil
	for missing, i := line.Quantity, 0; missing > 0; i++ {
		part := stock.Part{Segment: parts[i].Segment, Quantity: min(parts[i].Quantity, missing)}
		line.Parts = append(line.Parts, part)
		missing -= part.Quantity
	}
	return nil
}

// everywhere is d with, where its parts are not known, a part in every segment:
// the inner gate finds those that are.
func (g *Segmented) everywhere(d stock.Deduction) stock.Deduction {
	d.Lines = slices.Clone(d.Lines)
	for i := range d.Lines {
		line := &d.Lines[i]
		if line.Parts != nil {
			continue
		}
		for n := range g.segments {
			line.Parts = append(line.Parts, stock.Part{Segment: n, Quantity: line.Quantity})
		}
	}
	return divided(d)
}

// Settle forgets the records of takes at all their segments.
func (g *Segmented) Settle(ctx context.Context, ds ...stock.Deduction) error {
	inner := make([]stock.Deduction, len(ds))
	for i, d := range ds {
		inner[i] = g.everywhere(d)
	}
	return g.inner.Settle(ctx, inner...)
}

// Give returns the take's units to the segments they came from, or burns the
// take at all of them. If it fails, part may be done; giving again does the
// rest.
func (g *Segmented) Give(ctx context.Context, d stock.Deduction) error {
	inner := g.everywhere(d)
	var errs []error
	for _, line := range inner.Lines { // one after the other: no need to hold all locks at once
		one := inner
		one.Lines = []stock.Line{line}
		errs = append(errs, g.inner.Give(ctx, one))
	}
	return errors.Join(errs...)
}

// share is what segment n of count gets of units, the remainder going to those
// from first on.
func share(units int64, n, count, first int) int64 {
	part := units / int64(count)
	if int64((n-first+count)%count) < units%int64(count) {
		part++
	}
	return part
}

// Fill spreads the units evenly, the remainder over the first segments. If it
// fails, some segments are under the new epoch: the SKU counts as not filled.
func (g *Segmented) Fill(ctx context.Context, sku stock.SKU, epoch, units int64) error {
	for n := range g.segments {
		if err := g.inner.Fill(ctx, segment(sku, n), epoch, share(units, n, g.segments, 0)); err != nil {
			if errors.Is(err, stock.ErrStaleEpoch) {
				return stock.Refuse(sku, stock.ErrStaleEpoch)
			}
			return err
		}
	}
	return nil
}

// Adjust gives every segment its share of the addition, each once.
func (g *Segmented) Adjust(ctx context.Context, change stock.Change) error {
	for n := range g.segments {
		part := change
		part.SKU = segment(change.SKU, n)
		part.Delta = share(change.Delta, n, g.segments, int(change.Number%int64(g.segments)))
		if err := g.inner.Adjust(ctx, part); err != nil {
			var refusal *stock.Refusal
			if errors.As(err, &refusal) {
				return stock.Refuse(change.SKU, refusal.Reason)
			}
			return err
		}
	}
	return nil
}

// InFlight lists the takes that the records of any segment tell of.
func (g *Segmented) InFlight(ctx context.Context, olderThan time.Duration, limit int, skus ...stock.SKU) ([]stock.Deduction, error) {
	ds, err := g.inner.InFlight(ctx, olderThan, limit, g.all(skus)...)
	for i, d := range ds {
		ds[i] = undivided(d)
	}
	return ds, err
}

// all are the SKUs' segments, those of each SKU together.
func (g *Segmented) all(skus []stock.SKU) []stock.SKU {
	segments := make([]stock.SKU, 0, len(skus)*g.segments)
	for _, sku := range skus {
		for n := range g.segments {
			segments = append(segments, segment(sku, n))
		}
	}
	return segments
}

// undivided is the deduction that the inner gate's d, with a line for each
// part, was.
func undivided(d stock.Deduction) stock.Deduction {
	var lines []stock.Line
	for _, part := range d.Lines {
		sku, n := whole(part.SKU)
		at := slices.IndexFunc(lines, func(line stock.Line) bool { return line.SKU == sku })
		if at < 0 {
			lines = append(lines, stock.Line{SKU: sku})
			at = len(lines) - 1
		}
		lines[at].Quantity += part.Quantity
		lines[at].Parts = append(lines[at].Parts, stock.Part{Segment: n, Quantity: part.Quantity})
	}
	d.Lines = lines
	stock.SortLines(d.Lines)
	return d
}

// Level sums the segments up. A SKU is filled if all are, under one epoch.
func (g *Segmented) Level(ctx context.Context, skus ...stock.SKU) ([]stock.Level, error) {
	inner, err := g.inner.Level(ctx, g.all(skus)...)
	if len(inner) != len(skus)*g.segments {
		return nil, err
	}
	levels := make([]stock.Level, len(skus))
	for i, sku := range skus {
		parts := inner[i*g.segments : (i+1)*g.segments]
		sum := stock.Level{SKU: sku, Filled: true}
		for _, part := range parts {
			sum.Epoch = max(sum.Epoch, part.Epoch)
			sum.Err = cmp.Or(sum.Err, part.Err)
			sum.Available += part.Available
			sum.InFlight += part.InFlight
		}
		if sum.Err != nil {
			levels[i] = stock.Level{SKU: sku, Err: sum.Err}
			continue
		}
		if slices.ContainsFunc(parts, func(part stock.Level) bool { return !part.Filled || part.Epoch != sum.Epoch }) {
			sum = stock.Level{SKU: sku, Epoch: sum.Epoch}
		}
		levels[i] = sum
	}
	return levels, err
}
