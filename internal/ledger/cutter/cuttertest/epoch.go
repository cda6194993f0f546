package cuttertest

import (
	"errors"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

func staleEpochAlone(t *trial) error {
	t.lay("a", 10)
	t.cut(takes(order(t.line("a", 1, 6))), stock.ErrStaleEpoch)
	t.cut(takes(order(t.line("a", 1, 8))), stock.ErrStaleEpoch)
	t.cut(takes(order(t.line("a", 1, 7)), order(t.line("a", 5, 6)), order(t.line("a", 2, 7))), nil, stock.ErrStaleEpoch, nil)
	t.cut(takes(order(t.line("a", 1, 6)), order(t.line("a", 1, 6))), stock.ErrStaleEpoch, stock.ErrStaleEpoch)
	t.left("a", 7)
	return nil
}

func epochOfEveryLine(t *trial) error {
	t.lay("a", 10)
	t.lay("b", 10)
	t.cut(takes(order(t.line("a", 1, 7), t.line("b", 1, 6))), stock.ErrStaleEpoch)
	t.left("a", 10)
	t.left("b", 10)
	return nil
}

func anyEpoch(t *trial) error {
	t.lay("a", 10)
	t.cut(takes(order(t.line("a", 4, 0))), nil)
	t.left("a", 6)
	return nil
}

// laterGeneration checks that a stock row of a later generation is not cut.
func laterGeneration(t *trial) error {
	later, _ := (t.generation + 1).Epochs()
	t.lay("a", 10)
	t.layUnder("theirs", 10, later+7)
	t.cut(takes(order(t.line("theirs", 1, 7))), stock.ErrLaterGeneration)
	t.cut(takes(order(t.line("theirs", 1, 0))), stock.ErrLaterGeneration)
	t.cut(takes(order(t.line("a", 1, 7)), order(t.line("a", 1, 7), t.line("theirs", 1, 7))), nil, stock.ErrLaterGeneration)
	t.left("a", 9)
	t.left("theirs", 10)
	return nil
}

// earlierGeneration checks that a stock row is not cut before it has been adopted.
func earlierGeneration(t *trial) error {
	t.lay("old", 10)
	t.generation++
	first, last := t.generation.Epochs()
	t.layUnder("first", 10, first)
	t.layUnder("last", 10, last)
	t.cut(takes(order(t.line("old", 1, 7))), stock.ErrNotAdopted)
	t.cut(takes(order(t.line("old", 1, 0))), stock.ErrNotAdopted)
	t.cut(takes(order(t.line("first", 1, 0)), order(t.line("last", 1, last)), order(t.line("first", 1, 0), t.line("old", 1, 0))), nil, nil, stock.ErrNotAdopted)
	t.cut(takes(order(t.line("first", 1, 0)), order(t.line("first", 1, 0), t.line("last", 1, 0))), nil, nil)
	t.left("old", 10)
	t.left("first", 7)
	t.left("last", 8)
	return nil
}

// adoptedMeanwhile checks that a stock row is not cut if another generation adopts it after the
// cutter has read it.
func adoptedMeanwhile(t *trial) error {
	t.lay("a", 10)
	if t.err != nil {
		return t.err
	}
	plan, err := t.cutter.Plan(t.ctx, t.db, t.generation, takes(order(t.line("a", 1, 0))))
	if err != nil {
		return err
	}
	later, _ := (t.generation + 1).Epochs()
	if t.change("a", "epoch = ?", later+1); t.err != nil {
		return t.err
	}
	tx, err := t.db.Begin(t.ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	decisions, err := plan.Cut(t.ctx, tx)
	if err == nil && decisions[0].Taken || err != nil && !errors.Is(err, cutter.ErrConflict) {
		return fmt.Errorf("decided %v, %w", decisions, err)
	}
	return nil
}
