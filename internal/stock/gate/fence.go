package gate

import (
	"errors"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// The fence of a count is the greatest fencing token that it has seen. The first read under a token
// raises the fence, in the same step. A write requires that its token equals the fence. So it fails
// if another holder has read since under a newer token. Checking only that a write's token is not
// older would not be enough: a stopped holder could then write between another holder's read and
// write. A fill sets the fence to its own token, higher or lower, because it replaces the count,
// and because another lock service may start with smaller tokens.

// tokenSet has the fencing tokens under which one call uses counts. The zero value has no tokens,
// and every call under it fails.
type tokenSet struct {
	unchecked bool
	bySKU     map[stock.SKU]uint64
}

// unfenced marks calls that run without a lock, or under a lock whose tokens must not be checked.
var unfenced = tokenSet{unchecked: true}

// errNoToken means that a call has no fencing token of a SKU and is not unfenced.
var errNoToken = errors.New("the call has no fencing token")

// of returns the SKU's token for the scripts. 0 means that the scripts check nothing.
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

// errFenced means that the count has seen a newer token.
var errFenced = errors.New("the lock has been granted to another holder")

// fenced returns the error of a call that was refused because of its token. The call did nothing.
func fenced(sku stock.SKU) error {
	return fmt.Errorf("%w: SKU %s: %w", stock.ErrBusy, sku, errFenced)
}
