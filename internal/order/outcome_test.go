package order

import "testing"

// TestUnansweredIsUnknown checks that an order without an answer is not committed.
func TestUnansweredIsUnknown(t *testing.T) {
	var o Outcome
	if !o.Unknown() || o.Reason() == nil {
		t.Errorf("%+v", o)
	}
}
