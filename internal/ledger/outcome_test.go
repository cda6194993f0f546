package ledger

import (
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
)

// TestUnansweredIsUnknown checks that an order without an answer is not committed,
// and that a take without a decision is not taken.
func TestUnansweredIsUnknown(t *testing.T) {
	var o Outcome
	if !o.Unknown() || o.Reason() == nil {
		t.Errorf("%+v", o)
	}
	if d := (cutter.Decision{}); d.Taken() || d.Reason() == nil {
		t.Errorf("%+v", d)
	}
}
