package httpapi

import (
	"context"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// payOrder handles POST /orders/{id}/pay.
func (a *api) payOrder(c *gin.Context) {
	var body paymentBody
	if !a.bind(c, &body) {
		return
	}
	a.changeOrder(c, func(ctx context.Context, id uuid.UUID) (order.Order, error) {
		return a.Orders.Pay(ctx, id, body.PaymentID)
	})
}

// cancelOrder handles POST /orders/{id}/cancel.
func (a *api) cancelOrder(c *gin.Context) {
	if !a.bind(c, new(emptyBody)) {
		return
	}
	a.changeOrder(c, func(ctx context.Context, id uuid.UUID) (order.Order, error) {
		return a.Orders.Cancel(ctx, id, a.caller(c).buyer)
	})
}

// refundOrder handles POST /orders/{id}/refund.
func (a *api) refundOrder(c *gin.Context) {
	var body refundBody
	if !a.bind(c, &body) {
		return
	}
	a.changeOrder(c, func(ctx context.Context, id uuid.UUID) (order.Order, error) {
		return a.Orders.Refund(ctx, id, *body.Restock)
	})
}

// changeOrder makes a change of the order in the path and answers with the order.
func (a *api) changeOrder(c *gin.Context, change func(context.Context, uuid.UUID) (order.Order, error)) {
	id, ok := a.orderID(c)
	if !ok {
		return
	}
	ctx := a.writeContext(c)
	o, err := change(ctx, id)
	if err != nil {
		a.fail(c, err)
		return
	}
	answer(c, http.StatusOK, jsonType, answerOrder(&o))
}

// markRefunded handles POST /payments/{id}/refunded.
func (a *api) markRefunded(c *gin.Context) {
	if !a.bind(c, new(emptyBody)) {
		return
	}
	id := c.Param("id")
	if !stock.ValidID(id) {
		a.fail(c, order.ErrUnknownPayment)
		return
	}
	ctx := a.writeContext(c)
	p, err := a.Orders.Refunded(ctx, id)
	if err != nil {
		a.fail(c, err)
		return
	}
	answer(c, http.StatusOK, jsonType, answerPayment(&p))
}
