package ledger

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// silentFrom names the points at which a database stops answering: its first statement, or the
// beginning of a transaction.
var silentFrom = map[string][]string{
	"from the first statement": {""},
	"in the transaction":       {"SELECT", "INSERT", "UPDATE", "DELETE"},
}

// throughWire returns a ledger on the database through a wire. Its sessions have a
// parameter of the dialect.
func (d *database) throughWire(t *testing.T, parameter map[sqltx.Dialect][2]string) (*Ledger, *faults.Wire) {
	t.Helper()
	wire, wireURL := faults.NewWire(t, d.url)
	u, err := url.Parse(wireURL)
	if err != nil {
		t.Fatal(err)
	}
	query, set := u.Query(), parameter[d.sql.Ledger().Dialect()]
	query.Set(set[0], set[1])
	u.RawQuery = query.Encode()
	l := openOn(t, storetest.SQL(t, u.String()).Ledger(), cutter.Merged())
	t.Cleanup(wire.Close) // closed first, so that the ledger's calls end
	return l, wire
}

// silent returns a ledger whose sessions have this bound for a statement. Its database does not
// answer statements that contain one of the texts.
func (d *database) silent(t *testing.T, bound time.Duration, texts []string) *Ledger {
	t.Helper()
	l, wire := d.throughWire(t, map[sqltx.Dialect][2]string{
		sqltx.MySQL:    {"readTimeout", bound.String()},
		sqltx.Postgres: {"statement_timeout", strconv.FormatInt(bound.Milliseconds(), 10)},
	})
	hang := make([]faults.Fault, len(texts))
	for n, text := range texts {
		hang[n] = faults.Fault{Kind: faults.Hung, Nth: 1, Times: faults.Always, Only: text}
	}
	wire.Arm(hang...)
	return l
}

// fail makes the calls at the same time. Each must return although nothing answers, and must not
// report success.
func fail(t *testing.T, calls map[string]func(ctx context.Context) (done bool)) {
	t.Helper()
	type result struct {
		name string
		done bool
	}
	results := make(chan result, len(calls))
	for name, call := range calls {
		go func() { results <- result{name, call(context.WithoutCancel(t.Context()))} }()
	}
	waiting := maps.Clone(calls)
	for len(waiting) > 0 {
		r := testenv.Receive(t, fmt.Sprintf("%v return", slices.Sorted(maps.Keys(waiting))), results)
		if delete(waiting, r.name); r.done {
			t.Errorf("%s says that it has done its work", r.name)
		}
	}
}

// silentCalls fills the database, and returns calls of the named methods, or of all. They use ledgers
// whose database stops answering at the points of silentFrom.
func (d *database) silentCalls(t *testing.T, bound time.Duration, names ...string) map[string]func(context.Context) (done bool) {
	t.Helper()
	l := d.open(t, cutter.Merged())
	sku := stock.SKU("silent")
	row := lay(t, l, sku, 10)
	placed, job := place(t, l, sku), claim(t, l, "job", "holder")
	argument := func(of reflect.Type) any {
		switch of {
		case reflect.TypeFor[string]():
			return "name"
		case reflect.TypeFor[int](), reflect.TypeFor[int64]():
			return 1
		case reflect.TypeFor[uuid.UUID]():
			return placed.ID
		case reflect.TypeFor[stock.SKU]():
			return sku
		case reflect.TypeFor[[]stock.SKU]():
			return []stock.SKU{sku}
		case reflect.TypeFor[[]StockRow]():
			return []StockRow{row}
		case reflect.TypeFor[[]stock.Change]():
			return []stock.Change{{SKU: sku}}
		case reflect.TypeFor[stock.Take]():
			return takeOf(sku)
		case reflect.TypeFor[stock.Deduction]():
			return takeOf(sku).Deduction
		case reflect.TypeFor[stock.Setting]():
			return stock.Setting{SKU: sku, Kind: stock.Product, Total: 11}
		case reflect.TypeFor[order.Order]():
			return placed
		case reflect.TypeFor[Job]():
			return job
		case reflect.TypeFor[*ExpiryRound]():
			return new(ExpiryRound)
		case reflect.TypeFor[order.ChangeOptions]():
			return order.ChangeOptions{Payment: "payment", Returns: true}
		case reflect.TypeFor[func(order.Locked) (order.Transition, error)]():
			return func(order.Locked) (order.Transition, error) {
				return order.Transition{To: order.Cancelled, Returns: true}, nil
			}
		}
		return reflect.Zero(of).Interface()
	}
	calls := make(map[string]func(context.Context) bool)
	for since, texts := range silentFrom {
		methods := reflect.ValueOf(d.silent(t, bound, texts))
		for m := range methods.Type().Methods() {
			method := methods.MethodByName(m.Name)
			of := method.Type()
			if of.NumIn() == 0 || of.In(0) != reflect.TypeFor[context.Context]() {
				continue
			}
			if len(names) > 0 && !slices.Contains(names, m.Name) {
				continue
			}
			call := method.Call
			if of.IsVariadic() {
				call = method.CallSlice
			}
			calls[m.Name+", silent "+since] = func(ctx context.Context) bool {
				args := []reflect.Value{reflect.ValueOf(ctx)}
				for n := 1; n < of.NumIn(); n++ {
					args = append(args, reflect.ValueOf(argument(of.In(n))).Convert(of.In(n)))
				}
				results := call(args)
				switch said := results[len(results)-1].Interface().(type) {
				case order.Outcome:
					return said.Committed()
				default:
					return said == nil
				}
			}
		}
	}
	return calls
}

// TestSilentDatabase calls every method on a database that stops answering, under a context without
// a deadline.
func TestSilentDatabase(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.NetworkDatabases(), func(t *testing.T, d *database) {
		fail(t, d.silentCalls(t, time.Second))
	})
}

// TestSilentTransaction checks that a transaction ends in time although its session allows long
// statements.
func TestSilentTransaction(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.NetworkDatabases(), func(t *testing.T, d *database) {
		calls := d.silentCalls(t, time.Hour, "Beat", "MeasureClock", "Order", "Record", "Revive", "Set")
		healthy := d.open(t, cutter.Merged())
		lay(t, healthy, "known", 10)
		known := as(place(t, healthy, "known"), takeOf("known"))
		lay(t, healthy, "locked", 10)
		t.Cleanup(storetest.LockRow(t, d.url, "locked"))
		asking := d.silent(t, time.Hour, []string{"SKIP LOCKED"})
		calls["Record of a locked SKU, silent when asked which rows are locked"] = func(ctx context.Context) bool {
			_, out := asking.Record(ctx, takeOf("locked"))
			return out.Committed()
		}
		reading := d.silent(t, time.Hour, []string{"SELECT id, take_id"})
		calls["Record of a known ID, silent when it is read"] = func(ctx context.Context) bool {
			_, out := reading.Record(ctx, known)
			return out.Committed()
		}
		fail(t, calls)
	})
}
