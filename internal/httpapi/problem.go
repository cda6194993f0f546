package httpapi

import (
	"errors"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// extras are the members that only some problems have.
type extras struct {
	sku     string       // sold-out, unknown-sku
	payment string       // refund-due
	status  order.Status // refund-due, wrong-status
	errors  []fieldError // invalid
}

// extrasOf returns what err names, as far as problem p shows it.
func extrasOf(p problem, err error) (x extras) {
	switch p {
	case soldOut, unknownSKU:
		if refusal, ok := errors.AsType[*stock.Refusal](err); ok {
			x.sku = string(refusal.SKU)
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
		switch {
		case errors.Is(err, stock.ErrKindFixed):
			x.errors = []fieldError{{"kind", "cannot change"}}
		case errors.Is(err, order.ErrPaymentReused):
			x.errors = []fieldError{{"payment_id", "belongs to another order"}}
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
