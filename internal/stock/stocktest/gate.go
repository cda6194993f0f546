// Package stocktest says whether a gate or a cutter keeps its promises. Each
// joins with one line:
//
//	stocktest.RunGate(t, stocktest.Gates{Instances: []stock.Gate{a, b}, Empty: empty, LoseCount: loseCount})
//	stocktest.RunCutter(t, stocktest.Cutters{DB: db, New: cutter.Merged, Retryable: store.IsRetryable})
package stocktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// gateTimeout bounds the check of one promise.
const gateTimeout = 2 * time.Minute

// Gates is what a gate's promises are checked on.
type Gates struct {
	// Instances are over one store, as instances of the service are. One will
	// do where a gate promises nothing for several.
	Instances []stock.Gate
	// Empty makes the store forget all it has of the SKU, as a flush does.
	Empty func(ctx context.Context, sku stock.SKU) error
	// NotOffered has the promises that these gates do not make, and why.
	NotOffered map[string]string
	// LoseCount makes the store forget the SKU's count alone, and keep what is
	// in flight.
	LoseCount func(ctx context.Context, sku stock.SKU) error
}

// GatePromise is one thing that every gate promises. Its check returns what it
// saw to the contrary, so that a broken gate can be convicted by it.
type GatePromise struct {
	Name  string
	check func(t *trial) error
}

// GatePromises returns all promises. They use SKUs of their own and may be
// checked at once on the same gates.
func GatePromises() []GatePromise {
	return []GatePromise{
		{"TakeCutsAndRecords", takeCutsAndRecords},
		{"NoOversell", noOversell},
		{"NoOversellOfSeveralLines", noOversellOfSeveralLines},
		{"NoOversellAcrossRefills", noOversellAcrossRefills},
		{"CountsAddUp", countsAddUp},
		{"LastUnit", lastUnit},
		{"AgreesWithModel", agreesWithModel},
		{"SameTakeTwice", sameTakeTwice},
		{"SameTakeAtOnce", sameTakeAtOnce},
		{"TwinInFlight", twinInFlight},
		{"TwinsAtOnce", twinsAtOnce},
		{"SoldOutTakesNothing", soldOutTakesNothing},
		{"NotFilledTakesNothing", notFilledTakesNothing},
		{"GiveOnce", giveOnce},
		{"GiveAtOnce", giveAtOnce},
		{"GiveBeforeTake", giveBeforeTake},
		{"GiveOfAnothersTake", giveOfAnothersTake},
		{"SettleForgets", settleForgets},
		{"SettleOfAnothersTake", settleOfAnothersTake},
		{"SettleTwiceInOneCall", settleTwiceInOneCall},
		{"SettleManyAtOnce", settleManyAtOnce},
		{"FillRefusesOlderEpoch", fillRefusesOlderEpoch},
		{"FillForgetsFlight", fillForgetsFlight},
		{"AdjustOnce", adjustOnce},
		{"AdjustGap", adjustGap},
		{"AdjustOfEarlierEpochDropped", adjustOfEarlierEpochDropped},
		{"AdjustWaitsForItsFill", adjustWaitsForItsFill},
		{"EmptiedStoreFailsClosed", emptiedStoreFailsClosed},
		{"LostCountInventsNothing", lostCountInventsNothing},
		{"CancelledContext", cancelledContext},
		{"CancelledTakesLeakNothing", cancelledTakesLeakNothing},
		{"InFlightHasAllLines", inFlightHasAllLines},
		{"InFlightByAge", inFlightByAge},
		{"InFlightOfMany", inFlightOfMany},
		{"LevelOfManySKUs", levelOfManySKUs},
	}
}

// FindGatePromise returns the promise of that name, and panics if there is none.
func FindGatePromise(name string) GatePromise {
	for _, p := range GatePromises() {
		if p.Name == name {
			return p
		}
	}
	panic("no gate promises " + name)
}

// RunGate checks all promises.
func RunGate(t *testing.T, gates Gates) {
	t.Helper()
	for _, p := range GatePromises() {
		if why, not := gates.NotOffered[p.Name]; not {
			t.Logf("%s is not offered: %s", p.Name, why)
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			if err := p.Convict(t.Context(), gates); err != nil {
				t.Error(err)
			}
		})
	}
}

// Convict checks the promise within two minutes and returns what speaks
// against the gates.
func (p GatePromise) Convict(ctx context.Context, gates Gates) error {
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	t := &trial{ctx: ctx, gates: gates, run: uuid.NewString()[:8]}
	if err := p.check(t); err != nil {
		return err
	}
	return t.err
}

// Rush lets so many buyers take one unit after the other until they hear
// "sold out", each with a pause for thought on "busy", and returns how many
// units were accepted. An error is one that no buyer should hear.
//
// A gate that never sells out is stopped at 100,000 units.
func Rush(ctx context.Context, gates []stock.Gate, sku stock.SKU, buyers int) (accepted int64, err error) {
	const most = 100_000
	var (
		sold atomic.Int64
		all  sync.WaitGroup
		errs = make(chan error, buyers)
	)
	for i := range buyers {
		gate := gates[i%len(gates)]
		all.Go(func() {
			for sold.Load() < most {
				_, err := gate.Take(ctx, order(stock.Line{SKU: sku, Quantity: 1}))
				switch {
				case err == nil:
					sold.Add(1)
				case errors.Is(err, stock.ErrSoldOut):
					return
				case errors.Is(err, stock.ErrBusy) && ctx.Err() == nil:
					time.Sleep(rand.N(5 * time.Millisecond))
				default:
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	return sold.Load(), <-errs
}

// order is a new order of the lines, and its first take.
func order(lines ...stock.Line) stock.Deduction {
	return stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "buyer-1", Lines: lines}
}

// again is another take of the same order.
func again(d stock.Deduction) stock.Deduction {
	d.TakeID = uuid.New()
	return d
}

// trial runs the steps of one check. After the first that goes wrong the
// others do nothing, and err tells of it.
type trial struct {
	ctx   context.Context
	gates Gates
	run   string // part of every SKU
	err   error
	calls int
}

// gate is another instance with every call, so that nothing of what a check
// sees rests on one instance's memory.
func (t *trial) gate() stock.Gate {
	t.calls++
	return t.gates.Instances[t.calls%len(t.gates.Instances)]
}

func (t *trial) sku(name string) stock.SKU { return stock.SKU(name + "." + t.run) }

func (t *trial) line(name string, units int64) stock.Line {
	return stock.Line{SKU: t.sku(name), Quantity: units}
}

// expect ends the trial unless err is what was wanted; nil: no error.
func (t *trial) expect(err, want error, format string, args ...any) {
	switch {
	case t.err != nil:
	case want == nil && err != nil:
		t.err = fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err)
	case want != nil && !errors.Is(err, want):
		t.err = fmt.Errorf("%s answered %v, not %q", fmt.Sprintf(format, args...), err, want)
	}
}

func (t *trial) fill(name string, epoch, units int64) { t.fillAgain(name, epoch, units, nil) }

func (t *trial) fillAgain(name string, epoch, units int64, want error) {
	if t.err == nil {
		t.expect(t.gate().Fill(t.ctx, t.sku(name), epoch, units), want, "filling %s with %d under epoch %d", name, units, epoch)
	}
}

// take returns the answer, or d where another is wanted than success.
func (t *trial) take(d stock.Deduction, want error) stock.Deduction {
	if t.err != nil {
		return d
	}
	taken, err := t.gate().Take(t.ctx, d)
	t.expect(err, want, "taking %v", d.Lines)
	if t.err != nil || want != nil {
		return d
	}
	return taken
}

// refusedFor ends the trial unless the take is refused for the reason, which
// concerns the SKU.
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

func (t *trial) give(d stock.Deduction) {
	if t.err == nil {
		t.expect(t.gate().Give(t.ctx, d), nil, "giving %v back", d.Lines)
	}
}

func (t *trial) settle(ds ...stock.Deduction) {
	if t.err == nil {
		t.expect(t.gate().Settle(t.ctx, ds...), nil, "settling %d takes", len(ds))
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
	t.expect(err, nil, "the level of %s", name)
	if t.err == nil && (len(levels) != 1 || levels[0].SKU != t.sku(name)) {
		t.err = fmt.Errorf("the level of %s came as %v", name, levels)
	}
	if t.err == nil {
		level = levels[0]
	}
	return level
}

// counts ends the trial unless the SKU has these counts.
func (t *trial) counts(name string, available, inFlight, takes int64) {
	level := t.level(name)
	listed := int64(len(t.inFlight(name)))
	if t.err == nil && (!level.Filled || level.Available != available || level.InFlight != inFlight || listed != takes) {
		t.err = fmt.Errorf("%s: want %d available and %d in flight by %d takes, got %+v by %d", name, available, inFlight, takes, level, listed)
	}
}

// inFlight lists takes of the SKU of any age, up to 10,000.
func (t *trial) inFlight(name string) []stock.Deduction {
	if t.err != nil {
		return nil
	}
	ds, err := t.gate().InFlight(t.ctx, 0, 10_000, t.sku(name))
	t.expect(err, nil, "what is in flight of %s", name)
	return ds
}

// atOnce runs the same step several times at once, on all instances in turn,
// and returns its errors.
func (t *trial) atOnce(times int, step func(gate stock.Gate, i int) error) []error {
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

// accepted counts those without an error, and ends the trial at one that is
// none of the others.
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

// patiently repeats a step that is too busy.
func (t *trial) patiently(step func() error) error {
	for {
		err := step()
		if !errors.Is(err, stock.ErrBusy) || t.ctx.Err() != nil {
			return err
		}
		time.Sleep(rand.N(5 * time.Millisecond))
	}
}

func takeCutsAndRecords(t *trial) error {
	t.fill("a", 3, 10)
	t.fill("b", 8, 20)
	d := order(t.line("a", 2), t.line("b", 5))
	taken := t.take(d, nil)
	t.counts("a", 8, 2, 1)
	t.counts("b", 15, 5, 1)
	if t.err != nil {
		return t.err
	}
	want := []stock.Line{{SKU: t.sku("a"), Quantity: 2, Epoch: 3}, {SKU: t.sku("b"), Quantity: 5, Epoch: 8}}
	switch {
	case !slices.EqualFunc(taken.Lines, want, sameLine):
		return fmt.Errorf("taken as %v, not %v", taken.Lines, want)
	case taken.OrderID != d.OrderID || taken.TakeID != d.TakeID || taken.Buyer != d.Buyer:
		return fmt.Errorf("%v was taken as %v", d, taken)
	case d.Lines[0].Epoch != 0:
		return errors.New("the take wrote into its caller's lines")
	}
	return nil
}

func noOversell(t *trial) error {
	const units, buyers = 60, 16
	t.fill("a", 1, units)
	if t.err != nil {
		return t.err
	}
	accepted, err := Rush(t.ctx, t.gates.Instances, t.sku("a"), buyers)
	switch {
	case accepted > units:
		return fmt.Errorf("oversold: %d units accepted of %d", accepted, units)
	case err != nil:
		return err
	case accepted < units:
		return fmt.Errorf("undersold: %d units accepted of %d", accepted, units)
	}
	t.counts("a", 0, units, units)
	return nil
}

func noOversellOfSeveralLines(t *trial) error {
	const units, buyers = 40, 32
	t.fill("a", 1, units)
	t.fill("b", 1, units)
	t.fill("c", 1, units)
	baskets := [][]stock.Line{
		{t.line("a", 1), t.line("b", 2)},
		{t.line("b", 1), t.line("c", 1)},
		{t.line("a", 3), t.line("b", 1), t.line("c", 1)},
		{t.line("c", 2)},
	}
	var mu sync.Mutex
	sold := make(map[stock.SKU]int64)
	t.accepted(t.atOnce(buyers, func(gate stock.Gate, i int) error {
		for n := range 10 {
			basket := baskets[(i+n)%len(baskets)]
			err := t.patiently(func() error {
				_, err := gate.Take(t.ctx, order(basket...))
				return err
			})
			if errors.Is(err, stock.ErrSoldOut) {
				continue
			}
			if err != nil {
				return err
			}
			mu.Lock()
			for _, line := range basket {
				sold[line.SKU] += line.Quantity
			}
			mu.Unlock()
		}
		return nil
	}))
	for _, name := range []string{"a", "b", "c"} {
		level := t.level(name)
		n := sold[t.sku(name)]
		switch {
		case t.err != nil:
			return t.err
		case n > units:
			return fmt.Errorf("oversold: %d units of %s accepted of %d", n, name, units)
		case level.Available != units-n || level.InFlight != n:
			return fmt.Errorf("%d units of %s accepted of %d, and the gate has %+v", n, name, units, level)
		}
	}
	return nil
}

func noOversellAcrossRefills(t *trial) error {
	const units, epochs, buyers = 20, 6, 12
	t.fill("a", 1, units)
	var mu sync.Mutex
	sold := make(map[int64]int64) // by the epoch that the take was told
	t.accepted(t.atOnce(buyers+1, func(gate stock.Gate, i int) error {
		if i == buyers {
			for epoch := int64(2); epoch <= epochs; epoch++ {
				err := t.patiently(func() error { return gate.Fill(t.ctx, t.sku("a"), epoch, units) })
				if err != nil {
					return err
				}
			}
			return nil
		}
		for range 15 {
			err := t.patiently(func() error {
				taken, err := gate.Take(t.ctx, order(t.line("a", 1)))
				if err == nil {
					mu.Lock()
					sold[taken.Lines[0].Epoch]++
					mu.Unlock()
				}
				return err
			})
			if err != nil && !errors.Is(err, stock.ErrSoldOut) {
				return err
			}
		}
		return nil
	}))
	for epoch, n := range sold {
		if n > units {
			return fmt.Errorf("oversold: %d units accepted under epoch %d, filled with %d", n, epoch, units)
		}
	}
	t.counts("a", units-sold[epochs], sold[epochs], sold[epochs])
	return nil
}

// countsAddUp has takes settled, given and left in flight at once.
func countsAddUp(t *trial) error {
	const units, buyers, orders = 100_000, 24, 10
	t.fill("a", 1, units)
	t.fill("b", 1, units)
	var settled, flying atomic.Int64
	t.accepted(t.atOnce(buyers, func(gate stock.Gate, i int) error {
		for n := range orders {
			d := order(t.line("a", 2), t.line("b", 3))
			err := t.patiently(func() error {
				_, err := gate.Take(t.ctx, d)
				return err
			})
			if err != nil {
				return err
			}
			switch (i + n) % 3 {
			case 0:
				settled.Add(1)
				err = gate.Settle(t.ctx, d)
			case 1:
				err = t.patiently(func() error { return gate.Give(t.ctx, d) })
			default:
				flying.Add(1)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}))
	s, f := settled.Load(), flying.Load()
	t.counts("a", units-2*(s+f), 2*f, f)
	t.counts("b", units-3*(s+f), 3*f, f)
	return nil
}

// lastUnit sells what is left to the unit, whatever was asked for before.
func lastUnit(t *trial) error {
	t.fill("a", 1, 3)
	t.refusedFor(order(t.line("a", 5)), "a", stock.ErrSoldOut)
	t.refusedFor(order(t.line("a", 4)), "a", stock.ErrSoldOut)
	t.take(order(t.line("a", 2)), nil)
	t.refusedFor(order(t.line("a", 2)), "a", stock.ErrSoldOut)
	t.take(order(t.line("a", 1)), nil)
	t.refusedFor(order(t.line("a", 1)), "a", stock.ErrSoldOut)
	t.counts("a", 0, 3, 2)
	return nil
}

func sameTakeTwice(t *trial) error {
	t.fill("a", 4, 10)
	t.fill("b", 5, 10)
	d := order(t.line("a", 6), t.line("b", 7)) // a second time would not fit
	first := t.take(d, nil)
	second := t.take(d, nil)
	if t.err == nil && !slices.EqualFunc(first.Lines, second.Lines, sameLine) {
		return fmt.Errorf("the same take was answered %v, then %v", first.Lines, second.Lines)
	}
	t.counts("a", 4, 6, 1)
	t.counts("b", 3, 7, 1)
	return nil
}

func sameTakeAtOnce(t *trial) error {
	t.fill("a", 1, 10)
	d := order(t.line("a", 6))
	errs := t.atOnce(16, func(gate stock.Gate, _ int) error {
		return t.patiently(func() error {
			_, err := gate.Take(t.ctx, d)
			return err
		})
	})
	if n := t.accepted(errs); t.err == nil && n != 16 {
		return fmt.Errorf("%d of 16 heard the first answer", n)
	}
	t.counts("a", 4, 6, 1)
	return nil
}

func twinInFlight(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("b", 1, 2)
	d := order(t.line("a", 1), t.line("b", 2))
	t.take(d, nil)
	t.take(again(d), stock.ErrInFlight) // though b is sold out by now
	t.counts("a", 9, 1, 1)
	t.give(d)
	twin := again(d)
	t.take(twin, nil)
	t.settle(twin)
	t.counts("a", 9, 0, 0)
	t.counts("b", 0, 0, 0)
	return nil
}

func twinsAtOnce(t *trial) error {
	t.fill("a", 1, 100)
	d := order(t.line("a", 1))
	errs := t.atOnce(24, func(gate stock.Gate, _ int) error {
		return t.patiently(func() error {
			_, err := gate.Take(t.ctx, again(d))
			return err
		})
	})
	if n := t.accepted(errs, stock.ErrInFlight); t.err == nil && n != 1 {
		return fmt.Errorf("%d takes of one order are in flight", n)
	}
	t.counts("a", 99, 1, 1)
	return nil
}

func soldOutTakesNothing(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("b", 1, 2)
	t.fill("c", 1, 10)
	d := order(t.line("a", 1), t.line("b", 3), t.line("c", 1))
	t.refusedFor(d, "b", stock.ErrSoldOut)
	t.counts("a", 10, 0, 0)
	t.counts("b", 2, 0, 0)
	t.counts("c", 10, 0, 0)
	// It was refused, not burned: with stock added the order may come again.
	t.adjust("b", 1, 1, 1, nil)
	t.take(again(d), nil)
	t.counts("a", 9, 1, 1)
	t.counts("b", 0, 3, 1)
	return nil
}

func notFilledTakesNothing(t *trial) error {
	t.fill("a", 1, 10)
	t.refusedFor(order(t.line("a", 1), t.line("b", 1)), "b", stock.ErrNotFilled)
	t.refusedFor(order(t.line("b", 1)), "b", stock.ErrNotFilled)
	t.counts("a", 10, 0, 0)
	t.notFilled("b")
	return nil
}

// notFilled ends the trial if the gate has a count for the SKU.
func (t *trial) notFilled(name string) {
	if level := t.level(name); t.err == nil && level != (stock.Level{SKU: t.sku(name)}) {
		t.err = fmt.Errorf("the gate was not filled and has %+v", level)
	}
}

func giveOnce(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("b", 1, 10)
	d := order(t.line("a", 2), t.line("b", 3))
	t.take(d, nil)
	for range 3 {
		t.give(d)
		t.counts("a", 10, 0, 0)
		t.counts("b", 10, 0, 0)
	}
	// What comes back is what was cut, whatever the giver believes.
	d = order(t.line("a", 2))
	t.take(d, nil)
	d.Lines = []stock.Line{t.line("a", 9)}
	t.give(d)
	t.counts("a", 10, 0, 0)
	return nil
}

func giveAtOnce(t *trial) error {
	t.fill("a", 1, 10)
	d := order(t.line("a", 2))
	t.take(d, nil)
	t.accepted(t.atOnce(16, func(gate stock.Gate, _ int) error {
		return t.patiently(func() error { return gate.Give(t.ctx, d) })
	}))
	t.counts("a", 10, 0, 0)
	return nil
}

func giveBeforeTake(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("b", 1, 10)
	d := order(t.line("a", 2), t.line("b", 1))
	t.give(d)
	t.take(d, stock.ErrBurned)
	t.take(d, stock.ErrBurned)
	t.counts("a", 10, 0, 0)
	t.counts("b", 10, 0, 0)
	t.take(again(d), nil) // the order is not burned
	t.counts("a", 8, 2, 1)
	return nil
}

func giveOfAnothersTake(t *trial) error {
	t.fill("a", 1, 10)
	d := order(t.line("a", 2))
	t.take(d, nil)
	twin := again(d)
	t.give(twin)
	t.counts("a", 8, 2, 1)
	t.give(d)
	t.take(twin, stock.ErrBurned)
	t.counts("a", 10, 0, 0)
	return nil
}

func settleForgets(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("b", 1, 10)
	d := order(t.line("a", 2), t.line("b", 3))
	t.take(d, nil)
	for range 2 {
		t.settle(d)
		t.counts("a", 8, 0, 0)
		t.counts("b", 7, 0, 0)
	}
	t.give(d) // too late
	t.counts("a", 8, 0, 0)
	t.settle()
	return nil
}

func settleOfAnothersTake(t *trial) error {
	t.fill("a", 1, 10)
	d := order(t.line("a", 2))
	t.take(d, nil)
	t.settle(again(d), order(t.line("a", 1)))
	t.counts("a", 8, 2, 1)
	t.settle(again(d), d, again(d)) // mine among others
	t.counts("a", 8, 0, 0)
	return nil
}

func settleTwiceInOneCall(t *trial) error {
	t.fill("a", 1, 10)
	d, other := order(t.line("a", 2)), order(t.line("a", 3))
	t.take(d, nil)
	t.take(other, nil)
	t.settle(d, d, d)
	t.counts("a", 5, 3, 1)
	return nil
}

func settleManyAtOnce(t *trial) error {
	const orders = 400 // of 2 lines: more than one script call settles
	t.fill("a", 1, orders)
	t.fill("b", 1, orders)
	t.fill("c", 1, orders)
	ds := make([]stock.Deduction, orders)
	t.accepted(t.atOnce(orders, func(gate stock.Gate, i int) error {
		ds[i] = order(t.line("a", 1), t.line([]string{"b", "c"}[i%2], 1))
		return t.patiently(func() error {
			_, err := gate.Take(t.ctx, ds[i])
			return err
		})
	}))
	t.settle(ds...)
	t.counts("a", 0, 0, 0)
	t.counts("b", orders/2, 0, 0)
	t.counts("c", orders/2, 0, 0)
	return nil
}

func fillRefusesOlderEpoch(t *trial) error {
	t.fill("a", 5, 10)
	t.take(order(t.line("a", 1)), nil)
	t.fillAgain("a", 5, 10, stock.ErrStaleEpoch)
	t.fillAgain("a", 4, 99, stock.ErrStaleEpoch)
	t.counts("a", 9, 1, 1)
	t.fill("a", 6, 20)
	t.counts("a", 20, 0, 0)
	if level := t.level("a"); t.err == nil && level.Epoch != 6 {
		return fmt.Errorf("filled under epoch 6, and the gate has %+v", level)
	}
	return nil
}

func fillForgetsFlight(t *trial) error {
	t.fill("a", 1, 20)
	t.fill("b", 1, 20)
	given, settled := order(t.line("a", 2), t.line("b", 2)), order(t.line("a", 3))
	left, twin := order(t.line("a", 1)), order(t.line("a", 4))
	for _, d := range []stock.Deduction{given, settled, left, twin} {
		t.take(d, nil)
	}
	t.fill("a", 2, 10)
	if level := t.level("a"); t.err == nil && (level.Available != 10 || level.InFlight != 0) {
		return fmt.Errorf("filled with 10: %+v", level)
	}
	t.give(given) // what it cut is not in this count
	t.settle(settled)
	t.take(again(twin), nil) // nothing that was cut before stands in its way
	t.counts("a", 6, 4, 1)
	t.counts("b", 20, 0, 0)
	return nil
}

func adjustOnce(t *trial) error {
	t.fill("a", 1, 10)
	t.adjust("a", 1, 1, 5, nil)
	t.adjust("a", 1, 1, 5, nil)
	t.counts("a", 15, 0, 0)
	t.adjust("a", 1, 2, 1, nil)
	t.adjust("a", 1, 1, 5, nil)
	t.counts("a", 16, 0, 0)
	t.accepted(t.atOnce(8, func(gate stock.Gate, _ int) error {
		return t.patiently(func() error {
			return gate.Adjust(t.ctx, stock.Change{SKU: t.sku("a"), Epoch: 1, Number: 3, Delta: 1})
		})
	}))
	t.counts("a", 17, 0, 0)
	return nil
}

func adjustGap(t *trial) error {
	t.fill("a", 1, 10)
	t.adjust("a", 1, 2, 5, stock.ErrChangeGap)
	t.counts("a", 10, 0, 0)
	t.adjust("a", 1, 1, 5, nil)
	t.adjust("a", 1, 3, 5, stock.ErrChangeGap)
	t.counts("a", 15, 0, 0)
	return nil
}

func adjustOfEarlierEpochDropped(t *trial) error {
	t.fill("a", 4, 10)
	t.adjust("a", 3, 1, 5, nil) // the fill has counted it
	t.counts("a", 10, 0, 0)
	t.adjust("a", 4, 1, 1, nil)
	t.fill("a", 5, 20)
	t.adjust("a", 4, 2, 5, nil)
	t.adjust("a", 5, 1, 1, nil) // numbers start again with the epoch
	t.counts("a", 21, 0, 0)
	return nil
}

// adjustWaitsForItsFill has an addition overtake the fill of its epoch, which
// was read from the ledger before it.
func adjustWaitsForItsFill(t *trial) error {
	t.adjust("a", 1, 1, 5, stock.ErrNotFilled)
	t.notFilled("a")
	t.fill("a", 1, 10)
	t.adjust("a", 1, 1, 5, nil)
	t.counts("a", 15, 0, 0)
	t.adjust("a", 2, 1, 5, stock.ErrNotFilled)
	t.counts("a", 15, 0, 0)
	t.fill("a", 2, 15)
	t.adjust("a", 2, 1, 5, nil)
	t.counts("a", 20, 0, 0)
	return nil
}

func emptiedStoreFailsClosed(t *trial) error {
	t.fill("a", 1, 10)
	d := order(t.line("a", 2))
	t.take(d, nil)
	if t.err == nil {
		t.expect(t.gates.Empty(t.ctx, t.sku("a")), nil, "emptying the store")
	}
	t.refusedFor(order(t.line("a", 1)), "a", stock.ErrNotFilled)
	t.give(d)
	t.settle(order(t.line("a", 1)))
	t.adjust("a", 1, 1, 5, stock.ErrNotFilled)
	t.notFilled("a")
	t.fill("a", 2, 10)
	t.counts("a", 10, 0, 0)
	t.take(d, stock.ErrBurned) // it was given back
	t.take(again(d), nil)
	return nil
}

func lostCountInventsNothing(t *trial) error {
	t.fill("a", 1, 10)
	given, settled := order(t.line("a", 2)), order(t.line("a", 3))
	t.take(given, nil)
	t.take(settled, nil)
	if t.err == nil {
		t.expect(t.gates.LoseCount(t.ctx, t.sku("a")), nil, "losing the count")
	}
	if ds := t.inFlight("a"); t.err == nil && len(ds) != 2 {
		return fmt.Errorf("in flight when the count was lost: %v, want both takes", ds)
	}
	t.give(given)
	t.settle(settled)
	t.refusedFor(order(t.line("a", 1)), "a", stock.ErrNotFilled)
	t.notFilled("a")
	t.fill("a", 2, 10)
	t.counts("a", 10, 0, 0)
	return nil
}

func cancelledContext(t *trial) error {
	t.fill("a", 1, 10)
	if t.err != nil {
		return t.err
	}
	ctx, cancel := context.WithCancel(t.ctx)
	cancel()
	d := order(t.line("a", 2))
	for name, call := range map[string]func() error{
		"Take":   func() error { _, err := t.gate().Take(ctx, d); return err },
		"Give":   func() error { return t.gate().Give(ctx, d) },
		"Settle": func() error { return t.gate().Settle(ctx, d) },
		"Fill":   func() error { return t.gate().Fill(ctx, t.sku("a"), 2, 99) },
		"Adjust": func() error {
			return t.gate().Adjust(ctx, stock.Change{SKU: t.sku("a"), Epoch: 1, Number: 1, Delta: 1})
		},
		"InFlight": func() error { _, err := t.gate().InFlight(ctx, 0, 1, t.sku("a")); return err },
		"Level":    func() error { _, err := t.gate().Level(ctx, t.sku("a")); return err },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			return fmt.Errorf("%s on an ended context answered %v", name, err)
		}
	}
	t.give(d) // the outcome of its take may be open
	if level := t.level("a"); t.err == nil && level.Available+level.InFlight != 10 && level.Available != 99 && level.Available != 11 {
		return fmt.Errorf("after calls on an ended context: %+v", level)
	}
	return nil
}

// cancelledTakesLeakNothing hangs up in the middle of takes, and gives back
// what was not answered, as callers do.
func cancelledTakesLeakNothing(t *trial) error {
	const units, buyers, orders = 10_000, 16, 12
	t.fill("a", 1, units)
	t.fill("b", 1, units)
	var taken atomic.Int64
	t.accepted(t.atOnce(buyers, func(gate stock.Gate, _ int) error {
		for range orders {
			d := order(t.line("a", 1), t.line("b", 2))
			ctx, cancel := context.WithTimeout(t.ctx, rand.N(3*time.Millisecond))
			_, err := gate.Take(ctx, d)
			cancel()
			if err == nil {
				taken.Add(1)
				continue
			}
			if err := t.patiently(func() error { return gate.Give(t.ctx, d) }); err != nil {
				return err
			}
		}
		return nil
	}))
	n := taken.Load()
	t.counts("a", units-n, n, n)
	t.counts("b", units-2*n, 2*n, n)
	return nil
}

func inFlightHasAllLines(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("b", 1, 10)
	t.fill("c", 1, 10_000_000)
	bought := order(t.line("a", 1), t.line("b", 2), t.line("c", 1000))
	shrink := order(t.line("c", 5_000_000)) // an administrator's
	shrink.Buyer = ""
	t.take(bought, nil)
	t.take(shrink, nil)
	t.take(again(bought), stock.ErrInFlight)
	for name, want := range map[string][]stock.Deduction{"a": {bought}, "b": {bought}, "c": {bought, shrink}} {
		ds := t.inFlight(name)
		if t.err != nil {
			return t.err
		}
		if len(ds) != len(want) {
			return fmt.Errorf("in flight of %s: %v, want %v", name, ds, want)
		}
		for _, w := range want {
			if !slices.ContainsFunc(ds, func(d stock.Deduction) bool { return sameDeduction(d, w) }) {
				return fmt.Errorf("in flight of %s: %v, want %v", name, ds, want)
			}
		}
	}
	t.settle(t.inFlight("c")...) // as listed they can be settled
	t.counts("a", 9, 0, 0)
	t.counts("b", 8, 0, 0)
	t.counts("c", 10_000_000-5_000_000-1000, 0, 0)
	return nil
}

func sameDeduction(a, b stock.Deduction) bool {
	return a.OrderID == b.OrderID && a.TakeID == b.TakeID && a.Buyer == b.Buyer &&
		slices.EqualFunc(a.Lines, b.Lines, func(a, b stock.Line) bool { return a.SKU == b.SKU && a.Quantity == b.Quantity })
}

func inFlightByAge(t *trial) error {
	t.fill("a", 1, 10)
	d := order(t.line("a", 1))
	t.take(d, nil)
	if t.err != nil {
		return t.err
	}
	start := time.Now() // the take is older than this
	young, err := t.gate().InFlight(t.ctx, time.Hour, 10, t.sku("a"))
	if err != nil || len(young) != 0 {
		return fmt.Errorf("in flight for an hour: %v (error %v)", young, err)
	}
	const age = 30 * time.Millisecond
	for {
		old, err := t.gate().InFlight(t.ctx, age, 10, t.sku("a"))
		switch {
		case err != nil:
			return err
		case len(old) == 1:
			return nil
		case time.Since(start) > age+5*time.Second:
			return fmt.Errorf("a take of %v ago is not listed as older than %v", time.Since(start), age)
		}
		time.Sleep(time.Millisecond)
	}
}

func inFlightOfMany(t *trial) error {
	const orders = 1200 // several steps of a scan
	t.fill("a", 1, orders)
	t.accepted(t.atOnce(20, func(gate stock.Gate, _ int) error {
		for range orders / 20 {
			err := t.patiently(func() error {
				_, err := gate.Take(t.ctx, order(t.line("a", 1)))
				return err
			})
			if err != nil {
				return err
			}
		}
		return nil
	}))
	for _, limit := range []int{1, 700, orders, 5000} {
		if t.err != nil {
			return t.err
		}
		ds, err := t.gate().InFlight(t.ctx, 0, limit, t.sku("a"))
		if err != nil {
			return err
		}
		distinct := make(map[uuid.UUID]bool)
		for _, d := range ds {
			distinct[d.TakeID] = true
		}
		if want := min(limit, orders); len(ds) != want || len(distinct) != want {
			return fmt.Errorf("asked for %d of %d takes in flight, got %d, %d of them different", limit, orders, len(ds), len(distinct))
		}
	}
	return nil
}

func levelOfManySKUs(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("z", 2, 20)
	if t.err != nil {
		return t.err
	}
	skus := []stock.SKU{t.sku("z")}
	for i := range 1100 {
		skus = append(skus, t.sku(fmt.Sprintf("none-%d", i)))
	}
	skus = append(skus, t.sku("a"), t.sku("z"))
	levels, err := t.gate().Level(t.ctx, skus...)
	if err != nil {
		return err
	}
	if len(levels) != len(skus) {
		return fmt.Errorf("%d levels of %d SKUs", len(levels), len(skus))
	}
	for i, level := range levels {
		want := stock.Level{SKU: skus[i]}
		switch skus[i] {
		case t.sku("a"):
			want = stock.Level{SKU: skus[i], Filled: true, Epoch: 1, Available: 10}
		case t.sku("z"):
			want = stock.Level{SKU: skus[i], Filled: true, Epoch: 2, Available: 20}
		}
		if level != want {
			return fmt.Errorf("level %d is %+v, want %+v", i, level, want)
		}
	}
	none, err := t.gate().Level(t.ctx)
	if err != nil || len(none) != 0 {
		return fmt.Errorf("the levels of no SKUs: %v (error %v)", none, err)
	}
	return nil
}

// sameLine leaves aside where a gate has cut the units.
func sameLine(a, b stock.Line) bool {
	return a.SKU == b.SKU && a.Quantity == b.Quantity && a.Epoch == b.Epoch
}
