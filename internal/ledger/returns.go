package ledger

import (
	"slices"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// returnUnits adds the units of the orders back to the stock rows, which tx must have locked, when
// tx commits. The outbox carries them to the gate: one change for each SKU and transaction.
// returnUnits returns these changes. A buyer's claim falls by the units that return.
//
// A row of another generation keeps its epoch. The change in the outbox has that epoch: an instance
// of its generation applies the change, or the next fill includes it.
func (l *Ledger) returnUnits(tx *sqltx.Tx, rows []StockRow, orders ...*order.Order) (returned []stock.Change) {
	units, byBuyer := unitsOf(orders)
	for _, row := range rows {
		if row.CountedTo.Valid { // while claims are counted, only counted orders have claims
			_, claimed := unitsOf(slices.DeleteFunc(slices.Clone(orders), func(o *order.Order) bool { return !row.CountedTo.Has(o.ID) }))
			byBuyer[row.SKU] = claimed[row.SKU]
		}
		n := units[row.SKU]
		if n == 0 {
			continue
		}
		forSale := row.add(n)
		row.Version++
		if forSale > 0 && (l.hasGate || stock.GenerationOf(row.Epoch) != l.Generation()) {
			row.Changes++
			c := stock.Change{SKU: row.SKU, Epoch: row.Epoch, Number: row.Changes, Delta: forSale}
			tx.AtCommit(insertChange(c))
			returned = append(returned, c)
		}
		tx.AtCommit(sqltx.Statement{
			SQL:  "UPDATE stock SET available = ?, version = ?, changes = ? WHERE sku = ?",
			Args: []any{row.Available, row.Version, row.Changes, string(row.SKU)},
		})
		if row.BuyerLimit == 0 {
			continue
		}
		for buyer, claimed := range byBuyer[row.SKU] {
			tx.AtCommit(sqltx.Statement{
				SQL:  "UPDATE claims SET units = units - ? WHERE sku = ? AND buyer_id = ?",
				Args: []any{claimed, string(row.SKU), buyer},
			})
		}
	}
	return returned
}

// unitsOf adds up the units of the orders by SKU, and by SKU and buyer.
func unitsOf(orders []*order.Order) (units map[stock.SKU]int64, byBuyer map[stock.SKU]map[string]int64) {
	units, byBuyer = make(map[stock.SKU]int64), make(map[stock.SKU]map[string]int64)
	for _, o := range orders {
		for _, line := range o.Lines {
			units[line.SKU] += line.Quantity
			if byBuyer[line.SKU] == nil {
				byBuyer[line.SKU] = make(map[string]int64)
			}
			byBuyer[line.SKU][o.Buyer] += line.Quantity
		}
	}
	return units, byBuyer
}
