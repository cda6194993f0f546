package order

import (
	"context"
	"errors"
	"testing"

	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// failing is a cutter whose transaction fails after the cut.
type failing struct {
	stock.Cutter
	err error
}

func (c failing) Cut(tx *gorm.DB, g stock.Generation, ds []stock.Deduction) ([]stock.Decision, error) {
	if _, err := c.Cutter.Cut(tx, g, ds); err != nil {
		return nil, err
	}
	return nil, c.err
}

// TestNoAnswerBeforeCommit: where nothing is committed nobody hears "accepted",
// and the units are back.
func TestNoAnswerBeforeCommit(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		for _, name := range []string{"lua", "merged", "conditional"} {
			t.Run(name, func(t *testing.T) {
				i := s.open(t, settings{strategy: name, change: func(built *stock.Strategy) {
					built.Cutter = failing{built.Cutter, errors.New("the database is away")}
				}})
				sku := fresh("uncommitted")
				lay(t, i, sku, 3)
				mustRefuse(t, i, ask(sku), ErrBusy)
				mustRefuse(t, i, ask(sku).keyed(string(sku)), ErrBusy)
				s.atRest(t, i.gate, sku, 0)
				i.Close()
			})
		}
	})
}

// TestCompensationOutlivesTheRequest: a buyer who hangs up between the gate and
// the ledger leaks nothing.
func TestCompensationOutlivesTheRequest(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, s *shop) {
		i := s.openHooked(t, settings{strategy: "lua"})
		sku := fresh("leak")
		lay(t, i.instance, sku, 3)
		for range 3 {
			ctx, hangUp := context.WithCancel(t.Context())
			reached, proceed := i.gate.taken.arm()
			heard := place(ctx, i.instance, ask(sku))
			wait(t, "the take", reached)
			hangUp()
			i.gate.mu.Lock()
			i.gate.lose = 1 // the take's answer is lost with him
			i.gate.mu.Unlock()
			proceed()
			if r := wait(t, "the answer", heard); !errors.Is(r.err, ErrBusy) {
				t.Errorf("heard %+v", r)
			}
		}
		s.atRest(t, i.gate, sku, 0)
	})
}
