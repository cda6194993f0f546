package protocol

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/reconcile"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// auditNow audits all stock and returns the findings.
func auditNow(t *testing.T, r *instance, repair bool) (found []reconcile.Finding, s reconcile.AuditSummary) {
	t.Helper()
	s, err := r.AuditAll(t.Context(), reconcile.AuditOptions{
		Repair:   repair,
		Report:   func(f reconcile.Finding) error { found = append(found, f); return nil },
		Progress: func(int) {},
	})
	if err != nil {
		t.Errorf("auditing: %v", err)
	}
	if s.Different != len(found) {
		t.Errorf("%d findings of %d SKUs that differ", len(found), s.Different)
	}
	return found, s
}

// damage is a change that makes the counts of a SKU wrong.
type damage struct {
	name string
	make func(t *testing.T, s *shop, i *instance, sku stock.SKU)
	// gate says that the damage needs a gate, and segments that it needs segments.
	gate, segments bool
	want           []reconcile.Kind // kinds of the differences; those at the gate are left out if there is no gate
}

var damages = []damage{
	{"gate-high", addAtGate(5), true, false, []reconcile.Kind{reconcile.GateDiffers}},
	{"gate-low", addAtGate(-3), true, false, []reconcile.Kind{reconcile.GateDiffers}},
	{"gate-lost", loseCount(""), true, false, []reconcile.Kind{reconcile.NotFilled}},
	{"segment-lost", loseCount("/1"), true, true, []reconcile.Kind{reconcile.NotFilled}},
	{"record-lost", loseRecord, true, false, []reconcile.Kind{reconcile.Unrecorded}},
	{"record-unreadable", spoilRecord, true, false, []reconcile.Kind{reconcile.Unrecorded}},
	{"ledger-high", addToLedger(3), false, false, []reconcile.Kind{reconcile.LedgerDiffers, reconcile.GateDiffers}},
	{"ledger-low", addToLedger(-4), false, false, []reconcile.Kind{reconcile.LedgerDiffers, reconcile.GateDiffers}},
	{"claim-high", claim("buyer-1", 7), false, false, []reconcile.Kind{reconcile.ClaimsDiffer}},
	{"claim-unknown", claim("stranger", 2), false, false, []reconcile.Kind{reconcile.ClaimsDiffer}},
	{"claim-lost", claim("buyer-1", 0), false, false, []reconcile.Kind{reconcile.ClaimsDiffer}},
}

// addAtGate adds units at the gate that the ledger does not have.
func addAtGate(units int64) func(*testing.T, *shop, *instance, stock.SKU) {
	return func(t *testing.T, _ *shop, i *instance, sku stock.SKU) {
		t.Helper()
		row, err := i.ledger.Row(t.Context(), sku)
		if err != nil {
			t.Fatal(err)
		}
		if err := i.counter.Adjust(t.Context(), stock.Change{SKU: sku, Epoch: row.Epoch, Number: row.Changes + 1, Delta: units}); err != nil {
			t.Fatal(err)
		}
	}
}

// loseCount deletes the gate's count of the SKU, or of a segment.
func loseCount(segment string) func(*testing.T, *shop, *instance, stock.SKU) {
	return func(t *testing.T, s *shop, i *instance, sku stock.SKU) {
		t.Helper()
		name := string(sku) + segment
		if segment == "" && strings.HasPrefix(i.strategy, "segment") {
			name += "/0"
		}
		if err := s.redis.HDel(t.Context(), s.key("count"), name).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// loseRecord takes a unit and deletes the record of the take.
func loseRecord(t *testing.T, s *shop, i *instance, sku stock.SKU) {
	t.Helper()
	takeUnit(t, i, sku)
	s.eachRecord(t, sku, func(flight, field, _ string) *redis.IntCmd { return s.redis.HDel(t.Context(), flight, field) })
}

// spoilRecord takes a unit and makes the record of the take unreadable.
func spoilRecord(t *testing.T, s *shop, i *instance, sku stock.SKU) {
	t.Helper()
	takeUnit(t, i, sku)
	s.eachRecord(t, sku, func(flight, field, record string) *redis.IntCmd {
		return s.redis.HSet(t.Context(), flight, field, record+"x")
	})
}

// eachRecord calls change with the key, the field and the text of each record of the SKU in flight.
func (s *shop) eachRecord(t *testing.T, sku stock.SKU, change func(flight, field, record string) *redis.IntCmd) {
	t.Helper()
	flight := "holdfast:{" + s.ledgerID.String() + "}:flight"
	records, err := s.redis.HGetAll(t.Context(), flight).Result()
	if err != nil {
		t.Fatal(err)
	}
	for field, record := range records {
		if !strings.HasPrefix(field, string(sku)) {
			continue
		}
		if err := change(flight, field, record).Err(); err != nil {
			t.Fatal(err)
		}
	}
}

// addToLedger adds units to the stock row's available.
func addToLedger(units int64) func(*testing.T, *shop, *instance, stock.SKU) {
	return func(t *testing.T, s *shop, _ *instance, sku stock.SKU) {
		t.Helper()
		s.exec(t, "UPDATE stock SET available = available + ? WHERE sku = ?", units, string(sku))
	}
}

// claim replaces the claim of the buyer. For 0 units, it deletes the claim.
func claim(buyer string, units int64) func(*testing.T, *shop, *instance, stock.SKU) {
	return func(t *testing.T, s *shop, _ *instance, sku stock.SKU) {
		t.Helper()
		s.exec(t, "DELETE FROM claims WHERE sku = ? AND buyer_id = ?", string(sku), buyer)
		if units > 0 {
			s.exec(t, "INSERT INTO claims (sku, buyer_id, units) VALUES (?, ?, ?)", string(sku), buyer, units)
		}
	}
}

// exec changes the database without the service.
func (s *shop) exec(t *testing.T, sql string, args ...any) {
	t.Helper()
	if err := s.sql.DB().WithContext(t.Context()).Exec(sql, args...).Error; err != nil {
		t.Fatal(err)
	}
}

// TestAudit checks that an audit finds and names each kind of damage, and nothing else. After a
// repair, exactly the remaining units can be sold. Unless the run is thorough, each server has one
// of the strategies.
func TestAudit(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		names := []string{"lua", "segment", "merged"}
		switch d := s.sql.Dialect(); {
		case d == sqltx.SQLite && testenv.Thorough(): // once is enough, because these strategies differ only at the gate
			names = append(names, "segment-lock", "queue")
		case d == sqltx.SQLite, testenv.Thorough():
		case d == sqltx.MySQL:
			names = names[:1]
		default:
			names = names[2:]
		}
		for _, name := range names {
			t.Run(name, func(t *testing.T) {
				i, auditor := s.open(t, settings{strategy: name}), s.open(t, settings{strategy: name, auditor: true})
				defer i.Close()
				sound := newSKU("sound")
				addStock(t, i, sound, 9)
				if i.gate != nil {
					takeUnit(t, i, sound) // units in flight are not a difference
				}
				damaged := make(map[stock.SKU]damage)
				for _, d := range damages {
					if d.gate && i.gate == nil || d.segments && !strings.HasPrefix(name, "segment") {
						continue
					}
					sku := newSKU(d.name)
					sell(t, i, stock.Setting{SKU: sku, Total: 9, BuyerLimit: new(int64(stock.MaxTotal))})
					mustPlace(t, i, oneUnit(sku))
					s.waitSettled(t, i, sku)
					damaged[sku] = d
				}
				if found, _ := auditNow(t, auditor, false); len(found) > 0 {
					t.Fatalf("before the damage: %+v", found)
				}
				for sku, d := range damaged {
					d.make(t, s, i, sku)
				}
				for _, repair := range []bool{false, true} {
					found, summary := auditNow(t, auditor, repair)
					if summary.Different != len(damaged) || repair != (summary.Repaired == len(damaged)) {
						t.Errorf("repair %v: %+v of %d damaged SKUs", repair, summary, len(damaged))
					}
					for _, f := range found {
						if got, want := kinds(f), wantKinds(damaged[f.Count.SKU], i); !slices.Equal(got, want) {
							t.Errorf("%s: found %v, want %v: %+v", f.Count.SKU, got, want, f)
						}
						if f.Repaired != repair || f.Err != nil {
							t.Errorf("%s: repaired %v, want %v: %v", f.Count.SKU, f.Repaired, repair, f.Err)
						}
					}
				}
				if found, _ := auditNow(t, auditor, false); len(found) > 0 {
					t.Errorf("after the repair: %+v", found)
				}
				for sku := range damaged {
					mustPlace(t, i, request(stock.Line{SKU: sku, Quantity: 8}))
					mustRefuse(t, i, oneUnit(sku), stock.ErrSoldOut)
					s.checkSettled(t, i, sku, 9)
				}
			})
		}
	})
}

func kinds(f reconcile.Finding) (kinds []reconcile.Kind) {
	for _, d := range f.Differences {
		kinds = append(kinds, d.Kind)
	}
	return kinds
}

// wantKinds returns the kinds of difference that the damage makes at an instance.
func wantKinds(d damage, i *instance) []reconcile.Kind {
	if i.gate == nil {
		return slices.DeleteFunc(slices.Clone(d.want), func(k reconcile.Kind) bool { return k == reconcile.GateDiffers })
	}
	return d.want
}

// TestTakeOutlivesRepair checks that a take that was cut before a repair cannot commit after it,
// because the repair has put the take's units for sale again. The request must take again.
func TestTakeOutlivesRepair(t *testing.T) {
	t.Parallel()
	eachDatabase(t, withServer(1), func(t *testing.T, s *shop) {
		paused := s.openHooked(t, settings{strategy: "lua", noGuard: true})
		other := s.open(t, settings{strategy: "lua", noGuard: true})
		auditor := s.open(t, settings{strategy: "lua", auditor: true})
		sku := newSKU("repaired")
		addStock(t, other, sku, 1)
		answer, proceed := haltPlace(t, &paused.gate.taken, paused.instance, oneUnit(sku))
		addToLedger(5)(t, s, other, sku)
		if _, summary := auditNow(t, auditor, true); summary.Different != 1 || summary.Repaired != 1 {
			t.Errorf("%+v", summary)
		}
		mustPlace(t, other, oneUnit(sku))
		proceed()
		if r := testenv.Receive(t, "the answer", answer); !errors.Is(r.err, stock.ErrSoldOut) {
			t.Errorf("answered %+v, want sold out: the other request has the only unit", r)
		}
		s.checkSettled(t, other, sku, 1)
	})
}

// TestRepairWaitsForACommit checks that a repair waits for a transaction that has locked the stock
// row, and counts the units it cut.
func TestRepairWaitsForACommit(t *testing.T) {
	t.Parallel()
	eachDatabase(t, oneOf(servers, 1), func(t *testing.T, s *shop) {
		paused := s.openHooked(t, settings{strategy: "lua", noGuard: true})
		auditor := s.open(t, settings{strategy: "lua", auditor: true})
		testenv.AwaitSuccess(t, "an order is committed while a repair waits for it", func() error {
			sku := newSKU("committing")
			addStock(t, paused.instance, sku, 3)
			addToLedger(5)(t, s, paused.instance, sku)
			answer, proceed := haltPlace(t, &paused.cutter.after, paused.instance, oneUnit(sku))
			repaired := make(chan reconcile.AuditSummary, 1)
			go func() {
				_, summary := auditNow(t, auditor, true)
				repaired <- summary
			}()
			testenv.Await(t, "the repair waits for the row", func() bool { return s.waiting(t) > 0 })
			proceed()
			r := testenv.Receive(t, "the answer", answer)
			if summary := testenv.Receive(t, "the repair", repaired); summary.Different != 1 || summary.Repaired != 1 {
				t.Errorf("%+v", summary)
			}
			if errors.Is(r.err, stock.ErrBusy) { // on a busy machine, the time of the transaction may end before its COMMIT
				return r.err
			}
			if r.err != nil {
				t.Error(r.err)
			}
			s.checkSettled(t, paused.instance, sku, 1)
			return nil
		})
	})
}

// TestAuditAfterRefunds checks that an audit and a repair count the units of orders in every status
// as the ledger does.
func TestAuditAfterRefunds(t *testing.T) {
	t.Parallel()
	eachDatabase(t, withServer(0), func(t *testing.T, s *shop) {
		i, auditor := s.open(t, settings{strategy: "lua"}), s.open(t, settings{strategy: "lua", auditor: true})
		sku := newSKU("ended")
		sell(t, i, stock.Setting{SKU: sku, Total: 20, BuyerLimit: new(int64(stock.MaxTotal))})
		for status, end := range map[string]func(id uuid.UUID) error{
			"pending":   func(uuid.UUID) error { return nil },
			"paid":      func(uuid.UUID) error { return nil },
			"cancelled": func(id uuid.UUID) error { _, err := i.Cancel(t.Context(), id, ""); return err },
			"restocked": func(id uuid.UUID) error { _, err := i.Refund(t.Context(), id, true); return err },
			"refunded":  func(id uuid.UUID) error { _, err := i.Refund(t.Context(), id, false); return err },
		} {
			units := int64(2)
			if status == "restocked" {
				units = 3
			}
			o := mustPlace(t, i, request(stock.Line{SKU: sku, Quantity: units}))
			if status != "pending" && status != "cancelled" {
				if _, err := i.Pay(t.Context(), o.ID, "payment-"+status); err != nil {
					t.Fatal(err)
				}
			}
			if err := end(o.ID); err != nil {
				t.Fatalf("%s: %v", status, err)
			}
		}
		s.waitSettled(t, i, sku)
		if found, _ := auditNow(t, auditor, false); len(found) > 0 {
			t.Errorf("before the damage: %+v", found)
		}
		addToLedger(-3)(t, s, i, sku)
		claim("buyer-1", 0)(t, s, i, sku)
		if _, summary := auditNow(t, auditor, true); summary.Different != 1 || summary.Repaired != 1 {
			t.Errorf("%+v", summary)
		}
		if b, held := s.ledgerCounts(t, sku), s.held(t, sku); b.available != 14 || held != 6 {
			t.Errorf("%d units available, %d held, want 14 and 6", b.available, held)
		}
	})
}

// openChanged opens an auditor whose first reads, as many as calls, return changed counts. A count
// is nil if there is none.
func (s *shop) openChanged(t *testing.T, calls int, change func(count any) any) *instance {
	t.Helper()
	around := func(ctx context.Context, cmds []redis.Cmder, run func(context.Context) error) error {
		err := run(ctx)
		if counts, ok := cmds[0].(*redis.SliceCmd); ok && calls > 0 {
			calls--
			for i, count := range counts.Val() {
				counts.Val()[i] = change(count)
			}
		}
		return err
	}
	return s.open(t, settings{strategy: "lua", auditor: true, around: around})
}

// TestOneReadingProvesNothing checks that a difference in only one read is not reported. Counts
// that differ in another way in every read must be reported as unsteady.
func TestOneReadingProvesNothing(t *testing.T) {
	t.Parallel()
	s := newShop(t, sqliteURL(t))
	i := s.open(t, settings{strategy: "lua"})
	addStock(t, i, newSKU("read"), 3)
	once := s.openChanged(t, 1, func(any) any { return nil })
	if found, _ := auditNow(t, once, true); len(found) > 0 {
		t.Errorf("seen in one reading: %+v", found)
	}
	wrong := int64(0)
	always := s.openChanged(t, 100, func(count any) any {
		var epoch, available int64
		if _, err := fmt.Sscan(count.(string), &epoch, &available); err != nil {
			t.Error(err)
		}
		wrong++
		return fmt.Sprintf("%d %d 0 0 0", epoch, available+wrong)
	})
	found, summary := auditNow(t, always, true)
	if len(found) != 1 || summary.Repaired != 0 || !slices.Equal(kinds(found[0]), []reconcile.Kind{reconcile.Unsteady}) {
		t.Errorf("never the same: %+v, %+v", summary, found)
	}
}

// TestAuditTakesNothingOver checks that an audit does not use the stock of another layout, and does
// not raise the generation when a repair would need it.
func TestAuditTakesNothingOver(t *testing.T) {
	t.Parallel()
	s := newShop(t, sqliteURL(t))
	built, stop := assembly.Strategy{}, func() {}
	attach := func(name string) error {
		spec, _ := assembly.FindStrategy(name)
		built, stop = spec.Build(assembly.Backends{Redis: s.redis, LedgerID: s.ledgerID, Slots: 1})
		defer stop()
		i := s.assemble(s.sql.Ledger(), built, settings{takeDeadline: immediateDeadline})
		defer i.close()
		return i.Attach(t.Context())
	}
	if err := attach("lua"); err == nil || !strings.Contains(err.Error(), "no instance") {
		t.Errorf("before any instance: %v", err)
	}
	i := s.open(t, settings{strategy: "lua"})
	addStock(t, i, newSKU("owned"), 3)
	before, err := i.ledger.Owner(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := attach("merged"); err == nil || !strings.Contains(err.Error(), "merged") || !strings.Contains(err.Error(), "lua") {
		t.Errorf("with another layout: %v", err)
	}
	_, last := (before.Generation + 5).Epochs()
	later := s.openChanged(t, 1000, func(any) any { return fmt.Sprintf("%d 0 0 0 0", last) })
	found, summary := auditNow(t, later, true)
	if len(found) != 1 || summary.Repaired != 0 || found[0].Err == nil {
		t.Errorf("with a count of a later generation: %+v, %+v", summary, found)
	}
	if after, err := i.ledger.Owner(t.Context()); err != nil || after != before {
		t.Errorf("the owner was %+v, is %+v, %v", before, after, err)
	}
}

// TestAuditPages checks that an audit compares every SKU of many pages. SKUs that no instance has
// used since the generation changed need no count at the gate.
func TestAuditPages(t *testing.T) {
	t.Parallel()
	s := newShop(t, sqliteURL(t))
	i, auditor := s.open(t, settings{strategy: "lua"}), s.open(t, settings{strategy: "lua", auditor: true})
	used := newSKU("zz-used")
	addStock(t, i, used, 3)
	const skus = 1200
	var rows []string
	for n := range skus {
		rows = append(rows, fmt.Sprintf("('sku-%04d', 'product', 7, 7, 0, 1, 0, 0)", n))
	}
	s.exec(t, "INSERT INTO stock (sku, kind, total, available, limit_per_buyer, epoch, version, changes) VALUES "+strings.Join(rows, ", "))
	damaged := []stock.SKU{"sku-0000", "sku-0499", "sku-0500", "sku-1199", used}
	for _, sku := range damaged {
		addToLedger(1)(t, s, i, sku)
	}
	found, summary := auditNow(t, auditor, true)
	if want := (reconcile.AuditSummary{Compared: skus + 1, NotAdopted: skus, Different: 5, Repaired: 5}); summary != want {
		t.Errorf("%+v, want %+v", summary, want)
	}
	for n, f := range found {
		if f.Count.SKU != damaged[n] {
			t.Errorf("finding %d is %s, want %s", n, f.Count.SKU, damaged[n])
		}
	}
	mustPlace(t, i, request(stock.Line{SKU: "sku-0500", Quantity: 7}))
	mustRefuse(t, i, oneUnit("sku-0500"), stock.ErrSoldOut)
}
