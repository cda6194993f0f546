package order

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestNew checks which times and lines the order of a take has, before and after it is recorded.
func TestNew(t *testing.T) {
	queued, recorded, expiry := time.Unix(1, 0), time.Unix(2, 0), time.Unix(3, 0)
	take := stock.Take{Deduction: stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "b", Lines: []stock.Line{{SKU: apple, Quantity: 1}}}}
	var never time.Time
	for _, test := range []struct {
		status                    Status
		queuedAt                  time.Time
		created, until, lastUntil time.Time // QueuedUntil: until, and lastUntil when the order is recorded
	}{
		{Pending, never, never, never, never},
		{Pending, queued, queued, queued, recorded},
		{TurnedDown, queued, queued, queued, recorded},
		{Void, never, never, never, never},
		{Queued, queued, queued, never, never},
	} {
		take.QueuedAt = test.queuedAt
		want := Order{
			ID: take.OrderID, TakeID: take.TakeID, Buyer: "b", Status: test.status, Lines: take.Lines, Strategy: "lua",
			CreatedAt: test.created, QueuedUntil: test.until,
		}
		if test.status == Void {
			want.Lines = nil
		}
		o := New(take, test.status, "lua")
		if !reflect.DeepEqual(o, want) {
			t.Errorf("%s: %+v, want %+v", test.status, o, want)
		}
		if test.status == Queued {
			continue // it is recorded with another status
		}
		o.RecordedAt(recorded, expiry)
		want.QueuedUntil, want.ExpiresAt = test.lastUntil, expiry
		if test.queuedAt.IsZero() {
			want.CreatedAt = recorded
		}
		if !reflect.DeepEqual(o, want) {
			t.Errorf("%s, recorded: %+v, want %+v", test.status, o, want)
		}
	}
}
