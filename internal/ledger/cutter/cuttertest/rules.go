package cuttertest

import (
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// orderOf returns a take for an order with these lines by the buyer.
func orderOf(buyer string, lines ...line) stock.Take {
	t := order(lines...)
	t.Buyer = buyer
	return t
}

// limit sets how many units of the SKU one buyer may hold.
func (t *trial) limit(name string, units int64) {
	t.change(name, "limit_per_buyer = ?, version = version + 1", units)
}

// holds fails the trial unless the buyer's claim on the SKU is that many units.
func (t *trial) holds(name, buyer string, want int64) {
	var got int64
	if t.err == nil {
		t.err = t.db.QueryRow(t.ctx, []any{&got}, "SELECT COALESCE(SUM(units), 0) FROM claims WHERE sku = ? AND buyer_id = ?",
			string(t.sku(name)), buyer)
	}
	if t.err == nil && got != want {
		t.err = fmt.Errorf("%s holds %d units of %s, want %d", buyer, got, name, want)
	}
}

func buyerLimit(t *trial) error {
	t.lay("a", 100)
	t.limit("a", 3)
	t.cut(takes(orderOf("u", t.line("a", 4, 7))), stock.ErrBuyerLimit)
	t.cut(takes(orderOf("u", t.line("a", 2, 7))), nil)
	t.cut(takes(orderOf("u", t.line("a", 2, 7))), stock.ErrBuyerLimit)
	t.cut(takes(orderOf("u", t.line("a", 1, 7))), nil)
	t.cut(takes(orderOf("v", t.line("a", 3, 7))), nil)
	t.cut(takes(orderOf("w", t.line("a", 4, 7))), stock.ErrBuyerLimit)
	t.left("a", 94)
	t.holds("a", "u", 3)
	t.holds("a", "v", 3)
	t.holds("a", "w", 0)
	t.limit("a", 2)
	t.cut(takes(orderOf("u", t.line("a", 1, 7))), stock.ErrBuyerLimit)
	t.limit("a", 0)
	t.cut(takes(orderOf("u", t.line("a", 5, 7))), nil)
	t.left("a", 89)
	return nil
}

func buyerLimitInAGroup(t *trial) error {
	t.lay("a", 100)
	t.lay("b", 100)
	t.limit("a", 2)
	t.cut(takes(
		orderOf("v", t.line("a", 1, 7)),
		orderOf("u", t.line("a", 1, 7)),
		orderOf("u", t.line("a", 2, 7)),
		orderOf("u", t.line("a", 1, 7), t.line("b", 4, 7)),
		orderOf("u", t.line("a", 1, 7)),
		orderOf("u", t.line("b", 8, 7)),
	), nil, nil, stock.ErrBuyerLimit, nil, stock.ErrBuyerLimit, nil)
	t.left("a", 97)
	t.left("b", 88)
	t.holds("a", "u", 2)
	t.holds("a", "v", 1)
	t.holds("b", "u", 0)
	return nil
}

// limitOfEveryLine checks that a product and a coupon are cut together or not at all.
func limitOfEveryLine(t *trial) error {
	t.lay("coupon", 100)
	t.lay("product", 100)
	t.limit("coupon", 1)
	t.limit("product", 2)
	t.cut(takes(orderOf("u", t.line("coupon", 1, 7), t.line("product", 1, 7))), nil)
	t.cut(takes(orderOf("u", t.line("coupon", 1, 7), t.line("product", 1, 7))), stock.ErrBuyerLimit)
	t.cut(takes(orderOf("u", t.line("product", 1, 7))), nil)
	t.left("coupon", 99)
	t.left("product", 98)
	t.holds("coupon", "u", 1)
	t.holds("product", "u", 2)
	return nil
}

// soldOutClaimsNothing checks that an order that is refused for lack of stock does not count
// towards the limit.
func soldOutClaimsNothing(t *trial) error {
	t.lay("a", 3)
	t.limit("a", 4)
	t.cut(takes(orderOf("u", t.line("a", 4, 7)), orderOf("u", t.line("a", 3, 7))), stock.ErrSoldOut, nil)
	t.left("a", 0)
	t.holds("a", "u", 3)
	return nil
}

// limitUnderRush checks that a crowd that orders for one buyer gets exactly the limit.
func limitUnderRush(t *trial) error {
	t.lay("a", 100)
	t.limit("a", 5)
	sold := t.rush(2, func(int) stock.Take { return orderOf("u", t.line("a", 1, 7)) })
	if got := sold[t.sku("a")]; t.err == nil && got != 5 {
		return fmt.Errorf("sold %d units to a buyer who may hold 5", got)
	}
	t.left("a", 95)
	t.holds("a", "u", 5)
	return nil
}

// limitedMeanwhile checks that a limit has effect if it is set after the cutter has read the row.
func limitedMeanwhile(t *trial) error {
	t.lay("a", 10)
	if t.err != nil {
		return t.err
	}
	plan, err := t.cutter.Plan(t.ctx, t.db, t.generation, takes(order(t.line("a", 2, 7))))
	if err != nil {
		return err
	}
	t.limit("a", 1)
	if t.err != nil {
		return t.err
	}
	if t.whole && plan.GroupCut != nil {
		if fits, err := t.cutWhole(true, plan.GroupCut); fits || err != nil {
			return fmt.Errorf("the whole group fits: %v, %w", fits, err)
		}
	}
	tx, err := t.db.Begin(t.ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	decisions, err := plan.Cut(t.ctx, tx)
	if err == nil && !errors.Is(decisions[0].Reason(), stock.ErrBuyerLimit) || err != nil && !errors.Is(err, cutter.ErrConflict) {
		return fmt.Errorf("decided %v, %w", decisions, err)
	}
	return nil
}

// openingHours checks that a row is cut only while it is open by the database's clock.
func openingHours(t *trial) error {
	now, err := t.db.Now(t.ctx)
	if err != nil {
		return err
	}
	const half = 30 * time.Minute
	early, late := now.Add(-half), now.Add(half)
	t.lay("always", 100)
	for _, row := range []struct {
		name          string
		opens, closes *time.Time
		want          error
	}{
		{"open", &early, &late, nil},
		{"opened", &early, nil, nil},
		{"closing", nil, &late, nil},
		{"opening", &late, nil, stock.ErrNotOpen},
		{"closed", nil, &early, stock.ErrClosed},
	} {
		t.lay(row.name, 10)
		t.change(row.name, "opens_at = ?, closes_at = ?", row.opens, row.closes)
		t.cut(takes(order(t.line(row.name, 1, 7))), row.want)
		t.cut(takes(order(t.line("always", 1, 7), t.line(row.name, 1, 7))), row.want)
	}
	t.left("always", 97)
	for _, table := range []string{"stock", "stock_parts"} { // stands for the passing of time, and parts must close, too
		if t.err == nil {
			_, t.err = t.db.Exec(t.ctx, "UPDATE "+table+" SET closes_at = ? WHERE sku = ? AND closes_at = ?", early, string(t.sku("closing")), late)
		}
	}
	t.cut(takes(order(t.line("closing", 1, 7))), stock.ErrClosed)
	if t.err != nil {
		return t.err
	}
	decisions, err := t.transact(order(t.line("opening", 1, 7)))
	if err != nil {
		return err
	}
	var notOpen *stock.NotOpen
	if !errors.As(decisions[0].Reason(), &notOpen) || !notOpen.OpensAt.Equal(late) || notOpen.In <= half-time.Minute || notOpen.In > half {
		return fmt.Errorf("refused with %+v, %v before the opening at %v", notOpen, half, late)
	}
	return nil
}
