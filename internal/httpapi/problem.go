package httpapi

import (
	"errors"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// extras are the members that only some problems have.
type extras struct {
	sku     string       // problems in skuProblems
	opensAt time.Time    // not-open
	errors  []fieldError // invalid
}

// skuProblems are the problems of one SKU of an order. Their answers name it.
var skuProblems = []problem{soldOut, buyerLimit, notOpen, closed, unknownSKU}

// extrasOf returns the SKU, the opening time or the bad fields that err names.
func extrasOf(err error) extras {
	if errors.Is(err, stock.ErrKindFixed) {
		return extras{errors: []fieldError{{"kind", "cannot change"}}}
	}
	if errors.Is(err, stock.ErrHours) {
		return extras{errors: []fieldError{{"closes_at", hoursDetail}}}
	}
	var (
		x       extras
		refusal *stock.Refusal
		notOpen *stock.NotOpen
	)
	if errors.As(err, &refusal) {
		x.sku = string(refusal.SKU)
	}
	if errors.As(err, &notOpen) {
		x.opensAt = notOpen.OpensAt
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
	if !slices.Contains(skuProblems, p) { // the error wraps a refusal, but is another problem
		x.sku, x.opensAt = "", time.Time{}
	}
	b := a.buffers.Get().(*buffer)
	b.bytes = appendProblem(b.bytes[:0], p, def, detail, x)
	a.write(c, def.status, a.types.problem, b)
}
