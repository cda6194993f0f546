package httpapi

import (
	"context"
	"errors"
	"net/http"
	"strconv"
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
	req, ok := readBody(a, c, (*reader).order)
	if !ok {
		return
	}
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
	b := a.buffers.Get().(*buffer)
	b.bytes = appendUUID(append(b.bytes[:0], "/orders/"...), o.ID)
	h["Location"] = []string{string(b.bytes)}
	b.bytes = appendOrder(b.bytes[:0], &o)
	status := http.StatusCreated
	if o.Queued() {
		status = http.StatusAccepted
		h["Retry-After"] = []string{"1"}
	}
	a.write(c, status, a.types.json, b)
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

// readBody reads the body of a request with read. If ok is false, it has answered
// the request with the problem.
func readBody[T any](a *api, c *gin.Context, read func(*reader) T) (body T, ok bool) {
	r := a.readers.Get().(*reader)
	defer func() {
		if r.clear() {
			a.readers.Put(r)
		}
	}()
	if !a.load(c, r) {
		return body, false
	}
	body = read(r)
	return body, a.check(c, r)
}

// load reads the whole body into r. If it returns false, it has answered the
// request with the problem.
func (a *api) load(c *gin.Context, r *reader) bool {
	switch r.load(c.Writer, c.Request) {
	case tooLarge:
		a.problem(c, tooLarge, "The body is larger than 65536 bytes.")
	case malformed:
		a.problem(c, malformed, "The chunked encoding of the body is invalid.")
	case timeout:
		a.problem(c, timeout, "The body did not arrive completely and in time. Nothing was done; send the request again.")
	default:
		return true
	}
	return false
}

// check reports whether the body is one JSON value without bad fields. If not, it
// has answered the request with the problem.
func (a *api) check(c *gin.Context, r *reader) bool {
	switch {
	case !r.finish():
		a.problem(c, malformed, "The body is not exactly one JSON value in UTF-8: see byte "+strconv.FormatInt(r.offset(), 10)+".")
		return false
	case len(r.bad) > 0:
		detail := invalidDetail
		if r.omitted > 0 {
			detail += " The first " + strconv.Itoa(len(r.bad)) + " are listed; " + strconv.Itoa(r.omitted) + " more are not."
		}
		a.problem(c, invalid, detail, extras{errors: r.bad})
		return false
	}
	return true
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
	b := a.buffers.Get().(*buffer)
	b.bytes = appendOrderWithHistory(b.bytes[:0], &o)
	a.write(c, http.StatusOK, a.types.json, b)
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
	set, ok := readBody(a, c, func(r *reader) stock.Setting {
		sku := c.Param("sku")
		if !stock.ValidID(sku) {
			r.addError("sku", idDetail)
		}
		set := r.setting()
		set.SKU = stock.SKU(sku)
		return set
	})
	if !ok {
		return
	}
	ctx := a.writeContext(c)
	s, created, err := a.Stock.SetStock(ctx, set)
	if err != nil {
		a.fail(c, err)
		return
	}
	status := http.StatusOK
	if created {
		status = http.StatusCreated
	}
	b := a.buffers.Get().(*buffer)
	b.bytes = appendStock(b.bytes[:0], &s)
	a.write(c, status, a.types.json, b)
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
	b := a.buffers.Get().(*buffer)
	b.bytes = appendStock(b.bytes[:0], &s)
	a.write(c, http.StatusOK, a.types.json, b)
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
	b := a.buffers.Get().(*buffer)
	b.bytes = appendAudit(b.bytes[:0], &audit)
	a.write(c, http.StatusOK, a.types.json, b)
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
	a.send(c, http.StatusOK, a.types.json, a.strategies)
}

// healthz handles GET /healthz.
func (a *api) healthz(c *gin.Context) {
	a.send(c, http.StatusOK, a.types.json, []byte(`{"status":"ok"}`))
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
	switch {
	case err == nil:
		a.send(c, http.StatusOK, a.types.json, []byte(`{"status":"ready"}`))
	case errors.Is(err, stock.ErrSuperseded):
		a.recordFailure(c, http.StatusServiceUnavailable, "not ready", err)
		p, detail := problemOf(err)
		a.problem(c, p, detail)
	default:
		a.recordFailure(c, http.StatusServiceUnavailable, "not ready", err)
		a.problem(c, unavailable, storesDownDetail)
	}
}

// showOpenAPI handles GET /openapi.yaml.
func (a *api) showOpenAPI(c *gin.Context) {
	a.send(c, http.StatusOK, a.types.yaml, openAPI)
}
