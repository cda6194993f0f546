package cutter_test

import (
	"errors"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestFailures makes each statement of a cut fail in turn. The cut must return that error, and no
// decision that the caller could use.
func TestFailures(t *testing.T) {
	t.Parallel()
	errRefused := errors.New("the statement is refused")
	dbURL := testenv.SQLite(t)
	s := storetest.Migrated(t, dbURL)
	db, _, d := storetest.FaultySQLite(t, dbURL, "", map[faults.Kind]error{faults.BadValue: errRefused})

	first, _ := stock.Generation(1).Epochs()
	for sku, limit := range map[string]int{"plain": 0, "other": 0, "parted": 0, "limited": 3, "counting": 3} {
		if _, err := s.Ledger().Exec(t.Context(), "INSERT INTO stock (sku, kind, total, available, epoch, limit_per_buyer) VALUES (?, 'product', 9, 9, ?, ?)", sku, first, limit); err != nil {
			t.Fatal(err)
		}
	}
	for _, sql := range []string{
		"UPDATE stock SET claims_counted_to = X'FFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFF' WHERE sku = 'counting'",
		"INSERT INTO claims (sku, buyer_id, units) VALUES ('limited', 'b', 1)",
		"INSERT INTO stock_parts (sku, part, available, epoch) SELECT sku, number, 1, epoch FROM stock, (SELECT 1 AS number UNION SELECT 2 UNION SELECT 3) WHERE sku = 'parted'",
	} {
		if _, err := s.Ledger().Exec(t.Context(), sql); err != nil {
			t.Fatal(err)
		}
	}
	cut := func(c cutter.Cutter, takes []stock.Take, fault faults.Fault) (hit []string, decisions []cutter.Decision, err error) {
		tx, err := db.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer tx.Rollback()
		d.Arm(fault)
		plan, err := c.Plan(t.Context(), db, 1, takes)
		if err == nil {
			decisions, err = plan.Cut(t.Context(), tx)
		}
		_, hit = d.Disarm()
		return hit, decisions, err
	}
	all := cutters()
	all["unit-rows"] = func() cutter.Cutter { // a cutter that has found too few free units
		c := cutter.UnitRows()
		for sku, units := range map[stock.SKU]int64{"plain": 1, "other": 1, "limited": 1, "counting": 1, "parted": 4} {
			if _, _, err := cut(c, taking(stock.Line{SKU: sku, Quantity: units}), faults.Fault{}); !errors.Is(err, cutter.ErrConflict) {
				t.Fatalf("without %d unit rows: %v, want %v", units, err, cutter.ErrConflict)
			}
		}
		return c
	}
	if hit, decisions, err := cut(cutter.UnitRows(), taking(stock.Line{SKU: "plain", Quantity: 1}), faults.Fault{Kind: faults.BadValue, Nth: 1}); !errors.Is(err, errRefused) {
		t.Errorf("unit-rows, that may have free units: after %q: %v, %v", hit, decisions, err)
	}
	type read struct {
		of   string // the cutter; empty: all
		text string // a part of the statement
		nth  int
	}
	reads := map[string][]read{ // by group
		"limited":            {{"", "FROM stock ", 1}, {"", "FROM claims", 1}},
		"counting":           {{"", "FROM stock ", 1}},
		"from a part":        {{"slots", "AND part =", 2}, {"unit-rows", "SELECT part", 1}},
		"more than in parts": {{"slots", "SELECT sku, part", 1}},
		"more than there is": {{"unit-rows", "SELECT part", 2}},
	}
	for name, newCutter := range all {
		for group, takes := range map[string][]stock.Take{
			"one":                 taking(stock.Line{SKU: "plain", Quantity: 1}),
			"two SKUs":            taking(stock.Line{SKU: "other", Quantity: 1}, stock.Line{SKU: "plain", Quantity: 1}),
			"the second sold out": taking(stock.Line{SKU: "other", Quantity: 1}, stock.Line{SKU: "plain", Quantity: 10}),
			"limited":             append(taking(stock.Line{SKU: "limited", Quantity: 1}), taking(stock.Line{SKU: "plain", Quantity: 1})...),
			"counting":            taking(stock.Line{SKU: "counting", Quantity: 1}),
			"from a part":         taking(stock.Line{SKU: "parted", Quantity: 1}),
			"more than in parts":  taking(stock.Line{SKU: "parted", Quantity: 4}),
			"more than there is":  taking(stock.Line{SKU: "parted", Quantity: 13}),
		} {
			for n, injected := 1, true; injected; n++ {
				hit, decisions, err := cut(newCutter(), takes, faults.Fault{Kind: faults.BadValue, Nth: n})
				injected = len(hit) > 0
				if injected != errors.Is(err, errRefused) || injected && decisions != nil || !injected && (err != nil || len(decisions) != len(takes)) {
					t.Errorf("%s, %s: after %q: %v, %v", name, group, hit, decisions, err)
				}
				if n > 12 {
					t.Fatalf("%s, %s: never ends without a fault", name, group)
				}
			}
			for _, r := range reads[group] { // its rows cannot be read
				if r.of != "" && r.of != name {
					continue
				}
				hit, decisions, err := cut(newCutter(), takes, faults.Fault{Kind: faults.Garbled, Nth: r.nth, Only: r.text})
				if len(hit) == 0 || !errors.Is(err, sqltx.ErrScan) || decisions != nil {
					t.Errorf("%s, %s: after %q: %v, %v", name, group, hit, decisions, err)
				}
			}
		}
	}

	// No units may be taken from a row that is not updated.
	if _, err := s.Ledger().Exec(t.Context(), "CREATE TRIGGER still BEFORE UPDATE ON stock BEGIN SELECT RAISE(IGNORE); END"); err != nil {
		t.Fatal(err)
	}
	for name, newCutter := range all {
		_, decisions, err := cut(newCutter(), taking(stock.Line{SKU: "plain", Quantity: 1}), faults.Fault{})
		if err == nil || decisions != nil {
			t.Errorf("%s: of a row that is not updated: %v, %v", name, decisions, err)
		}
	}
}

// TestUndecided checks that a take without a decision is not taken.
func TestUndecided(t *testing.T) {
	if d := (cutter.Decision{}); d.Taken || d.Reason() == nil {
		t.Errorf("%+v", d)
	}
}
