package reconcile

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestRefill_EpochOfTheGate refills a count that the gate has under a later epoch than the stock row,
// as after a restore of the ledger. The new epoch must be above both.
func TestRefill_EpochOfTheGate(t *testing.T) {
	t.Parallel()
	for name, refill := range map[string]func(r *Reconciler) error{
		"one SKU": func(r *Reconciler) error { return r.Refill(t.Context(), "a") },
		"many": func(r *Reconciler) error {
			_, err := r.compareNext(t.Context())
			return err
		},
	} {
		r, gate, l := started(t, &ownerRow{})
		later := stockUp(t, l, nil, "a") + 5
		gate.redis.counts["a"] = stock.Level{SKU: "a", Filled: true, Epoch: later, Available: 3}
		err := refill(r)
		if level := gate.redis.counts["a"]; err != nil || level.Epoch <= later || level.Epoch != l.rows["a"].Epoch || level.Available != 10 {
			t.Errorf("%s: the gate has %+v, the row is %+v, %v", name, level, l.rows["a"], err)
		}
	}
}

// TestRefill_Oversold checks that the gate gets no units of an oversold SKU, and not less than none.
func TestRefill_Oversold(t *testing.T) {
	t.Parallel()
	r, gate, l := started(t, &ownerRow{})
	l.rows["a"] = ledger.StockRow{SKU: "a", Available: -2}
	if err := r.Refill(t.Context(), "a"); err != nil || !gate.redis.counts["a"].Filled || gate.redis.counts["a"].Available != 0 {
		t.Errorf("the gate has %+v, %v", gate.redis.counts["a"], err)
	}
}

// TestGuardRefusals checks that a SKU that the ledger refuses behind the gate is
// refilled at most once a second, and only if it was not refilled since the take.
func TestGuardRefusals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r, gate, l := started(t, &ownerRow{})
		log := r.logged()
		epoch, err := l.Generation().Renew()
		if err != nil {
			t.Fatal(err)
		}
		l.rows["a"] = ledger.StockRow{SKU: "a", Epoch: epoch, Available: 3}
		if err := gate.Fill(t.Context(), "a", epoch, 7); err != nil {
			t.Fatal(err)
		}
		stale := takeOf("a", epoch)
		refuse := func(taken stock.Take, refills int) {
			t.Helper()
			r.FinishTake(t.Context(), taken, order.Refused(stock.Refuse("a", stock.ErrSoldOut)))
			if n := value(t, r.metrics.refills); len(l.raises) != refills || int(n) != refills {
				t.Errorf("%d refills, %v counted, want %d", len(l.raises), n, refills)
			}
		}
		now := func() stock.Take { return takeOf("a", l.rows["a"].Epoch) }
		oversell := func() {
			gate.redis.counts["a"] = stock.Level{SKU: "a", Filled: true, Epoch: l.rows["a"].Epoch, Available: 3, InFlight: 1}
		}
		refuse(stale, 1)
		if level := gate.redis.counts["a"]; level.Available != 3 || level.Epoch != l.rows["a"].Epoch {
			t.Errorf("the gate has %+v", level)
		}
		oversell()
		refuse(now(), 1)
		time.Sleep(999 * time.Millisecond)
		refuse(now(), 1)
		time.Sleep(time.Millisecond)
		refuse(now(), 2)
		time.Sleep(time.Second)
		refuse(now(), 2) // recovery gave the take back, and another order has its units
		oversell()
		time.Sleep(time.Second)
		refuse(stale, 2) // refilled since the take
		if len(gate.given) != 6 || value(t, r.metrics.guardRefusals) != 6 {
			t.Errorf("%d takes were given back, %v guard refusals are counted, want 6", len(gate.given), value(t, r.metrics.guardRefusals))
		}
		if w := log.String(); strings.Count(w, "refilling") != 2 || !strings.Contains(w, "sku=a gate=7 in_flight=0 ledger=3") {
			t.Errorf("logged %q, want both refills", w)
		}
		time.Sleep(time.Second)
		r.FinishTake(t.Context(), now(), order.Refused(stock.Refuse("a", stock.ErrBuyerLimit)))
		if len(l.raises) != 2 || value(t, r.metrics.guardRefusals) != 6 {
			t.Error("a refusal for another reason counts as one for lack of stock")
		}
	})
}

// TestGuardRefusal_SecondSKU checks that a guard refusal refills the SKU that was refused: by the epoch
// under which that one was cut, and once a second for each SKU.
func TestGuardRefusal_SecondSKU(t *testing.T) {
	t.Parallel()
	r, gate, l := started(t, &ownerRow{})
	epoch := stockUp(t, l, gate, "a")
	for n, sku := range []stock.SKU{"b", "c"} {
		cut := epoch + int64(n) + 1
		l.rows[sku] = ledger.StockRow{SKU: sku, Epoch: cut, Available: 10}
		gate.redis.counts[sku] = stock.Level{SKU: sku, Filled: true, Epoch: cut, Available: 15}
		take := takeOf("a", epoch)
		take.Lines = append(take.Lines, stock.Line{SKU: sku, Quantity: 1})
		take.Receipt = append(take.Receipt, stock.Cut{Epoch: cut})
		r.FinishTake(t.Context(), take, order.Refused(stock.Refuse(sku, stock.ErrSoldOut)))
		if got := gate.redis.counts[sku]; got.Available != 10 || len(l.raises) != n+1 {
			t.Errorf("the gate has %+v, raised %v", got, l.raises)
		}
	}
}
