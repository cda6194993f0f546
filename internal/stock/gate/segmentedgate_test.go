package gate

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// divided3 returns two instances of a gate with three segments.
func divided3(t *testing.T, kind string) (a, b countedSegmented) {
	t.Helper()
	client, ledger, gatherers := shared.client(t, kind), uuid.New(), lock.NewLocal()
	return closed(t, segmented0(client, ledger, 3, gatherers)), closed(t, segmented0(client, ledger, 3, gatherers))
}

// available returns the units available in each segment.
func available(t *testing.T, g countedSegmented, sku stock.SKU) (units [3]int64) {
	t.Helper()
	levels, _, err := g.segmentLevels(t.Context(), sku)
	if err != nil {
		t.Fatal(err)
	}
	for n, level := range levels {
		units[n] = level.Available
	}
	return units
}

func TestFillAndAdjustSpreadEvenly(t *testing.T) {
	t.Parallel()
	g, _ := divided3(t, "Cluster")
	fill(t, g, "a", 1, 11)
	if got, want := available(t, g, "a"), [3]int64{4, 4, 3}; got != want {
		t.Errorf("11 units are spread as %v, want %v", got, want)
	}
	for number, want := range [][3]int64{{4, 5, 3}, {4, 5, 4}, {5, 5, 4}, {5, 6, 4}} { // one more unit in each segment in turn
		err := g.Adjust(t.Context(), stock.Change{SKU: "a", Epoch: 1, Number: int64(number) + 1, Delta: 1})
		if err != nil {
			t.Fatal(err)
		}
		if got := available(t, g, "a"); got != want {
			t.Errorf("after addition %d the units are spread as %v, want %v", number+1, got, want)
		}
	}
	for count := 1; count <= MaxSegments; count++ {
		for _, units := range []int64{0, 1, 63, 64, 65, stock.MaxTotal} {
			var sum int64
			for n := range count {
				part := share(units, n, count, count/2)
				if sum += part; part < units/int64(count) || part > units/int64(count)+1 {
					t.Fatalf("segment %d of %d gets %d of %d units", n, count, part, units)
				}
			}
			if sum != units {
				t.Fatalf("%d units in %d segments sum up to %d", units, count, sum)
			}
		}
	}
}

// TestGather takes more units than any single segment has, and gives them back to the segments that
// they came from.
func TestGather(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			g, other := divided3(t, kind)
			fill(t, g, "a", 1, 7)
			fill(t, g, "b", 1, 3)
			d := orderOf("a", 6)
			d.Lines = append(d.Lines, stock.Line{SKU: "b", Quantity: 2})
			taken := mustTake(t, g, d)
			wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 1, InFlight: 6})
			if _, err := other.Take(t.Context(), orderOf("a", 2)); !errors.Is(err, stock.ErrSoldOut) {
				t.Errorf("2 of 1 unit: %v", err)
			}
			listed, err := other.InFlight(t.Context(), 10, "a")
			if err != nil || len(listed) != 1 || listed[0].TakeID != d.TakeID || len(listed[0].Lines) != 2 ||
				listed[0].Lines[0].Quantity != 6 || listed[0].Lines[1].Quantity != 2 {
				t.Fatalf("in flight: %v, %v", listed, err)
			}
			if err := other.Give(t.Context(), listed[0]); err != nil { // as recovery does
				t.Fatal(err)
			}
			wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 7})
			wantLevel(t, g, stock.Level{SKU: "b", Epoch: 1, Available: 3})
			if err := g.Give(t.Context(), taken); err != nil { // there is no record left
				t.Fatal(err)
			}
			wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 7})
		})
	}
}

// TestRoutesTheShortLine checks a take whose second line's segment has too few units. It must cut
// that line elsewhere, and gather nothing.
func TestRoutesTheShortLine(t *testing.T) {
	t.Parallel()
	g, _ := divided3(t, "Redis")
	fill(t, g, "a", 1, 9)
	fill(t, g, "b", 1, 4) // 2, 1 and 1
	d := orderOf("a", 1)
	d.Lines = append(d.Lines, stock.Line{SKU: "b", Quantity: 2})
	copy(d.OrderID[12:], []byte{0, 0, 0, 2}) // tries segment 2 first
	g.gatherers = askedLocker{g.gatherers, func() { t.Error("it gathers") }}
	if taken, err := g.Take(t.Context(), d); err != nil || taken.Parts(0)[0].Segment != 2 || taken.Parts(1)[0].Segment != 0 {
		t.Errorf("%+v, %v", taken, err)
	}
}

// TestTakenAgain takes an order again while records of its earlier take are in segments that the
// new take would not try. The take must find them. The same must hold for a take that is sent
// twice.
func TestTakenAgain(t *testing.T) {
	t.Parallel()
	for _, kind := range kinds {
		for name, quantity := range map[string]int64{"in another segment": 2, "in two segments": 4} {
			t.Run(kind+"/"+name, func(t *testing.T) {
				t.Parallel()
				g, other := divided3(t, kind)
				fill(t, g, "a", 1, 9)
				d := orderOf("a", quantity)
				copy(d.OrderID[12:], []byte{0, 0, 0, 2}) // tries segment 2 first
				block := orderOf(segmentOf("a", 2), 3)
				blocking := mustTake(t, g.inner, block)
				first := mustTake(t, g, d)
				if _, err := other.Take(t.Context(), d); err != nil { // the same take
					t.Errorf("taken twice: %v", err)
				}
				if err := g.give(t.Context(), unfenced, blocking); err != nil {
					t.Fatal(err)
				}
				if err := g.Adjust(t.Context(), stock.Change{SKU: "a", Epoch: 1, Number: 1, Delta: 6}); err != nil { // segment 2 has enough
					t.Fatal(err)
				}
				again := d
				again.TakeID, again.Again = uuid.New(), true
				if _, err := other.Take(t.Context(), again); !errors.Is(err, stock.ErrInFlight) {
					t.Errorf("taken before the first take was settled: %v", err)
				}
				load(t, other.Counter, 1)
				if _, err := other.Take(t.Context(), again); !errors.Is(err, stock.ErrNotFilled) {
					t.Errorf("taken under the next generation, before the refill: %v", err)
				}
				other.Use(0)
				wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 15 - quantity, InFlight: quantity})
				if err := g.Settle(t.Context(), first); err != nil {
					t.Fatal(err)
				}
				if _, err := other.Take(t.Context(), again); err != nil {
					t.Errorf("taken after the first take was settled: %v", err)
				}
				wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 15 - 2*quantity, InFlight: quantity})
			})
		}
	}
}

// TestRepeatOfASettledTake repeats a take that is settled after its record was read, when no units
// are left. The repeat must not succeed.
func TestRepeatOfASettledTake(t *testing.T) {
	t.Parallel()
	client, ledger := ownClient(t, "Redis", nil, -1), uuid.New()
	other := closed(t, segmented0(shared.client(t, "Redis"), ledger, 3, lock.NewLocal()))
	g := closed(t, segmented0(client, ledger, 3, lock.NewLocal()))
	fill(t, other, "a", 1, 3)
	d := orderOf("a", 3)
	taken := mustTake(t, other, d)
	var once sync.Once
	client.AddHook(before(func(cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			once.Do(func() {
				if err := other.Settle(t.Context(), taken); err != nil {
					t.Error(err)
				}
			})
		}
		return nil
	}))
	if _, repeated, err := g.repeat(t.Context(), d); !repeated || !errors.Is(err, stock.ErrBusy) {
		t.Errorf("repeated: %v, %v", repeated, err)
	}
	wantLevel(t, other, stock.Level{SKU: "a", Epoch: 1})
}

// TestSoldOutWaitsForAGather checks that a take that finds too few units during another take's
// gather waits until the gather ends.
func TestSoldOutWaitsForAGather(t *testing.T) {
	t.Parallel()
	g, other := divided3(t, "Redis")
	fill(t, g, "a", 1, 3)
	lease, err := g.gatherers.Lock(t.Context(), "gather:a")
	if err != nil {
		t.Fatal(err)
	}
	if err := g.announce(t.Context(), "a", true); err != nil {
		t.Fatal(err)
	}
	cut := mustTake(t, g.inner, linesOf(segmentOf("a", 0), segmentOf("a", 1), segmentOf("a", 2))) // as a gather takes them before it fails
	asked, answer := make(chan struct{}), make(chan error, 1)
	other.gatherers = askedLocker{other.gatherers, func() { close(asked) }}
	go func() {
		_, err := other.Take(t.Context(), orderOf("a", 1))
		answer <- err
	}()
	select {
	case err := <-answer:
		t.Fatalf("answered during the gather: %v", err)
	case <-asked: // the take waits for the lock, which is held here
	}
	if err := g.give(t.Context(), unfenced, cut); err != nil {
		t.Fatal(err)
	}
	if err := g.announce(t.Context(), "a", false); err != nil {
		t.Fatal(err)
	}
	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-answer; err != nil {
		t.Errorf("after the gather gave its units back: %v", err)
	}
}

// askedLocker calls asked when a lock is asked for.
type askedLocker struct {
	OwnedLocker
	asked func()
}

func (l askedLocker) Lock(ctx context.Context, name string) (lock.Lease, error) {
	l.asked()
	return l.OwnedLocker.Lock(ctx, name)
}

// TestDeadGatherer checks that a process that died during a gather does not keep others from
// gathering, because the next one makes the counter even again. While the lock is held, a gather
// must be answered busy.
func TestDeadGatherer(t *testing.T) {
	t.Parallel()
	g, _ := divided3(t, "Redis")
	fill(t, g, "a", 1, 1)
	if err := g.announce(t.Context(), "a", true); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := g.Take(t.Context(), orderOf("a", 2)); !errors.Is(err, stock.ErrSoldOut) {
			t.Errorf("got %v", err)
		}
	}
	if n, err := g.gathers(t.Context(), "a"); err != nil || n%2 != 0 {
		t.Errorf("the counter of gathers is %d, %v", n, err)
	}
	busy, err := g.gatherers.Lock(t.Context(), "gather:a")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Unlock(t.Context())
	fill(t, g, "a", 2, 2) // two segments with one unit each
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	g.gatherers = askedLocker{g.gatherers, cancel}
	if _, err := g.Take(ctx, orderOf("a", 2)); !errors.Is(err, stock.ErrBusy) {
		t.Errorf("cancelled while another take gathers: %v", err)
	}
}

// TestLostGather loses the lock of a gather after its cut was refused. The next gather, which has
// begun, holds all units. The take must not be answered sold out, and others must not find that no
// gather runs.
func TestLostGather(t *testing.T) {
	t.Parallel()
	locks := newRecorder()
	g := closed(t, segmented0(shared.client(t, "Redis"), uuid.New(), 3, locks))
	fill(t, g, "a", 1, 3)
	inner := g.inner
	g.inner = intercepted{inner, func(d stock.Deduction) error {
		if len(d.Lines) == 1 {
			return nil
		}
		locks.lost(lock.ErrExpired)
		if err := g.announce(t.Context(), "a", true); err != nil {
			t.Error(err)
		}
		if _, err := inner.Take(t.Context(), linesOf(segmentOf("a", 0), segmentOf("a", 1), segmentOf("a", 2))); err != nil {
			t.Error(err)
		}
		return stock.Refuse(d.Lines[0].SKU, stock.ErrSoldOut)
	}}
	if _, err := g.Take(t.Context(), orderOf("a", 2)); !errors.Is(err, stock.ErrBusy) {
		t.Errorf("got %v, want %v", err, stock.ErrBusy)
	}
	if n, err := g.gathers(t.Context(), "a"); err != nil || n%2 == 0 {
		t.Errorf("the counter of gathers is %d, %v", n, err)
	}
	if slices.ContainsFunc(locks.deadlines, time.Time.IsZero) {
		t.Error("a gather waits for its lock without a bound")
	}
}

// TestAnnounce checks that the counter of gathers never falls, and is odd exactly while a gather
// runs, even after a process died.
func TestAnnounce(t *testing.T) {
	t.Parallel()
	g, _ := divided3(t, "Redis")
	for _, begins := range []bool{true, false, false, true, true, false} {
		before, err := g.gathers(t.Context(), "a")
		if err == nil {
			err = g.announce(t.Context(), "a", begins)
		}
		after, readErr := g.gathers(t.Context(), "a")
		if err != nil || readErr != nil || after <= before || (after%2 == 1) != begins {
			t.Errorf("a gather begins: %v; the counter was %d and is %d; %v, %v", begins, before, after, err, readErr)
		}
	}
}

// TestLostSegment checks that a SKU is not filled if the count of one segment is missing, or of
// another epoch than the others, and that a fill fills all segments.
func TestLostSegment(t *testing.T) {
	t.Parallel()
	g, _ := divided3(t, "Redis")
	fill(t, g, "a", 1, 9)
	again := orderOf("a", 1)
	copy(again.OrderID[12:], []byte{0, 0, 0, 1}) // in segment 1
	mustTake(t, g, again)
	if err := g.client.HDel(t.Context(), g.keys(segmentOf("a", 1)).count, string(segmentOf("a", 1))).Err(); err != nil {
		t.Fatal(err)
	}
	for first := range 3 {
		d := orderOf("a", 4) // more units than the first segment has
		copy(d.OrderID[12:], []byte{0, 0, 0, byte(first)})
		if _, err := g.Take(t.Context(), d); !errors.Is(err, stock.ErrNotFilled) {
			t.Errorf("segment %d first: got %v", first, err)
		}
	}
	again.TakeID, again.Again = uuid.New(), true
	if _, err := g.Take(t.Context(), again); !errors.Is(err, stock.ErrNotFilled) { // the record of the take is void
		t.Errorf("again: got %v", err)
	}
	levels, err := g.Level(t.Context(), "a")
	if err != nil || levels[0].Filled || levels[0].Epoch != 1 {
		t.Errorf("level %+v, %v", levels, err)
	}
	fill(t, g, "a", 2, 9)
	if got, want := available(t, g, "a"), [3]int64{3, 3, 3}; got != want {
		t.Errorf("after a refill: got %v, want %v", got, want)
	}
	if _, err := g.Take(t.Context(), again); err != nil { // the record is of another epoch
		t.Errorf("again, after the refill: got %v", err)
	}
	if err := g.counter.fill(t.Context(), unfenced, stock.Fill{SKU: segmentOf("a", 1), Epoch: 3, Units: 3})[0]; err != nil {
		t.Fatal(err)
	}
	if levels, err := g.Level(t.Context(), "a"); err != nil || levels[0].Filled || levels[0].Epoch != 3 {
		t.Errorf("segments of two epochs: %+v, %v", levels, err)
	}
	if err := g.Fill(t.Context(), "a", 3, 9); !errors.Is(err, stock.ErrStaleEpoch) {
		t.Errorf("a fill that one segment refuses: %v", err)
	}
}

// TestGatherGivesUp checks that a take is answered busy, and takes nothing, if its units are in too
// many segments, or if the counts change after each read.
func TestGatherGivesUp(t *testing.T) {
	t.Parallel()
	client, ledger := shared.client(t, "Redis"), uuid.New()
	g := closed(t, segmented0(client, ledger, MaxSegments, lock.NewLocal()))
	d := linesOf("a", "b", "c", "d")
	for i := range d.Lines {
		d.Lines[i].Quantity = MaxSegments // one unit from each segment
		fill(t, g, d.Lines[i].SKU, 1, MaxSegments)
	}
	if _, err := g.Take(t.Context(), d); !errors.Is(err, stock.ErrBusy) {
		t.Errorf("%d parts: %v", len(d.Lines)*MaxSegments, err)
	}
	// The units are sold before the take gets them.
	g.inner = intercepted{g.inner, func(d stock.Deduction) error { return stock.Refuse(d.Lines[0].SKU, stock.ErrSoldOut) }}
	if _, err := g.Take(t.Context(), orderOf("a", 1)); !errors.Is(err, stock.ErrBusy) {
		t.Errorf("changing counts: %v", err)
	}
	for _, line := range d.Lines {
		wantLevel(t, g, stock.Level{SKU: line.SKU, Epoch: 1, Available: MaxSegments})
	}
}

// intercepted is a gate that first calls before. An error of before refuses the take.
type intercepted struct {
	Gate
	before func(stock.Deduction) error
}

func (g intercepted) Take(ctx context.Context, d stock.Deduction) (stock.Take, error) {
	if err := g.before(d); err != nil {
		return stock.Take{}, err
	}
	return g.Gate.Take(ctx, d)
}
