package gate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

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
	count  countHash
	holder string // the take that is in flight for the order
	burned bool
}

func (g *ReadWrite) cut(ctx context.Context, d stock.Deduction, lines []stock.Line) (before bool, err error) {
	found, now, err := g.read(ctx, d, lines)
	if err != nil {
		return false, fmt.Errorf("reading the counts: %w", err)
	}
	if err := check(found, d, lines); err != nil {
		return false, err
	}
	if g.between != nil {
		g.between()
	}
	if err := g.write(ctx, d, lines, found, now); err != nil {
		return false, fmt.Errorf("writing the counts: %w", err)
	}
	before = true
	for i := range lines {
		lines[i].Epoch = found[i].count.epoch
		before = before && found[i].holder != ""
	}
	return before, nil
}

// read returns what stands at each line, and the server's time in microseconds.
func (g *ReadWrite) read(ctx context.Context, d stock.Deduction, lines []stock.Line) ([]seen, string, error) {
	pipe := g.client.Pipeline()
	var (
		order  = d.OrderID.String()
		take   = d.TakeID.String()
		clock  = g.clock(ctx, pipe, lines[0].SKU)
		hashes = make([]*redis.SliceCmd, len(lines))
		record = make([]*redis.StringCmd, len(lines))
		burned = make([]*redis.FloatCmd, len(lines))
	)
	for i, line := range lines {
		hashes[i] = pipe.HMGet(ctx, g.count(line.SKU), "epoch", "left", "flying")
		record[i] = pipe.HGet(ctx, g.flight(line.SKU), order)
		burned[i] = pipe.ZScore(ctx, g.burned(line.SKU), take)
	}
	cmds, _ := pipe.Exec(ctx) // its error may be a missing record's
	for _, cmd := range cmds {
		if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) {
			return nil, "", err
		}
	}
	now, err := clock()
	if err != nil {
		return nil, "", err
	}
	found := make([]seen, len(lines))
	for i := range lines {
		if found[i].count, err = parseCount(hashes[i].Val()); err != nil {
			return nil, "", err
		}
		if fields := strings.Fields(record[i].Val()); len(fields) > 1 {
			found[i].holder = fields[1]
		}
		found[i].burned = burned[i].Err() == nil
	}
	return found, strconv.FormatInt(now.UnixMicro(), 10), nil
}

// clock queues a question for the time of the server that has the SKU's keys.
func (g *ReadWrite) clock(ctx context.Context, pipe redis.Pipeliner, sku stock.SKU) func() (time.Time, error) {
	if !g.cluster {
		return pipe.Time(ctx).Result
	}
	// TIME by itself would go to any server of the cluster, and each has a
	// clock of its own.
	cmd := pipe.Eval(ctx, `return redis.call('TIME')`, []string{g.count(sku)})
	return func() (time.Time, error) {
		parts, err := cmd.Int64Slice()
		if err != nil || len(parts) != 2 {
			return time.Time{}, errors.Join(errAnswer, err)
		}
		return time.Unix(parts[0], parts[1]*1000), nil
	}
}

// check refuses the take for the same reasons as take.lua.
func check(found []seen, d stock.Deduction, lines []stock.Line) error {
	var (
		greatest int64
		at       stock.SKU
		take     = d.TakeID.String()
	)
	for i, line := range lines {
		var reason int64
		switch s := found[i]; {
		case s.burned:
			reason = burned
		case s.holder != "" && s.holder != take:
			reason = inFlight
		case s.count.epoch == 0:
			reason = notFilled
		case s.holder == "" && s.count.left < line.Quantity:
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

// write writes counts and records in one MULTI. The count is written as it was
// read, less the line's units: that is the fault which this gate shows. The
// units in flight are added to, so that the record's end takes them off again.
func (g *ReadWrite) write(ctx context.Context, d stock.Deduction, lines []stock.Line, found []seen, now string) error {
	var (
		pipe  = g.client.TxPipeline()
		order = d.OrderID.String()
		take  = d.TakeID.String()
		whole = string(appendOrder(nil, d))
	)
	for i, line := range lines {
		if found[i].holder != "" { // this very take came before
			continue
		}
		units := strconv.FormatInt(line.Quantity, 10)
		for _, args := range [][]any{
			{"hset", g.count(line.SKU), "left", found[i].count.left - line.Quantity},
			{"hincrby", g.count(line.SKU), "flying", line.Quantity},
			{"hset", g.flight(line.SKU), order, units + " " + take + " " + now + " " + whole},
		} {
			_ = pipe.Process(ctx, once{redis.NewIntCmd(ctx, args...)}) // queues it
		}
	}
	if pipe.Len() == 0 {
		return nil
	}
	_, err := pipe.Exec(ctx)
	return err
}
