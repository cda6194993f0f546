package store

import (
	"context"
	"fmt"
	"slices"

	"gorm.io/gorm"
)

// LockedRows returns those of the stock rows that another transaction holds
// locked now. It locks the others for a moment. SQLite has no row locks: none.
func LockedRows(ctx context.Context, db *gorm.DB, skus ...string) (locked []string, err error) {
	if db.Name() == string(SQLite) || len(skus) == 0 {
		return nil, nil
	}
	tx := db.WithContext(ctx).Begin()
	if tx.Error != nil {
		return nil, fmt.Errorf("beginning: %w", tx.Error)
	}
	defer tx.Rollback()
	var all, free []string
	err = tx.Raw("SELECT sku FROM stock WHERE sku IN ? ORDER BY sku FOR UPDATE SKIP LOCKED", skus).Scan(&free).Error
	if err == nil {
		err = tx.Raw("SELECT sku FROM stock WHERE sku IN ? ORDER BY sku", skus).Scan(&all).Error
	}
	if err != nil {
		return nil, fmt.Errorf("asking which stock rows are locked: %w", err)
	}
	return slices.DeleteFunc(all, func(sku string) bool { return slices.Contains(free, sku) }), nil
}
