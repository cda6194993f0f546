package httpapi

import (
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/admin"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// The media types of answers. gin would add a charset. All answers share these values,
// which must not be changed.
var jsonType, problemType = []string{"application/json"}, []string{"application/problem+json"}

// answer sends v as JSON.
func answer(c *gin.Context, status int, mediaType []string, v any) {
	c.Writer.Header()["Content-Type"] = mediaType
	c.JSON(status, v)
}

// The answers. Their members and the order of the members must not change. The answer to a replay
// must equal the first answer byte for byte, even in another version.
type (
	orderAnswer struct {
		ID        string       `json:"id"`
		BuyerID   string       `json:"buyer_id"`
		Status    order.Status `json:"status"`
		Lines     []stock.Line `json:"lines"`
		Strategy  string       `json:"strategy"`
		CreatedAt *string      `json:"created_at"`
		ExpiresAt *string      `json:"expires_at"`
	}
	// orderWithHistory is the answer to GET /orders/{id} only.
	orderWithHistory struct {
		orderAnswer
		PaymentID *string      `json:"payment_id"`
		History   []stepAnswer `json:"history"`
	}
	stepAnswer struct {
		Status order.Status `json:"status"`
		At     *string      `json:"at"`
	}
	orderPage struct {
		Orders []orderAnswer `json:"orders"`
		Next   *uuid.UUID    `json:"next"`
	}
	paymentAnswer struct {
		ID        string              `json:"id"`
		OrderID   uuid.UUID           `json:"order_id"`
		Status    order.PaymentStatus `json:"status"`
		CreatedAt *string             `json:"created_at"`
		ChangedAt *string             `json:"changed_at"`
	}
	paymentPage struct {
		Payments []paymentAnswer `json:"payments"`
		Next     *string         `json:"next"`
	}
	stockAnswer struct {
		SKU        stock.SKU  `json:"sku"`
		Kind       stock.Kind `json:"kind"`
		Total      int64      `json:"total"`
		Available  int64      `json:"available"`
		Sold       int64      `json:"sold"`
		BuyerLimit int64      `json:"buyer_limit"`
		OpensAt    *string    `json:"opens_at"`
		ClosesAt   *string    `json:"closes_at"`
	}
	stockPage struct {
		Stock []stockAnswer `json:"stock"`
		Next  *stock.SKU    `json:"next"`
	}
	auditAnswer struct {
		SKU             stock.SKU `json:"sku"`
		Total           int64     `json:"total"`
		Sold            int64     `json:"sold"`
		Oversold        int64     `json:"oversold"`
		GateAvailable   *int64    `json:"gate_available"`
		GateInFlight    *int64    `json:"gate_in_flight"`
		LedgerAvailable int64     `json:"ledger_available"`
		Drift           int64     `json:"drift"`
	}
)

// rfc3339 formats t in UTC, truncated to microseconds, with six fractional digits. It
// returns nil for the zero time.
func rfc3339(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	b := t.UTC().AppendFormat(make([]byte, 0, 32), time.RFC3339) // RFC3339 is several times as fast as other layouts
	z := len(b) - 1
	b = strconv.AppendInt(b[:z], 1_000_000+int64(t.Nanosecond()/1000), 10)
	b[z] = '.' // replaces the 1
	s := string(append(b, 'Z'))
	return &s
}

// orNull returns nil for the zero value.
func orNull[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// each returns the answer for each element of the list. An empty list gives [], not null.
func each[T, A any](list []T, answer func(*T) A) []A {
	answers := make([]A, len(list))
	for i := range list {
		answers[i] = answer(&list[i])
	}
	return answers
}

func answerOrder(o *order.Order) orderAnswer {
	return orderAnswer{
		ID: o.ID.String(), BuyerID: o.Buyer, Status: o.Status, Lines: append([]stock.Line{}, o.Lines...), // [] without lines, not null
		Strategy: o.Strategy, CreatedAt: rfc3339(o.CreatedAt), ExpiresAt: rfc3339(o.ExpiresAt),
	}
}

func answerHistory(o *order.Order) orderWithHistory {
	return orderWithHistory{
		answerOrder(o), orNull(o.PaymentID),
		each(o.History, func(s *order.Step) stepAnswer { return stepAnswer{s.Status, rfc3339(s.At)} }),
	}
}

func answerPayment(p *order.Payment) paymentAnswer {
	return paymentAnswer{p.ID, p.OrderID, p.Status, rfc3339(p.CreatedAt), rfc3339(p.ChangedAt)}
}

func answerStock(s *admin.Stock) stockAnswer {
	return stockAnswer{s.SKU, s.Kind, s.Total, s.Available, s.Sold, s.BuyerLimit, rfc3339(s.OpensAt), rfc3339(s.ClosesAt)}
}
