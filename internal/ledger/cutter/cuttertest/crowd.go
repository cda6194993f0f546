package cuttertest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// crowd is the number of buyers, each with one transaction at a time.
const crowd = 16

// rush lets each buyer of the crowd cut deductions until one is refused as sold
// out or by the buyer limit, at most the given number of turns. It returns the units accepted of
// each SKU.
func (t *trial) rush(turns int, next func(i int) stock.Take) map[stock.SKU]int64 {
	var (
		mu   sync.Mutex
		sold = make(map[stock.SKU]int64)
		all  sync.WaitGroup
		errs = make(chan error, crowd)
	)
	if t.err != nil {
		return sold
	}
	for i := range crowd {
		all.Go(func() {
			for range turns {
				d := next(i)
				decisions, err := t.transact(d)
				switch {
				case err != nil:
					errs <- err
					return
				case errors.Is(decisions[0].Reason(), stock.ErrSoldOut), errors.Is(decisions[0].Reason(), stock.ErrBuyerLimit):
					return
				case !decisions[0].Taken:
					errs <- decisions[0].Reason()
					return
				}
				mu.Lock()
				for _, line := range d.Lines {
					sold[line.SKU] += line.Quantity
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	close(errs)
	t.err = <-errs
	return sold
}

// cutsAddUp checks that no update is lost between transactions.
func cutsAddUp(t *trial) error {
	t.lay("hot", 10_000)
	sold := t.rush(10, func(i int) stock.Take { return order(t.line("hot", int64(1+i%3), 7)) })
	t.left("hot", 10_000-sold[t.sku("hot")])
	return nil
}

func cutsOfSeveralLinesAddUp(t *trial) error {
	names := []string{"x", "y", "z"}
	for _, name := range names {
		t.lay(name, 10_000)
	}
	var turn atomic.Int64
	sold := t.rush(6, func(int) stock.Take {
		n := int(turn.Add(1))
		lines := []line{t.line(names[n%3], 1, 7), t.line(names[(n+1)%3], 2, 7)}
		sortLines(lines)
		return order(lines...)
	})
	for _, name := range names {
		t.left(name, 10_000-sold[t.sku(name)])
	}
	return nil
}

// neverBelowZero checks that a crowd that asks for more units than there are gets every unit, and
// that the count ends at 0.
func neverBelowZero(t *trial) error {
	t.lay("scarce", 60)
	sold := t.rush(1000, func(int) stock.Take { return order(t.line("scarce", 1, 7)) })
	if got := sold[t.sku("scarce")]; t.err == nil && got != 60 {
		return fmt.Errorf("sold %d of 60 units", got)
	}
	t.left("scarce", 0)
	return nil
}
