package gate

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// lateLocker is an ownLocker that calls granted when it has got a lock.
type lateLocker struct {
	ownLocker
	granted func()
}

func (l lateLocker) Lock(ctx context.Context, name string) (lock.Lease, error) {
	lease, err := l.ownLocker.Lock(ctx, name)
	l.granted()
	return lease, err
}

// TestOutlivedLock stops a take until its lock has been granted to another holder. Then the take
// continues, and does not learn that it has lost the lock. The fence must refuse its late read and
// its late write. Without a fence one unit is sold twice. TestConformance of package locktest checks
// that the lock of a stopped process is granted to another one, with a greater token.
func TestOutlivedLock(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"before", "between"} { // stopped before reading, or between reading and writing
		for _, fence := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/fence %v", at, fence), func(t *testing.T) {
				t.Parallel()
				err := outlive(t, at, fence)
				switch {
				case fence && !errors.Is(err, errFenced):
					t.Errorf("the stopped holder was answered %v", err)
				case !fence && err != nil:
					t.Errorf("without a fence the unit was not sold twice: %v", err)
				}
			})
		}
	}
}

// outlive returns the answer to the take that was stopped, after both have taken the same unit.
func outlive(t *testing.T, at string, fence bool) (late error) {
	t.Helper()
	client, ledger, p, none := shared.client(t, "Redis"), uuid.New(), newPause(), func() {}
	var tokens atomic.Uint64
	take := func(granted, between func()) error { // under a lock that excludes no other take
		locks := NewLocks(lateLocker{ownLocker{lock.NewLocal(), &tokens}, granted}, time.Minute, fence)
		g := readWriteIn(client, ledger, Layout{Locks: locks})
		g.between = between
		_, err := g.Take(t.Context(), orderOf("a", 1))
		return err
	}
	fill(t, readWrite0(client, ledger), "a", 1, 1)
	answer := make(chan error, 1)
	resume := func() {
		close(p.resume)
		late = <-answer
	}
	var next error
	if at == "before" { // both holders read before either writes
		go func() { answer <- take(p.here, none) }()
		<-p.stopped
		next = take(none, resume)
	} else {
		go func() { answer <- take(none, p.here) }()
		<-p.stopped
		next = take(none, none)
		resume()
	}
	if next != nil {
		t.Errorf("the next holder: %v", next)
	}
	return late
}

// TestFencesAreKept checks that every call that changes a count under a lock checks its token, and
// that a fill sets the fence to its own token.
func TestFencesAreKept(t *testing.T) {
	t.Parallel()
	client := shared.client(t, "Redis")
	g, ctx := readWrite0(client, uuid.New()), t.Context()
	under := func(token uint64) tokenSet {
		return tokenSet{bySKU: map[stock.SKU]uint64{"a": token}}
	}
	if err := g.fill(ctx, under(5), stock.Fill{SKU: "a", Epoch: 1, Units: 10})[0]; err != nil {
		t.Fatal(err)
	}
	held, err := g.take(ctx, under(6), orderOf("a", 2))
	if err != nil {
		t.Fatal(err)
	}
	addition := stock.Change{SKU: "a", Epoch: 1, Number: 1, Delta: 1}
	for name, call := range map[string]func(tokenSet) error{
		"Take":   func(tokens tokenSet) error { _, err := g.take(ctx, tokens, orderOf("a", 1)); return err },
		"Give":   func(tokens tokenSet) error { return g.give(ctx, tokens, held) },
		"Adjust": func(tokens tokenSet) error { return g.adjust(ctx, tokens, addition) },
	} {
		if err := call(under(5)); !errors.Is(err, errFenced) || !errors.Is(err, stock.ErrBusy) {
			t.Errorf("%s under an older token: %v", name, err)
		}
	}
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 8, InFlight: 2})
	if err := g.adjust(ctx, under(7), addition); err != nil {
		t.Error(err)
	}
	if _, err := g.take(ctx, under(6), orderOf("a", 1)); !errors.Is(err, errFenced) {
		t.Errorf("a take under a token older than an addition's: %v", err)
	}
	if err := g.give(ctx, under(8), held); err != nil {
		t.Error(err)
	}
	if _, err := g.take(ctx, under(7), orderOf("a", 1)); !errors.Is(err, errFenced) {
		t.Errorf("a take under a token older than a give's: %v", err)
	}
	// Another lock service may start with smaller tokens.
	if err := g.fill(ctx, under(1), stock.Fill{SKU: "a", Epoch: 2, Units: 10})[0]; err != nil {
		t.Fatal(err)
	}
	if _, err := g.take(ctx, under(2), orderOf("a", 1)); err != nil {
		t.Errorf("after a fill under a smaller token: %v", err)
	}
	if err := g.adjust(ctx, unfenced, stock.Change{SKU: "a", Epoch: 2, Number: 1, Delta: 1}); err != nil {
		t.Errorf("an addition without a token: %v", err)
	}
}

// TestGiveFencesALateWrite checks that a late write of a take that was given back before changes
// nothing.
func TestGiveFencesALateWrite(t *testing.T) {
	t.Parallel()
	client, ledger := shared.client(t, "Redis"), uuid.New()
	g, ctx := readWrite0(client, ledger), t.Context()
	under := func(token uint64) tokenSet {
		return tokenSet{bySKU: map[stock.SKU]uint64{"a": token}}
	}
	if err := g.fill(ctx, under(5), stock.Fill{SKU: "a", Epoch: 1, Units: 10})[0]; err != nil {
		t.Fatal(err)
	}
	late := orderOf("a", 2)
	g.between = func() {
		if err := g.give(ctx, under(7), stock.Take{Deduction: late}); err != nil {
			t.Error(err)
		}
	}
	if _, err := g.take(ctx, under(6), late); !errors.Is(err, errFenced) {
		t.Errorf("a write after the take was given back: %v, want errFenced", err)
	}
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 10})

	// The locks of a later generation may have smaller tokens.
	later := readWrite0(client, ledger)
	load(t, later.Counter, 1)
	if err := later.fill(ctx, under(1), stock.Fill{SKU: "a", Epoch: epochIn(1, 1), Units: 10})[0]; err != nil {
		t.Fatal(err)
	}
	if err := g.give(ctx, under(8), stock.Take{Deduction: orderOf("a", 1)}); err != nil {
		t.Error(err)
	}
	if _, err := later.take(ctx, under(2), orderOf("a", 1)); err != nil {
		t.Errorf("after a give of the earlier generation: %v", err)
	}
}

// TestNoToken checks that a call without a token of the SKU changes nothing.
func TestNoToken(t *testing.T) {
	t.Parallel()
	g, ctx := readWrite0(shared.client(t, "Redis"), uuid.New()), t.Context()
	fill(t, g, "a", 1, 10)
	held := mustTake(t, g, orderOf("a", 2))
	for name, tokens := range map[string]tokenSet{
		"none":           {},
		"of another SKU": {bySKU: map[stock.SKU]uint64{"b": 1}},
		"zero":           {bySKU: map[stock.SKU]uint64{"a": 0}},
	} {
		_, take := g.take(ctx, tokens, orderOf("a", 1))
		for call, err := range map[string]error{
			"Take":   take,
			"Give":   g.give(ctx, tokens, held),
			"Fill":   g.fill(ctx, tokens, stock.Fill{SKU: "a", Epoch: 2, Units: 5})[0],
			"Adjust": g.adjust(ctx, tokens, stock.Change{SKU: "a", Epoch: 1, Number: 1, Delta: 1}),
		} {
			if !errors.Is(err, errNoToken) {
				t.Errorf("%s, token %s: %v", call, name, err)
			}
		}
	}
	wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 8, InFlight: 2})
}
