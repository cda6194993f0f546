package gate

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/holdfast-stock/holdfast/internal/group"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// scriptLimits bound the takes of one script call. One call runs at a time, while the takes of the
// next one gather. A call without takes costs Redis as much as eight takes, and two calls at a time
// would have half as many takes each.
var scriptLimits = group.Limits{Size: 128, Parallel: 1, Queue: 4096, Weight: 512}

// Script is the atomic gate: one script checks, cuts and records many takes in one call. On a
// cluster it is atomic for each SKU: it cuts the SKUs of a take one by one, and gives all back if
// one is refused.
//
// A take joins the other waiting takes in one call, which has its own time limit. The call may run
// after the caller's context has ended. The caller then gives the take back, and must not change
// its lines meanwhile. stock.ErrBusy means that 4,096 takes are waiting already.
type Script struct {
	counter *Counter
	cuts    *group.Batcher[*cut]
}

var _ Gate = (*Script)(nil)

// NewScript returns a gate on a counter without locks. Close stops it.
func NewScript(counter *Counter) *Script {
	g := &Script{counter: counter}
	g.cuts = group.New(scriptLimits, func(c *cut) int { return len(c.lines) }, g.runCuts)
	return g
}

// Close runs the waiting takes, then stops the gate. Later takes are answered stock.ErrBusy.
func (g *Script) Close() { g.cuts.Close() }

// Take cuts all lines or none.
func (g *Script) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	return g.counter.takeWith(ctx, unfenced, d, g.cut)
}

// cut adds c to the next group and waits for its answer. take.lua checks no
// fencing tokens, because it needs no lock.
func (g *Script) cut(ctx context.Context, c *cut) error {
	if err := ctx.Err(); err != nil {
		return stock.Busy(err) // nothing was sent
	}
	switch err := g.cuts.Do(ctx, c); {
	case errors.Is(err, group.ErrFull), errors.Is(err, group.ErrClosed):
		return fmt.Errorf("%w: takes at the gate: %w", stock.ErrBusy, err)
	case err != nil: // the group still uses c
		return fmt.Errorf("waiting for the gate's answer: %w", err)
	}
	return c.err
}

// runCuts runs a group with one call, and another for orders that are queued. On a
// cluster it makes one call for each SKU.
func (g *Script) runCuts(cuts []*cut) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	batches := batchByJournal(cuts)
	if g.counter.cluster {
		batches = batchBySKU(cuts)
	}
	calls := make([]*call, len(batches))
	for i, b := range batches {
		calls[i] = b.call(ctx, g.counter)
	}
	_ = g.counter.run(ctx, calls...) // each batch is answered with its own call's error
	for i, b := range batches {
		b.answer(calls[i].cmd.Val(), calls[i].err())
	}
}

// cutBatch has the cuts of one script call.
type cutBatch struct {
	cuts    []*cut
	journal bool // all cuts queue their orders in the journal; otherwise none of them does
	skus    numbering
}

// batchBySKU puts the cuts, which have one line each, into one batch for each SKU.
func batchBySKU(cuts []*cut) []*cutBatch {
	var batches []*cutBatch
	bySKU := make(map[stock.SKU]*cutBatch)
	for _, c := range cuts {
		sku := c.lines[0].SKU
		b := bySKU[sku]
		if b == nil {
			b = new(cutBatch)
			bySKU[sku] = b
			batches = append(batches, b)
		}
		b.cuts = append(b.cuts, c)
	}
	return batches
}

// batchByJournal separates the cuts that queue their orders from the others.
func batchByJournal(cuts []*cut) []*cutBatch {
	queued, others := &cutBatch{journal: true}, &cutBatch{}
	for _, c := range cuts {
		b := others
		if c.journal != nil {
			b = queued
		}
		b.cuts = append(b.cuts, c)
	}
	return slices.DeleteFunc([]*cutBatch{others, queued}, func(b *cutBatch) bool { return len(b.cuts) == 0 })
}

// call writes the text of each take, as take.lua expects it, into one buffer.
func (b *cutBatch) call(ctx context.Context, counter *Counter) *call {
	text := make([]byte, 0, 160*len(b.cuts))
	ends := make([]int, len(b.cuts))
	for i, c := range b.cuts {
		text = appendID(appendID(text, c.d.OrderID), c.d.TakeID)
		if b.journal {
			text = appendID(text, c.journal.previous)
		}
		text = append(text, byte(len(c.lines)))
		for _, line := range c.lines {
			text = binary.BigEndian.AppendUint16(text, uint16(b.skus.number(line.SKU)))
			text = binary.BigEndian.AppendUint32(text, uint32(line.Quantity))
		}
		text = appendOrder(append(text, ' '), c.d)
		if b.journal {
			text = appendQueued(text, c.d.Trace, c.journal.at)
		}
		ends[i] = len(text)
	}
	all, args, start := string(text), slices.Grow(b.skus.arguments(), len(ends)+1), 0
	for _, end := range ends {
		args, start = append(args, all[start:end]), end
	}
	keys := counter.keys(b.skus.skus[0])
	names := []string{keys.count, keys.flight, keys.burned}
	if b.journal {
		names = append(names, counter.journalKey(), counter.queuedKey(), counter.markKey())
		args = append(args, strconv.Itoa(b.cuts[0].journal.limit))
	}
	return newCall(ctx, &counter.scripts.Load().take, names, args)
}

// answer sets each cut's answer from the reply of take.lua.
func (b *cutBatch) answer(reply []int64, err error) {
	if err == nil && len(reply) != len(b.skus.skus)+len(b.cuts) {
		err = errAnswer
	}
	if err != nil {
		refuseCuts(b.cuts, fmt.Errorf("the gate's script: %w", err))
		return
	}
	epochs, answers := reply[:len(b.skus.skus)], reply[len(b.skus.skus):]
	for i, c := range b.cuts {
		if answers[i] >= 8 {
			c.err = refusal(answers[i]%8, b.skus.skus[answers[i]/8-1])
			continue
		}
		c.already = answers[i] == 1
		for j, line := range c.lines {
			c.receipt[j].Epoch = epochs[b.skus.number(line.SKU)-1]
		}
	}
}
