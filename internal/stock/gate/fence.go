package gate

import (
	"errors"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// The fence of a count is the greatest fencing token that it has seen. The first
// read under a token raises the fence, in the same step. A write needs its token
// to equal the fence, so it fails if another holder has read since under a newer token.
// Checking only that a write's token is not older would not be enough: a stopped
// holder could then write between another holder's read and write. A fill sets
// the fence to its own token, higher or lower, because it replaces the count, and
// because another lock service may start with smaller tokens.

// tokenSet has the fencing tokens under which one call uses counts. The zero value
// has none, and every call under it fails.
type tokenSet struct {
	unchecked bool
	bySKU     map[stock.SKU]uint64
}

// unfenced is passed by calls that run without a lock, or under a lock whose
// tokens are not to be checked.
var unfenced = tokenSet{unchecked: true}

// errNoToken says that a call has no fencing token of a SKU and is not unfenced.
var errNoToken = errors.New("the call has no fencing token")

// of returns the token of the SKU as the scripts expect it, where 0 means that
// nothing is checked.
func (t tokenSet) of(sku stock.SKU) (int64, error) {
	if t.unchecked {
		return 0, nil
	}
	token := t.bySKU[sku]
	if token == 0 {
		return 0, fmt.Errorf("SKU %s: %w", sku, errNoToken)
	}
	return int64(token), nil
}

// errFenced says that the count has seen a newer token.
var errFenced = errors.New("the lock has been granted to another holder")

// fenced returns the error of a call that was refused for its token. The call did
// nothing.
func fenced(sku stock.SKU) error {
	return fmt.Errorf("%w: SKU %s: %w", stock.ErrBusy, sku, errFenced)
}
