package gatetest

import "github.com/holdfast-stock/holdfast/internal/stock"

var adjustPromises = []Promise{
	{"AdjustOnce", adjustOnce},
	{"AdjustGap", adjustGap},
	{"AdjustOfEarlierEpochDropped", adjustOfEarlierEpochDropped},
	{"AdjustWaitsForItsFill", adjustWaitsForItsFill},
}

func adjustOnce(t *trial) error {
	t.fill("a", 1, 10)
	t.adjust("a", 1, 1, 5, nil)
	t.adjust("a", 1, 1, 5, nil)
	t.counts("a", 15, 0, 0)
	t.adjust("a", 1, 2, 1, nil)
	t.adjust("a", 1, 1, 5, nil)
	t.counts("a", 16, 0, 0)
	t.accepted(t.atOnce(8, func(gate Gate, _ int) error {
		return t.retryBusy(func() error {
			return gate.Adjust(t.ctx, stock.Change{SKU: t.sku("a"), Epoch: 1, Number: 3, Delta: 1})
		})
	}))
	t.counts("a", 17, 0, 0)
	return nil
}

func adjustGap(t *trial) error {
	t.fill("a", 1, 10)
	t.adjust("a", 1, 2, 5, stock.ErrChangeGap)
	t.counts("a", 10, 0, 0)
	t.adjust("a", 1, 1, 5, nil)
	t.adjust("a", 1, 3, 5, stock.ErrChangeGap)
	t.counts("a", 15, 0, 0)
	return nil
}

func adjustOfEarlierEpochDropped(t *trial) error {
	t.fill("a", 4, 10)
	t.adjust("a", 3, 1, 5, nil) // the fill included the addition
	t.counts("a", 10, 0, 0)
	t.adjust("a", 4, 1, 1, nil)
	t.fill("a", 5, 20)
	t.adjust("a", 4, 2, 5, nil)
	t.adjust("a", 5, 1, 1, nil) // numbers start again with each epoch
	t.counts("a", 21, 0, 0)
	return nil
}

// adjustWaitsForItsFill sends an addition before the fill of its epoch, whose
// units were read from the ledger before the addition.
func adjustWaitsForItsFill(t *trial) error {
	t.adjust("a", 1, 1, 5, stock.ErrNotFilled)
	t.notFilled("a")
	t.fill("a", 1, 10)
	t.adjust("a", 1, 1, 5, nil)
	t.counts("a", 15, 0, 0)
	t.adjust("a", 2, 1, 5, stock.ErrNotFilled)
	t.counts("a", 15, 0, 0)
	t.fill("a", 2, 15)
	t.adjust("a", 2, 1, 5, nil)
	t.counts("a", 20, 0, 0)
	return nil
}
