package httpapi

import (
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

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
	case name == "": // the path has two slashes in a row
		a.notFound(c)
		return "", false
	case !stock.ValidID(name):
		a.fail(c, stock.Refuse(stock.SKU(clip(name)), stock.ErrUnknownSKU))
		return "", false
	}
	return stock.SKU(name), true
}
