package httpapi

import (
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/admin"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// maxImplicitLength is the longest answer, in bytes, for which package http
	// sets Content-Length itself. It would send longer ones in chunks.
	maxImplicitLength = 2048
	// maxKeptBuffer is the largest buffer capacity that is kept for the next
	// answer, in bytes.
	maxKeptBuffer = 64 << 10
)

// buffer holds an answer while it is built.
type buffer struct{ bytes []byte }

// write sends the buffer's bytes and returns the buffer to the pool.
func (a *api) write(c *gin.Context, status int, mediaType []string, b *buffer) {
	a.send(c, status, mediaType, b.bytes)
	if cap(b.bytes) <= maxKeptBuffer {
		a.buffers.Put(b)
	}
}

// send sends a complete answer.
func (a *api) send(c *gin.Context, status int, mediaType []string, body []byte) {
	h := c.Writer.Header()
	h["Content-Type"] = mediaType
	if len(body) > maxImplicitLength {
		h["Content-Length"] = []string{strconv.Itoa(len(body))}
	}
	c.Status(status)
	_, _ = c.Writer.Write(body) // fails only if the client has disconnected
}

// The append functions encode without reflection, because appendOrder runs for
// every order. They escape any string.

func appendString[S ~string](b []byte, s S) []byte {
	b, _ = jsontext.AppendQuote(b, string(s)) // an error means only that invalid UTF-8 was replaced
	return b
}

func appendUUID(b []byte, id uuid.UUID) []byte {
	const digits = "0123456789abcdef"
	for i, c := range id {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			b = append(b, '-')
		}
		b = append(b, digits[c>>4], digits[c&0xf])
	}
	return b
}

// appendTime appends t in UTC with six digits of the second, trailing zeros included.
// It appends null for the zero time.
func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, "null"...)
	}
	b = append(b, '"')
	b = t.UTC().AppendFormat(b, time.RFC3339) // several times as fast as other layouts
	z := len(b) - 1
	b = strconv.AppendInt(b[:z], 1_000_000+int64(t.Nanosecond()/1000), 10)
	b[z] = '.' // in place of the 1
	return append(b, 'Z', '"')
}

func appendOrder(b []byte, o *order.Order) []byte {
	return append(appendOrderMembers(append(b, '{'), o), '}')
}

// appendOrderMembers appends an order without the braces.
func appendOrderMembers(b []byte, o *order.Order) []byte {
	b = append(b, `"id":"`...)
	b = appendUUID(b, o.ID)
	b = append(b, `","buyer_id":`...)
	b = appendString(b, o.Buyer)
	b = append(b, `,"status":`...)
	b = appendString(b, o.Status)
	b = append(b, `,"lines":[`...)
	for i, line := range o.Lines {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"sku":`...)
		b = appendString(b, line.SKU)
		b = append(b, `,"quantity":`...)
		b = strconv.AppendInt(b, line.Quantity, 10)
		b = append(b, '}')
	}
	b = append(b, `],"strategy":`...)
	b = appendString(b, o.Strategy)
	b = append(b, `,"created_at":`...)
	b = appendTime(b, o.CreatedAt)
	b = append(b, `,"expires_at":`...)
	return appendTime(b, o.ExpiresAt)
}

// appendOrderWithHistory appends an order with the members that only
// GET /orders/{id} answers.
func appendOrderWithHistory(b []byte, o *order.Order) []byte {
	b = appendOrderMembers(append(b, '{'), o)
	b = append(b, `,"payment_id":`...)
	b = appendOptional(b, o.PaymentID)
	b = append(b, `,"history":[`...)
	for i, step := range o.History {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"status":`...)
		b = appendString(b, step.Status)
		b = append(b, `,"at":`...)
		b = appendTime(b, step.At)
		b = append(b, '}')
	}
	return append(b, `]}`...)
}

func appendOrderPage(b []byte, page []order.Order, next uuid.UUID) []byte {
	b = append(b, `{"orders":[`...)
	for i := range page {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendOrder(b, &page[i])
	}
	b = append(b, `],"next":`...)
	if next == uuid.Nil {
		return append(b, `null}`...)
	}
	b = appendUUID(append(b, '"'), next)
	return append(b, `"}`...)
}

func appendPayment(b []byte, p *order.Payment) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, p.ID)
	b = append(b, `,"order_id":"`...)
	b = appendUUID(b, p.OrderID)
	b = append(b, `","status":`...)
	b = appendString(b, p.Status)
	b = append(b, `,"created_at":`...)
	b = appendTime(b, p.CreatedAt)
	b = append(b, `,"changed_at":`...)
	b = appendTime(b, p.ChangedAt)
	return append(b, '}')
}

func appendPaymentPage(b []byte, page []order.Payment, next string) []byte {
	b = append(b, `{"payments":[`...)
	for i := range page {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendPayment(b, &page[i])
	}
	b = append(b, `],"next":`...)
	b = appendOptional(b, next)
	return append(b, '}')
}

func appendStock(b []byte, s *admin.Stock) []byte {
	b = append(b, `{"sku":`...)
	b = appendString(b, s.SKU)
	b = append(b, `,"kind":`...)
	b = appendString(b, s.Kind)
	b = append(b, `,"total":`...)
	b = strconv.AppendInt(b, s.Total, 10)
	b = append(b, `,"available":`...)
	b = strconv.AppendInt(b, s.Available, 10)
	b = append(b, `,"sold":`...)
	b = strconv.AppendInt(b, s.Sold, 10)
	b = append(b, `,"buyer_limit":`...)
	b = strconv.AppendInt(b, s.BuyerLimit, 10)
	b = append(b, `,"opens_at":`...)
	b = appendTime(b, s.OpensAt)
	b = append(b, `,"closes_at":`...)
	b = appendTime(b, s.ClosesAt)
	return append(b, '}')
}

func appendStockPage(b []byte, page []admin.Stock, next stock.SKU) []byte {
	b = append(b, `{"stock":[`...)
	for i := range page {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendStock(b, &page[i])
	}
	b = append(b, `],"next":`...)
	b = appendOptional(b, string(next))
	return append(b, '}')
}

func appendAudit(b []byte, a *admin.Audit) []byte {
	b = append(b, `{"sku":`...)
	b = appendString(b, a.SKU)
	b = append(b, `,"total":`...)
	b = strconv.AppendInt(b, a.Total, 10)
	b = append(b, `,"sold":`...)
	b = strconv.AppendInt(b, a.Sold, 10)
	b = append(b, `,"oversold":`...)
	b = strconv.AppendInt(b, a.Oversold, 10)
	b = append(b, `,"gate_available":`...)
	b = appendCount(b, a.GateAvailable)
	b = append(b, `,"gate_in_flight":`...)
	b = appendCount(b, a.GateInFlight)
	b = append(b, `,"ledger_available":`...)
	b = strconv.AppendInt(b, a.LedgerAvailable, 10)
	b = append(b, `,"drift":`...)
	b = strconv.AppendInt(b, a.Drift, 10)
	return append(b, '}')
}

// appendCount appends null for nil: there is no such count.
func appendCount(b []byte, n *int64) []byte {
	if n == nil {
		return append(b, "null"...)
	}
	return strconv.AppendInt(b, *n, 10)
}

// appendOptional appends null for the empty string.
func appendOptional(b []byte, s string) []byte {
	if s == "" {
		return append(b, "null"...)
	}
	return appendString(b, s)
}

func appendStrategies(b []byte, s Strategies) []byte {
	b = append(b, `{"running":`...)
	b = appendString(b, s.Running)
	b = append(b, `,"guard":`...)
	b = strconv.AppendBool(b, s.Guard)
	b = append(b, `,"ack":`...)
	b = appendString(b, s.Acknowledges)
	b = append(b, `,"promise":`...)
	b = appendString(b, s.Promise)
	b = append(b, `,"strategies":[`...)
	for i, one := range s.All {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"name":`...)
		b = appendString(b, one.Name)
		b = append(b, `,"gate":`...)
		b = appendOptional(b, one.Gate)
		b = append(b, `,"cutter":`...)
		b = appendString(b, one.Cutter)
		b = append(b, `,"sound":`...)
		b = strconv.AppendBool(b, one.Sound)
		b = append(b, `,"detail":`...)
		b = appendString(b, one.Detail)
		b = append(b, '}')
	}
	return append(b, `]}`...)
}

func appendProblem(b []byte, p problem, def definition, detail string, x extras) []byte {
	b = append(b, `{"type":"/problems/`...)
	b = append(b, p...)
	b = append(b, `","title":`...)
	b = appendString(b, def.title)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(def.status), 10)
	b = append(b, `,"detail":`...)
	b = appendString(b, detail)
	if x.sku != "" {
		b = append(b, `,"sku":`...)
		b = appendString(b, x.sku)
	}
	if !x.opensAt.IsZero() {
		b = append(b, `,"opens_at":`...)
		b = appendTime(b, x.opensAt)
	}
	if x.payment != "" {
		b = append(b, `,"payment_id":`...)
		b = appendString(b, x.payment)
	}
	if x.status != "" {
		b = append(b, `,"order_status":`...)
		b = appendString(b, x.status)
	}
	if p == invalid {
		b = append(b, `,"errors":[`...)
		for i, e := range x.errors {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, `{"field":`...)
			b = appendString(b, e.field)
			b = append(b, `,"detail":`...)
			b = appendString(b, e.detail)
			b = append(b, '}')
		}
		b = append(b, ']')
	}
	return append(b, '}')
}
