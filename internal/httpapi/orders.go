package httpapi

import (
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
)

const maxKey = 255 // maximum length of an idempotency key in bytes

// placeOrder handles POST /orders.
func (a *api) placeOrder(c *gin.Context) {
	key, ok := idempotencyKey(c.Request.Header)
	if !ok {
		a.problem(c, malformed, "Idempotency-Key may be given only once and must be 1 to 255 visible ASCII characters.")
		return
	}
	var asked orderBody
	if !a.bind(c, &asked) {
		return
	}
	if !a.mayActFor(c, asked.BuyerID) {
		a.otherBuyer(c)
		return
	}

	ctx := a.writeContext(c)
	o, replayed, err := a.Orders.Place(ctx, order.Request{Buyer: asked.BuyerID, Key: key, Lines: asked.Lines})
	if err != nil {
		a.fail(c, err)
		return
	}
	h := c.Writer.Header()
	if replayed {
		h["Idempotent-Replayed"] = []string{"true"}
	}
	body := answerOrder(&o)
	h["Location"] = []string{"/orders/" + body.ID}
	status := http.StatusCreated
	if o.Status == order.Queued {
		status = http.StatusAccepted
		h["Retry-After"] = []string{"1"}
	}
	answer(c, status, jsonType, body)
}

// idempotencyKey returns the request's key, or "" if it has none. ok is false if
// the header is repeated or its value is not a valid key.
func idempotencyKey(h http.Header) (key string, ok bool) {
	switch keys := h["Idempotency-Key"]; len(keys) {
	case 0:
		return "", true
	case 1:
		return keys[0], visible(keys[0], maxKey)
	default:
		return "", false
	}
}

// showOrder handles GET /orders/{id}.
func (a *api) showOrder(c *gin.Context) {
	id, ok := a.orderID(c)
	if !ok {
		return
	}
	ctx, cancel := a.readContext(c)
	defer cancel()
	o, err := a.Orders.Order(ctx, id)
	if err == nil && !a.mayActFor(c, o.Buyer) {
		err = order.ErrUnknownOrder
	}
	if err != nil {
		a.fail(c, err)
		return
	}
	answer(c, http.StatusOK, jsonType, answerHistory(&o))
}

// orderID returns the order ID in the path. If ok is false, it has answered the
// request: an ID that is not a UUID is an unknown order.
func (a *api) orderID(c *gin.Context) (id uuid.UUID, ok bool) {
	id, err := parseUUID(c.Param("id"))
	if err != nil {
		a.fail(c, order.ErrUnknownOrder)
	}
	return id, err == nil
}

// parseUUID parses an ID with hyphens, in upper or lower case. It refuses the
// other forms that package uuid accepts, so that an order has one path.
func parseUUID(s string) (uuid.UUID, error) {
	if len(s) != 36 {
		return uuid.Nil, errors.New("not 36 characters")
	}
	return uuid.Parse(s)
}
