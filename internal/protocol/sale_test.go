package protocol

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

const (
	clients   = 32  // concurrent buyers of a sale
	saleUnits = 100 // units for sale
)

// sellOut lets clients buy one unit after another, each until it is answered sold out,
// and returns the IDs of the accepted orders. The sale also ends once more orders are
// accepted than there are units, because then the fault is certain. The clients use the
// instances in turn. Answers other than accepted, sold out and busy fail the test.
func sellOut(t *testing.T, instances []*instance, sku stock.SKU, units int64) (accepted []uuid.UUID) {
	t.Helper()
	var (
		mu   sync.Mutex
		all  sync.WaitGroup
		sold atomic.Int64
	)
	for n := range clients {
		i := instances[n%len(instances)]
		r := order.Request{Buyer: fmt.Sprintf("buyer-%d", n)}
		all.Go(func() {
			for sold.Load() <= units {
				r.Lines = []stock.Line{{SKU: sku, Quantity: 1}}
				o, _, err := i.Place(t.Context(), r)
				switch {
				case err == nil:
					sold.Add(1)
					mu.Lock()
					accepted = append(accepted, o.ID)
					mu.Unlock()
				case errors.Is(err, stock.ErrSoldOut):
					return
				case errors.Is(err, stock.ErrBusy):
					testenv.Dither()
				default:
					t.Errorf("a client was answered %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	return accepted
}

// saleFault compares the counts with the accepted orders after the SKU has sold out, and describes
// the first difference. It returns an empty text if there is none.
func (s *shop) saleFault(t *testing.T, i *instance, sku stock.SKU, accepted []uuid.UUID) string {
	t.Helper()
	if b := s.ledgerCounts(t, sku); b.oversold() > 0 {
		return fmt.Sprintf("oversold %d of %d units", b.oversold(), b.total)
	}
	for _, id := range accepted {
		if _, err := i.Order(t.Context(), id); err != nil {
			return fmt.Sprintf("an accepted order is not found: %v", err)
		}
	}
	s.waitSettled(t, i, sku)
	if fault := s.imbalance(t, i.counter, sku); fault != "" {
		return fault
	}
	if b := s.ledgerCounts(t, sku); b.sold != b.total || int64(len(accepted)) != b.sold {
		return fmt.Sprintf("%d orders accepted, %d of %d units sold", len(accepted), b.sold, b.total)
	}
	return ""
}

// TestRush checks that with a sound strategy, two instances sell exactly the existing units. The
// same check must find the other strategies at fault. Unless the run is thorough, each strategy
// sells on one of the databases here, and on another in TestRushOfLines.
func TestRush(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for i, spec := range assembly.Strategies() {
			if !s.runs(spec, i) {
				continue
			}
			t.Run(spec.Name, func(t *testing.T) {
				instances := make([]*instance, 2)
				for n := range instances {
					instances[n] = s.open(t, settings{strategy: spec.Name, noGuard: true})
					defer instances[n].Close()
				}
				sales := 1
				if !spec.Sound {
					sales = 10 // one sale may happen to have no fault
				}
				var fault string
				for sale := 0; sale < sales && fault == ""; sale++ {
					sku := newSKU("rush")
					addStock(t, instances[0], sku, saleUnits)
					fault = s.saleFault(t, instances[1], sku, sellOut(t, instances, sku, saleUnits))
				}
				if (fault == "") != spec.Sound {
					t.Errorf("sound: %v, but the fault after %d sales is %q", spec.Sound, sales, fault)
				}
			})
		}
	})
}

// TestRushOfLines lets clients order several lines in different sequences while the stock grows and
// shrinks. Every order must be accepted with all its lines, and the counts must add up. Unless the
// run is thorough, each strategy sells on one of the databases.
func TestRushOfLines(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for n, spec := range assembly.Strategies() {
			if !spec.Sound || !s.runs(spec, n+1) {
				continue
			}
			t.Run(spec.Name, func(t *testing.T) {
				a, b := s.open(t, settings{strategy: spec.Name}), s.open(t, settings{strategy: spec.Name})
				defer a.Close()
				defer b.Close()
				skus := []stock.SKU{newSKU("x"), newSKU("y"), newSKU("z")}
				for _, sku := range skus {
					addStock(t, a, sku, 60)
				}
				var (
					all   sync.WaitGroup
					units [3]atomic.Int64
				)
				for n := range 12 {
					i := []*instance{a, b}[n%2]
					all.Go(func() {
						for turn := range 12 {
							first, next := (n+turn)%3, (n+turn+1)%3
							_, err := placeUntilKnown(t, i, func() *instance { return i }, request(
								stock.Line{SKU: skus[first], Quantity: 1}, stock.Line{SKU: skus[next], Quantity: 2}))
							switch {
							case err == nil:
								units[first].Add(1)
								units[next].Add(2)
							case !errors.Is(err, stock.ErrSoldOut) && !errors.Is(err, stock.ErrBusy):
								t.Errorf("a client was answered %v", err)
							}
						}
					})
				}
				all.Go(func() {
					for turn := range 6 {
						for _, sku := range skus {
							_, _, err := b.SetStock(t.Context(), stock.Setting{SKU: sku, Kind: stock.Product, Total: int64(60 + 20*(turn%3))})
							if err != nil && !errors.Is(err, stock.ErrBelowSold) && !errors.Is(err, stock.ErrBusy) && !errors.Is(err, stock.ErrUnavailable) {
								t.Errorf("the administrator was answered %v", err)
							}
						}
					}
				})
				all.Wait()
				for n, sku := range skus {
					s.waitSettled(t, a, sku)
					if err := a.Sweep(t.Context()); err != nil {
						t.Error(err)
					}
					s.checkBalance(t, a.counter, sku, units[n].Load())
				}
			})
		}
	})
}
