package httpapi

import (
	"errors"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// extras are the members that only some problems have.
type extras struct {
	sku    string       // sold-out, unknown-sku
	errors []fieldError // invalid
}

// extrasOf returns the SKU or the bad fields that err names.
func extrasOf(err error) extras {
	if errors.Is(err, stock.ErrKindFixed) {
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
	def := definitions[p]
	h := c.Writer.Header()
	if def.retry != "" {
		h["Retry-After"] = []string{def.retry}
	}
	var x extras
	if len(more) > 0 {
		x = more[0]
	}
	if p != soldOut && p != unknownSKU {
		x.sku = "" // the error wraps a refusal, but is another problem
	}
	b := a.buffers.Get().(*buffer)
	b.bytes = appendProblem(b.bytes[:0], p, def, detail, x)
	a.write(c, def.status, a.types.problem, b)
}
