package sqltx_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestGalera runs transactions on one row through two nodes of a cluster. All rows of an
// acknowledged transaction must exist, and no row of a refused one.
func TestGalera(t *testing.T) {
	t.Parallel()
	if !testenv.Thorough() {
		t.Log("only in a thorough run: it starts three servers")
		return
	}
	nodes := testenv.OwnGalera(t)
	all := []*sqltx.DB{storetest.Migrated(t, nodes[0].URL()).Ledger(), storetest.SQL(t, nodes[1].URL()).Ledger()}
	insertStock(t, all[0], "a")
	const writers, turns = 8, 100
	var (
		committed, unknown atomic.Int64
		running            sync.WaitGroup
	)
	for w := range writers {
		db := all[w%len(all)]
		running.Go(func() {
			for turn := range turns {
				sku := fmt.Sprintf("w%d-%d", w, turn)
				ok, err := commitIf(t.Context(), db, sqltx.Statement{SQL: "UPDATE stock SET available = available - 1 WHERE sku = 'a'"}, 1, twoRows(sku))
				want := 0
				switch {
				case ok:
					want = 2
					committed.Add(1)
				case errors.Is(err, sqltx.ErrUnknownOutcome):
					unknown.Add(1)
					continue
				}
				var rows int
				if err := db.QueryRow(t.Context(), []any{&rows}, "SELECT COUNT(*) FROM stock WHERE sku IN (?, ?)", sku, sku+"-"); err != nil || rows != want {
					t.Errorf("committed %v, %v: %d rows, %v", ok, err, rows, err)
				}
			}
		})
	}
	running.Wait()
	left := one[int64](t, all[0], "SELECT available FROM stock WHERE sku = 'a'")
	if sold := 10 - left; sold < committed.Load() || sold > committed.Load()+unknown.Load() {
		t.Errorf("%d committed, %d unknown, and %d sold", committed.Load(), unknown.Load(), sold)
	}
	if committed.Load() == 0 {
		t.Error("nothing was committed")
	}
	// A read on one node must see every write that the other node has acknowledged.
	for n := range 200 {
		run(t, all[0], "UPDATE stock SET total = ? WHERE sku = 'a'", n)
		if seen := one[int](t, all[1], "SELECT total FROM stock WHERE sku = 'a'"); seen != n {
			t.Fatalf("one node acknowledged %d, and the other shows %d", n, seen)
		}
	}
}
