package httpapi

import (
	"errors"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// problem names a kind of error answer: the last part of its type URI.
type problem string

const (
	malformed        problem = "malformed"
	unauthorized     problem = "unauthorized"
	notFound         problem = "not-found"
	unknownSKU       problem = "unknown-sku"
	unknownOrder     problem = "unknown-order"
	methodNotAllowed problem = "method-not-allowed"
	crossOrigin      problem = "cross-origin"
	timeout          problem = "timeout"
	soldOut          problem = "sold-out"
	inProgress       problem = "in-progress"
	belowSold        problem = "below-sold"
	tooLarge         problem = "too-large"
	notJSON          problem = "not-json"
	invalid          problem = "invalid"
	keyReused        problem = "key-reused"
	internal         problem = "internal"
	busy             problem = "busy"
	unavailable      problem = "unavailable"
	superseded       problem = "superseded"
)

// internalDetail says nothing of the cause, which is for the log alone.
const internalDetail = "The service failed. The log has the cause under the request ID."

// about is what a problem always says of itself.
type about struct {
	status int
	title  string
	retry  string // Retry-After, in seconds; empty: none
}

// about is the table of problems.
func (p problem) about() about {
	switch p {
	case malformed:
		return about{status: http.StatusBadRequest, title: "Malformed request"}
	case unauthorized:
		return about{status: http.StatusUnauthorized, title: "Not authorized"}
	case notFound:
		return about{status: http.StatusNotFound, title: "Not found"}
	case unknownSKU:
		return about{status: http.StatusNotFound, title: "Unknown SKU"}
	case unknownOrder:
		return about{status: http.StatusNotFound, title: "Unknown order"}
	case methodNotAllowed:
		return about{status: http.StatusMethodNotAllowed, title: "Method not allowed"}
	case crossOrigin:
		return about{status: http.StatusForbidden, title: "Cross-origin request"}
	case timeout:
		return about{status: http.StatusRequestTimeout, title: "Request timeout", retry: "1"}
	case soldOut:
		return about{status: http.StatusConflict, title: "Sold out"}
	case inProgress:
		return about{status: http.StatusConflict, title: "In progress", retry: "1"}
	case belowSold:
		return about{status: http.StatusConflict, title: "Below what is sold"}
	case tooLarge:
		return about{status: http.StatusRequestEntityTooLarge, title: "Body too large"}
	case notJSON:
		return about{status: http.StatusUnsupportedMediaType, title: "Not JSON"}
	case invalid:
		return about{status: http.StatusUnprocessableEntity, title: "Invalid request"}
	case keyReused:
		return about{status: http.StatusUnprocessableEntity, title: "Idempotency key reused"}
	case busy:
		return about{status: http.StatusServiceUnavailable, title: "Busy", retry: "1"}
	case unavailable:
		return about{status: http.StatusServiceUnavailable, title: "Unavailable", retry: "1"}
	case superseded:
		return about{status: http.StatusServiceUnavailable, title: "Superseded", retry: "5"}
	default:
		return about{status: http.StatusInternalServerError, title: "Internal error"}
	}
}

// problemOf is the table from the service's errors to problems. The errors
// that leave the outcome open, or say that nothing was done, come first: they
// may wrap the reason they met on the way, which then was not the answer.
func problemOf(err error) (p problem, detail string) {
	switch {
	case errors.Is(err, order.ErrUnavailable):
		return unavailable, "A store did not answer and the outcome is open. Try again, with the same Idempotency-Key if an order is at stake."
	case errors.Is(err, order.ErrSuperseded):
		return superseded, "An instance of another strategy or layout has taken the stock over. Nothing was cut; ask another instance."
	case errors.Is(err, order.ErrBusy):
		return busy, "The service is too busy, or a store is away. Nothing was cut; try again."
	case errors.Is(err, order.ErrInProgress):
		return inProgress, "Another request with this Idempotency-Key is under way."
	case errors.Is(err, order.ErrKeyReused):
		return keyReused, "The Idempotency-Key was used for an order of other lines."
	case errors.Is(err, order.ErrBelowSold):
		return belowSold, "The total would be less than what is sold or in flight."
	case errors.Is(err, order.ErrKindFixed):
		return invalid, invalidDetail
	case errors.Is(err, order.ErrUnknownOrder):
		return unknownOrder, "There is no such order."
	case errors.Is(err, stock.ErrSoldOut):
		return soldOut, "Fewer units are left than were asked for. Nothing was cut."
	case errors.Is(err, stock.ErrUnknownSKU):
		return unknownSKU, "There is no such SKU."
	default:
		return internal, internalDetail
	}
}

// extras are the members that only some problems have.
type extras struct {
	sku    string       // sold-out, buyer-limit, unknown-sku
	errors []fieldError // invalid
}

// concerning returns what err knows beyond its kind.
func concerning(err error) extras {
	if errors.Is(err, order.ErrKindFixed) {
		return extras{errors: []fieldError{{"kind", "cannot change"}}}
	}
	var refusal *stock.Refusal
	if errors.As(err, &refusal) {
		return extras{sku: string(refusal.SKU)}
	}
	return extras{}
}

// problem answers with a problem document.
func (a *api) problem(c *gin.Context, p problem, detail string, more ...extras) {
	about := p.about()
	h := c.Writer.Header()
	if about.retry != "" {
		h["Retry-After"] = []string{about.retry}
	}
	var x extras
	if len(more) > 0 {
		x = more[0]
	}
	if p != soldOut && p != unknownSKU {
		x.sku = "" // wrapped on the way to another answer
	}
	b := a.buffers.Get().(*buffer)
	b.bytes = appendProblem(b.bytes[:0], p, about, detail, x)
	a.write(c, about.status, a.types.problem, b)
}
