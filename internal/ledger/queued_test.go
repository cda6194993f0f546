package ledger

import (
	"errors"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestReplace: a queued order takes the place of a void order, once, and not under a
// take that was resolved before. The void order's take stays barred.
func TestReplace(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		sku := fresh("replace")
		lay(t, l, sku, 10)
		voided := takeOf(sku)
		another := func() stock.Take {
			take := voided
			take.TakeID = uuid.New()
			return take
		}
		read := func() Order {
			t.Helper()
			o, err := l.Order(t.Context(), voided.OrderID)
			if err != nil {
				t.Fatal(err)
			}
			return *o
		}
		mustNotReplace := func(void Order, take stock.Take) {
			t.Helper()
			if _, out := l.Replace(t.Context(), void, take); !out.Refused() || !errors.Is(out.Reason(), ErrRowChanged) {
				t.Errorf("replaced: %+v", out)
			}
		}
		resolve(t, l, voided, refused)
		void, late, take := read(), another(), another()
		resolve(t, l, late, refused)
		mustNotReplace(void, late)
		void = read()
		if _, out := l.Replace(t.Context(), void, take); !out.Committed() {
			t.Fatal(out)
		}
		mustNotReplace(void, another())
		if _, out := l.Record(t.Context(), voided); out.kind != duplicate || !out.found.Holds(take.TakeID) {
			t.Errorf("recorded the voided take: %+v", out)
		}
		resolve(t, l, voided, refused)
		resolve(t, l, take, committed)
		if o := read(); o.Status != Pending || len(o.Lines) != 1 {
			t.Errorf("%+v", o)
		}
		d.atRest(t, sku, 1)
		if err := l.Pass(t.Context(), voided.OrderID); !errors.Is(err, ErrRowChanged) {
			t.Errorf("passed a live order: %v", err)
		}
	})
}

// TestPass: a void order that its key has passed stays so when another take is resolved.
func TestPass(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		voided := takeOf("passed")
		late := voided
		late.TakeID = uuid.New()
		resolve(t, l, voided, refused)
		if err := l.Pass(t.Context(), voided.OrderID); err != nil {
			t.Fatal(err)
		}
		resolve(t, l, late, refused)
		if o, err := l.Order(t.Context(), voided.OrderID); err != nil || o.Status != Void || !o.Passed() {
			t.Errorf("%+v, %v", o, err)
		}
		if err := l.Pass(t.Context(), voided.OrderID); !errors.Is(err, ErrRowChanged) {
			t.Errorf("passed twice: %v", err)
		}
		if out := l.TurnDown(t.Context(), late); !out.Refused() {
			t.Errorf("%+v", out)
		}
		if o, err := l.Order(t.Context(), voided.OrderID); err != nil || o.Status != TurnedDown || o.Passed() {
			t.Errorf("%+v, %v", o, err)
		}
	})
}
