package gatetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// order returns a new order of the lines, with the ID of its first take.
func order(lines ...stock.Line) stock.Deduction {
	return stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "buyer-1", Lines: lines}
}

// again returns d with the ID of another take.
func again(d stock.Deduction) stock.Deduction {
	d.TakeID = uuid.New()
	return d
}

// unanswered returns the take of a caller that lost the gate's answer, so it has no receipt.
func unanswered(d stock.Deduction) stock.Take { return stock.Take{Deduction: d} }

// trial runs the steps of one check. After the first failed step, which sets err,
// the other steps do nothing.
type trial struct {
	ctx   context.Context
	gates Gates
	run   string // part of every SKU
	err   error
	calls int
}

// gate returns the instances in turn, so that no check relies on the memory of one
// instance.
func (t *trial) gate() Gate {
	t.calls++
	return t.gates.Instances[t.calls%len(t.gates.Instances)]
}

func (t *trial) sku(name string) stock.SKU { return stock.SKU(name + "." + t.run) }

func (t *trial) line(name string, units int64) stock.Line {
	return stock.Line{SKU: t.sku(name), Quantity: units}
}

// expect fails the trial unless err is want. A nil want means no error.
func (t *trial) expect(err, want error, format string, args ...any) {
	switch {
	case t.err != nil:
	case want == nil && err != nil:
		t.err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
	case want != nil && !errors.Is(err, want):
		t.err = fmt.Errorf("%s: got error %v, want %q", fmt.Sprintf(format, args...), err, want)
	}
}

func (t *trial) fill(name string, epoch, units int64) { t.fillAgain(name, epoch, units, nil) }

func (t *trial) fillAgain(name string, epoch, units int64, want error) {
	if t.err == nil {
		t.expect(t.gate().Fill(t.ctx, t.sku(name), epoch, units), want, "filling %s with %d under epoch %d", name, units, epoch)
	}
}

// take takes d and returns the gate's answer. If want is an error, it returns a
// take without a receipt.
func (t *trial) take(d stock.Deduction, want error) stock.Take {
	if t.err != nil {
		return unanswered(d)
	}
	taken, err := t.gate().Take(t.ctx, d)
	t.expect(err, want, "taking %v", d.Lines)
	if t.err != nil || want != nil {
		return unanswered(d)
	}
	return taken
}

// refusedFor fails the trial unless the gate refuses d for reason and names the
// SKU.
func (t *trial) refusedFor(d stock.Deduction, name string, reason error) {
	if t.err != nil {
		return
	}
	_, err := t.gate().Take(t.ctx, d)
	t.expect(err, reason, "taking %v", d.Lines)
	var refusal *stock.Refusal
	if t.err == nil && (!errors.As(err, &refusal) || refusal.SKU != t.sku(name)) {
		t.err = fmt.Errorf("%q does not name SKU %s", err, t.sku(name))
	}
}

// give gives d back as a caller without a receipt does.
func (t *trial) give(d stock.Deduction) {
	if t.err == nil {
		t.expect(t.gate().Give(t.ctx, unanswered(d)), nil, "giving %v back", d.Lines)
	}
}

// settle settles the deductions as a caller without receipts does.
func (t *trial) settle(ds ...stock.Deduction) {
	takes := make([]stock.Take, len(ds))
	for i, d := range ds {
		takes[i] = unanswered(d)
	}
	t.settleTakes(takes...)
}

func (t *trial) settleTakes(takes ...stock.Take) {
	if t.err == nil {
		t.expect(t.gate().Settle(t.ctx, takes...), nil, "settling %d takes", len(takes))
	}
}

func (t *trial) adjust(name string, epoch, number, delta int64, want error) {
	if t.err == nil {
		c := stock.Change{SKU: t.sku(name), Epoch: epoch, Number: number, Delta: delta}
		t.expect(t.gate().Adjust(t.ctx, c), want, "change %d of epoch %d", number, epoch)
	}
}

func (t *trial) level(name string) (level stock.Level) {
	if t.err != nil {
		return level
	}
	levels, err := t.gate().Level(t.ctx, t.sku(name))
	t.expect(err, nil, "reading the level of %s", name)
	if t.err == nil && (len(levels) != 1 || levels[0].SKU != t.sku(name)) {
		t.err = fmt.Errorf("reading the level of %s: got %v", name, levels)
	}
	if t.err == nil {
		level = levels[0]
	}
	return level
}

// counts fails the trial unless the SKU has these counts.
func (t *trial) counts(name string, available, inFlight, takes int64) {
	level := t.level(name)
	listed := int64(len(t.inFlight(name)))
	if t.err == nil && (!level.Filled || level.Available != available || level.InFlight != inFlight || listed != takes) {
		t.err = fmt.Errorf("%s: got %+v and %d takes in flight, want %d units available and %d in flight in %d takes", name, level, listed, available, inFlight, takes)
	}
}

// notFilled fails the trial if the gate has a count of the SKU.
func (t *trial) notFilled(name string) {
	if level := t.level(name); t.err == nil && level != (stock.Level{SKU: t.sku(name)}) {
		t.err = fmt.Errorf("%s: got %+v, want no count", name, level)
	}
}

// inFlight lists takes of the SKU of any age, up to 10,000.
func (t *trial) inFlight(name string) []stock.Take {
	if t.err != nil {
		return nil
	}
	takes, err := t.gate().InFlight(t.ctx, 10_000, t.sku(name))
	t.expect(err, nil, "listing the takes of %s in flight", name)
	return takes
}

// atOnce runs the same step several times concurrently, on the instances in turn,
// and returns the errors.
func (t *trial) atOnce(times int, step func(gate Gate, i int) error) []error {
	if t.err != nil {
		return nil
	}
	errs := make([]error, times)
	var all sync.WaitGroup
	for i := range times {
		gate := t.gate()
		all.Go(func() { errs[i] = step(gate, i) })
	}
	all.Wait()
	return errs
}

// accepted returns the number of nil errors in errs. It fails the trial if another error is not one
// of others.
func (t *trial) accepted(errs []error, others ...error) (n int64) {
	for _, err := range errs {
		if err == nil {
			n++
		} else if t.err == nil && !slices.ContainsFunc(others, func(other error) bool { return errors.Is(err, other) }) {
			t.err = err
		}
	}
	return n
}

// retryBusy repeats the step while the gate is busy.
func (t *trial) retryBusy(step func() error) error {
	for {
		err := step()
		if !errors.Is(err, stock.ErrBusy) || t.ctx.Err() != nil {
			return err
		}
		testenv.Dither()
	}
}

// retryTake takes d, and repeats while the gate is busy. On a busy machine, the gate may not answer
// in time. retryTake then gives the take back and takes again under another ID, as the service
// does.
func (t *trial) retryTake(gate Gate, d stock.Deduction) (taken stock.Take, err error) {
	err = t.retryBusy(func() error {
		taken, err = gate.Take(t.ctx, d)
		var late interface{ Timeout() bool }
		if !errors.As(err, &late) || !late.Timeout() || t.ctx.Err() != nil {
			return err
		}
		if err := t.retryGive(gate, unanswered(d)); err != nil {
			return err
		}
		d = again(d)
		return stock.ErrBusy
	})
	return taken, err
}

// retryGive gives taken back, and repeats while the gate is busy.
func (t *trial) retryGive(gate Gate, taken stock.Take) error {
	return t.retryBusy(func() error { return gate.Give(t.ctx, taken) })
}
