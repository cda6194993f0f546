package gatetest

import (
	"fmt"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

var levelPromises = []Promise{
	{"LevelOfManySKUs", levelOfManySKUs},
}

func levelOfManySKUs(t *trial) error {
	t.fill("a", 1, 10)
	t.fill("z", 2, 20)
	if t.err != nil {
		return t.err
	}
	skus := []stock.SKU{t.sku("z")}
	for i := range 1100 {
		skus = append(skus, t.sku(fmt.Sprintf("none-%d", i)))
	}
	skus = append(skus, t.sku("a"), t.sku("z"))
	levels, err := t.gate().Level(t.ctx, skus...)
	if err != nil {
		return err
	}
	if len(levels) != len(skus) {
		return fmt.Errorf("got %d levels of %d SKUs", len(levels), len(skus))
	}
	for i, level := range levels {
		want := stock.Level{SKU: skus[i]}
		switch skus[i] {
		case t.sku("a"):
			want = stock.Level{SKU: skus[i], Filled: true, Epoch: 1, Available: 10}
		case t.sku("z"):
			want = stock.Level{SKU: skus[i], Filled: true, Epoch: 2, Available: 20}
		}
		if level != want {
			return fmt.Errorf("level %d: got %+v, want %+v", i, level, want)
		}
	}
	none, err := t.gate().Level(t.ctx)
	if err != nil || len(none) != 0 {
		return fmt.Errorf("the levels of no SKUs: %v (error %v)", none, err)
	}
	return nil
}
