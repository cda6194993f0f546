package ledger

import (
	"context"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Owner is the one row of the table ledger. It says who owns the stock.
type Owner struct {
	Generation stock.Generation
	Layout     string // the layout of the generation; empty if Unowned
	// Queues says that Redis may have orders that the ledger lacks, because the owner's strategy
	// acknowledges orders before they are committed.
	Queues bool
	Beat   int64 // a counter that every instance raises about once a second
}

// Unowned reports whether no instance holds the stock. Either none has started yet, or the last one
// has given it up.
func (o Owner) Unowned() bool { return o.Layout == "" }

// Generation returns the generation in use.
func (l *Ledger) Generation() stock.Generation { return stock.Generation(l.generation.Load()) }

// Use makes the ledger cut under generation g from now on. A new Ledger has no
// generation.
func (l *Ledger) Use(g stock.Generation) { l.generation.Store(int64(g)) }

// Owner reads the owner of the stock.
func (l *Ledger) Owner(ctx context.Context) (Owner, error) { return readOwner(ctx, l.db) }

func readOwner(ctx context.Context, db sqltx.Reader) (o Owner, err error) {
	err = db.QueryRow(ctx, []any{&o.Generation, &o.Layout, &o.Queues, &o.Beat}, "SELECT generation, layout, queues, beat FROM ledger")
	if err != nil {
		return o, fmt.Errorf("reading the ledger's generation: %w", err)
	}
	return o, nil
}

// Beat raises the beat of the owner, and returns the owner as it is afterwards.
func (l *Ledger) Beat(ctx context.Context) (o Owner, err error) {
	err = l.transact(ctx, transactionTimeout, func(ctx context.Context, tx *sqltx.Tx) error {
		if _, err := tx.Exec(ctx, "UPDATE ledger SET beat = beat + 1"); err != nil {
			return err
		}
		o, err = readOwner(ctx, tx)
		return err
	})
	if err != nil {
		return Owner{}, fmt.Errorf("raising the ledger's beat: %w", err)
	}
	return o, nil
}

// RaiseGeneration gives the stock to the next owner, under its generation. It returns
// stock.ErrRowChanged if the row differs from seen.
func (l *Ledger) RaiseGeneration(ctx context.Context, seen, next Owner) error {
	err := l.transact(ctx, transactionTimeout, func(ctx context.Context, tx *sqltx.Tx) error {
		raised, err := tx.Exec(ctx, "UPDATE ledger SET generation = ?, layout = ?, queues = ? WHERE generation = ? AND layout = ?",
			next.Generation, next.Layout, next.Queues, seen.Generation, seen.Layout)
		if err == nil && raised == 0 {
			return stock.ErrRowChanged
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("raising the generation to %d: %w", next.Generation, err)
	}
	return nil
}
