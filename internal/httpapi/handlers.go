package httpapi

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	maxKey         = 255 // bytes of an idempotency key
	defaultPage    = 100 // SKUs in an answer of GET /stock
	maxPage        = 1000
	invalidDetail  = "The request has fields that are not as they must be."
	afterField     = "after"
	limitField     = "limit"
	pageDetail     = "must be an integer from 1 to 1000"
	notJSONDetail  = "The body must be application/json, in UTF-8 and not compressed."
	notReadyDetail = "The service is starting or stopping."
	// readyTimeout bounds /readyz. A load balancer waits no longer than this.
	readyTimeout     = 1500 * time.Millisecond
	storesAwayDetail = "The service cannot place orders now. The log has the cause under the request ID."
)

// POST /orders
func (a *api) placeOrder(c *gin.Context) {
	if !isJSON(c.Request) {
		a.problem(c, notJSON, notJSONDetail)
		return
	}
	key, ok := idempotencyKey(c.Request.Header)
	if !ok {
		a.problem(c, malformed, "Idempotency-Key must be given once at most, and be 1 to 255 visible ASCII characters.")
		return
	}
	req, ok := a.readOrder(c)
	if !ok {
		return
	}
	req.Key = key

	ctx, cancel := a.changing(c)
	defer cancel()
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
	a.write(c, http.StatusCreated, a.types.json, b)
}

// idempotencyKey returns the request's key, or "" if it has none; ok is false
// for what is no key.
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

// readOrder reads the body. It has answered the request where ok is false.
func (a *api) readOrder(c *gin.Context) (req order.Request, ok bool) {
	r := a.readers.Get().(*reader)
	defer a.release(r)
	if !a.load(c, r) {
		return req, false
	}
	req = r.order()
	return req, a.check(c, r)
}

// readSetting is readOrder for what an administrator says of a SKU.
func (a *api) readSetting(c *gin.Context, sku string) (set order.Setting, ok bool) {
	r := a.readers.Get().(*reader)
	defer a.release(r)
	if !a.load(c, r) {
		return set, false
	}
	if !stock.ValidID(sku) {
		r.call("sku", idDetail)
	}
	set = r.setting()
	set.SKU = stock.SKU(sku)
	return set, a.check(c, r)
}

func (a *api) release(r *reader) {
	if r.clear() {
		a.readers.Put(r)
	}
}

func (a *api) load(c *gin.Context, r *reader) bool {
	switch r.load(c.Writer, c.Request) {
	case tooLarge:
		a.problem(c, tooLarge, "A body may have 65536 bytes at most.")
	case malformed:
		a.problem(c, malformed, "The body's chunks are not encoded as they must be.")
	case timeout:
		a.problem(c, timeout, "The body did not arrive whole, or not in time. Nothing was done; send the request again.")
	default:
		return true
	}
	return false
}

// check answers for a body that is not one JSON value or has bad fields.
func (a *api) check(c *gin.Context, r *reader) bool {
	switch {
	case !r.finish():
		a.problem(c, malformed, "The body is not exactly one JSON value in UTF-8: see byte "+strconv.FormatInt(r.offset(), 10)+".")
		return false
	case len(r.bad) > 0:
		detail := invalidDetail
		if r.unnamed > 0 {
			detail += " The first " + strconv.Itoa(len(r.bad)) + " are named; there are " + strconv.Itoa(r.unnamed) + " more."
		}
		a.problem(c, invalid, detail, extras{errors: r.bad})
		return false
	}
	return true
}

// GET /orders/{id}
func (a *api) showOrder(c *gin.Context) {
	id, err := parseUUID(c.Param("id"))
	if err != nil {
		a.fail(c, order.ErrUnknownOrder)
		return
	}
	ctx, cancel := a.reading(c)
	defer cancel()
	o, err := a.Orders.Order(ctx, id)
	if err != nil {
		a.fail(c, err)
		return
	}
	b := a.buffers.Get().(*buffer)
	b.bytes = appendOrder(b.bytes[:0], &o)
	a.write(c, http.StatusOK, a.types.json, b)
}

// parseUUID takes the one form in which the service writes IDs, in either
// case: an order has one address.
func parseUUID(s string) (uuid.UUID, error) {
	if len(s) != 36 {
		return uuid.Nil, errors.New("not 36 characters")
	}
	return uuid.Parse(s)
}

// PUT /stock/{sku}
func (a *api) setStock(c *gin.Context) {
	if objection := a.auth.objection(c.Request); objection != "" {
		c.Header("WWW-Authenticate", "Bearer")
		a.problem(c, unauthorized, objection)
		return
	}
	if !isJSON(c.Request) {
		a.problem(c, notJSON, notJSONDetail)
		return
	}
	set, ok := a.readSetting(c, c.Param("sku"))
	if !ok {
		return
	}
	ctx, cancel := a.changing(c)
	defer cancel()
	s, created, err := a.Orders.SetStock(ctx, set)
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

// GET /stock
func (a *api) listStock(c *gin.Context) {
	after, limit, bad := pageOf(c.Request.URL.RawQuery)
	if len(bad) > 0 {
		a.problem(c, invalid, invalidDetail, extras{errors: bad})
		return
	}
	ctx, cancel := a.reading(c)
	defer cancel()
	page, next, err := a.Orders.ListStock(ctx, after, limit)
	if err != nil {
		a.fail(c, err)
		return
	}
	b := a.buffers.Get().(*buffer)
	b.bytes = appendStockPage(b.bytes[:0], page, next)
	a.write(c, http.StatusOK, a.types.json, b)
}

// pageOf reads the query of GET /stock. An empty after is the beginning.
func pageOf(query string) (after stock.SKU, limit int, bad []fieldError) {
	limit = defaultPage
	values, err := url.ParseQuery(query)
	if err != nil {
		return "", 0, []fieldError{{"", "the query cannot be decoded"}}
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		given := values[name]
		var detail string
		switch {
		case name != afterField && name != limitField:
			detail = "is not a known parameter"
		case len(given) > 1:
			detail = repeatedDetail
		case name == afterField:
			after = stock.SKU(given[0])
			if after != "" && !stock.ValidID(given[0]) {
				detail = idDetail
			}
		default:
			n, err := strconv.ParseUint(given[0], 10, 16)
			if err != nil || n < 1 || n > maxPage {
				detail = pageDetail
			}
			limit = int(n)
		}
		if detail != "" && len(bad) < maxNamed {
			bad = append(bad, fieldError{clip(name), detail})
		}
	}
	return after, limit, bad
}

// GET /stock/{sku}
func (a *api) showStock(c *gin.Context) {
	sku, ok := a.sku(c)
	if !ok {
		return
	}
	ctx, cancel := a.reading(c)
	defer cancel()
	s, err := a.Orders.Stock(ctx, sku)
	if err != nil {
		a.fail(c, err)
		return
	}
	b := a.buffers.Get().(*buffer)
	b.bytes = appendStock(b.bytes[:0], &s)
	a.write(c, http.StatusOK, a.types.json, b)
}

// GET /stock/{sku}/audit
func (a *api) showAudit(c *gin.Context) {
	sku, ok := a.sku(c)
	if !ok {
		return
	}
	ctx, cancel := a.reading(c)
	defer cancel()
	audit, err := a.Orders.Audit(ctx, sku)
	if err != nil {
		a.fail(c, err)
		return
	}
	b := a.buffers.Get().(*buffer)
	b.bytes = appendAudit(b.bytes[:0], &audit)
	a.write(c, http.StatusOK, a.types.json, b)
}

// sku is the SKU in the path. What cannot be one is unknown, and answered so.
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

// GET /strategies
func (a *api) showStrategies(c *gin.Context) {
	a.send(c, http.StatusOK, a.types.json, a.strategies)
}

// GET /healthz
func (a *api) healthz(c *gin.Context) {
	a.send(c, http.StatusOK, a.types.json, []byte(`{"status":"ok"}`))
}

// GET /readyz
func (a *api) readyz(c *gin.Context) {
	if a.Draining() {
		a.problem(c, unavailable, notReadyDetail)
		return
	}
	ctx, cancel := context.WithTimeout(a.withID(c, c.Request.Context()), min(readyTimeout, a.RequestTimeout))
	defer cancel()
	err := a.Orders.Ready(ctx)
	switch {
	case err == nil:
		a.send(c, http.StatusOK, a.types.json, []byte(`{"status":"ready"}`))
	case errors.Is(err, order.ErrSuperseded):
		a.failed(c, http.StatusServiceUnavailable, "not ready", err)
		p, detail := problemOf(err)
		a.problem(c, p, detail)
	default:
		a.failed(c, http.StatusServiceUnavailable, "not ready", err)
		a.problem(c, unavailable, storesAwayDetail)
	}
}

// GET /openapi.yaml
func (a *api) showOpenAPI(c *gin.Context) {
	a.send(c, http.StatusOK, a.types.yaml, openAPI)
}
