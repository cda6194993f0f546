package gate

import (
	"errors"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

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
	}
}

func TestAppendID(t *testing.T) {
	t.Parallel()
	d := orderOf("a", 1)
	if got, want := string(appendID(nil, d.OrderID)), d.OrderID.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func FuzzRecord(f *testing.F) {
	d := orderOf("a", 1)
	f.Add(d.OrderID.String(), d.TakeID.String()+" 1 3 1700000000000000 - a=1,b=2")
	f.Add("", "")
	f.Add(d.OrderID.String(), "1 2 3 4 5 6")
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
