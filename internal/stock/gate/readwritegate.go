package gate

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// ReadWrite is the gate that oversells without locks. Take reads the counts, checks them in this
// process, and writes new counts. So it overwrites changes that others made in between. It is sound
// if its counter has locks that all its users share.
type ReadWrite struct {
	counter *Counter
	between func() // called between reading and writing; nil except in tests
}

var _ Gate = (*ReadWrite)(nil)

// NewReadWrite returns a gate on the counter.
func NewReadWrite(counter *Counter) *ReadWrite { return &ReadWrite{counter: counter} }

// Close does nothing: the gate has no goroutines.
func (g *ReadWrite) Close() {}

// Take cuts all lines or none under the locks of all lines. Without locks, two takes at the same
// time can overwrite each other's counts. Take returns stock.ErrBusy if it could not get the locks
// in time.
func (g *ReadWrite) Take(ctx context.Context, d stock.Deduction) (taken stock.Take, err error) {
	err = g.counter.layout.Locks.hold(ctx, d.SKUs(), func(ctx context.Context, tokens tokenSet) error {
		taken, err = g.take(ctx, tokens, d)
		return err
	})
	return taken, err
}

func (g *ReadWrite) take(ctx context.Context, tokens tokenSet, d stock.Deduction) (stock.Take, error) {
	return g.counter.takeWith(ctx, tokens, d, g.cut)
}

// lineState is the state that read.lua found for one line.
type lineState struct {
	count  stock.Level
	holder int64 // holder of the order's record; 0: the order has no record
	burned bool
	now    int64 // the server's time in microseconds
	token  int64 // token of the read, which the write must have too
}

// The first number in the answers of read.lua, write.lua and give.lua.
const (
	answerFenced = 0 // the count has seen a newer token
	answerDone   = 1
	answerMoved  = 2 // the count is of a later generation, or was filled or lost since it was read
)

// The holders of a record as read.lua numbers them.
const (
	heldByThisTake    = 1
	heldByAnotherTake = 2
)

func (g *ReadWrite) cut(ctx context.Context, c *cut) error {
	g.cutAll(ctx, c)
	return c.err
}

// cutAll decides the cuts in order, with one read and one write for all of them. Their orders must
// be distinct. On a cluster all cuts must be of one SKU. It sets the answer of each cut, and
// returns the units left of each SKU. left is nil if they are not known.
func (g *ReadWrite) cutAll(ctx context.Context, cuts ...*cut) (left map[stock.SKU]int64) {
	states, err := g.read(ctx, cuts)
	if err != nil {
		refuseCuts(cuts, fmt.Errorf("reading the counts: %w", err))
		return nil
	}
	left = make(map[stock.SKU]int64)
	var accepted []*cut
	for i, c := range cuts {
		for j, line := range c.lines {
			if units, ok := left[line.SKU]; ok { // an earlier cut has changed the count that was read
				states[i][j].count.Available = units
			}
		}
		c.err = check(states[i], c.lines)
		for j, line := range c.lines {
			state := &states[i][j]
			if c.err == nil && state.holder != heldByThisTake {
				state.count.Available -= line.Quantity
			}
			left[line.SKU] = state.count.Available
		}
		if c.err == nil {
			c.accept(states[i])
			accepted = append(accepted, c)
		}
	}
	if len(accepted) == 0 {
		return left
	}
	if g.between != nil {
		g.between()
	}
	if err := g.write(ctx, cuts, states); err != nil {
		refuseCuts(accepted, fmt.Errorf("writing the counts: %w", err))
		return nil
	}
	return left
}

// accept sets the answer of a cut that is not refused.
func (c *cut) accept(states []lineState) {
	c.already = true
	for i, state := range states {
		c.receipt[i].Epoch = state.count.Epoch
		c.already = c.already && state.holder == heldByThisTake
	}
}

func refuseCuts(cuts []*cut, err error) {
	for _, c := range cuts {
		c.err = err
	}
}

// read reads the state of each line of each cut, and raises the fences.
func (g *ReadWrite) read(ctx context.Context, cuts []*cut) ([][]lineState, error) {
	var (
		calls  []*call
		tokens []int64
	)
	for _, c := range cuts {
		for _, line := range c.lines {
			token, err := c.tokens.of(line.SKU)
			if err != nil {
				return nil, err
			}
			tokens = append(tokens, token)
			keys := g.counter.keys(line.SKU)
			calls = append(calls, newCall(ctx, &g.counter.scripts.Load().read,
				[]string{keys.count, keys.flight, keys.burned},
				[]string{string(line.SKU), c.d.OrderID.String(), c.d.TakeID.String(), strconv.FormatInt(token, 10)}))
		}
	}
	if err := g.counter.run(ctx, calls...); err != nil {
		return nil, err
	}
	states := make([][]lineState, len(cuts))
	for i, c := range cuts {
		for _, line := range c.lines {
			state, err := parseState(line.SKU, calls[0].cmd.Val())
			if err != nil {
				return nil, err
			}
			state.token = tokens[0]
			states[i], calls, tokens = append(states[i], state), calls[1:], tokens[1:]
		}
	}
	return states, nil
}

// parseState parses the answer of read.lua for a line of the SKU.
func parseState(sku stock.SKU, answer []int64) (lineState, error) {
	switch v := answer; {
	case len(v) == 1 && v[0] == answerMoved:
		return lineState{}, stock.Refuse(sku, stock.ErrLaterGeneration)
	case len(v) == 1 && v[0] == answerFenced:
		return lineState{}, fenced(sku)
	case len(v) != 8:
		return lineState{}, errAnswer
	default:
		return lineState{
			count:  stock.Level{Epoch: v[1], Available: v[2], InFlight: v[3]},
			holder: v[4], burned: v[5] == 1, now: v[6]*1_000_000 + v[7],
		}, nil
	}
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

// write writes the counts and the records of the accepted cuts in one step. It writes each count as
// it was read, less the units of the cuts. This is the flaw that the gate demonstrates. Only a
// fence detects it.
func (g *ReadWrite) write(ctx context.Context, cuts []*cut, states [][]lineState) error {
	var args []string
	for i, c := range cuts {
		if c.err != nil {
			continue
		}
		order := string(appendOrder(nil, c.d))
		for j, line := range c.lines {
			state := states[i][j]
			if state.holder == heldByThisTake {
				continue
			}
			units := strconv.FormatInt(line.Quantity, 10)
			args = append(args, string(line.SKU),
				strconv.FormatInt(state.token, 10),
				strconv.FormatInt(state.count.Available, 10), units,
				fmt.Sprintf("%s %s %d %d %s", c.d.TakeID, units, state.count.Epoch, state.now, order),
				c.d.OrderID.String())
		}
	}
	if len(args) == 0 {
		return nil
	}
	sku := cuts[0].lines[0].SKU
	keys := g.counter.keys(sku)
	write := newCall(ctx, &g.counter.scripts.Load().write, []string{keys.count, keys.flight}, args)
	if err := g.counter.run(ctx, write); err != nil {
		return err
	}
	switch written := write.cmd.Val(); {
	case slices.Equal(written, []int64{answerDone}):
		return nil
	case slices.Equal(written, []int64{answerFenced}):
		return fenced(sku)
	case slices.Equal(written, []int64{answerMoved}):
		return stock.Refuse(sku, stock.ErrNotFilled)
	}
	return errAnswer
}
