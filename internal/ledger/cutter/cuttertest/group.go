package cuttertest

import (
	"errors"
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

func cutsAllLines(t *trial) error {
	t.lay("a", 10)
	t.lay("b", 20)
	t.lay("bystander", 5)
	t.cut(takes(order(t.line("a", 3, 7), t.line("b", 4, 7))), nil)
	t.left("a", 7)
	t.left("b", 16)
	t.left("bystander", 5)
	return nil
}

func cutsAGroup(t *trial) error {
	t.lay("a", 100)
	t.lay("b", 100)
	t.cut(takes(order(t.line("a", 1, 7)), order(t.line("a", 2, 7)), order(t.line("a", 3, 7))), nil, nil, nil)
	t.left("a", 94)
	t.cut(takes(order(t.line("b", 1, 7)), order(t.line("a", 2, 7), t.line("b", 5, 7)), order(t.line("a", 4, 7))), nil, nil, nil)
	t.left("a", 88)
	t.left("b", 94)
	return nil
}

func cutsOverManySKUs(t *trial) error {
	const skus = 200
	var ds []stock.Take
	for i := range skus {
		name := fmt.Sprintf("many%03d", i)
		t.lay(name, 50)
		ds = append(ds, order(t.line(name, int64(1+i%5), 7)))
	}
	t.cut(ds, make([]error, skus)...)
	for i := range skus {
		t.left(fmt.Sprintf("many%03d", i), int64(49-i%5))
	}
	return nil
}

func unknownSKUAlone(t *trial) error {
	t.lay("a", 10)
	t.cut(takes(order(t.line("nowhere", 1, 0))), stock.ErrUnknownSKU)
	t.cut(takes(order(t.line("a", 1, 7)), order(t.line("a", 1, 7), t.line("nowhere", 1, 0)), order(t.line("a", 2, 7))),
		nil, stock.ErrUnknownSKU, nil)
	t.left("a", 7)
	return nil
}

func rollbackCutsNothing(t *trial) error {
	t.lay("a", 10)
	for t.err == nil {
		_, err := t.once(false, takes(order(t.line("a", 3, 7))))
		if !errors.Is(err, cutter.ErrConflict) {
			t.err = err
			break
		}
	}
	t.left("a", 10)
	return nil
}
