package cutter

import (
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// open is the condition that a stock row is open now.
func open(d sqltx.Dialect) string {
	return "COALESCE(opens_at <= " + d.Now() + ", TRUE) AND COALESCE(closes_at > " + d.Now() + ", TRUE)"
}

// check returns an error if units of the line may not be taken from its row, whatever its count.
func (rs rows) check(l line, g stock.Generation) error {
	r, ok := rs[l.sku]
	switch {
	case !ok:
		return stock.Refuse(l.sku, stock.ErrUnknownSKU)
	case stock.GenerationOf(r.epoch) > g:
		return stock.Refuse(l.sku, stock.ErrLaterGeneration)
	case stock.GenerationOf(r.epoch) < g:
		return stock.Refuse(l.sku, stock.ErrNotAdopted)
	case l.epoch != 0 && r.epoch != l.epoch:
		return stock.Refuse(l.sku, stock.ErrStaleEpoch)
	case r.readAt.Before(r.opensAt):
		return stock.Refuse(l.sku, &stock.NotOpen{OpensAt: r.opensAt, In: r.opensAt.Sub(r.readAt)})
	case !r.closesAt.IsZero() && !r.readAt.Before(r.closesAt):
		return stock.Refuse(l.sku, stock.ErrClosed)
	}
	return nil
}

// take subtracts the take's units from the rows in memory, and adds them to those that the buyer
// holds: all lines or none. If refuse is true and the units do not fit, take returns ErrSoldOut.
func (rs rows) take(t stock.Take, g stock.Generation, refuse bool) Decision {
	lines := linesOf(t)
	for _, l := range lines {
		if err := rs.check(l, g); err != nil {
			return Refused(err)
		}
		if r := rs[l.sku]; r.limited() && r.held[t.Buyer]+l.units > r.limit {
			return Refused(stock.Refuse(l.sku, stock.ErrBuyerLimit))
		}
		if refuse && rs[l.sku].available < l.units {
			return Refused(stock.Refuse(l.sku, stock.ErrSoldOut))
		}
	}
	for _, l := range lines {
		r := rs[l.sku]
		r.available -= l.units
		if r.limited() {
			r.held[t.Buyer] += l.units
		}
	}
	return Decision{Taken: true}
}
