package gate

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestRecordDescribesTheOrder checks that a record has the whole order. A scan that returns the
// record twice lists the take and its units once.
func TestRecordDescribesTheOrder(t *testing.T) {
	t.Parallel()
	many := stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: strings.Repeat("b", stock.MaxIDLength)}
	for i := range stock.MaxLines {
		many.Lines = append(many.Lines, stock.Line{SKU: stock.SKU(strings.Repeat("s", 60) + strconv.Itoa(i)), Quantity: stock.MaxQuantity})
	}
	for _, d := range []stock.Deduction{
		orderOf("a", 1),
		{OrderID: uuid.New(), TakeID: uuid.New(), Lines: []stock.Line{{SKU: "a.b:c_d-e", Quantity: stock.MaxTotal}}},
		many,
	} {
		record := d.TakeID.String() + " 1 3 1700000000000000 " + string(appendOrder(nil, d))
		got, err := parseRecord(d.OrderID.String(), record)
		if err != nil {
			t.Errorf("%q: %v", record, err)
			continue
		}
		if got.OrderID != d.OrderID || got.TakeID != d.TakeID || got.Buyer != d.Buyer || !reflect.DeepEqual(got.Lines, d.Lines) {
			t.Errorf("got %v, want %v", got, d)
		}
		listed := &listing{limit: 1, at: make(map[takeID]int)}
		for range 2 {
			if err := listed.add(recordField(d.Lines[0].SKU, d.OrderID), record); err != nil {
				t.Error(err)
			}
		}
		if len(listed.takes) != 1 || !reflect.DeepEqual(listed.takes[0].Recorded, d.Lines[:1]) {
			t.Errorf("listed %+v", listed.takes)
		}
	}
}

// TestQueuedRecord checks that a queued order keeps its trace and its time, and that its record
// still ends with the time, by which inflight.lua recognises queued orders.
func TestQueuedRecord(t *testing.T) {
	t.Parallel()
	at := time.UnixMicro(1_700_000_000_000_001).UTC()
	for _, trace := range []string{"", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"} {
		d := orderOf("a", 1)
		rest := string(appendQueued(appendOrder(nil, d), trace, at))
		record, err := parseRecord(d.OrderID.String(), d.TakeID.String()+" 1 3 1700000000000000 "+rest)
		if err != nil || record.Trace != trace || !record.QueuedAt.Equal(at) {
			t.Errorf("record %q: %+v, %v", rest, record, err)
		}
		entry, err := parseEntry(d.OrderID.String(), "1-1 "+d.TakeID.String()+" 3 "+rest)
		if err != nil || entry.Trace != trace || !entry.QueuedAt.Equal(at) {
			t.Errorf("entry %q: %+v, %v", rest, entry, err)
		}
		if !strings.HasSuffix(rest, " 1700000000000001") {
			t.Errorf("%q does not end with the time", rest)
		}
	}
}

func FuzzRecord(f *testing.F) {
	d := orderOf("a", 1)
	f.Add(d.OrderID.String(), d.TakeID.String()+" 1 3 1700000000000000 - a=1,b=2")
	f.Add("", "")
	f.Add(d.OrderID.String(), "1 2 3 4 5 6")
	f.Add(d.OrderID.String(), d.TakeID.String()+" 1 3 1700000000000000 - a=1 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01 1700000000000001")
	f.Fuzz(func(t *testing.T, order, record string) {
		d, err := parseRecord(order, record)
		if err != nil {
			if !errors.Is(err, errRecord) {
				t.Errorf("got %v", err)
			}
			return
		}
		if len(d.Lines) == 0 {
			t.Errorf("%q was parsed as an order without lines", record)
		}
	})
}
