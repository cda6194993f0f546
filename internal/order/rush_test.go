package order

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
)

// clients of a rush, on all instances in turn.
const clients = 32

// rush lets clients buy one unit after the other until each has heard "sold
// out", and returns the orders accepted. Everything but busy is a failure.
func rush(t *testing.T, instances []*instance, sku stock.SKU) (accepted []uuid.UUID) {
	t.Helper()
	const most = 2000 // a strategy that never sells out is stopped here
	var (
		mu   sync.Mutex
		all  sync.WaitGroup
		sold atomic.Int64
	)
	for n := range clients {
		i := instances[n%len(instances)]
		r := Request{Buyer: fmt.Sprintf("buyer-%d", n)}
		all.Go(func() {
			for sold.Load() < most {
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
				case errors.Is(err, ErrBusy):
					time.Sleep(rand.N(5 * time.Millisecond))
				default:
					t.Errorf("a client heard %v", err)
					return
				}
			}
		})
	}
	all.Wait()
	return accepted
}

// verdict holds the books against what was accepted and says what is wrong.
func (s *shop) verdict(t *testing.T, i *instance, sku stock.SKU, accepted []uuid.UUID) string {
	t.Helper()
	if b := s.books(t, sku); b.oversold() > 0 {
		return fmt.Sprintf("oversold %d of %d units", b.oversold(), b.total)
	}
	for _, id := range accepted {
		if _, err := i.Order(t.Context(), id); err != nil {
			return fmt.Sprintf("an order that was accepted is not found: %v", err)
		}
	}
	s.settled(t, i.gate, sku)
	if fault := s.unbalanced(t, i.gate, sku); fault != "" {
		return fault
	}
	if b := s.books(t, sku); b.sold != b.total || int64(len(accepted)) != b.sold {
		return fmt.Sprintf("accepted %d, sold %d of %d", len(accepted), b.sold, b.total)
	}
	return ""
}

// TestRush: several instances sell exactly what there is, if they promise it.
// The same checker convicts those that do not promise it.
func TestRush(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, spec := range strategy.Table() {
			t.Run(spec.Name, func(t *testing.T) {
				instances := make([]*instance, 2)
				for n := range instances {
					instances[n] = s.open(t, settings{strategy: spec.Name, noGuard: true})
					defer instances[n].Close()
				}
				for try := 1; ; try++ {
					sku := fresh("rush")
					lay(t, instances[0], sku, 200)
					fault := s.verdict(t, instances[1], sku, rush(t, instances, sku))
					switch {
					case spec.Sound && fault != "":
						t.Error(fault)
						return
					case spec.Sound && try == 2, !spec.Sound && fault != "":
						t.Log(fault)
						return
					case !spec.Sound && try == 10:
						t.Errorf("acquitted in %d rushes, though nothing keeps it from overselling", try)
						return
					}
				}
			})
		}
	})
}

// TestRushUnderGuard: the guard turns a gate that oversells into one that only
// annoys.
func TestRushUnderGuard(t *testing.T) {
	t.Parallel()
	eachDatabase(t, servers, func(t *testing.T, s *shop) {
		for _, name := range []string{"none", "mutex"} {
			t.Run(name, func(t *testing.T) {
				a, b := s.open(t, settings{strategy: name}), s.open(t, settings{strategy: name})
				defer a.Close()
				defer b.Close()
				sku := fresh("guarded")
				lay(t, a, sku, 200)
				rush(t, []*instance{a, b}, sku)
				if books := s.books(t, sku); books.oversold() > 0 || books.available < 0 {
					t.Errorf("%+v", books)
				}
			})
		}
	})
}

// TestMutexAlone: the process mutex is right as long as there is one process.
func TestMutexAlone(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases[:1], func(t *testing.T, s *shop) {
		i := s.open(t, settings{strategy: "mutex", noGuard: true})
		sku := fresh("alone")
		lay(t, i, sku, 200)
		if fault := s.verdict(t, i, sku, rush(t, []*instance{i}, sku)); fault != "" {
			t.Error(fault)
		}
	})
}

// TestRushOfLines: orders of several lines in every order, growing and
// shrinking stock meanwhile: nobody is sold half of an order, and it adds up.
func TestRushOfLines(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, spec := range strategy.Table() {
			if !spec.Sound {
				continue
			}
			t.Run(spec.Name, func(t *testing.T) {
				a, b := s.open(t, settings{strategy: spec.Name}), s.open(t, settings{strategy: spec.Name})
				defer a.Close()
				defer b.Close()
				skus := []stock.SKU{fresh("x"), fresh("y"), fresh("z")}
				for _, sku := range skus {
					lay(t, a, sku, 60)
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
							_, _, err := i.Place(t.Context(), asking(
								stock.Line{SKU: skus[first], Quantity: 1}, stock.Line{SKU: skus[next], Quantity: 2}))
							switch {
							case err == nil:
								units[first].Add(1)
								units[next].Add(2)
							case !errors.Is(err, stock.ErrSoldOut) && !errors.Is(err, ErrBusy):
								t.Errorf("a client heard %v", err)
							}
						}
					})
				}
				all.Go(func() {
					for turn := range 6 {
						for _, sku := range skus {
							_, _, err := b.SetStock(t.Context(), Setting{SKU: sku, Kind: stock.Product, Total: int64(60 + 20*(turn%3))})
							if err != nil && !errors.Is(err, ErrBelowSold) && !errors.Is(err, ErrBusy) {
								t.Errorf("the administrator heard %v", err)
							}
						}
					}
				})
				all.Wait()
				for n, sku := range skus {
					s.settled(t, a.gate, sku)
					if err := a.Sweep(t.Context()); err != nil {
						t.Error(err)
					}
					s.atRest(t, a.gate, sku, units[n].Load())
				}
			})
		}
	})
}
