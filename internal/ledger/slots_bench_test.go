package ledger

import (
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// BenchmarkSlowCommit measures how many orders of one SKU a second several instances commit,
// for 64 buyers, while PostgreSQL delays every flush of its log, and so every COMMIT, inside
// the row locks. commit_siblings = 0 makes it delay a lone COMMIT too.
func BenchmarkSlowCommit(b *testing.B) {
	const buyers = 64
	url := testenv.OwnPostgres(b, "-c", "fsync=on", "-c", "commit_siblings=0").NewDatabase()
	admin, err := store.OpenSQL(b.Context(), url)
	if err != nil {
		b.Fatal(err)
	}
	defer admin.Close()
	if err := admin.MigrateUp(b.Context()); err != nil {
		b.Fatal(err)
	}
	for _, delay := range []time.Duration{0, 5 * time.Millisecond, 10 * time.Millisecond, 20 * time.Millisecond} {
		for _, statement := range []string{
			fmt.Sprintf("ALTER SYSTEM SET commit_delay = %d", delay.Microseconds()), "SELECT pg_reload_conf()",
		} {
			if err := admin.DB().Exec(statement).Error; err != nil {
				b.Fatal(err)
			}
		}
		for _, instances := range []int{1, 2, 4, 8} {
			for _, way := range []struct {
				name   string
				cutter func() cutter.Cutter
			}{
				{"merged", cutter.Merged},
				{"slots", func() cutter.Cutter { return cutter.Slots(8) }},
			} {
				b.Run(fmt.Sprintf("delay=%v/instances=%d/%s", delay, instances, way.name), func(b *testing.B) {
					var ledgers []*Ledger
					for range instances {
						db, err := store.OpenSQL(b.Context(), url)
						if err != nil {
							b.Fatal(err)
						}
						defer db.Close()
						l := New(db.Ledger(), Options{
							Strategy: way.name, Cutter: way.cutter(), Group: 128, Parallel: 1,
							Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
						})
						defer l.Close()
						l.Use(generation)
						if err := l.MeasureClock(b.Context()); err != nil {
							b.Fatal(err)
						}
						ledgers = append(ledgers, l)
					}
					sku := fresh("hot")
					if _, _, err := ledgers[0].Set(b.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: 100_000_000}); err != nil {
						b.Fatal(err)
					}
					ledgers[0].Record(b.Context(), takeOf(sku)) // lends
					var (
						left atomic.Int64
						all  sync.WaitGroup
					)
					left.Store(int64(b.N))
					b.ResetTimer()
					for i := range buyers {
						all.Go(func() {
							for left.Add(-1) >= 0 {
								if _, out := ledgers[i%instances].Record(b.Context(), takeOf(sku)); !out.Committed() {
									b.Error(out.Reason())
									return
								}
							}
						})
					}
					all.Wait()
					b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "orders/s")
				})
			}
		}
	}
}
