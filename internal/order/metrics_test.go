package order

import (
	"errors"
	"fmt"
	"maps"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestResult checks the label by which each answer is counted.
func TestResult(t *testing.T) {
	for _, test := range []struct {
		status   Status
		replayed bool
		err      error
		want     string
	}{
		{Pending, false, nil, "accepted"},
		{Queued, false, nil, "queued"},
		{Queued, true, nil, "replayed"},
		{Pending, true, nil, "replayed"},
		{Pending, false, stock.Refuse("a", stock.ErrSoldOut), "sold_out"},
		{Pending, false, stock.Refuse("a", stock.ErrUnknownSKU), "unknown_sku"},
		{Pending, false, stock.Refuse("a", stock.ErrBuyerLimit), "buyer_limit"},
		{Pending, false, stock.Refuse("a", &stock.NotOpen{}), "not_open"},
		{Pending, false, stock.Refuse("a", stock.ErrClosed), "closed"},
		{Pending, false, stock.ErrSuperseded, "superseded"},
		{Pending, false, fmt.Errorf("%w: %w", stock.ErrBusy, stock.ErrBurned), "busy"},
		{Pending, false, fmt.Errorf("%w: %w", ErrInProgress, stock.ErrInFlight), "in_progress"},
		{Pending, false, ErrKeyReused, "key_reused"},
		{Pending, false, fmt.Errorf("%w: %w", stock.ErrUnavailable, stock.ErrSoldOut), "unavailable"},
		{Pending, false, errors.New("unforeseen"), "unavailable"},
	} {
		if got := result(test.status, test.replayed, test.err); got != test.want {
			t.Errorf("replayed %v, %v is counted as %q, want %q", test.replayed, test.err, got, test.want)
		}
	}
}

// TestMetrics checks that every answer and change is counted once, every call of gate and ledger
// is timed, and every label has a value from the start.
func TestMetrics(t *testing.T) {
	s := newShop(true)
	o := s.mustPlace(t, keyed())
	_, paid := s.Pay(t.Context(), o.ID, "payment-1")
	_, due := s.Pay(t.Context(), o.ID, "payment-2")
	if _, err := s.Refund(t.Context(), o.ID, true); paid != nil || !errors.Is(due, ErrRefundDue) || err != nil {
		t.Fatal(paid, due, err)
	}
	if _, _, err := s.Place(t.Context(), keyed()); err != nil {
		t.Fatal(err)
	}
	s.gate.refuse = failing(1, stock.Refuse(apple, stock.ErrSoldOut))
	if _, _, err := s.Place(t.Context(), ask()); !errors.Is(err, stock.ErrSoldOut) {
		t.Fatal(err)
	}
	families, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]uint64)
	for _, family := range families {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			got[name] = uint64(m.GetCounter().GetValue()) + m.GetHistogram().GetSampleCount()
		}
	}
	want := map[string]uint64{
		"holdfast_orders_total accepted": 1, "holdfast_orders_total replayed": 1, "holdfast_orders_total sold_out": 1,
		"holdfast_gate_take_seconds": 3, "holdfast_ledger_record_seconds": 2,
		"holdfast_order_changes_total paid": 1, "holdfast_order_changes_total refund_due": 1, "holdfast_order_changes_total refunded": 1,
		"holdfast_order_changes_total cancelled": 0,
	}
	for _, unused := range []string{"queued", "unavailable", "superseded", "busy", "in_progress", "key_reused", "buyer_limit", "not_open", "closed", "unknown_sku"} {
		want["holdfast_orders_total "+unused] = 0
	}
	if !maps.Equal(got, want) {
		t.Errorf("the metrics are %v, want %v", got, want)
	}
}
