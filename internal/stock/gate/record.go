package gate

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// noBuyer is written into a record if the buyer is empty.
const noBuyer = "-"

// recordField returns the hash field of a record.
func recordField(sku stock.SKU, order uuid.UUID) string { return string(sku) + " " + order.String() }

// appendID appends the text of the ID. Unlike id.String, it does not allocate.
func appendID(b []byte, id uuid.UUID) []byte {
	b = append(hex.AppendEncode(b, id[:4]), '-')
	b = append(hex.AppendEncode(b, id[4:6]), '-')
	b = append(hex.AppendEncode(b, id[6:8]), '-')
	b = append(hex.AppendEncode(b, id[8:10]), '-')
	return hex.AppendEncode(b, id[10:])
}

// appendOrder appends the part of a record that describes the whole order: its
// buyer and its lines.
func appendOrder(b []byte, d stock.Deduction) []byte {
	buyer := d.Buyer
	if buyer == "" {
		buyer = noBuyer
	}
	b = append(b, buyer...)
	for i, line := range d.Lines {
		if i == 0 {
			b = append(b, ' ')
		} else {
			b = append(b, ',')
		}
		b = append(append(b, line.SKU...), '=')
		b = strconv.AppendInt(b, line.Quantity, 10)
	}
	return b
}

// epochOf returns the epoch of a count or a record, which is the field with index at. It returns 0
// if the text has no such field.
func epochOf(text string, at int) int64 {
	fields := strings.Fields(text)
	if at >= len(fields) {
		return 0
	}
	epoch, _ := strconv.ParseInt(fields[at], 10, 64)
	return epoch
}

var errRecord = errors.New("malformed record of a take")

// appendQueued appends the additional fields in the record of a queued order: its trace, if there
// is one, and the time at which it was queued.
func appendQueued(b []byte, trace string, at time.Time) []byte {
	if trace != "" {
		b = append(append(b, ' '), trace...)
	}
	return strconv.AppendInt(append(b, ' '), at.UnixMicro(), 10)
}

// parseRecord returns the take that a record of the order describes, without its
// receipt.
func parseRecord(order, record string) (stock.Take, error) {
	fields := strings.Fields(record)
	if len(fields) < 6 || len(fields) > 8 {
		return stock.Take{}, errRecord
	}
	return parseTake(order, fields[0], fields[4:])
}

// parseTake returns the take of an order. rest is the output of appendOrder, followed by that of
// appendQueued if the order was queued.
func parseTake(order, take string, rest []string) (t stock.Take, err error) {
	if t.OrderID, err = uuid.Parse(order); err != nil {
		return stock.Take{}, fmt.Errorf("%w: order ID: %w", errRecord, err)
	}
	if t.TakeID, err = uuid.Parse(take); err != nil {
		return stock.Take{}, fmt.Errorf("%w: take ID: %w", errRecord, err)
	}
	if rest[0] != noBuyer {
		t.Buyer = rest[0]
	}
	for text := range strings.SplitSeq(rest[1], ",") {
		sku, units, _ := strings.Cut(text, "=")
		quantity, err := strconv.ParseInt(units, 10, 64)
		if err != nil {
			return stock.Take{}, fmt.Errorf("%w: line %q: %w", errRecord, text, err)
		}
		t.Lines = append(t.Lines, stock.Line{SKU: stock.SKU(sku), Quantity: quantity})
	}
	if queued := rest[2:]; len(queued) > 0 {
		at := queued[len(queued)-1]
		micros, err := strconv.ParseInt(at, 10, 64)
		if err != nil {
			return stock.Take{}, fmt.Errorf("%w: time %q: %w", errRecord, at, err)
		}
		t.QueuedAt = time.UnixMicro(micros).UTC()
		if len(queued) > 1 {
			t.Trace = queued[0]
		}
	}
	return t, nil
}
