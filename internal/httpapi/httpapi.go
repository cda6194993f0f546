// Package httpapi is the HTTP API of the service: routes, bodies, headers, and in status.go the one
// table from errors to statuses. It serves its contract, openapi.yaml. It decodes orders, and
// leaves placing them to Orders.
//
// A request is checked in this order, and the first failed check decides the answer: rate limit;
// path and method; origin; token; Content-Type; Idempotency-Key; size of the body; arrival of the
// whole body; exactly one JSON value; the fields; buyer. If a body does not decode, the answer
// names the first bad field, otherwise all of them.
package httpapi

import (
	"context"
	_ "embed"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/admin"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/ratelimit"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// Orders places, changes and reads orders and their payments. It must be safe for
// concurrent use. Its methods return the errors of packages order and stock; any
// other error is answered 500 and logged.
type Orders interface {
	// Place places an order. If r.Key already names an order, Place returns
	// that order with replayed set. r.Lines are in the order the client sent
	// them; Place may keep them.
	Place(ctx context.Context, r order.Request) (o order.Order, replayed bool, err error)
	// Order returns an order with its history.
	Order(ctx context.Context, id uuid.UUID) (order.Order, error)
	// List returns at most f.Limit orders after f.After, sorted by ID. next is
	// f.After for the following page, and uuid.Nil on the last page.
	List(ctx context.Context, f order.Filter) (page []order.Order, next uuid.UUID, err error)

	// Pay, Cancel and Refund return the changed order. Repeating a change returns
	// the order again.
	Pay(ctx context.Context, id uuid.UUID, payment string) (order.Order, error)
	Cancel(ctx context.Context, id uuid.UUID, buyer string) (order.Order, error)
	// Refund returns the order's units to stock if restock is set.
	Refund(ctx context.Context, id uuid.UUID, restock bool) (order.Order, error)

	// Payments returns at most f.Limit payments after f.After, sorted by ID. next
	// is f.After for the following page, and empty on the last page.
	Payments(ctx context.Context, f order.PaymentFilter) (page []order.Payment, next string, err error)
	// Refunded records that a payment was paid back to the buyer.
	Refunded(ctx context.Context, payment string) (order.Payment, error)
}

// Stock sets and reads stock. It must be safe for concurrent use. Its methods return
// the errors of package stock; any other error is answered 500 and logged.
type Stock interface {
	// SetStock creates or changes a SKU.
	SetStock(ctx context.Context, set stock.Setting) (s admin.Stock, created bool, err error)
	Stock(ctx context.Context, sku stock.SKU) (admin.Stock, error)
	// ListStock returns at most limit SKUs after the given one, sorted by SKU.
	// next is the after of the following page; it is empty on the last page.
	ListStock(ctx context.Context, after stock.SKU, limit int) (page []admin.Stock, next stock.SKU, err error)
	Audit(ctx context.Context, sku stock.SKU) (admin.Audit, error)
}

// Config configures the API. The fields without a comment, Metrics, Registry, Log,
// Ready, Draining and RequestTimeout must be set.
type Config struct {
	Orders     Orders
	Stock      Stock
	Strategies Strategies
	// AdminToken is the bearer token of administrators. If it is empty, their calls work without a
	// token, but only if Loopback is set. Such requests must come from this machine, name it as
	// their Host, and not be forwarded.
	AdminToken string
	// Loopback reports that only this machine can reach the listener.
	Loopback bool
	// Tokens verifies the tokens of buyers, who may then act only for themselves. It needs an
	// AdminToken. If it is nil, every client may act for every buyer.
	Tokens Tokens
	// RateLimit is the number of requests that a client may send per second in the long run. 0
	// means no limit. RateBurst is the number it may send at once; it must be > 0 if RateLimit is.
	RateLimit float64
	RateBurst int
	// TrustedProxies are the networks of the proxies whose X-Forwarded-For headers are trusted.
	TrustedProxies []netip.Prefix
	// SeparateOps says that NewOps serves metrics and profiles, so that New does not.
	SeparateOps bool
	// Metrics serves GET /metrics.
	Metrics http.Handler
	// Console serves the paths below /console/. It may be nil.
	Console http.Handler
	// Registry gets the metrics of requests.
	Registry prometheus.Registerer
	// Log gets one line per request: at error level for a 500, otherwise at
	// debug level. The cause of a 503 is a separate line at warn level with one
	// message per problem, so that a handler can count repeated ones (see
	// package loglimit). No line contains a body, query, token or key.
	Log *slog.Logger
	// Ready returns an error if orders cannot be placed now.
	Ready func(ctx context.Context) error
	// Draining reports whether the service is starting or stopping. While it
	// does, /readyz is 503 and every answer closes its connection, so that a
	// load balancer moves to another instance. It must be safe for concurrent
	// use.
	Draining func() bool
	// RequestTimeout bounds the work of one request. A change gets up to a hundredth more. It must
	// be > 0. A change continues within this time after the client disconnects, so that its outcome
	// is known.
	RequestTimeout time.Duration
	// Tracer starts the spans of requests. If it is nil, there are no traces.
	Tracer *tracing.Tracer
}

// Strategies is the answer to GET /strategies.
type Strategies struct {
	Running string     `json:"running"` // the Name of the strategy in use, one of All
	Guard   bool       `json:"guard"`
	All     []Strategy `json:"strategies"` // not nil, so that the answer has an array
}

// Strategy describes one way to cut stock.
type Strategy struct {
	Name    string  `json:"name"`
	Gate    *string `json:"gate"` // nil: the strategy has no gate
	Cutter  string  `json:"cutter"`
	Sound   bool    `json:"sound"` // the strategy never sells a unit twice, even without the guard
	Detail  string  `json:"detail"`
	Promise string  `json:"promise"` // what a client can rely on once its order was accepted
}

//go:embed openapi.yaml
var openAPI []byte

// api holds what handlers share. It is safe for concurrent use.
type api struct {
	Config
	auth     authority
	limits   *ratelimit.Limiter[client] // nil without a RateLimit
	origins  http.CrossOriginProtection
	binding  strictJSON
	requests *requests                // nil on the operators' listener
	deadline atomic.Pointer[deadline] // of the latest changes
}

// New returns the handler of the whole API. It is safe for concurrent use.
func New(c Config) http.Handler { return build(c).engine() }

func build(c Config) *api {
	c.Log = slog.New(LogHandler(c.Log.Handler()))
	a := &api{
		Config:  c,
		auth:    newAuthority(c.AdminToken, c.Loopback),
		binding: strictJSON{newValidator()},
	}
	if c.RateLimit > 0 {
		a.limits = ratelimit.New[client](c.RateLimit, c.RateBurst)
	}
	return a
}

// bareEngine returns an engine without routes.
func (a *api) bareEngine() *gin.Engine {
	gin.SetMode(gin.ReleaseMode) // gin's debug mode prints to standard output
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.RedirectTrailingSlash = false
	e.ForwardedByClientIP = false
	e.UseRawPath = true // an escaped slash is part of a name, not a separator

	if a.Tracer != nil {
		e.Use(a.trace)
	}
	e.Use(a.envelope)
	e.NoRoute(a.notFound)
	e.NoMethod(a.methodNotAllowed)
	return e
}

// engine returns the engine of the API. Middlewares that are not configured are left
// out, so that they cost nothing.
func (a *api) engine() *gin.Engine {
	e := a.bareEngine()
	if a.Tokens != nil {
		e.Use(a.identify)
	}
	if a.limits != nil {
		e.Use(a.limit)
	}
	e.Use(a.sameOrigin)

	buyers := e.Group("")
	if a.Tokens != nil {
		buyers.Use(a.buyerOnly)
	}
	buyers.GET("/orders", a.listOrders)
	buyers.POST("/orders", a.jsonOnly, a.placeOrder)
	buyers.GET("/orders/:id", a.showOrder)
	buyers.POST("/orders/:id/cancel", a.jsonOnly, a.cancelOrder)
	e.POST("/orders/:id/pay", a.payerOnly, a.jsonOnly, a.payOrder)
	e.POST("/orders/:id/refund", a.adminOnly, a.jsonOnly, a.refundOrder)
	e.GET("/payments", a.adminOnly, a.listPayments)
	e.POST("/payments/:id/refunded", a.adminOnly, a.jsonOnly, a.markRefunded)
	e.GET("/stock", a.listStock)
	e.GET("/stock/:sku", a.showStock)
	e.PUT("/stock/:sku", a.adminOnly, a.jsonOnly, a.setStock)
	e.GET("/stock/:sku/audit", a.showAudit)
	e.GET("/strategies", a.showStrategies)
	e.GET("/openapi.yaml", a.showOpenAPI)
	if a.Console != nil {
		a.addConsole(e)
	}
	a.routeHealth(e)
	if !a.SeparateOps {
		a.routeOps(e)
	}

	a.requests = newRequests(a.Registry, e.Routes())
	return e
}

// addConsole adds the routes of the console. The page and its assets are public, so that a browser
// can show the page and ask for the token. Everything that the page shows is for administrators
// only.
func (a *api) addConsole(e *gin.Engine) {
	console := gin.WrapH(a.Console)
	e.GET(consolePath, console)
	e.GET(strings.TrimSuffix(consolePath, "/"), a.toConsole)
	e.GET(consoleAssets, console)
	e.GET(consolePath+"stream", a.adminOnly, a.ownPages, console)
	e.GET(consolePath+"rush", a.adminOnly, console)
	e.POST(consolePath+"rush", a.adminOnly, a.jsonOnly, console)
	e.DELETE(consolePath+"rush", a.adminOnly, console)
}

const consolePath, consoleAssets = "/console/", "/console/assets/*file"

func (a *api) toConsole(c *gin.Context) {
	h := c.Writer.Header()
	h["Location"] = []string{consolePath}
	h["Cache-Control"] = []string{"no-store"}
	c.Status(http.StatusSeeOther)
}

// notFound answers 404. A browser that asks for the root is sent to the console.
func (a *api) notFound(c *gin.Context) {
	r := c.Request
	if a.Console != nil && r.URL.Path == "/" && r.Method == http.MethodGet && strings.Contains(r.Header.Get("Accept"), "text/html") {
		a.toConsole(c)
		return
	}
	a.problem(c, notFound, "There is no such path.")
}

// methodNotAllowed answers 405. gin has already set the Allow header.
func (a *api) methodNotAllowed(c *gin.Context) {
	a.problem(c, methodNotAllowed, "The path does not support this method.")
}

// showStrategies handles GET /strategies.
func (a *api) showStrategies(c *gin.Context) {
	answer(c, http.StatusOK, jsonType, a.Strategies)
}

// showOpenAPI handles GET /openapi.yaml.
func (a *api) showOpenAPI(c *gin.Context) {
	c.Data(http.StatusOK, "application/yaml", openAPI)
}
