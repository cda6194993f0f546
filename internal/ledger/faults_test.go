package ledger

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter/cuttertest"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// shelf is a SQLite ledger with data for every method, and an injector of faults.
type shelf struct {
	l, bare *Ledger // bare has no gate, and its cutter uses versions
	healthy *sqltx.DB
	faults  *faults.Injector

	contents
}

// contents is the data of a shelf.
type contents struct {
	pending, both, old, counted, uncounted, expired, void order.Order
	paid                                                  order.Order // paid by the payment "paid"; the payment "due" came later
	held, lapsed                                          Job
	change                                                stock.Change
}

const shelfGeneration stock.Generation = 2

// opening is a time that the ledger stores in UTC and in whole microseconds.
var opening = time.Date(2026, time.January, 2, 3, 4, 5, 6789, time.FixedZone("", 3600))

// limited returns the setting of a SKU with a buyer limit.
func limited(sku stock.SKU, total, limit int64) stock.Setting {
	return stock.Setting{SKU: sku, Kind: stock.Product, Total: total, BuyerLimit: &limit}
}

func plain(sku stock.SKU, total int64) stock.Setting {
	return stock.Setting{SKU: sku, Kind: stock.Product, Total: total}
}

// fill fills the shelf's database.
func (s *shelf) fill(t *testing.T) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, l := t.Context(), s.l
	set := func(settings ...stock.Setting) {
		t.Helper()
		for _, setting := range settings {
			_, _, err := l.Set(ctx, setting)
			must(err)
		}
	}
	measureClock(t, l)
	l.Use(shelfGeneration - 1)
	set(limited("old", 20, 10))
	s.old = place(t, l, "old")
	l.Use(shelfGeneration + 1)
	set(plain("later", 20))
	l.Use(shelfGeneration)
	set(limited("a", 20, 10), plain("b", 20), plain("c", 20), limited("d", 20, 10), plain("e", 20), limited("e", 20, 10), plain("b", 25), plain("parted", 20))
	s.pending, s.both, s.expired, s.paid = place(t, l, "a"), place(t, l, "a", "b"), place(t, l, "a"), place(t, l, "a")
	place(t, l, "d")
	set(limited("d", 20, 0)) // leaves its claims
	orders := []order.Order{place(t, l, "c"), place(t, l, "c"), place(t, l, "c")}
	slices.SortFunc(orders, func(a, b order.Order) int { return compareIDs(a.ID, b.ID) })
	s.counted, s.uncounted = orders[0], orders[2]
	set(limited("c", 20, 5))
	_, _, err := l.stepClaims(ctx, "c") // the count passes the first order
	must(err)
	s.expired = expire(t, l, s.expired.ID)
	for _, due := range []order.Order{place(t, l, "b"), place(t, l, "a"), place(t, l, "a", "b")} {
		exec(t, s.healthy, "UPDATE orders SET expires_at = ? WHERE id = ?", time.Now().Add(-time.Hour).UTC(), due.ID[:])
	}
	s.paid, _, err = l.Change(ctx, s.paid.ID, order.ChangeOptions{Payment: "paid"}, pay("paid"))
	must(err)
	_, _, err = l.Change(ctx, s.paid.ID, order.ChangeOptions{Payment: "due"}, pay("due"))
	must(err)
	never := takeOf("a")
	if out := l.Resolve(ctx, never.Deduction); !out.Refused() {
		t.Fatal(out.Reason())
	}
	found, err := l.Order(ctx, never.OrderID)
	must(err)
	s.void = *found
	s.held, s.lapsed = claim(t, l, "held", "holder"), claim(t, l, "lapsed", "holder")
	exec(t, s.healthy, "UPDATE jobs SET held_until = '2020-01-01 00:00:00+00:00' WHERE name = 'lapsed'")
	exec(t, s.healthy, "UPDATE jobs SET held_until = '9020-01-01 00:00:00+00:00' WHERE name = 'held'")
	exec(t, s.healthy, "UPDATE claims SET units = units + 1 WHERE sku = 'a'")
	changes, _, err := l.Changes(ctx, "b", stock.Change{})
	must(err)
	s.change = changes[0]
	owner, err := l.Owner(ctx)
	must(err)
	must(l.RaiseGeneration(ctx, owner, Owner{Generation: shelfGeneration, Layout: "layout"}))
	exec(t, s.healthy, "INSERT INTO stock_parts (sku, part, available, epoch) SELECT sku, 1, 3, epoch FROM stock WHERE sku = 'parted'")
}

// pay decides that a payment pays a pending order, and that any later payment is due back.
func pay(payment string) func(order.Locked) (order.Transition, error) {
	return func(s order.Locked) (order.Transition, error) {
		switch {
		case s.Payment != nil:
			return order.Transition{}, nil
		case s.Order.Status == order.Pending:
			return order.Transition{To: order.Paid, PaymentID: payment, PaymentStatus: order.PaymentPaid}, nil
		}
		return order.Transition{PaymentID: payment, PaymentStatus: order.PaymentRefundDue}, nil
	}
}

// openShelf opens the SQLite file with a driver that injects faults.
func openShelf(t *testing.T, path string, errs map[faults.Kind]error, has contents) *shelf {
	t.Helper()
	const parameters = "_txlock=immediate&_pragma=busy_timeout(5000)&_pragma=synchronous(off)"
	db, _, injector := storetest.FaultySQLite(t, "sqlite://"+path, parameters, errs)
	healthy := storetest.SQL(t, "sqlite://"+path+"?_pragma=synchronous(off)").Ledger()
	s := &shelf{healthy: healthy, faults: injector, contents: has}
	open := func(gate bool, c cutter.Cutter) *Ledger {
		l := New(db, Options{
			Strategy: "merged", Cutter: c, HasGate: gate, Group: 8, Parallel: 1, PaymentWindow: time.Hour,
			Log: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		})
		t.Cleanup(l.Close)
		l.Use(shelfGeneration)
		l.claimsAtOnce = 1
		measureClock(t, l)
		return l
	}
	s.l, s.bare = open(true, cutter.Merged()), open(false, cutter.Optimistic())
	return s
}

// tables returns the tables of the ledger.
func (s *shelf) tables(t *testing.T) (names []string) {
	t.Helper()
	err := s.healthy.QueryEach(t.Context(), func(rows *sql.Rows) error {
		var name string
		err := rows.Scan(&name)
		names = append(names, name)
		return err
	}, "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name <> 'schema_migrations' ORDER BY name")
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// times are the columns whose values depend on when a statement ran.
var times = []string{"created_at", "changed_at", "at", "expires_at", "queued_until"}

// state returns what the tables contain.
func (s *shelf) state(t *testing.T, tables []string) string {
	t.Helper()
	var text strings.Builder
	for _, table := range tables {
		err := s.healthy.QueryEach(t.Context(), func(rows *sql.Rows) error {
			names, err := rows.Columns()
			if err != nil {
				return err
			}
			values, dest := make([]any, len(names)), make([]any, len(names))
			for i := range values {
				dest[i] = &values[i]
			}
			if err := rows.Scan(dest...); err != nil {
				return err
			}
			text.WriteString("\n" + table + ":")
			for i, name := range names {
				switch at := values[i].(type) {
				case nil:
				case []byte:
					if len(at) == 16 {
						values[i] = uuid.UUID(at)
					}
				case time.Time:
					if name == "held_until" {
						values[i] = at.After(time.Now())
					} else if slices.Contains(times, name) {
						values[i] = "a time"
					}
				default:
					if slices.Contains(times, name) {
						values[i] = "a time"
					}
				}
				fmt.Fprintf(&text, " %s=%v", name, values[i])
			}
			return nil
		}, "SELECT * FROM "+table+" ORDER BY 1, 2, 3")
		if err != nil {
			t.Fatal(err)
		}
	}
	return text.String()
}

// timeText matches times other than the zero time in the form of %v.
var timeText = regexp.MustCompile(`[23]0\d\d-\d\d-\d\d \d\d:\d\d:\d\d[.\d]* \+0000 UTC( m=\S+)?`)

// shown returns the result of a call as a text without times.
func shown(result any, out order.Outcome) string {
	text := out.Kind()
	if found, ok := out.Duplicate(); ok {
		text += fmt.Sprintf(" %+v", *found)
	}
	if out.Committed() {
		text += fmt.Sprintf(" %+v", result)
	}
	return timeText.ReplaceAllString(text, "a time")
}

// outcomeOf returns the outcome that an error means.
func outcomeOf(err error) order.Outcome {
	switch {
	case err == nil:
		return order.Committed()
	case errors.Is(err, sqltx.ErrUnknownOutcome):
		return order.Unknown(err)
	}
	return order.Refused(err)
}

// call is a call of a method.
type call struct {
	name string
	want error // error of the call without faults; nil: the call succeeds
	do   func(ctx context.Context, s *shelf) (any, order.Outcome)
	// takes means that a refusal has a reason of Record.
	takes bool
	// open means that a failure does not show whether the take can still be committed.
	open bool
	// apart means that the call may use several transactions instead of one.
	apart bool
	// steps means that the call uses several transactions, and that the next call continues.
	steps bool
	// still means that the call changes nothing.
	still bool
}

// reads returns a call that returns a value and an error.
func reads[T any](name string, want error, do func(ctx context.Context, s *shelf) (T, error)) call {
	return call{name: name, want: want, do: func(ctx context.Context, s *shelf) (any, order.Outcome) {
		v, err := do(ctx, s)
		return v, outcomeOf(err)
	}}
}

// does returns a call that returns an error.
func does(name string, want error, do func(ctx context.Context, s *shelf) error) call {
	return call{name: name, want: want, do: func(ctx context.Context, s *shelf) (any, order.Outcome) {
		return nil, outcomeOf(do(ctx, s))
	}}
}

// records returns a call that returns an order and an outcome.
func records(name string, want error, do func(ctx context.Context, s *shelf) (order.Order, order.Outcome)) call {
	return call{name: name, want: want, takes: true, do: func(ctx context.Context, s *shelf) (any, order.Outcome) {
		return do(ctx, s)
	}}
}

// of returns the take with another number of units.
func of(take stock.Take, quantity int64) stock.Take {
	take.Lines[0].Quantity = quantity
	return take
}

// under returns the take as a gate cut it under the epoch.
func under(take stock.Take, epoch int64) stock.Take {
	take.Receipt = stock.Receipt{{Epoch: epoch}}
	return take
}

// queued returns the take of an order that was queued.
func queued(take stock.Take) stock.Take {
	take.QueuedAt = Now()
	return take
}

// as returns the take with the ID of the order.
func as(o order.Order, take stock.Take) stock.Take {
	take.OrderID = o.ID
	return take
}

// again returns the take that cut the order.
func again(o order.Order) stock.Take {
	return stock.Take{Deduction: stock.Deduction{OrderID: o.ID, TakeID: o.TakeID, Buyer: o.Buyer, Lines: o.Lines}}
}

// late returns the take that cuts the order's units again.
func late(o order.Order) stock.Take {
	take := again(o)
	take.TakeID = o.NextTake()
	return take
}

var errDeclined = errors.New("declined")

// callsOf returns calls of methods, on a shelf with the contents.
type callsOf func(contents) []call

// rules returns the setting with rules.
func rules(s stock.Setting) stock.Setting {
	limit, opens, closes := int64(7), opening, opening.Add(time.Hour)
	s.BuyerLimit, s.OpensAt, s.ClosesAt = &limit, &opens, &closes
	return s
}

// impossible returns the setting with hours that end when they begin.
func impossible(s stock.Setting) stock.Setting {
	opens, closes := opening, opening
	s.OpensAt, s.ClosesAt = &opens, &closes
	return s
}

// recordCalls are calls of Record.
func recordCalls(has contents) (cs []call) {
	record := func(name string, want error, take stock.Take) {
		cs = append(cs, records("Record "+name, want, func(ctx context.Context, s *shelf) (order.Order, order.Outcome) { return s.l.Record(ctx, take) }))
	}
	record("with a limit", nil, takeOf("a"))
	record("without a limit", nil, takeOf("b"))
	record("two SKUs", nil, takeOf("a", "b"))
	record("while claims are counted", nil, takeOf("c"))
	record("a queued order", nil, queued(takeOf("b")))
	record("too many", stock.ErrSoldOut, of(takeOf("b"), 100))
	record("above the limit", stock.ErrBuyerLimit, of(takeOf("a"), 8))
	record("unknown", stock.ErrUnknownSKU, takeOf("nothing"))
	record("not adopted", stock.ErrNotAdopted, takeOf("old"))
	record("of a later generation", stock.ErrLaterGeneration, takeOf("later"))
	record("under another epoch", stock.ErrStaleEpoch, under(takeOf("b"), 1))
	record("again", nil, again(has.pending))
	record("under a taken ID", nil, as(has.pending, takeOf("b")))
	record("under a void ID", nil, as(has.void, takeOf("b")))
	versions := takeOf("b")
	return append(cs, records("Record by versions", nil, func(ctx context.Context, s *shelf) (order.Order, order.Outcome) { return s.bare.Record(ctx, versions) }))
}

// has returns an error if the ledger has another row.
func (s *shelf) has(ctx context.Context, row StockRow) error {
	found, err := readRow(ctx, s.healthy, row.SKU, stockColumns, "")
	if err == nil && fmt.Sprint(found) != fmt.Sprint(row) {
		err = fmt.Errorf("%w: the ledger has %+v, not %+v", sqltx.ErrUnknownOutcome, found, row)
	}
	return err
}

// stockCalls are calls of the methods that change stock rows.
func stockCalls(has contents) (cs []call) {
	set := func(name string, want error, setting stock.Setting) {
		cs = append(cs, reads("Set "+name, want, func(ctx context.Context, s *shelf) (string, error) {
			row, created, err := s.l.Set(ctx, setting)
			if err == nil {
				err = s.has(ctx, row)
			}
			return fmt.Sprintf("%+v, created %v", row, created), err
		}))
	}
	set("creates", nil, rules(plain("new", 5)))
	set("raises", nil, plain("b", 30))
	set("the rules", nil, rules(plain("b", 30)))
	set("a limit again", nil, rules(plain("d", 20)))
	set("no new limit", nil, limited("a", 20, 7))
	set("nothing new", nil, plain("b", 25))
	cs[len(cs)-1].still = true
	set("shrinks", nil, plain("b", 20))
	cs[len(cs)-1].still = true
	set("impossible hours", stock.ErrHours, impossible(plain("b", 25)))
	set("impossible hours of a new SKU", stock.ErrHours, impossible(plain("new", 25)))
	set("another kind", stock.ErrKindFixed, stock.Setting{SKU: "b", Kind: stock.Coupon, Total: 30})
	set("not adopted", stock.ErrNotAdopted, plain("old", 30))
	set("of a later generation", stock.ErrLaterGeneration, plain("later", 30))

	shrinks := func(name string, want error, take stock.Take, setting stock.Setting) {
		cs = append(cs, call{name: "Shrink " + name, want: want, do: func(ctx context.Context, s *shelf) (any, order.Outcome) {
			row, out := s.l.Shrink(ctx, take, setting)
			if err := s.has(ctx, row); out.Committed() && err != nil {
				out = order.Unknown(err)
			}
			return row, out
		}})
	}
	shrinks("by 5", nil, of(takeOf("b"), 5), plain("b", 20))
	shrinks("and begins a limit", nil, of(takeOf("d"), 5), rules(plain("d", 15)))
	shrinks("by another number", stock.ErrRowChanged, of(takeOf("b"), 5), plain("b", 19))
	shrinks("below what is sold", stock.ErrBelowSold, of(takeOf("b"), 24), plain("b", 1))
	shrinks("under another epoch", stock.ErrStaleEpoch, under(of(takeOf("b"), 5), 1), plain("b", 20))
	shrinks("impossible hours", stock.ErrHours, of(takeOf("b"), 5), impossible(plain("b", 20)))
	shrinks("not adopted", stock.ErrNotAdopted, of(takeOf("old"), 5), plain("old", 15))
	shrinks("of a later generation", stock.ErrLaterGeneration, of(takeOf("later"), 5), plain("later", 15))
	shrinks("unknown", stock.ErrUnknownSKU, of(takeOf("nothing"), 5), plain("nothing", 15))

	rows := func(ctx context.Context, s *shelf, skus ...stock.SKU) []StockRow {
		seen := make([]StockRow, 0, len(skus))
		for _, sku := range skus {
			row, err := readRow(ctx, s.healthy, sku, stockColumns, "")
			if err != nil {
				panic(err)
			}
			seen = append(seen, row)
		}
		return seen
	}
	raise := func(name string, want error, sku stock.SKU, offset, above int64) {
		cs = append(cs, reads("RaiseEpoch "+name, want, func(ctx context.Context, s *shelf) (StockRow, error) {
			return s.l.RaiseEpoch(ctx, sku, rows(ctx, s, sku)[0].Epoch+offset, above)
		}))
	}
	_, last := shelfGeneration.Epochs()
	raise("", nil, "b", 0, 0)
	raise("adopts", nil, "old", 0, 0)
	raise("takes parts back", nil, "parted", 0, 0)
	raise("of another epoch", stock.ErrRowChanged, "b", 1, 0)
	raise("above the generation", stock.ErrLaterGeneration, "b", 0, last)
	cs = append(cs,
		reads("RaiseEpoch of no SKU", stock.ErrUnknownSKU, func(ctx context.Context, s *shelf) (StockRow, error) {
			return s.l.RaiseEpoch(ctx, "nothing", 0, 0)
		}),
		reads("RaiseEpochs", nil, func(ctx context.Context, s *shelf) ([]StockRow, error) {
			seen := rows(ctx, s, "a", "b", "old", "parted")
			seen[0].Epoch++
			return s.l.RaiseEpochs(ctx, seen, 0)
		}),
		reads("RaiseEpochs of other epochs", nil, func(ctx context.Context, s *shelf) ([]StockRow, error) {
			return s.l.RaiseEpochs(ctx, []StockRow{{SKU: "a"}, {SKU: "b"}}, 0)
		}),
		reads("RaiseEpochs of a later generation", stock.ErrLaterGeneration, func(ctx context.Context, s *shelf) ([]StockRow, error) {
			return s.l.RaiseEpochs(ctx, rows(ctx, s, "a", "later"), 0)
		}),
		does("Correct", nil, func(ctx context.Context, s *shelf) error { return s.l.Correct(ctx, "a", 0) }),
		does("Correct without a limit", nil, func(ctx context.Context, s *shelf) error { return s.l.Correct(ctx, "b", 0) }),
		does("Correct above the generation", stock.ErrLaterGeneration, func(ctx context.Context, s *shelf) error { return s.l.Correct(ctx, "b", last) }),
		does("Correct no SKU", stock.ErrUnknownSKU, func(ctx context.Context, s *shelf) error { return s.l.Correct(ctx, "nothing", 0) }),
		does("Applied", nil, func(ctx context.Context, s *shelf) error { return s.l.Applied(ctx, has.change, has.change) }),
	)
	return cs
}

// first returns the order that a Change returns, without the additions.
func first(o order.Order, _ []stock.Change, err error) (order.Order, error) { return o, err }

// changeCalls are calls of the methods that change orders and payments.
func changeCalls(has contents) (cs []call) {
	change := func(name string, want error, o order.Order, ask order.ChangeOptions, decide func(order.Locked) (order.Transition, error)) {
		cs = append(cs, reads("Change "+name, want, func(ctx context.Context, s *shelf) (order.Order, error) {
			return first(s.l.Change(ctx, o.ID, ask, decide))
		}))
	}
	cancel := func(from order.Status) func(order.Locked) (order.Transition, error) {
		return become(from, order.Cancelled, true)
	}
	change("pays", nil, has.pending, order.ChangeOptions{Payment: "new"}, pay("new"))
	change("pays again", nil, has.paid, order.ChangeOptions{Payment: "paid"}, pay("paid"))
	change("takes a late payment", nil, has.expired, order.ChangeOptions{Payment: "new"}, pay("new"))
	change("cancels", nil, has.pending, order.ChangeOptions{Returns: true}, cancel(order.Pending))
	change("cancels two SKUs", nil, has.both, order.ChangeOptions{Returns: true}, cancel(order.Pending))
	change("cancels a counted order", nil, has.counted, order.ChangeOptions{Returns: true}, cancel(order.Pending))
	change("cancels an uncounted order", nil, has.uncounted, order.ChangeOptions{Returns: true}, cancel(order.Pending))
	change("cancels an order that is not adopted", nil, has.old, order.ChangeOptions{Returns: true}, cancel(order.Pending))
	change("cancels nothing", nil, has.paid, order.ChangeOptions{Returns: true}, cancel(order.Pending))
	change("refunds", nil, has.paid, order.ChangeOptions{Returns: true}, func(s order.Locked) (order.Transition, error) {
		if s.Order.Status == order.Refunded {
			return order.Transition{}, nil
		}
		return order.Transition{To: order.Refunded, Returns: true, PaymentID: "paid", PaymentStatus: order.PaymentRefunded}, nil
	})
	change("is declined", errDeclined, has.paid, order.ChangeOptions{}, func(order.Locked) (order.Transition, error) { return order.Transition{}, errDeclined })
	change("of no order", order.ErrUnknownOrder, order.Order{ID: uuid.New()}, order.ChangeOptions{}, pay("new"))
	change("of another buyer's order", order.ErrUnknownOrder, has.pending, order.ChangeOptions{Buyer: "another", Returns: true}, cancel(order.Pending))
	change("of the buyer's order", nil, has.pending, order.ChangeOptions{Buyer: has.pending.Buyer, Returns: true}, cancel(order.Pending))
	change("of a void order", order.ErrUnknownOrder, has.void, order.ChangeOptions{}, pay("new"))
	bare := func(name string, o order.Order, additions int) {
		cs = append(cs, reads("Change cancels "+name+" without a gate", nil, func(ctx context.Context, s *shelf) (order.Order, error) {
			o, returned, err := s.bare.Change(ctx, o.ID, order.ChangeOptions{Returns: true}, cancel(order.Pending))
			if err == nil && len(returned) != additions {
				err = fmt.Errorf("%w: the additions are %+v", sqltx.ErrUnknownOutcome, returned)
			}
			return o, err
		}))
	}
	bare("an order", has.pending, 0)
	bare("an order that is not adopted", has.old, 1) // its owner may have a gate

	refund := func(name string, want error, id string) {
		cs = append(cs, reads("Refunded "+name, want, func(ctx context.Context, s *shelf) (order.Payment, error) { return s.l.Refunded(ctx, id) }))
	}
	refund("", nil, "due")
	refund("of a payment that is not due", nil, "paid")
	refund("of no payment", order.ErrUnknownPayment, "nothing")
	return cs
}

// takeCalls are calls of the methods that settle takes whose order exists or may exist.
func takeCalls(has contents) (cs []call) {
	stale := has.expired
	stale.Version--
	revived := late(has.expired)
	cs = append(cs,
		records("Revive", nil, func(ctx context.Context, s *shelf) (order.Order, order.Outcome) {
			return s.l.Revive(ctx, has.expired, revived, "new")
		}),
		records("Revive by versions", nil, func(ctx context.Context, s *shelf) (order.Order, order.Outcome) {
			return s.bare.Revive(ctx, has.expired, revived, "new")
		}),
		records("Revive a changed order", stock.ErrRowChanged, func(ctx context.Context, s *shelf) (order.Order, order.Outcome) {
			return s.l.Revive(ctx, stale, revived, "new")
		}),
		records("Revive by a known payment", stock.ErrRowChanged, func(ctx context.Context, s *shelf) (order.Order, order.Outcome) {
			return s.l.Revive(ctx, has.expired, revived, "due")
		}),
		records("Revive under another epoch", stock.ErrStaleEpoch, func(ctx context.Context, s *shelf) (order.Order, order.Outcome) {
			return s.l.Revive(ctx, has.expired, under(revived, 1), "new")
		}),
	)
	settle := func(name string, want error, do func(ctx context.Context, s *shelf) order.Outcome) {
		cs = append(cs, call{name: name, want: want, open: true, do: func(ctx context.Context, s *shelf) (any, order.Outcome) {
			return nil, do(ctx, s)
		}})
	}
	for name, take := range map[string]stock.Take{"a new order": queued(takeOf("b")), "another take": as(has.pending, takeOf("a")), "a void order": as(has.void, takeOf("a"))} {
		settle("RecordRefusal "+name, errVoided, func(ctx context.Context, s *shelf) order.Outcome { return s.l.RecordRefusal(ctx, take) })
		settle("Resolve "+name, errVoided, func(ctx context.Context, s *shelf) order.Outcome { return s.l.Resolve(ctx, take.Deduction) })
	}
	settle("RecordRefusal a committed order", nil, func(ctx context.Context, s *shelf) order.Outcome { return s.l.RecordRefusal(ctx, again(has.pending)) })
	settle("Resolve a committed order", nil, func(ctx context.Context, s *shelf) order.Outcome {
		return s.l.Resolve(ctx, again(has.pending).Deduction)
	})
	settle("Resolve the late take of an expired order", errVoided, func(ctx context.Context, s *shelf) order.Outcome { return s.l.Resolve(ctx, revived.Deduction) })
	settle("Resolve the first take of an expired order", nil, func(ctx context.Context, s *shelf) order.Outcome {
		return s.l.Resolve(ctx, again(has.expired).Deduction)
	})
	return cs
}

// jobCalls are calls of the background work.
func jobCalls(has contents) (cs []call) {
	expires := func(name string, want error, job Job) {
		c := reads("Expire "+name, want, func(ctx context.Context, s *shelf) (string, error) {
			var (
				round   ExpiryRound
				expired int
				skus    = make(map[stock.SKU]bool)
			)
			for {
				e, err := s.l.Expire(ctx, job, &round, 10)
				if err != nil {
					return "", err
				}
				if e.Failed > 0 {
					return "", errors.New("orders are passed over")
				}
				expired += e.Expired
				for _, c := range e.Returned {
					skus[c.SKU] = true
				}
				if !e.More {
					return fmt.Sprint(expired, skus), nil
				}
			}
		})
		c.apart = true
		cs = append(cs, c)
	}
	expires("", nil, has.held)
	expires("for another job", ErrJobLost, Job{"held", "holder", 7})

	counts := func(name string, sku stock.SKU, want error) {
		c := reads("CountClaims "+name, want, func(ctx context.Context, s *shelf) (StockRow, error) { return s.l.CountClaims(ctx, sku) })
		c.steps = true
		cs = append(cs, c)
	}
	counts("goes on", "c", nil)
	counts("deletes", "d", nil)
	counts("begins", "e", nil)
	counts("has nothing to do", "a", nil)
	counts("of no SKU", "nothing", stock.ErrUnknownSKU)

	seen := Owner{Generation: shelfGeneration, Layout: "layout"}
	cs = append(cs,
		reads("Beat", nil, func(ctx context.Context, s *shelf) (Owner, error) { return s.l.Beat(ctx) }),
		does("RaiseGeneration", nil, func(ctx context.Context, s *shelf) error {
			return s.l.RaiseGeneration(ctx, seen, Owner{Generation: 7, Layout: "next"})
		}),
		does("RaiseGeneration of another", stock.ErrRowChanged, func(ctx context.Context, s *shelf) error {
			return s.l.RaiseGeneration(ctx, Owner{}, Owner{Generation: 7, Layout: "next"})
		}),
		reads("ClaimJob", nil, func(ctx context.Context, s *shelf) (Job, error) { return s.l.ClaimJob(ctx, "new", "me") }),
		reads("ClaimJob that lapsed", nil, func(ctx context.Context, s *shelf) (Job, error) { return s.l.ClaimJob(ctx, "lapsed", "me") }),
		reads("ClaimJob that is held", ErrJobHeld, func(ctx context.Context, s *shelf) (Job, error) { return s.l.ClaimJob(ctx, "held", "me") }),
		does("RenewJob", nil, func(ctx context.Context, s *shelf) error { return s.l.RenewJob(ctx, has.lapsed) }),
		does("RenewJob of another", ErrJobLost, func(ctx context.Context, s *shelf) error { return s.l.RenewJob(ctx, Job{"lapsed", "me", 1}) }),
		does("ReleaseJob", nil, func(ctx context.Context, s *shelf) error { return s.l.ReleaseJob(ctx, has.held) }),
		does("ReleaseJob of another", ErrJobLost, func(ctx context.Context, s *shelf) error { return s.l.ReleaseJob(ctx, Job{"held", "me", 1}) }),
	)
	return cs
}

// readCalls are calls of the methods that only read.
func readCalls(has contents) (cs []call) {
	skus := []stock.SKU{"a", "b", "c", "d", "nothing"}
	cs = append(cs,
		reads("Order", nil, func(ctx context.Context, s *shelf) (string, error) {
			o, err := s.l.Order(ctx, has.both.ID)
			if err != nil {
				return "", err
			}
			return fmt.Sprintf("%+v", *o), nil
		}),
		reads("Order that is none", order.ErrUnknownOrder, func(ctx context.Context, s *shelf) (*order.Order, error) { return s.l.Order(ctx, uuid.New()) }),
		reads("Orders", nil, func(ctx context.Context, s *shelf) ([]order.Order, error) {
			return s.l.Orders(ctx, order.Filter{Limit: 20})
		}),
		reads("Orders of a status", nil, func(ctx context.Context, s *shelf) ([]order.Order, error) {
			return s.l.Orders(ctx, order.Filter{Buyer: "buyer-1", Status: order.Paid, Limit: 20})
		}),
		reads("Orders of nobody", nil, func(ctx context.Context, s *shelf) ([]order.Order, error) {
			return s.l.Orders(ctx, order.Filter{Buyer: "nobody", Limit: 20})
		}),
		reads("History", nil, func(ctx context.Context, s *shelf) ([]order.Step, error) { return s.l.History(ctx, has.expired.ID, 7) }),
		reads("Payments", nil, func(ctx context.Context, s *shelf) ([]order.Payment, error) {
			return s.l.Payments(ctx, order.PaymentFilter{Limit: 20})
		}),
		reads("RefundsDue", nil, func(ctx context.Context, s *shelf) (string, error) {
			n, oldest, err := s.l.RefundsDue(ctx, 20)
			return fmt.Sprint(n, 0 <= oldest && oldest < time.Hour), err
		}),
		reads("Due", nil, func(ctx context.Context, s *shelf) (string, error) {
			n, oldest, err := s.l.Due(ctx, 20)
			return fmt.Sprint(n, oldest > 0), err
		}),
		reads("Jobs", nil, func(ctx context.Context, s *shelf) ([]Job, error) { return s.l.Jobs(ctx) }),
		reads("Changes", nil, func(ctx context.Context, s *shelf) (string, error) {
			changes, last, err := s.l.Changes(ctx, "", stock.Change{})
			return fmt.Sprint(changes, last), err
		}),
		reads("Owner", nil, func(ctx context.Context, s *shelf) (Owner, error) { return s.l.Owner(ctx) }),
		reads("Row", nil, func(ctx context.Context, s *shelf) (StockRow, error) { return s.l.Row(ctx, "a") }),
		reads("Row of no SKU", stock.ErrUnknownSKU, func(ctx context.Context, s *shelf) (StockRow, error) { return s.l.Row(ctx, "nothing") }),
		reads("Rows", nil, func(ctx context.Context, s *shelf) ([]StockRow, error) { return s.l.Rows(ctx, "a", 20) }),
		reads("RowsOf", nil, func(ctx context.Context, s *shelf) ([]StockRow, error) { return s.l.RowsOf(ctx, skus) }),
		reads("Counts", nil, func(ctx context.Context, s *shelf) ([]Count, error) { return s.l.Counts(ctx, skus) }),
		reads("Recount", nil, func(ctx context.Context, s *shelf) ([]Count, error) { return s.l.Recount(ctx, skus) }),
		reads("WrongClaims", nil, func(ctx context.Context, s *shelf) ([]Claim, error) { return s.l.WrongClaims(ctx, skus, 20) }),
	)
	for n := range cs {
		cs[n].still = true
	}
	return cs
}

func TestFaults_Record(t *testing.T) { testFaults(t, recordCalls) }
func TestFaults_Stock(t *testing.T)  { testFaults(t, stockCalls) }
func TestFaults_Change(t *testing.T) { testFaults(t, changeCalls) }
func TestFaults_Take(t *testing.T)   { testFaults(t, takeCalls) }
func TestFaults_Job(t *testing.T)    { testFaults(t, jobCalls) }
func TestFaults_Read(t *testing.T)   { testFaults(t, readCalls) }

// testFaults makes each call while each of its statements fails in turn, in each way. The call must
// either fail as a whole, or have the same result and effect as without the fault. It must report
// correctly whether it may have had an effect. Unless the run is thorough, each statement fails in
// a third of the ways, because many calls have the same statements.
func testFaults(t *testing.T, calls callsOf) {
	t.Parallel()
	template := openTemplate(t)
	for turn, c := range calls(template.contents) {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			template.copy(t).testFaults(t, c, turn)
		})
	}
}

// template is a database file that each shelf gets a copy of.
type template struct {
	path string
	errs map[faults.Kind]error // errors of SQLite
	contents
}

func openTemplate(t *testing.T) template {
	t.Helper()
	u, err := url.Parse(storetest.MigratedURL(t, testenv.SQLite(t)))
	if err != nil {
		t.Fatal(err)
	}
	errs := storetest.SQLiteErrors(t)
	s := openShelf(t, u.Path, errs, contents{})
	s.fill(t)
	exec(t, s.healthy, "VACUUM INTO ?", u.Path+".template")
	return template{u.Path + ".template", errs, s.contents}
}

// copy opens a copy of the template.
func (f template) copy(t *testing.T) *shelf {
	t.Helper()
	content, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(testenv.SQLite(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(u.Path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return openShelf(t, u.Path, f.errs, f.contents)
}

// snapshot returns a function that undoes the changes since then.
func (s *shelf) snapshot(t *testing.T, tables []string) (restore func()) {
	t.Helper()
	for _, table := range tables {
		exec(t, s.healthy, "CREATE TABLE saved_"+table+" AS SELECT * FROM "+table)
	}
	return func() {
		t.Helper()
		err := s.healthy.Transact(t.Context(), func(tx *sqltx.Tx) error {
			var statements []sqltx.Statement
			for _, table := range tables {
				statements = append(statements, sqltx.Statement{SQL: "DELETE FROM " + table},
					sqltx.Statement{SQL: "INSERT INTO " + table + " SELECT * FROM saved_" + table})
			}
			_, err := tx.ExecAll(t.Context(), statements...)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// stockRow matches a stock row in a state.
var stockRow = regexp.MustCompile(`(?m)^stock: sku=(\S+) .* version=(\d+) .*$`)

// checkChange checks that each changed stock row has a higher version. Otherwise a cutter that read
// the row before would write it. It also checks that no addition for the gate is empty.
func checkChange(t *testing.T, before, after string) {
	t.Helper()
	rows := make(map[string][]string)
	for _, row := range stockRow.FindAllStringSubmatch(before, -1) {
		rows[row[1]] = row
	}
	for _, row := range stockRow.FindAllStringSubmatch(after, -1) {
		if was := rows[row[1]]; was != nil && was[0] != row[0] && was[2] == row[2] {
			t.Errorf("a row has changed under its version\nfrom %s\nto   %s", was[0], row[0])
		}
	}
	if strings.Contains(after, " delta=0 ") {
		t.Errorf("an addition has no units%s", after)
	}
}

func (s *shelf) testFaults(t *testing.T, c call, turn int) {
	tables := s.tables(t)
	untouched := s.state(t, tables)
	before := c.compared(untouched)
	restore := s.snapshot(t, tables)
	result, out := c.do(t.Context(), s)
	if !errors.Is(out.Reason(), c.want) || out.Unknown() {
		t.Fatalf("without a fault: %s, %v, want %v", out.Kind(), out.Reason(), c.want)
	}
	changed := s.state(t, tables)
	sound, after := shown(result, out), c.compared(changed)
	if !c.takes { // only the optimistic cutter raises the version
		checkChange(t, untouched, changed)
	}
	if c.want != nil && errors.Is(out.Reason(), stock.ErrBusy) {
		t.Errorf("it says that it is busy: %v", out.Reason())
	}
	if (c.still || c.want != nil && !c.open) && after != before {
		t.Errorf("it has changed something\nstate before%s\nstate after%s", before, after)
	}
	restore()
	s.faults.Arm(faults.Fault{Kind: faults.Gone, Nth: 1})
	if _, err := s.l.Owner(t.Context()); err == nil {
		t.Fatal("the database is not unreachable")
	}
	result, out = c.do(t.Context(), s)
	s.faults.Disarm()
	if state := c.compared(s.state(t, tables)); state != before || !errors.Is(out.Reason(), io.ErrUnexpectedEOF) || out.Unknown() != c.open {
		t.Errorf("while the database is unreachable: %s, %v\nstate before%s\nstate after%s", shown(result, out), out.Reason(), before, state)
	}
	for way, kind := range []faults.Kind{faults.Refused, faults.Lost, faults.BadValue, faults.Duplicate, faults.LockTimeout, faults.Garbled} {
		only := ""
		switch kind {
		case faults.Lost:
			only = "COMMIT"
		case faults.Garbled:
			only = "SELECT"
		}
		first, stride := 1, 1
		if !testenv.Thorough() && kind != faults.Lost {
			first, stride = 1+(way+turn)%3, 3
		}
		for n := first; ; n += stride {
			s.faults.Arm(faults.Fault{Kind: kind, Nth: n, Only: only})
			result, out := c.do(t.Context(), s)
			_, injected := s.faults.Disarm()
			state := c.compared(s.state(t, tables))
			text := strings.Join(injected, ", ")
			if problem := c.judge(kind, text, out, shown(result, out) == sound && state == after, state == before); problem != "" {
				t.Errorf("%s: %s: %s %v\nsound: %s\nstate before%s\nstate after%s\nstate now%s", text, problem, shown(result, out), out.Reason(), sound, before, after, state)
				return
			}
			if c.steps && out.Refused() && c.want == nil {
				result, out := c.do(t.Context(), s)
				if got := shown(result, out); got != sound || s.state(t, tables) != after {
					t.Errorf("%s: the next call does not go on: %s, %v", text, got, out.Reason())
				}
				restore()
			} else if state != before {
				restore()
			}
			if len(injected) == 0 { // all statements have failed in turn
				break
			}
		}
	}
}

// several matches texts that depend on the number of transactions.
var several = regexp.MustCompile(`\noutbox:[^\n]*| version=\d+ changes=\d+`)

// compared returns the part of a state that must be the same as without faults.
func (c call) compared(state string) string {
	if c.apart {
		return several.ReplaceAllString(state, "")
	}
	return state
}

// judge returns an error if the outcome of a call under a fault is wrong. done says that result and
// state are those of a call without faults. unchanged says that the state has not changed.
func (c call) judge(kind faults.Kind, fault string, out order.Outcome, done, unchanged bool) string {
	busy := !errors.Is(out.Reason(), stock.ErrRowChanged) && !errors.Is(out.Reason(), c.want)
	commit, rollback := strings.HasSuffix(fault, "COMMIT"), strings.HasSuffix(fault, "ROLLBACK")
	again := c.takes || c.open || c.apart // after a bad value, the call tries again
	switch {
	case out.Unknown() && errors.Is(out.Reason(), stock.ErrBusy):
		return "it says that nothing was changed, and that this is unknown"
	case done && c.want == nil && kind == faults.BadValue && fault != "" && !rollback && !again:
		return "the error is lost"
	case c.open && kind == faults.Refused && fault != "" && !rollback && !out.Unknown():
		return "it does not say that the database did not answer"
	case done && (c.want == nil || errors.Is(out.Reason(), c.want)) && (kind != faults.Refused || rollback || out.Committed() || errors.Is(out.Reason(), c.want)):
		return ""
	case c.open && kind == faults.BadValue && out.Refused() && !unchanged: // RecordRefusal leaves out the value that may be bad
		return ""
	case out.Committed():
		return "it says that it has done its work"
	case kind == faults.Refused && !errors.Is(out.Reason(), io.ErrUnexpectedEOF):
		return "the error of the database is lost"
	case kind == faults.LockTimeout && (commit || strings.Contains(fault, "BEGIN")):
		return "it does not try again"
	case c.takes && out.Refused() && busy && !errors.Is(out.Reason(), stock.ErrBusy):
		return "it does not say that it is busy"
	case c.takes && out.Refused() && busy && kind == faults.BadValue && strings.Contains(fault, "INSERT") && !errors.Is(out.Reason(), ErrRejected):
		return "it does not say that the order can never be recorded"
	case out.Refused() && !unchanged && !c.steps:
		return "it says that nothing has changed"
	case out.Refused() && kind == faults.Lost && !c.steps:
		return "it says that nothing was committed"
	case out.Refused() && c.open:
		return "it says that the take is not committed and never will be"
	case out.Unknown() && !commit && !c.open:
		return "it does not say that nothing was committed"
	case kind != faults.Lost && !unchanged && !c.steps && !(c.open && out.Unknown()):
		return "a part of the work is done"
	}
	return ""
}

// TestFaults_GroupDivided checks that repeats of orders are not tried once the database cannot be
// reached for a half of their group.
func TestFaults_GroupDivided(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	first, second := recordingOf("b"), recordingOf("b")
	repeat := repeatOf(first)
	const insert = "INSERT INTO orders"
	// One fault is for the group, the other for its second half.
	s.faults.Arm(faults.Fault{Kind: faults.Duplicate, Nth: 1, Only: insert}, faults.Fault{Kind: faults.Refused, Nth: 3, Only: insert})
	s.l.recordGroup([]*recording{first, second, repeat}, new(slowGroup))
	_, hit := s.faults.Disarm()
	for n, r := range []*recording{first, second, repeat} {
		reason := r.outcome.Reason()
		if r.outcome.Committed() != (n == 0) || n > 0 && (!errors.Is(reason, io.ErrUnexpectedEOF) || !strings.Contains(reason.Error(), "inserting orders")) {
			t.Errorf("order %d after %q: %s, %v", n+1, hit, r.outcome.Kind(), reason)
		}
	}
}

// TestFaults_NotBlocked checks that Resolve does not report a take as refused while a revival can
// still commit it.
func TestFaults_NotBlocked(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	exec(t, s.healthy, "UPDATE orders SET status = 'expired' WHERE id = ?", s.healthy.Dialect().UUID(s.pending.ID))
	s.faults.Arm(faults.Fault{Kind: faults.Refused, Nth: 1, Only: "UPDATE orders"})
	resolve(t, s.l, as(s.pending, takeOf("a")), "unknown")
	if _, hit := s.faults.Disarm(); len(hit) != 1 {
		t.Errorf("after %q", hit)
	}
	resolve(t, s.l, as(s.pending, takeOf("a")), "refused")
}

// TestFaults_ResolveChangesNothing checks that resolving a take of a pending order does not update
// the order. So it does not wait while the order is being paid.
func TestFaults_ResolveChangesNothing(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	s.faults.Arm(faults.Fault{Kind: faults.Refused, Nth: 1, Only: "UPDATE orders"})
	resolve(t, s.l, as(s.pending, takeOf("a")), "refused")
	s.faults.Disarm()
}

// TestFaults_GroupCommit checks that only the orders of a group that its COMMIT covers are unknown.
// The others are neither sold out nor above the limit, because units may be left for them.
func TestFaults_GroupCommit(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	fits, tooMany, limited, nothing := recordingOf("b"), recordingOf("b"), recordingOf("a"), recordingOf("unknown")
	tooMany.take, limited.take = of(tooMany.take, 100), of(limited.take, 8)
	s.faults.Arm(faults.Fault{Kind: faults.Lost, Nth: 1, Only: "COMMIT"})
	s.l.recordGroup([]*recording{fits, tooMany, limited, nothing}, new(slowGroup))
	s.faults.Disarm()
	if out := fits.outcome; !out.Unknown() || !errors.Is(out.Reason(), io.ErrUnexpectedEOF) {
		t.Errorf("the order that fits: %s, %v", out.Kind(), out.Reason())
	}
	for name, r := range map[string]*recording{"that does not fit": tooMany, "above the limit": limited} {
		if out := r.outcome; !out.Refused() || !errors.Is(out.Reason(), stock.ErrBusy) || stock.Final(out.Reason()) {
			t.Errorf("the order %s: %s, %v", name, out.Kind(), out.Reason())
		}
	}
	if out := nothing.outcome; !out.Refused() || !errors.Is(out.Reason(), stock.ErrUnknownSKU) {
		t.Errorf("the order of an unknown SKU: %s, %v", out.Kind(), out.Reason())
	}
}

// TestFaults_JobClaimed checks that a job counts as held if another instance claims it at the same
// time.
func TestFaults_JobClaimed(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	s.faults.Arm(faults.Fault{Kind: faults.Duplicate, Nth: 1, Only: "INSERT INTO jobs"})
	j, err := s.l.ClaimJob(t.Context(), "new", "me")
	s.faults.Disarm()
	if !errors.Is(err, ErrJobHeld) || j != (Job{}) {
		t.Errorf("%+v, %v", j, err)
	}
}

// TestFaults_ChangeGivenUp checks that the outcome stays unknown if a COMMIT was not answered and
// the caller gives up.
func TestFaults_ChangeGivenUp(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	ctx, giveUp := context.WithCancel(t.Context())
	s.faults.Arm(faults.Fault{Kind: faults.HungDone, Nth: 1, Only: "COMMIT"})
	answer := make(chan error, 1)
	go func() {
		_, _, err := s.l.Change(ctx, s.pending.ID, order.ChangeOptions{Payment: "new"}, pay("new"))
		answer <- err
	}()
	testenv.Await(t, "the order is paid", func() bool {
		p, err := readPayment(t.Context(), s.healthy, "new")
		return err == nil && p.Status == order.PaymentPaid
	})
	giveUp()
	if err := testenv.Receive(t, "Change", answer); !errors.Is(err, sqltx.ErrUnknownOutcome) {
		t.Errorf("%v", err)
	}
	s.faults.Disarm()
}

// TestFaults_AlwaysRolledBack rolls back every try of a call. After a bounded number of tries, the
// call must report that nothing was changed.
func TestFaults_AlwaysRolledBack(t *testing.T) {
	t.Parallel()
	template := openTemplate(t)
	for name, call := range map[string]func(*shelf) error{
		"change": func(s *shelf) error {
			_, _, err := s.l.Change(t.Context(), s.pending.ID, order.ChangeOptions{Payment: "new"}, pay("new"))
			return err
		},
		"stock": func(s *shelf) error {
			_, _, err := s.l.Set(t.Context(), plain("b", 30))
			return err
		},
		"epoch": func(s *shelf) error {
			row, err := readRow(t.Context(), s.healthy, "b", stockColumns, "")
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.l.RaiseEpoch(t.Context(), "b", row.Epoch, 0)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := template.copy(t)
			s.faults.Arm(faults.Fault{Kind: faults.LockTimeout, Nth: 1, Times: faults.Always, Only: "BEGIN"})
			err := call(s)
			if _, hit := s.faults.Disarm(); !errors.Is(err, stock.ErrBusy) || len(hit) != maxTries {
				t.Errorf("after %q: %v", hit, err)
			}
		})
	}
}

// retryHook is a counter of retries that calls between before each retry.
type retryHook struct {
	prometheus.Counter
	between func()
}

func (h retryHook) Inc() { h.between(); h.Counter.Inc() }

// TestFaults_ReturnedByTheLastTry checks that a change returns no additions if its last try has
// nothing to return. Those of an earlier try were rolled back, and other changes may have their
// numbers by then.
func TestFaults_ReturnedByTheLastTry(t *testing.T) {
	t.Parallel()
	template := openTemplate(t)
	for name, returning := range map[string]func(*shelf) ([]stock.Change, error){
		"change": func(s *shelf) ([]stock.Change, error) {
			_, returned, err := s.l.Change(t.Context(), s.both.ID, order.ChangeOptions{Returns: true}, become(order.Pending, order.Expired, true))
			return returned, err
		},
		"expiry": func(s *shelf) ([]stock.Change, error) {
			e, err := s.l.Expire(t.Context(), s.held, new(ExpiryRound), 10)
			return e.Returned, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := template.copy(t)
			s.l.metrics.retries = retryHook{s.l.metrics.retries, func() {
				if _, err := s.healthy.Exec(t.Context(), "UPDATE orders SET status = 'paid' WHERE status = 'pending'"); err != nil {
					t.Error(err)
				}
			}}
			s.faults.Arm(faults.Fault{Kind: faults.LockTimeout, Nth: 1, Only: "UPDATE stock"})
			returned, err := returning(s)
			if _, hit := s.faults.Disarm(); len(hit) != 1 || err != nil || len(returned) > 0 {
				t.Errorf("after %q: returned %+v, %v", hit, returned, err)
			}
		})
	}
}

// TestFaults_AppliedInOrder checks that changes leave the outbox in the order of their keys,
// whatever the order in which the gate has applied them. Otherwise two instances that delete the
// same changes could deadlock.
func TestFaults_AppliedInOrder(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	s.faults.Arm(faults.Fault{Kind: faults.LockTimeout, Nth: 1, Only: "DELETE FROM outbox"})
	err := s.l.Applied(t.Context(), stock.Change{SKU: "b", Epoch: 1, Number: 1}, stock.Change{SKU: "a", Epoch: 2, Number: 2}, stock.Change{SKU: "a", Epoch: 2, Number: 1})
	if _, hit := s.faults.Disarm(); err != nil || len(hit) != 1 || !strings.HasSuffix(hit[0], " a") {
		t.Errorf("the first statement of %q, %v", hit, err)
	}
}

// TestFaults_RecordRefusal checks that an order is recorded as refused without its lines if the
// database refuses these, and also without its buyer if the database refuses the order. A refused
// order does not expire.
func TestFaults_RecordRefusal(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	for buyer, fault := range map[string]faults.Fault{
		"buyer-1": {Kind: faults.BadValue, Nth: 1, Only: "order_lines"},
		"":        {Kind: faults.BadValue, Nth: 1, Times: 2, Only: "INSERT INTO orders"},
	} {
		take := queued(takeOf("b"))
		s.faults.Arm(fault)
		out := s.l.RecordRefusal(t.Context(), take)
		s.faults.Disarm()
		o, err := s.l.Order(t.Context(), take.OrderID)
		if !out.Refused() || err != nil || o.Status != order.TurnedDown || !o.ExpiresAt.IsZero() || len(o.Lines) > 0 || o.Buyer != buyer {
			t.Errorf("%v: %s, %v: %+v, %v", fault, out.Kind(), out.Reason(), o, err)
		}
	}
}

// TestFaults_VoidAgain records a void order before every try to refuse a take. The outcome of the
// take must stay unknown, and the retries must be counted.
func TestFaults_VoidAgain(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	retries := 0
	s.l.metrics.retries = retryHook{s.l.metrics.retries, func() { retries++ }}
	s.faults.Arm(faults.Fault{Kind: faults.Duplicate, Nth: 1, Times: faults.Always, Only: "INSERT INTO orders"})
	out := s.l.RecordRefusal(t.Context(), queued(as(s.void, takeOf("b"))))
	s.faults.Disarm()
	if !out.Unknown() || !sqltx.IsDuplicate(out.Reason()) || retries != maxTries-1 {
		t.Errorf("%s, %v after %d retries", out.Kind(), out.Reason(), retries)
	}
}

// TestFaults_Scan checks that an order is not skipped because time ran out while its row was read.
func TestFaults_Scan(t *testing.T) {
	for _, err := range []error{context.Canceled, context.DeadlineExceeded} {
		if isFault(fmt.Errorf("%w: %w", sqltx.ErrScan, err)) {
			t.Errorf("%v is the fault of an order", err)
		}
	}
}

// TestFaults_Claims checks that an unknown progress of the count in a stock row causes an error and
// a line of the log. It also checks that a step deletes a bounded number of claims.
func TestFaults_Claims(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	for _, statement := range []string{
		"UPDATE stock SET claims_counted_to = 'nowhere' WHERE sku = 'c' AND claims_counted_to IS NOT NULL",
		"INSERT INTO claims (sku, buyer_id, units) VALUES ('d', 'buyer-2', 1)",
	} {
		if n, err := s.healthy.Exec(t.Context(), statement); err != nil || n != 1 {
			t.Fatal(n, err)
		}
	}
	var log testenv.Buffer
	s.l.log = slog.New(slog.NewTextHandler(&log, nil))
	if _, err := s.l.CountClaims(t.Context(), "c"); err == nil || !strings.Contains(log.String(), "counting claims failed; it goes on when the SKU's stock is set again\" sku=c error=") {
		t.Errorf("the claims are counted from nowhere: %v, and the log has %q", err, log.String())
	}
	if _, _, err := s.l.stepClaims(t.Context(), "d"); err != nil {
		t.Fatal(err)
	}
	late := claimStep{Ledger: s.l, row: StockRow{SKU: "a"}} // read before SKU a had its limit
	if _, err := late.deleteClaims(t.Context()); err != nil {
		t.Fatal(err)
	}
	for sku, want := range map[string]int{"a": 1, "d": 1} {
		var left int
		if err := s.healthy.QueryRow(t.Context(), []any{&left}, "SELECT count(*) FROM claims WHERE sku = ?", sku); err != nil || left != want {
			t.Errorf("%d claims on %s are left, %v", left, sku, err)
		}
	}
}

// TestCorrect checks how Correct repairs a wrong count.
func TestCorrect(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	exec(t, s.healthy, "UPDATE stock SET available = 1 WHERE sku = 'b'")
	wrong, err := s.l.Row(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.l.Correct(t.Context(), "b", 0); err != nil {
		t.Fatal(err)
	}
	counts, err := s.l.Recount(t.Context(), []stock.SKU{"b"})
	if err != nil {
		t.Fatal(err)
	}
	if c := counts[0]; c.Available != c.Total-c.Held || c.Epoch <= wrong.Epoch || c.Changes != 0 {
		t.Errorf("%+v", c)
	}
	if err := s.l.Correct(t.Context(), "a", 0); err != nil { // the claims of a are wrong
		t.Fatal(err)
	}
	if err := s.l.Correct(t.Context(), "c", 0); err != nil { // a count of the claims on c is under way
		t.Fatal(err)
	}
	for range 2 {
		if claims, err := s.l.WrongClaims(t.Context(), []stock.SKU{"a", "c", "d"}, 20); err != nil || len(claims) > 0 { // d has no limit
			t.Errorf("wrong claims %+v, %v", claims, err)
		}
		if row, err := s.l.CountClaims(t.Context(), "c"); err != nil || !row.LimitHolds() {
			t.Errorf("counting goes on: %+v, %v", row, err)
		}
	}
	for _, table := range []string{"outbox", "claims"} { // b has no limit
		var left int
		if err := s.healthy.QueryRow(t.Context(), []any{&left}, "SELECT count(*) FROM "+table+" WHERE sku = 'b'"); err != nil || left != 0 {
			t.Errorf("%s has %d rows, %v", table, left, err)
		}
	}
}

// TestUnknownClock checks that no order is recorded while its expiry time would be unknown. The
// database's clock may also become unknown, or known again, while the stock rows are locked.
func TestUnknownClock(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	forget := func() { s.l.clock.last.Store(nil) }
	known, wall := s.l.clock.last.Load(), s.l.clock.wall
	var jumps atomic.Bool // for one reading of the clock
	s.l.clock.wall = func() time.Time {
		if jumps.CompareAndSwap(true, false) {
			return wall().Add(time.Hour)
		}
		return wall()
	}
	forgetful := cuttertest.WithCut(cutter.ForUpdate(), func(ctx context.Context, tx *sqltx.Tx, _ []stock.Take, cut cuttertest.Cut) ([]cutter.Decision, error) {
		forget()
		return cut(ctx, tx)
	})
	for _, c := range append(recordCalls(s.contents)[:2], takeCalls(s.contents)...) {
		name := strings.Fields(c.name)[0]
		for when, cut := range map[string]cutter.Cutter{"before": cutter.Merged(), "at first before": cutter.Merged(), "during": forgetful} {
			if s.l.cutter = cut; c.want != nil || name != "Record" {
				continue
			}
			if s.l.clock.last.Store(known); when == "before" {
				forget()
			}
			jumps.Store(when == "at first before")
			if _, out := c.do(t.Context(), s); !out.Refused() || !errors.Is(out.Reason(), errClockUnknown) || !errors.Is(out.Reason(), stock.ErrBusy) {
				t.Errorf("%s, %s the cut: %s, %v", c.name, when, out.Kind(), out.Reason())
			}
		}
	}
	forget()
	if out := s.l.RecordRefusal(t.Context(), queued(takeOf("b"))); !out.Unknown() || !errors.Is(out.Reason(), errClockUnknown) {
		t.Errorf("RecordRefusal: %s, %v", out.Kind(), out.Reason())
	}
	if err := s.l.ClockKnown(); !errors.Is(err, errClockUnknown) {
		t.Errorf("ClockKnown: %v", err)
	}
	machine := time.Now()
	s.l.clock.wall = func() time.Time { return machine }
	if now := s.l.Now(); !now.Equal(machine.Truncate(time.Microsecond)) || now.Location() != time.UTC {
		t.Errorf("Now: %v, and this machine's clock shows %v", now, machine)
	}
}

// TestClosed checks that a closed ledger refuses orders, and reads none.
func TestClosed(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	s.l.Close()
	if _, out := s.l.Record(t.Context(), takeOf("b")); !out.Refused() || !errors.Is(out.Reason(), stock.ErrBusy) {
		t.Errorf("Record: %s, %v", out.Kind(), out.Reason())
	}
	if o, err := s.l.Order(t.Context(), s.pending.ID); err == nil || errors.Is(err, order.ErrUnknownOrder) {
		t.Errorf("Order: %+v, %v", o, err)
	}
}

// TestKindOf checks the kinds of errors in traces.
func TestKindOf(t *testing.T) {
	t.Parallel()
	number := func(number uint16, state string) error {
		return fmt.Errorf("failing: %w", &mysql.MySQLError{Number: number, SQLState: [5]byte([]byte(state))})
	}
	for want, err := range map[string]error{
		"unknown_outcome": fmt.Errorf("%w: %w", sqltx.ErrUnknownOutcome, number(1205, "HY000")),
		"duplicate":       number(1062, "23000"),
		"lock_timeout":    number(1205, "HY000"),
		"conflict":        cutter.ErrConflict,
		"retryable":       number(1213, "40001"),
		"statement":       number(1406, "22001"),
		"":                io.ErrUnexpectedEOF,
	} {
		if kind := kindOf(err); kind != want {
			t.Errorf("%v is %q, want %q", err, kind, want)
		}
	}
}
