package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter/cuttertest"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// The kinds of database for the tests.
var (
	servers   = testenv.AllVersions(testenv.NetworkDatabases())
	databases = testenv.AllVersions(testenv.Databases())
)

// database is a migrated database of one test.
type database struct {
	url string
	sql *store.SQL
}

// eachDatabase runs the test on a new database of each kind.
func eachDatabase(t *testing.T, kinds []testenv.Database, test func(t *testing.T, d *database)) {
	t.Helper()
	for _, k := range kinds {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			url := testenv.Patient(t, k.URL(t))
			d := &database{url, storetest.Migrated(t, url)}
			test(t, d)
		})
	}
}

// begin begins a transaction, which the end of the test rolls back.
func begin(t *testing.T, db *sqltx.DB) *sqltx.Tx {
	t.Helper()
	tx, err := db.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tx.Rollback)
	return tx
}

// exec runs a statement, which must succeed, on a *sqltx.DB or a *sqltx.Tx.
func exec(t *testing.T, on interface {
	Exec(ctx context.Context, sql string, args ...any) (affected int64, err error)
}, statement string, args ...any,
) {
	t.Helper()
	if _, err := on.Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// generation is the generation of the ledgers in these tests.
const generation stock.Generation = 1

// open returns a ledger that records groups with this cutter until the test ends.
func (d *database) open(t *testing.T, c cutter.Cutter) *Ledger { return openOn(t, d.sql.Ledger(), c) }

func openOn(t *testing.T, db *sqltx.DB, c cutter.Cutter) *Ledger {
	return openWith(t, db, Options{Cutter: c})
}

// openWith is openOn for a ledger with options.
func openWith(t *testing.T, db *sqltx.DB, o Options) *Ledger {
	o.Strategy, o.HasGate, o.Group, o.Parallel = "merged", true, 128, 1
	o.Log, o.Metrics = slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	l := New(db, o)
	t.Cleanup(l.Close)
	l.Use(generation)
	return l
}

// placeholder is an argument as PostgreSQL writes it.
var placeholder = regexp.MustCompile(`\$\d+`)

// openHooked returns a ledger with its own connections. Before each of its statements that contain
// the text, with ? for each argument, it calls do, and the statement fails with the error of do.
func (d *database) openHooked(t *testing.T, text string, do func() error) *Ledger {
	t.Helper()
	s := storetest.SQL(t, d.url)
	hook := func(db *gorm.DB) {
		if strings.Contains(placeholder.ReplaceAllString(db.Statement.SQL.String(), "?"), text) {
			_ = db.AddError(do())
		}
	}
	calls := s.DB().Callback()
	if err := errors.Join(calls.Row().Before("gorm:row").Register("hook", hook), calls.Raw().Before("gorm:raw").Register("hook", hook)); err != nil {
		t.Fatal(err)
	}
	return openOn(t, s.Ledger(), cutter.Merged())
}

// measureClock measures the database's clock. A busy machine may need several tries.
func measureClock(t *testing.T, l *Ledger) {
	t.Helper()
	testenv.Await(t, "the clock is measured", func() bool { return l.MeasureClock(t.Context()) == nil })
}

// lay creates the SKU's stock row.
func lay(t *testing.T, l *Ledger, sku stock.SKU, units int64) StockRow {
	t.Helper()
	row, created, err := l.Set(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: units})
	if err != nil || !created {
		t.Fatalf("creating the stock row of %s: created %v, %v", sku, created, err)
	}
	return row
}

// atRest checks that the SKU's stock row, its parts and its orders add up, with the given number of
// units sold. It reads the tables without the ledger.
func (d *database) atRest(t *testing.T, sku stock.SKU, want int64) {
	t.Helper()
	var (
		db                     = d.sql.Ledger()
		total, available, sold int64
	)
	if err := db.QueryRow(t.Context(), []any{&total, &available}, "SELECT total, available + COALESCE((SELECT SUM(available) FROM stock_parts WHERE stock_parts.sku = stock.sku), 0) FROM stock WHERE sku = ?", string(sku)); err != nil {
		t.Fatal(err)
	}
	const units = `SELECT COALESCE(SUM(quantity), 0) FROM order_lines
		WHERE sku = ? AND order_id IN (SELECT id FROM orders WHERE status IN ('pending', 'paid'))`
	if err := db.QueryRow(t.Context(), []any{&sold}, units, string(sku)); err != nil {
		t.Fatal(err)
	}
	if available+sold != total || sold != want {
		t.Errorf("%s: %d of %d units are available, %d sold; want %d sold", sku, available, total, sold, want)
	}
}

// fresh returns a new SKU for one test.
func fresh(name string) stock.SKU { return stock.SKU(name + "." + uuid.NewString()[:8]) }

// takeOf returns the take of one unit of each SKU.
func takeOf(skus ...stock.SKU) stock.Take {
	d := stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "buyer-1"}
	for _, sku := range skus {
		d.Lines = append(d.Lines, stock.Line{SKU: sku, Quantity: 1})
	}
	stock.SortLines(d.Lines)
	return stock.Take{Deduction: d}
}

// mustRecord commits the order of a take.
func mustRecord(t *testing.T, l *Ledger, take stock.Take) order.Order {
	t.Helper()
	o, out := l.Record(t.Context(), take)
	if !out.Committed() {
		t.Fatal(out.Reason())
	}
	return o
}

// place commits an order of one unit of each SKU.
func place(t *testing.T, l *Ledger, skus ...stock.SKU) order.Order {
	t.Helper()
	return mustRecord(t, l, takeOf(skus...))
}

// conflicting returns a cutter that reports the given number of conflicts.
func conflicting(c cutter.Cutter, conflicts int) cutter.Cutter {
	return cuttertest.WithCut(c, func(ctx context.Context, tx *sqltx.Tx, _ []stock.Take, cut cuttertest.Cut) ([]cutter.Decision, error) {
		if conflicts > 0 { // only one transaction at a time
			conflicts--
			return nil, cutter.ErrConflict
		}
		return cut(ctx, tx)
	})
}

// TestRetries checks that a transaction that meets conflicts is retried a bounded
// number of times, and that each conflict is counted.
func TestRetries(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		conflictsOf := func(l *Ledger) (counted *int) {
			counted = new(int)
			l.metrics.retries = retryHook{l.metrics.retries, func() { *counted++ }}
			return counted
		}
		check := func(t *testing.T, sku stock.SKU, out order.Outcome, want error, counted, conflicts int) {
			t.Helper()
			if !errors.Is(out.Reason(), want) || out.Unknown() || out.Committed() != (want == nil) || counted != conflicts {
				t.Errorf("outcome %+v after %d conflicts, want %v after %d", out, counted, want, conflicts)
			}
			sold := int64(0)
			if want == nil {
				sold = 1
			}
			d.atRest(t, sku, sold)
		}
		for _, test := range []struct {
			conflicts int
			want      error
		}{{maxTries - 1, nil}, {maxTries, stock.ErrBusy}} {
			t.Run(fmt.Sprint(test.conflicts), func(t *testing.T) {
				l := d.open(t, conflicting(cutter.Conditional(), test.conflicts))
				sku, counted := fresh("retries"), conflictsOf(l)
				lay(t, l, sku, 10)
				_, out := l.Record(t.Context(), takeOf(sku))
				check(t, sku, out, test.want, *counted, test.conflicts)
			})
			t.Run(fmt.Sprint("revive ", test.conflicts), func(t *testing.T) {
				l := d.open(t, cutter.Conditional())
				sku := fresh("retries")
				lay(t, l, sku, 10)
				expired := expire(t, l, place(t, l, sku).ID)
				l = d.open(t, conflicting(cutter.Conditional(), test.conflicts))
				counted := conflictsOf(l)
				_, out := l.Revive(t.Context(), expired, late(expired), string(sku))
				check(t, sku, out, test.want, *counted, test.conflicts)
			})
		}
	})
}
