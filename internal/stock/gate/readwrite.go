package gate

import (
	"context"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// ReadWrite is the gate that oversells. Take reads the counts, checks them in
// this process, and writes new counts, and so overwrites what anybody else wrote
// in between. It is sound under a lock that all its users share.
type ReadWrite struct {
	counts
	between func() // called between reading and writing; nil except in tests
}

var (
	_ Gate   = (*ReadWrite)(nil)
	_ Fenced = (*ReadWrite)(nil)
)

// NewReadWrite returns the gate of the ledger in Redis. The caller closes the
// client.
func NewReadWrite(client redis.UniversalClient, ledgerID uuid.UUID) *ReadWrite {
	return &ReadWrite{counts: newCounts(client, ledgerID)}
}

// Close does nothing: the gate has no goroutines.
func (g *ReadWrite) Close() {}

// Take cuts all lines or none, unless somebody else writes at the same time.
func (g *ReadWrite) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	return g.take(ctx, unfenced, d)
}

func (g *ReadWrite) take(ctx context.Context, tokens tokenSet, d stock.Deduction) (stock.Take, error) {
	return g.takeWith(ctx, tokens, d, g.cut)
}

// lineState is what read.lua found for one line.
type lineState struct {
	count  stock.Level
	holder int64 // of the order's record: 0 if there is none
	burned bool
	now    int64 // the server's time in microseconds
}

// The holders of a record as read.lua numbers them.
const (
	heldByThisTake    = 1
	heldByAnotherTake = 2
)

func (g *ReadWrite) cut(ctx context.Context, c *cut) error {
	states, err := g.read(ctx, c)
	if err != nil {
		return fmt.Errorf("reading the counts: %w", err)
	}
	if err := check(states, c.lines); err != nil {
		return err
	}
	if g.between != nil {
		g.between()
	}
	if err := g.write(ctx, c, states); err != nil {
		return fmt.Errorf("writing the counts: %w", err)
	}
	c.already = true
	for i, state := range states {
		c.receipt[i].Epoch = state.count.Epoch
		c.already = c.already && state.holder == heldByThisTake
	}
	return nil
}

// read reads the state of each line and raises the fences.
func (g *ReadWrite) read(ctx context.Context, c *cut) ([]lineState, error) {
	calls := make([]*call, len(c.lines))
	for i, line := range c.lines {
		token, err := c.tokens.of(line.SKU)
		if err != nil {
			return nil, err
		}
		keys := g.keys(line.SKU)
		calls[i] = newCall(&g.scripts().read,
			[]string{keys.count, keys.flight, keys.burned},
			[]string{string(line.SKU), c.d.OrderID.String(), c.d.TakeID.String(), strconv.FormatInt(token, 10)})
	}
	if err := g.run(ctx, calls...); err != nil {
		return nil, err
	}
	states := make([]lineState, len(c.lines))
	for i, line := range c.lines {
		switch v := calls[i].cmd.Val(); {
		case len(v) == 1 && v[0] == 2:
			return nil, stock.Refuse(line.SKU, stock.ErrLaterGeneration)
		case len(v) == 1:
			return nil, fenced(line.SKU)
		case len(v) != 8:
			return nil, errAnswer
		default:
			states[i] = lineState{
				count:  stock.Level{Epoch: v[1], Available: v[2], InFlight: v[3]},
				holder: v[4], burned: v[5] == 1, now: v[6]*1_000_000 + v[7],
			}
		}
	}
	return states, nil
}

// check refuses the take for the same reasons as take.lua.
func check(states []lineState, lines []stock.Line) error {
	var (
		greatest int64
		at       stock.SKU
	)
	for i, line := range lines {
		var reason int64
		switch s := states[i]; {
		case s.burned:
			reason = burned
		case s.holder == heldByAnotherTake:
			reason = inFlight
		case s.count.Epoch == 0:
			reason = notFilled
		case s.holder != heldByThisTake && s.count.Available < line.Quantity:
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

// write writes counts and records in one step. It writes each count as it was
// read, less the line's units. This is the fault that the gate demonstrates. Only
// a fence detects it.
func (g *ReadWrite) write(ctx context.Context, c *cut, states []lineState) error {
	args, order := []string{c.d.OrderID.String()}, string(appendOrder(nil, c.d))
	for i, line := range c.lines {
		if states[i].holder == heldByThisTake {
			continue
		}
		token, err := c.tokens.of(line.SKU)
		if err != nil {
			return err
		}
		units, count := strconv.FormatInt(line.Quantity, 10), states[i].count
		args = append(args, string(line.SKU),
			strconv.FormatInt(token, 10),
			strconv.FormatInt(count.Available-line.Quantity, 10), units,
			fmt.Sprintf("%s %s %d %d %s", c.d.TakeID, units, count.Epoch, states[i].now, order))
	}
	if len(args) == 1 {
		return nil
	}
	keys := g.keys(c.lines[0].SKU)
	write := newCall(&g.scripts().write, []string{keys.count, keys.flight}, args)
	if err := g.run(ctx, write); err != nil {
		return err
	}
	switch written := write.cmd.Val(); {
	case len(written) == 1 && written[0] == 1:
		return nil
	case len(written) == 1 && written[0] == 2: // filled or lost after it was read
		return stock.Refuse(c.lines[0].SKU, stock.ErrNotFilled)
	}
	return fenced(c.lines[0].SKU)
}
