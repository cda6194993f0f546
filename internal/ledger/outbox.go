package ledger

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// insertChange adds a change to the outbox, from which it goes to the gate.
func insertChange(c stock.Change) sqltx.Statement {
	return sqltx.Statement{
		SQL:  "INSERT INTO outbox (sku, epoch, number, delta, created_at) VALUES (?, ?, ?, ?, ?)",
		Args: []any{string(c.SKU), c.Epoch, c.Number, c.Delta, Now()},
	}
}

// deleteChanges removes all changes of the SKU.
func deleteChanges(ctx context.Context, tx *sqltx.Tx, sku stock.SKU) error {
	_, err := tx.Exec(ctx, "DELETE FROM outbox WHERE sku = ?", string(sku))
	return err
}

// Changes reads one page of changes that may not have been applied at the gate: those that follow
// after, sorted by SKU, epoch and number. If sku is not empty, it reads only that SKU's. last says
// that no more follow.
func (l *Ledger) Changes(ctx context.Context, sku stock.SKU, after stock.Change) (changes []stock.Change, last bool, err error) {
	query := "SELECT sku, epoch, number, delta FROM outbox WHERE (sku > ? OR sku = ? AND (epoch > ? OR epoch = ? AND number > ?))"
	args := []any{string(after.SKU), string(after.SKU), after.Epoch, after.Epoch, after.Number}
	if sku != "" {
		query += " AND sku = ?"
		args = append(args, string(sku))
	}
	fields := func(c *stock.Change) []any { return []any{&c.SKU, &c.Epoch, &c.Number, &c.Delta} }
	changes, err = sqltx.ReadAll(ctx, l.db, fields, query+" ORDER BY sku, epoch, number LIMIT ?", append(args, pageSize)...)
	if err != nil {
		return nil, false, fmt.Errorf("reading the outbox: %w", err)
	}
	return changes, len(changes) < pageSize, nil
}

// Applied removes changes that the gate has applied, or ignores because of their epoch, in one
// transaction.
func (l *Ledger) Applied(ctx context.Context, changes ...stock.Change) error {
	if len(changes) == 0 {
		return nil
	}
	sorted := slices.SortedFunc(slices.Values(changes), func(a, b stock.Change) int {
		return cmp.Or(cmp.Compare(a.SKU, b.SKU), cmp.Compare(a.Epoch, b.Epoch), cmp.Compare(a.Number, b.Number))
	}) // sorted, so that two calls for the same rows do not deadlock
	deletes := make([]sqltx.Statement, len(sorted))
	for i, c := range sorted {
		deletes[i] = sqltx.Statement{
			SQL:  "DELETE FROM outbox WHERE sku = ? AND epoch = ? AND number = ?",
			Args: []any{string(c.SKU), c.Epoch, c.Number},
		}
	}
	err := l.transact(ctx, transactionTimeout, func(_ context.Context, tx *sqltx.Tx) error {
		tx.AtCommit(deletes...)
		return nil
	})
	if err != nil {
		return fmt.Errorf("clearing the outbox: %w", err)
	}
	return nil
}
