package httpapi

import (
	"errors"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// extras are the members that only some problems have.
type extras struct {
	sku     string       // problems of one SKU
	opensAt time.Time    // not-open
	payment string       // refund-due
	status  order.Status // refund-due, wrong-status
	errors  []fieldError // invalid
}

// invalidFields are the fields that only the service finds invalid, by its error.
var invalidFields = []struct {
	err error
	fieldError
}{
	{stock.ErrKindFixed, fieldError{"kind", "cannot change"}},
	{stock.ErrHours, fieldError{"closes_at", hoursDetail}},
	{order.ErrPaymentReused, fieldError{"payment_id", "belongs to another order"}},
}

// extrasOf returns what err says about the members of problem p. Other members of
// err do not count: err may wrap a refusal that is not the outcome.
func extrasOf(p problem, err error) (x extras) {
	switch p {
	case soldOut, buyerLimit, notOpen, closed, unknownSKU:
		if refusal, ok := errors.AsType[*stock.Refusal](err); ok {
			x.sku = string(refusal.SKU)
		}
		if early, ok := errors.AsType[*stock.NotOpen](err); ok {
			x.opensAt = early.OpensAt
		}
	case refundDue:
		if due, ok := errors.AsType[*order.RefundDue](err); ok {
			x.payment, x.status = due.PaymentID, due.Status
		}
	case wrongStatus:
		if wrong, ok := errors.AsType[*order.WrongStatus](err); ok {
			x.status = wrong.Status
		}
	case invalid:
		for _, row := range invalidFields {
			if errors.Is(err, row.err) {
				x.errors = append(x.errors, row.fieldError)
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
	b := a.buffers.Get().(*buffer)
	b.bytes = appendProblem(b.bytes[:0], p, def, detail, x)
	a.write(c, def.status, a.types.problem, b)
}
