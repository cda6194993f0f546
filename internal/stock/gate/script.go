package gate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/group"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// scriptLimits bound the takes that one script call decides. One call is under
// way at a time, while the next one's takes gather: a call costs Redis as much
// as eight takes in it, and of two each would have half.
var scriptLimits = group.Limits{Size: 128, Parallel: 1, Queue: 4096, Weight: 512}

// Script is the atomic gate: one script checks, cuts and records, for many
// takes in one call. On a cluster it is atomic for each SKU; a take of several
// is cut SKU by SKU and given back whole if one of them refuses it.
//
// A take joins the others that wait at this moment, in one call that runs on
// the gate's own time limit: it may run after the caller's context has ended,
// and the caller gives it back. stock.ErrBusy: 4,096 takes wait already.
type Script struct {
	counts
	takes *group.Batcher[*take]
}

var _ stock.Gate = (*Script)(nil)

// NewScript returns the gate of the ledger in Redis. Close stops it; the
// client stays the caller's.
func NewScript(client redis.UniversalClient, ledgerID uuid.UUID) *Script {
	g := &Script{counts: newCounts(client, ledgerID)}
	g.takes = group.New(scriptLimits, func(t *take) int { return len(t.lines) }, g.runTakes)
	return g
}

// Close runs the takes that wait, then stops the gate. Later takes hear
// stock.ErrBusy.
func (g *Script) Close() { g.takes.Close() }

// take is a deduction's lines that one script call cuts, all or none, and its
// answer: the lines' epochs, or err.
type take struct {
	d      stock.Deduction
	lines  []stock.Line // all of d's, or on a cluster one of them
	before bool         // the same take came before and was cut then
	err    error
}

// Take cuts all lines or none.
func (g *Script) Take(ctx context.Context, d stock.Deduction) (stock.Deduction, error) {
	return g.takeInParts(ctx, d, g.cut)
}

func (g *Script) cut(ctx context.Context, d stock.Deduction, lines []stock.Line) (before bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("%w: %w", stock.ErrBusy, err) // nothing was sent
	}
	t := &take{d: d, lines: lines}
	switch err := g.takes.Do(ctx, t); {
	case errors.Is(err, group.ErrFull), errors.Is(err, group.ErrClosed):
		return false, fmt.Errorf("%w: takes at the gate: %w", stock.ErrBusy, err)
	case err != nil: // it runs all the same, and t is not ours to read
		return false, fmt.Errorf("waiting for the gate's answer: %w", err)
	}
	return t.before, t.err
}

// runTakes answers a group of takes: by one call, or on a cluster by one for
// each SKU.
func (g *Script) runTakes(takes []*take) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	var batches []*takeBatch
	if g.cluster {
		of := make(map[stock.SKU]*takeBatch)
		for _, t := range takes {
			sku := t.lines[0].SKU
			b := of[sku]
			if b == nil {
				b = new(takeBatch)
				of[sku] = b
				batches = append(batches, b)
			}
			b.takes = append(b.takes, t)
		}
	} else {
		batches = []*takeBatch{{takes: takes}}
	}
	calls := make([]*call, len(batches))
	for i, b := range batches {
		calls[i] = b.call(&g.counts)
	}
	_ = g.run(ctx, calls...) // each take is answered by its own call's error
	for i, b := range batches {
		b.answer(calls[i].cmd.Val(), calls[i].err())
	}
}

// takeBatch is the takes of one script call.
type takeBatch struct {
	takes []*take
	skus  numbering
}

// call writes the text of each take (see take.lua) into one buffer.
func (b *takeBatch) call(c *counts) *call {
	text := make([]byte, 0, 160*len(b.takes))
	ends := make([]int, len(b.takes))
	for i, t := range b.takes {
		text = appendID(appendID(text, t.d.OrderID), t.d.TakeID)
		text = append(text, byte(len(t.lines)))
		for _, line := range t.lines {
			text = binary.BigEndian.AppendUint16(text, uint16(b.skus.number(line.SKU)))
			text = binary.BigEndian.AppendUint32(text, uint32(line.Quantity))
		}
		text = appendOrder(append(text, ' '), t.d)
		ends[i] = len(text)
	}
	all, args, start := string(text), slices.Grow(b.skus.arguments(), len(ends)), 0
	for _, end := range ends {
		args, start = append(args, all[start:end]), end
	}
	keys := c.keys(b.skus.skus[0])
	return newCall(&c.scripts().take, []string{keys.count, keys.flight, keys.burned}, args)
}

// answer hands the takes their answers. reply: see take.lua.
func (b *takeBatch) answer(reply []int64, err error) {
	if err == nil && len(reply) != len(b.skus.skus)+len(b.takes) {
		err = errAnswer
	}
	if err != nil {
		err = fmt.Errorf("the gate's script: %w", err)
		for _, t := range b.takes {
			t.err = err
		}
		return
	}
	epochs, answers := reply[:len(b.skus.skus)], reply[len(b.skus.skus):]
	for i, t := range b.takes {
		if answers[i] >= 8 {
			t.err = refusal(answers[i]%8, b.skus.skus[answers[i]/8-1])
			continue
		}
		t.before = answers[i] == 1
		for j := range t.lines {
			t.lines[j].Epoch = epochs[b.skus.number(t.lines[j].SKU)-1]
		}
	}
}

// Why a take was refused, as take.lua numbers it. Of several reasons the
// greatest is given: a count that is missing, a twin, or a later generation
// says more than a line that is sold out.
const (
	soldOut   = 1
	notFilled = 2
	inFlight  = 3
	burned    = 4
	later     = 5
)

func refusal(reason int64, sku stock.SKU) error {
	switch reason {
	case soldOut:
		return stock.Refuse(sku, stock.ErrSoldOut)
	case notFilled:
		return stock.Refuse(sku, stock.ErrNotFilled)
	case inFlight:
		return stock.ErrInFlight
	case burned:
		return stock.ErrBurned
	case later:
		return stock.Refuse(sku, stock.ErrSuperseded)
	}
	return fmt.Errorf("the gate's script gave the unknown reason %d", reason)
}
