package store

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestGalera: transactions on one row through two nodes of a cluster. What is
// acknowledged is there and whole, and what is refused is not.
func TestGalera(t *testing.T) {
	t.Parallel()
	nodes := testenv.OwnGalera(t)
	all := []*SQL{migrated(t, nodes[0].URL()), opened(t, nodes[1].URL())}
	insertStock(t, all[0].DB(), "a")
	const writers, turns = 8, 100
	var (
		committed, unknown atomic.Int64
		running            sync.WaitGroup
	)
	for w := range writers {
		s := all[w%len(all)]
		running.Go(func() {
			for turn := range turns {
				sku := fmt.Sprintf("w%d-%d", w, turn)
				ok, err := CommitIf(t.Context(), s.DB(), Statement{SQL: "UPDATE stock SET available = available - 1 WHERE sku = 'a'"}, 1,
					func(guard Guard) []Statement {
						row := "INSERT INTO stock (sku, kind, total, available) VALUES (%s, 'product', 1, 1)"
						return []Statement{{SQL: fmt.Sprintf(row, guard("'"+sku+"'"))}, {SQL: fmt.Sprintf(row, "'"+sku+"-'")}}
					})
				want := 0
				switch {
				case ok:
					want = 2
					committed.Add(1)
				case errors.Is(err, ErrUnknownOutcome):
					unknown.Add(1)
					continue
				}
				var rows int
				if err := s.DB().Raw("SELECT COUNT(*) FROM stock WHERE sku IN (?, ?)", sku, sku+"-").Row().Scan(&rows); err != nil || rows != want {
					t.Errorf("committed %v, %v: %d rows, %v", ok, err, rows, err)
				}
			}
		})
	}
	running.Wait()
	left := one[int64](t, all[0].DB(), "SELECT available FROM stock WHERE sku = 'a'")
	if sold := 10 - left; sold < committed.Load() || sold > committed.Load()+unknown.Load() {
		t.Errorf("%d committed, %d unknown, and %d sold", committed.Load(), unknown.Load(), sold)
	}
	if committed.Load() == 0 {
		t.Error("nothing was committed")
	}
	// What one node has acknowledged, the next read of another node sees.
	for n := range 200 {
		run(t, all[0].DB(), "UPDATE stock SET total = ? WHERE sku = 'a'", n)
		if seen := one[int](t, all[1].DB(), "SELECT total FROM stock WHERE sku = 'a'"); seen != n {
			t.Fatalf("one node has %d, and the other shows %d", n, seen)
		}
	}
}
