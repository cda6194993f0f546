package gate

import (
	"context"
	"errors"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// The fence of a count is the greatest fencing token that was shown to it. The
// first read under a token raises it, in the same step; a write needs its token
// equal to it, so that it fails if anybody has read since. Checking writes only,
// for older tokens, would let a stopped holder write between another's read and
// write. A fill puts the fence to the filler's token, whatever it was: it
// replaces the count, and a lock service that was changed for another may begin
// with smaller tokens.

type tokensKey struct{}

// withTokens shows the tokens of the SKUs' locks to the counts that they guard.
func withTokens(ctx context.Context, tokens map[stock.SKU]uint64) context.Context {
	return context.WithValue(ctx, tokensKey{}, tokens)
}

// token is the fencing token under which the SKU's count is used; 0: none.
func token(ctx context.Context, sku stock.SKU) int64 {
	tokens, _ := ctx.Value(tokensKey{}).(map[stock.SKU]uint64)
	return int64(tokens[sku])
}

// errFenced says that somebody else has been granted the lock since.
var errFenced = errors.New("the lock was granted to another meanwhile")

// fenced is the answer to a call that was refused for its token: nothing was
// done.
func fenced(sku stock.SKU) error {
	return fmt.Errorf("%w: SKU %s: %w", stock.ErrBusy, sku, errFenced)
}
