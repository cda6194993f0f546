// Package httpapi is the service's HTTP face: routes, bodies, headers and the
// one table from errors to statuses. The contract, call by call, is
// openapi.yaml, which it serves. It knows what an order is and nothing of how
// one is placed.
//
// A request is checked in this order, and answered by the first thing wrong:
// path and method; its origin; the administrator's token; Content-Type;
// Idempotency-Key; the size of the body; whether it arrived; whether it is one
// JSON value; its fields, all at once.
package httpapi

import (
	"context"
	_ "embed"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Orders is the service behind the API. It must be safe for concurrent use.
// The errors it may return are those of package order, stock.ErrSoldOut and
// stock.ErrUnknownSKU; every other is answered 500 and logged.
type Orders interface {
	// Place places an order, or finds the one that r.Key named before:
	// replayed. r.Lines are in the client's order, and Place may keep them.
	Place(ctx context.Context, r order.Request) (o order.Order, replayed bool, err error)
	Order(ctx context.Context, id uuid.UUID) (order.Order, error)
	// SetStock creates a SKU, or changes it.
	SetStock(ctx context.Context, set order.Setting) (s order.Stock, created bool, err error)
	Stock(ctx context.Context, sku stock.SKU) (order.Stock, error)
	// ListStock returns at most limit SKUs after the one given, by SKU, and
	// the one to continue after; next is empty at the end.
	ListStock(ctx context.Context, after stock.SKU, limit int) (page []order.Stock, next stock.SKU, err error)
	Audit(ctx context.Context, sku stock.SKU) (order.Audit, error)
	// Ready reports why orders cannot be placed now, if so.
	Ready(ctx context.Context) error
}

// Config is what the API is made of. Every field but AdminToken must be set.
type Config struct {
	Orders     Orders
	Strategies Strategies
	// AdminToken is what administrators must bring. Empty: none is asked for,
	// and their calls work only where Loopback is true, and only for requests
	// that come from this machine, name it as their Host and were not
	// forwarded.
	AdminToken string
	// Loopback says that only this machine can reach the listener.
	Loopback bool
	// Metrics serves GET /metrics.
	Metrics http.Handler
	// Log gets one line a request: at debug level, 500 at error. The cause of
	// a 503 is logged apart, at warn, under one message a problem, so that a
	// handler can count the repeated ones (see package outage). No line holds
	// a body, a query, a token or a key.
	Log *slog.Logger
	// Draining reports that the service is starting or stopping: /readyz is
	// 503, and every answer asks for a new connection, which a load balancer
	// makes elsewhere. It must be safe for concurrent use.
	Draining func() bool
	// RequestTimeout bounds the work of one request, > 0. Placing an order
	// and changing stock go on for that long after a client has hung up, so
	// that what was begun has an outcome.
	RequestTimeout time.Duration
}

// Strategies is what GET /strategies tells.
type Strategies struct {
	Running string // a Name of All
	Guard   bool
	All     []Strategy
}

// Strategy describes one way to cut stock.
type Strategy struct {
	Name   string
	Gate   string // empty: none
	Cutter string
	Sound  bool // by itself it never sells a unit twice
	Detail string
}

//go:embed openapi.yaml
var openAPI []byte

// api holds what handlers share. It is not changed after New.
type api struct {
	Config
	auth       authority
	origins    http.CrossOriginProtection
	strategies []byte
	types      mediaTypes
	readers    sync.Pool // of *reader
	buffers    sync.Pool // of *buffer
}

// mediaTypes are header values that answers share, so that none allocates its
// own. Nothing appends to them.
type mediaTypes struct{ json, problem, yaml []string }

// New returns the handler of the whole API. It is safe for concurrent use.
func New(c Config) http.Handler {
	c.Log = slog.New(LogHandler(c.Log.Handler()))
	a := &api{
		Config:     c,
		auth:       newAuthority(c.AdminToken, c.Loopback),
		strategies: appendStrategies(nil, c.Strategies),
		types: mediaTypes{
			json:    []string{"application/json"},
			problem: []string{"application/problem+json"},
			yaml:    []string{"application/yaml"},
		},
		readers: sync.Pool{New: func() any { return newReader() }},
		buffers: sync.Pool{New: func() any { return new(buffer) }},
	}
	return a.engine()
}

func (a *api) engine() *gin.Engine {
	gin.SetMode(gin.ReleaseMode) // its debug mode prints to standard output
	e := gin.New()
	e.HandleMethodNotAllowed = true
	e.RedirectTrailingSlash = false
	e.ForwardedByClientIP = false
	e.UseRawPath = true // an escaped slash belongs to the name it stands in

	e.Use(a.envelope, a.sameOrigin)
	e.NoRoute(a.notFound)
	e.NoMethod(a.methodNotAllowed)

	e.POST("/orders", a.placeOrder)
	e.GET("/orders/:id", a.showOrder)
	e.GET("/stock", a.listStock)
	e.GET("/stock/:sku", a.showStock)
	e.PUT("/stock/:sku", a.setStock)
	e.GET("/stock/:sku/audit", a.showAudit)
	e.GET("/strategies", a.showStrategies)
	e.GET("/healthz", a.healthz)
	e.GET("/readyz", a.readyz)
	e.GET("/metrics", gin.WrapH(a.Metrics))
	e.GET("/openapi.yaml", a.showOpenAPI)
	return e
}

func (a *api) notFound(c *gin.Context) {
	a.problem(c, notFound, "No such path.")
}

// methodNotAllowed finds the Allow header set.
func (a *api) methodNotAllowed(c *gin.Context) {
	a.problem(c, methodNotAllowed, "The path does not answer to this method.")
}
