package gate

import (
	"context"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// ReadWrite is the gate that oversells: it reads the counts, checks them here,
// and writes the new ones back, and whoever wrote in between is overwritten.
// Under a lock that all its users share it is right.
type ReadWrite struct {
	counts
	between func() // between reading and writing; nil but in tests
}

var _ stock.Gate = (*ReadWrite)(nil)

// NewReadWrite returns the gate of the ledger in Redis. The client stays the
// caller's.
func NewReadWrite(client redis.UniversalClient, ledgerID uuid.UUID) *ReadWrite {
	return &ReadWrite{counts: newCounts(client, ledgerID)}
}

// Close does nothing: the gate runs nothing of its own.
func (g *ReadWrite) Close() {}

// Take cuts all lines or none, as far as nobody writes at the same time.
func (g *ReadWrite) Take(ctx context.Context, d stock.Deduction) (stock.Deduction, error) {
	return g.takeInParts(ctx, d, g.cut)
}

// seen is what was read of one line's SKU.
type seen struct {
	count  stock.Level
	holder int64 // of the order's record: 0 nobody, 1 this take, 2 another
	burned bool
	now    int64 // the server's time in microseconds
}

func (g *ReadWrite) cut(ctx context.Context, d stock.Deduction, lines []stock.Line) (before bool, err error) {
	found, err := g.read(ctx, d, lines)
	if err != nil {
		return false, fmt.Errorf("reading the counts: %w", err)
	}
	if err := check(found, lines); err != nil {
		return false, err
	}
	if g.between != nil {
		g.between()
	}
	if err := g.write(ctx, d, lines, found); err != nil {
		return false, fmt.Errorf("writing the counts: %w", err)
	}
	before = true
	for i := range lines {
		lines[i].Epoch = found[i].count.Epoch
		before = before && found[i].holder == own
	}
	return before, nil
}

// own is the holder of a record that this very take has made.
const own = 1

// read returns what stands at each line, and raises the fences.
func (g *ReadWrite) read(ctx context.Context, d stock.Deduction, lines []stock.Line) ([]seen, error) {
	calls := make([]*call, len(lines))
	for i, line := range lines {
		keys := g.keys(line.SKU)
		calls[i] = newCall(&g.scripts().read,
			[]string{keys.count, keys.flight, keys.burned},
			[]string{string(line.SKU), d.OrderID.String(), d.TakeID.String(), strconv.FormatInt(token(ctx, line.SKU), 10)})
	}
	if err := g.run(ctx, calls...); err != nil {
		return nil, err
	}
	found := make([]seen, len(lines))
	for i, line := range lines {
		switch v := calls[i].cmd.Val(); {
		case len(v) == 1 && v[0] == 2:
			return nil, stock.Refuse(line.SKU, stock.ErrSuperseded)
		case len(v) == 1:
			return nil, fenced(line.SKU)
		case len(v) != 8:
			return nil, errAnswer
		default:
			found[i] = seen{
				count:  stock.Level{Epoch: v[1], Available: v[2], InFlight: v[3]},
				holder: v[4], burned: v[5] == 1, now: v[6]*1_000_000 + v[7],
			}
		}
	}
	return found, nil
}

// check refuses the take for the same reasons as take.lua.
func check(found []seen, lines []stock.Line) error {
	var (
		greatest int64
		at       stock.SKU
	)
	for i, line := range lines {
		var reason int64
		switch s := found[i]; {
		case s.burned:
			reason = burned
		case s.holder > own:
			reason = inFlight
		case s.count.Epoch == 0:
			reason = notFilled
		case s.holder == 0 && s.count.Available < line.Quantity:
			reason = soldOut
		}
		if reason > greatest {
			greatest, at = reason, line.SKU
		}
	}
	if greatest == 0 {
		return nil
	}
	return refusal(greatest, at)
}

// write writes counts and records in one step. The count is written as it was
// read, less the line's units: that is the fault which this gate shows, unless a
// fence finds out.
func (g *ReadWrite) write(ctx context.Context, d stock.Deduction, lines []stock.Line, found []seen) error {
	args, whole := []string{d.OrderID.String()}, string(appendOrder(nil, d))
	for i, line := range lines {
		if found[i].holder == own { // this very take came before
			continue
		}
		units, count := strconv.FormatInt(line.Quantity, 10), found[i].count
		args = append(args, string(line.SKU),
			strconv.FormatInt(token(ctx, line.SKU), 10),
			strconv.FormatInt(count.Available-line.Quantity, 10), units,
			fmt.Sprintf("%s %s %d %d %s", d.TakeID, units, count.Epoch, found[i].now, whole))
	}
	if len(args) == 1 {
		return nil
	}
	keys := g.keys(lines[0].SKU)
	write := newCall(&g.scripts().write, []string{keys.count, keys.flight}, args)
	if err := g.run(ctx, write); err != nil {
		return err
	}
	switch written := write.cmd.Val(); {
	case len(written) == 1 && written[0] == 1:
		return nil
	case len(written) == 1 && written[0] == 2:
		return stock.Refuse(lines[0].SKU, stock.ErrNotFilled) // filled, or lost, since it was read
	}
	return fenced(lines[0].SKU)
}
