package httpapi

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	maxKey         = 255 // bytes of an idempotency key
	invalidDetail  = "The request has invalid fields."
	notReadyDetail = "The service is starting or stopping."
	// readyTimeout bounds /readyz, so that load balancers get an answer within
	// 2 s.
	readyTimeout     = 1500 * time.Millisecond
	storesDownDetail = "The service cannot place orders now. The log has the cause under the request ID."
)

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
	req := asked.request()
	req.Key = key
	if !a.mayActFor(c, req.Buyer) {
		a.otherBuyer(c)
		return
	}

	ctx := a.writeContext(c)
	o, replayed, err := a.Orders.Place(ctx, req)
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
	if o.Queued() {
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

// setStock handles PUT /stock/{sku}.
func (a *api) setStock(c *gin.Context) {
	body := settingBody{SKU: stock.SKU(c.Param("sku"))}
	if !a.bind(c, &body) {
		return
	}
	ctx := a.writeContext(c)
	s, created, err := a.Stock.SetStock(ctx, body.setting())
	if err != nil {
		a.fail(c, err)
		return
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	answer(c, status, jsonType, answerStock(&s))
}

// showStock handles GET /stock/{sku}.
func (a *api) showStock(c *gin.Context) {
	sku, ok := a.sku(c)
	if !ok {
		return
	}
	ctx, cancel := a.readContext(c)
	defer cancel()
	s, err := a.Stock.Stock(ctx, sku)
	if err != nil {
		a.fail(c, err)
		return
	}
	answer(c, http.StatusOK, jsonType, answerStock(&s))
}

// showAudit handles GET /stock/{sku}/audit.
func (a *api) showAudit(c *gin.Context) {
	sku, ok := a.sku(c)
	if !ok {
		return
	}
	ctx, cancel := a.readContext(c)
	defer cancel()
	audit, err := a.Stock.Audit(ctx, sku)
	if err != nil {
		a.fail(c, err)
		return
	}
	answer(c, http.StatusOK, jsonType, auditAnswer(audit))
}

// sku returns the SKU in the path. If ok is false, it has answered the request: a
// name that is not a valid SKU is an unknown SKU.
func (a *api) sku(c *gin.Context) (sku stock.SKU, ok bool) {
	name := c.Param("sku")
	switch {
	case name == "": // two slashes in the path
		a.notFound(c)
		return "", false
	case !stock.ValidID(name):
		a.fail(c, stock.Refuse(stock.SKU(clip(name)), stock.ErrUnknownSKU))
		return "", false
	}
	return stock.SKU(name), true
}

// showStrategies handles GET /strategies.
func (a *api) showStrategies(c *gin.Context) {
	answer(c, http.StatusOK, jsonType, a.strategies)
}

// healthz handles GET /healthz.
func (a *api) healthz(c *gin.Context) {
	answer(c, http.StatusOK, jsonType, gin.H{"status": "ok"})
}

// readyz handles GET /readyz.
func (a *api) readyz(c *gin.Context) {
	if a.Draining() {
		a.problem(c, unavailable, notReadyDetail)
		return
	}
	ctx, cancel := context.WithTimeout(a.withID(c, c.Request.Context()), min(readyTimeout, a.RequestTimeout))
	defer cancel()
	err := a.Ready(ctx)
	if err == nil {
		answer(c, http.StatusOK, jsonType, gin.H{"status": "ready"})
		return
	}
	a.recordFailure(c, http.StatusServiceUnavailable, "not ready", err)
	p, detail := unavailable, storesDownDetail
	if errors.Is(err, stock.ErrSuperseded) {
		p, detail = problemOf(err)
	}
	a.problem(c, p, detail)
}

// showOpenAPI handles GET /openapi.yaml.
func (a *api) showOpenAPI(c *gin.Context) {
	c.Data(http.StatusOK, "application/yaml", openAPI)
}
