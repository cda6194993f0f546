package reconcile

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestLostRaise checks two instances that saw the same row of the ledger: one raises
// the generation, and the other neither uses its own nor loads it.
func TestLostRaise(t *testing.T) {
	t.Parallel()
	row, store := &ownerRow{}, newRedis()
	gate, ledger1 := newGate(store), newLedger(row)
	loser := newReconciler(gate, ledger1)
	defer loser.Close()
	winnerGate, winnerLedger := newGate(store), newLedger(row)
	winner := newReconciler(winnerGate, winnerLedger)
	defer winner.Close()
	for _, r := range []*Reconciler{loser, winner} {
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	seen, err := ledger1.Owner(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	generation, loads := ledger1.Generation(), slices.Clone(gate.loads)
	if err := winner.generations.raise(t.Context(), seen, generation+1); err != nil {
		t.Fatal(err)
	}
	for _, next := range []stock.Generation{generation + 1, generation + 2} {
		if err := loser.generations.raise(t.Context(), seen, next); !errors.Is(err, ledger.ErrRowChanged) {
			t.Errorf("raising to %d: %v", next, err)
		}
	}
	if now := ledger1.Generation(); now != generation || gate.using != generation {
		t.Errorf("uses generation %d, and %d at the gate, though it did not raise it", now, gate.using)
	}
	if !slices.Equal(gate.loads, loads) {
		t.Errorf("loaded generations %v, though it raised %v", gate.loads, loads)
	}
	if winnerLedger.Generation() != generation+1 || winnerGate.using != generation+1 || !slices.Equal(winnerGate.loads, []stock.Generation{generation + 1}) {
		t.Errorf("the winner uses %d, and %d at the gate, and loaded %v", winnerLedger.Generation(), winnerGate.using, winnerGate.loads)
	}
	if row, err := ledger1.Owner(t.Context()); err != nil || row.Generation != generation+1 {
		t.Errorf("the ledger's row is %+v, %v", row, err)
	}
}

// hookedLedger calls back once after a beat.
type hookedLedger struct {
	*twinLedger
	afterBeat func()
}

func (l *hookedLedger) Beat(ctx context.Context) (ledger.Owner, error) {
	owner, err := l.twinLedger.Beat(ctx)
	if after := l.afterBeat; after != nil {
		l.afterBeat = nil
		after()
	}
	return owner, err
}

// TestRaiseDuringACheck checks that a generation that is raised while a check looks
// at the ledger does not make the ledger look restored from a backup.
func TestRaiseDuringACheck(t *testing.T) {
	t.Parallel()
	for _, gate := range []*twinGate{newGate(newRedis()), nil} {
		l := &hookedLedger{twinLedger: newLedger(&ownerRow{})}
		r := newReconciler(gate, l)
		defer r.Close()
		if err := r.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		generation := l.Generation()
		l.afterBeat = func() {
			r.StoreChanged()
			if err := r.generations.usable(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := r.Ready(t.Context()); err != nil {
			t.Error(err)
		}
		if now := l.Generation(); now != generation+1 {
			t.Errorf("with gate %v: generation %d became %d", gate != nil, generation, now)
		}
	}
}
