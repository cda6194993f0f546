package cuttertest

import (
	"errors"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

func countsBelowZero(t *trial) error {
	t.lay("a", 1)
	t.lay("b", 1)
	t.cut(takes(order(t.line("a", 1, 7)), order(t.line("a", 2, 7))), nil, nil)
	t.left("a", -2)
	t.cut(takes(order(t.line("a", 1, 7), t.line("b", 3, 7)), order(t.line("b", 1, 7))), nil, nil)
	t.left("a", -3)
	t.left("b", -3)
	return nil
}

func lastUnits(t *trial) error {
	t.lay("a", 5)
	t.cut(takes(order(t.line("a", 4, 7))), nil)
	t.cut(takes(order(t.line("a", 2, 7))), stock.ErrSoldOut)
	t.cut(takes(order(t.line("a", 1, 7))), nil)
	t.cut(takes(order(t.line("a", 1, 7))), stock.ErrSoldOut)
	t.left("a", 0)
	t.lay("b", 3)
	t.cut(takes(order(t.line("b", 1, 7)), order(t.line("b", 2, 7))), nil, nil)
	t.left("b", 0)
	return nil
}

func allLinesOrNone(t *trial) error {
	t.lay("a", 10)
	t.lay("b", 1)
	t.lay("c", 10)
	t.cut(takes(order(t.line("a", 1, 7), t.line("b", 2, 7), t.line("c", 3, 7))), stock.ErrSoldOut)
	t.cut(takes(order(t.line("a", 1, 7), t.line("b", 1, 7), t.line("c", 11, 7))), stock.ErrSoldOut)
	t.left("a", 10)
	t.left("b", 1)
	t.left("c", 10)
	if t.err == nil {
		decisions, err := t.transact(order(t.line("a", 1, 7), t.line("b", 2, 7)))
		var refusal *stock.Refusal
		if err != nil {
			return err
		}
		if !errors.As(decisions[0].Reason(), &refusal) || refusal.SKU != t.sku("b") {
			return fmt.Errorf("%v does not name SKU %s", decisions[0].Reason(), t.sku("b"))
		}
	}
	return nil
}

// onlyWhatDoesNotFit checks that an order that does not fit leaves its units to later orders.
func onlyWhatDoesNotFit(t *trial) error {
	t.lay("a", 3)
	t.cut(takes(order(t.line("a", 5, 7)), order(t.line("a", 1, 7)), order(t.line("a", 1, 7)), order(t.line("a", 1, 7))),
		stock.ErrSoldOut, nil, nil, nil)
	t.left("a", 0)
	t.lay("b", 2)
	t.lay("c", 1)
	t.cut(takes(order(t.line("b", 2, 7), t.line("c", 2, 7)), order(t.line("b", 1, 7)), order(t.line("b", 1, 7), t.line("c", 1, 7)), order(t.line("c", 1, 7))),
		stock.ErrSoldOut, nil, nil, stock.ErrSoldOut)
	t.left("b", 0)
	t.left("c", 0)
	return nil
}
