package assembly_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// reserving is a cutter that keeps units of every SKU in reserve, for example for exchanges. One
// UPDATE both checks and cuts.
type reserving struct{ reserve int64 }

func (c reserving) Plan(_ context.Context, _ *sqltx.DB, g stock.Generation, takes []stock.Take) (cutter.Plan, error) {
	return cutter.Plan{Cut: func(ctx context.Context, tx *sqltx.Tx) ([]cutter.Decision, error) {
		decisions := make([]cutter.Decision, len(takes))
		first, last := g.Epochs()
		for i, t := range takes {
			line := t.Lines[0] // the example's orders have one line
			updated, err := tx.Exec(ctx, `UPDATE stock SET available = available - ?
				WHERE sku = ? AND available - ? >= ? AND epoch BETWEEN ? AND ?`,
				line.Quantity, string(line.SKU), line.Quantity, c.reserve, first, last)
			switch {
			case err != nil:
				return nil, err
			case updated == 1:
				decisions[i] = cutter.Decision{Taken: true}
			default:
				decisions[i] = cutter.Refused(stock.Refuse(line.SKU, stock.ErrSoldOut))
			}
		}
		return decisions, nil
	}}, nil
}

// A strategy of your own is a gate, or none, and a cutter. This one has no gate, and
// its cutter never sells the last unit.
func Example_strategyOfYourOwn() {
	ctx := context.Background()
	stores, err := store.OpenEmbedded(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer stores.Close()
	ledgerID, err := stores.SQL().LedgerID(ctx)
	if err != nil {
		log.Fatal(err)
	}
	instance := assembly.New(stores.SQL().Ledger(), ledgerID, assembly.Strategy{
		Name: "reserving", Layout: "reserving", Cutter: reserving{reserve: 1}, Group: 1, Parallel: 4,
	}, assembly.Options{TakeDeadline: time.Minute, Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry()})
	defer instance.Close()
	if err := instance.Reconciler.Start(ctx); err != nil {
		log.Fatal(err)
	}
	if _, _, err := instance.Stock.SetStock(ctx, stock.Setting{SKU: "10001", Kind: stock.Product, Total: 3}); err != nil {
		log.Fatal(err)
	}
	for range 3 {
		_, _, err := instance.Orders.Place(ctx, order.Request{
			Buyer: "u-1", Lines: []stock.Line{{SKU: "10001", Quantity: 1}},
		})
		fmt.Println("placed:", err == nil, "sold out:", errors.Is(err, stock.ErrSoldOut))
	}
	// Output:
	// placed: true sold out: false
	// placed: true sold out: false
	// placed: false sold out: true
}
