package httpapi

import (
	"context"
	"errors"

	"github.com/gin-gonic/gin"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Tokens verifies the tokens of buyers. It must be safe for concurrent use.
type Tokens interface {
	// Subject verifies a token and returns the ID of its buyer. An error tells the client why the
	// token is not valid. stock.ErrBusy means that the token cannot be verified now.
	Subject(ctx context.Context, token string) (buyer string, err error)
}

// caller is the sender of a request, as its bearer token shows. At most one field is set.
type caller struct {
	admin bool   // the token is the administrator's
	buyer string // the buyer of a valid token
	err   error  // why there is no valid token; stock.ErrBusy: the token cannot be verified now
}

// callerKey is the key of the caller in the context of a request.
const callerKey = "caller"

var (
	errNoToken   = errors.New("there is none")
	errNotBearer = errors.New("the Authorization header must be given only once, as Bearer and the token")
)

// identify sets the caller of a request. It never refuses a request, because some calls need no
// token.
func (a *api) identify(c *gin.Context) {
	var who caller
	switch token, ok := bearerToken(c.Request.Header); {
	case len(c.Request.Header["Authorization"]) == 0:
		who.err = errNoToken
	case !ok:
		who.err = errNotBearer
	case a.auth.isAdmin(token):
		who.admin = true
	default:
		who.buyer, who.err = a.Tokens.Subject(a.withID(c, c.Request.Context()), token)
	}
	c.Set(callerKey, who)
}

// caller returns the caller of the request. Without Tokens, it is empty.
func (a *api) caller(c *gin.Context) caller {
	who, _ := c.Get(callerKey)
	found, _ := who.(caller)
	return found
}

// buyerOnly refuses a request that comes neither from a buyer nor from an administrator. Without
// Tokens, this middleware is not used, and every client may act for every buyer.
func (a *api) buyerOnly(c *gin.Context) {
	who := a.caller(c)
	switch {
	case who.err == nil:
		return
	case errors.Is(who.err, stock.ErrBusy):
		a.fail(c, who.err)
	case errors.Is(who.err, errNoToken):
		c.Header("WWW-Authenticate", "Bearer")
		a.problem(c, unauthorized, "This call needs a buyer's bearer token.")
	default:
		c.Header("WWW-Authenticate", `Bearer error="invalid_token"`)
		a.problem(c, unauthorized, "The bearer token is not valid: "+who.err.Error()+".")
	}
	c.Abort()
}

// payerOnly refuses a request that must not report payments. A buyer's token is not
// enough, because the buyer could report a payment that was never made.
func (a *api) payerOnly(c *gin.Context) {
	if a.Tokens != nil {
		a.adminOnly(c)
	}
}

// mayActFor reports whether the caller may act for the buyer. Only the token of another buyer
// forbids it.
func (a *api) mayActFor(c *gin.Context, buyer string) bool {
	own := a.caller(c).buyer
	return own == "" || own == buyer
}

// otherBuyer refuses a request whose buyer_id is not the caller's.
func (a *api) otherBuyer(c *gin.Context) {
	a.problem(c, otherBuyer, "buyer_id must be the subject of the bearer token. Nothing was done.")
}
