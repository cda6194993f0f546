package ledger

import (
	"errors"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestRaiseOfAStaleRow checks that RaiseGeneration changes nothing if the row
// differs from the one that the caller saw.
func TestRaiseOfAStaleRow(t *testing.T) {
	t.Parallel()
	eachDatabase(t, testenv.Chosen(databases, "SQLite", "PostgreSQL"), func(t *testing.T, d *database) {
		l := d.open(t, cutter.Merged())
		seen, err := l.Owner(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := l.RaiseGeneration(t.Context(), seen, Owner{Generation: seen.Generation + 1, Layout: "merged"}); err != nil {
			t.Fatal(err)
		}
		want := Owner{Generation: seen.Generation + 1, Layout: "merged", Beat: seen.Beat}
		otherLayout := want
		otherLayout.Layout = "lua"
		for _, stale := range []Owner{seen, otherLayout} {
			for _, next := range []stock.Generation{seen.Generation + 1, seen.Generation + 2} {
				if err := l.RaiseGeneration(t.Context(), stale, Owner{Generation: next, Layout: "lua"}); !errors.Is(err, stock.ErrRowChanged) {
					t.Errorf("raising %+v to %d: %v", stale, next, err)
				}
				if now, err := l.Owner(t.Context()); err != nil || now != want {
					t.Errorf("the row is %+v, %v; want %+v", now, err, want)
				}
			}
		}
		want.Beat++
		if now, err := l.Beat(t.Context()); err != nil || now != want {
			t.Errorf("after a beat the row is %+v, %v; want %+v", now, err, want)
		}
		// The beat is not compared.
		otherBeat := want
		otherBeat.Beat++
		if err := l.RaiseGeneration(t.Context(), otherBeat, Owner{Generation: want.Generation + 1, Layout: "async", Queues: true}); err != nil {
			t.Error(err)
		}
		want = Owner{Generation: want.Generation + 1, Layout: "async", Queues: true, Beat: want.Beat}
		if now, err := l.Owner(t.Context()); err != nil || now != want {
			t.Errorf("after a raise the row is %+v, %v; want %+v", now, err, want)
		}
	})
}
