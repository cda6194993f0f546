package httpapi

import (
	"errors"
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// problemAnswer is a problem document (RFC 9457).
type problemAnswer struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	extras
}

// extras are the members that only some problems have.
type extras struct {
	SKU         stock.SKU    `json:"sku,omitempty"`          // set only for a problem of one SKU
	OpensAt     *string      `json:"opens_at,omitempty"`     // set for not-open
	PaymentID   string       `json:"payment_id,omitempty"`   // set for refund-due
	OrderStatus order.Status `json:"order_status,omitempty"` // set for refund-due and wrong-status
	Errors      []fieldError `json:"errors,omitempty"`       // set for invalid
}

// invalidFields maps an error of the service to the field that it finds invalid.
var invalidFields = []struct {
	err error
	fieldError
}{
	{stock.ErrKindFixed, fieldError{"kind", "cannot change"}},
	{stock.ErrHours, fieldError{"closes_at", hoursDetail}},
	{order.ErrPaymentReused, fieldError{"payment_id", "belongs to another order"}},
}

// extrasOf returns the members that err has for problem p. It ignores other members of err: err may
// wrap a refusal that is not the outcome.
func extrasOf(p problem, err error) (x extras) {
	switch p {
	case soldOut, buyerLimit, notOpen, closed, unknownSKU:
		if refusal, ok := errors.AsType[*stock.Refusal](err); ok {
			x.SKU = refusal.SKU
		}
		if early, ok := errors.AsType[*stock.NotOpen](err); ok {
			x.OpensAt = rfc3339(early.OpensAt)
		}
	case refundDue:
		if due, ok := errors.AsType[*order.RefundDue](err); ok {
			x.PaymentID, x.OrderStatus = due.PaymentID, due.Status
		}
	case wrongStatus:
		if wrong, ok := errors.AsType[*order.WrongStatus](err); ok {
			x.OrderStatus = wrong.Status
		}
	case invalid:
		for _, row := range invalidFields {
			if errors.Is(err, row.err) {
				x.Errors = append(x.Errors, row.fieldError)
			}
		}
	}
	return x
}

// problem answers with a problem document.
func (a *api) problem(c *gin.Context, p problem, detail string, more ...extras) {
	def := definitions[p]
	h := c.Writer.Header()
	if def.retry != "" {
		h["Retry-After"] = []string{def.retry}
	}
	var x extras
	if len(more) > 0 {
		x = more[0]
	}
	answer(c, def.status, problemType, problemAnswer{"/problems/" + string(p), def.title, def.status, detail, x})
}

// fail answers a request for which the service returned err, and logs the cause of a 5xx.
func (a *api) fail(c *gin.Context, err error) {
	p, detail := problemOf(err)
	a.recordFailure(c, definitions[p].status, "refusing requests as "+string(p), err)
	a.problem(c, p, detail, extrasOf(p, err))
}

// recordFailure keeps the cause of a 5xx for the request's log line. It also logs the cause of a
// 503 immediately, under message. It leaves that out if the client has disconnected, because a
// disconnect makes reads fail.
func (a *api) recordFailure(c *gin.Context, status int, message string, err error) {
	if status < http.StatusInternalServerError {
		return
	}
	_ = c.Error(err)
	if ctx := c.Request.Context(); status == http.StatusServiceUnavailable && ctx.Err() == nil {
		a.Log.LogAttrs(a.withID(c, ctx), slog.LevelWarn, message, slog.Any("error", err))
	}
}
