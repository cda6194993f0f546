package cutter

import (
	"context"
	"database/sql"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"

	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Slots returns the cutter that takes the units of a whole group from one of n parts of each SKU:
// its slot. While one group commits, groups with other slots take units of the same SKU. n must be
// at least 1.
//
// If the slot has too little, or a part is missing, the stock row and all its parts are locked. The
// group is decided order by order on their common units, and the remaining units are divided among
// the slots. So an order is refused only if the whole SKU has too few units.
//
// A SKU with a buyer limit has no parts: it is sold as Merged does, because claims change only
// under the lock of the stock row.
func Slots(n int) Cutter {
	c := &slots{n: n, limits: seenLimits{newMemory[int64]()}}
	c.last.Store(rand.Uint64N(uint64(n)))
	return c
}

type slots struct {
	n int
	// last is the slot, without its multiples of n, of the last group. Each group takes the next
	// slot: groups under way at the same time have different ones. Instances begin at random slots.
	// If two instances use the same slot, one waits, and then follows the other through the slots.
	last   atomic.Uint64
	limits seenLimits
}

func (c *slots) Plan(_ context.Context, db *sqltx.DB, g stock.Generation, takes []stock.Take) (Plan, error) {
	slot := int(c.last.Add(1)%uint64(c.n)) + 1
	plan := Plan{Cut: func(ctx context.Context, tx *sqltx.Tx) ([]Decision, error) {
		return c.cut(ctx, tx, g, slot, takes)
	}}
	lines, ok := sum(takes)
	if !ok {
		return plan, nil
	}
	limits := c.limits.of(lines)
	claims, allowed := raise(db.Dialect(), takes, limits, nil)
	switch {
	case len(limits) == 0:
		for i := range lines {
			lines[i].want = int64(slot)
		}
		plan.GroupCut = partRows.groupCut(db.Dialect(), g, lines, true)
	case len(limits) == len(lines) && allowed:
		plan.GroupCut = stockRows.groupCut(db.Dialect(), g, lines, true)
		plan.GroupCut.Claims = claims
	}
	return plan, nil
}

// cut takes the units of a SKU from the slot alone if the slot has enough for the whole
// group. For the remaining SKUs, it locks the stock row and all parts. So a SKU that is sold
// out, or has a buyer limit, does not make the group lock all parts of the other SKUs.
func (c *slots) cut(ctx context.Context, tx *sqltx.Tx, g stock.Generation, slot int, takes []stock.Take) ([]Decision, error) {
	skus, units := unitsOf(takes)
	enough := func(r *row) bool { return r.available >= units[r.sku] }
	fromSlot, err := readSlot(ctx, tx, skus, slot, "")
	if err != nil {
		return nil, err
	}
	whole := slices.DeleteFunc(slices.Clone(skus), func(sku stock.SKU) bool { return fromSlot[sku] != nil && enough(fromSlot[sku]) })
	rs, err := readSKUs(ctx, tx, whole, tx.Dialect().RowLock())
	if err != nil {
		return nil, err
	}
	c.limits.learn(rs)
	if err := rs.lockSlots(ctx, tx, skus, whole, slot); err != nil {
		return nil, err
	}
	if slices.ContainsFunc(skus, func(sku stock.SKU) bool { return rs[sku] != nil && rs[sku].part > 0 && !enough(rs[sku]) }) {
		return nil, ErrConflict
	}
	decisions, accepted, claims, err := rs.decide(ctx, tx, g, takes, true)
	if err != nil || len(accepted) == 0 {
		return decisions, err
	}
	if err := c.write(ctx, tx, rs, accepted, claims); err != nil {
		return nil, err
	}
	return decisions, nil
}

// lockSlots locks all parts of the SKUs in whole, whose stock rows are rs. For each other SKU it
// locks the slot and adds it to rs. ErrConflict means that a slot no longer exists.
func (rs rows) lockSlots(ctx context.Context, tx *sqltx.Tx, skus, whole []stock.SKU, slot int) error {
	for len(skus) > 0 { // in SKU order, with one statement for neighbours of a kind
		isWhole := slices.Contains(whole, skus[0])
		next := slices.IndexFunc(skus, func(sku stock.SKU) bool { return slices.Contains(whole, sku) != isWhole })
		if next < 0 {
			next = len(skus)
		}
		var err error
		if isWhole {
			err = rs.lockParts(ctx, tx, skus[:next])
		} else {
			err = rs.lockSlot(ctx, tx, skus[:next], slot)
		}
		if err != nil {
			return err
		}
		skus = skus[next:]
	}
	return nil
}

func (rs rows) lockSlot(ctx context.Context, tx *sqltx.Tx, skus []stock.SKU, slot int) error {
	locked, err := readSlot(ctx, tx, skus, slot, tx.Dialect().RowLock())
	if err == nil && len(locked) < len(skus) {
		return ErrConflict
	}
	maps.Copy(rs, locked)
	return err
}

// readSlot reads the slot of each SKU. It leaves out SKUs without that slot. rowLock is as for
// readSKUs.
func readSlot(ctx context.Context, tx *sqltx.Tx, skus []stock.SKU, slot int, rowLock string) (rows, error) {
	rs := make(rows, len(skus))
	err := tx.QueryEach(ctx, func(found *sql.Rows) error {
		r := row{part: slot}
		err := found.Scan(&r.sku, &r.available, &r.epoch, (*sqltx.Time)(&r.opensAt), (*sqltx.Time)(&r.closesAt), (*sqltx.Time)(&r.readAt))
		rs[r.sku] = &r
		return err
	}, "SELECT sku, available, epoch, opens_at, closes_at, "+tx.Dialect().Now()+
		" FROM stock_parts WHERE sku IN ? AND part = ? ORDER BY sku"+rowLock, skus, slot)
	if err != nil {
		return nil, fmt.Errorf("reading slots: %w", err)
	}
	return rs, nil
}

// write takes the units of the accepted takes from the rows, which have the remaining counts in
// memory, and raises the claims.
func (c *slots) write(ctx context.Context, tx *sqltx.Tx, rs rows, accepted []stock.Take, claims []sqltx.Statement) error {
	var (
		d                = tx.Dialect()
		statements       []sqltx.Statement
		updates          []int64 // number of rows that each of the first statements must update
		limited, slotted []stock.SKU
		lent             []sqltx.Statement
		skus, units      = unitsOf(accepted)
	)
	for _, sku := range skus {
		switch r := rs[sku]; {
		case r.part > 0:
			slotted = append(slotted, sku)
		case r.limit != 0:
			limited = append(limited, sku)
		default:
			both := lend(d, r, 1, divide(r.available, c.n))
			statements, updates, lent = append(statements, both[0]), append(updates, 1), append(lent, both[1])
		}
	}
	if len(limited) > 0 {
		statements, updates = append(statements, stockRows.countDown(d, limited, units)), append(updates, int64(len(limited)))
	}
	if len(slotted) > 0 {
		s := partRows.countDown(d, slotted, units)
		s.SQL += fmt.Sprintf(" AND part = %d", rs[slotted[0]].part)
		statements, updates = append(statements, s), append(updates, int64(len(slotted)))
	}
	updated, err := tx.ExecAll(ctx, slices.Concat(statements, lent, claims)...)
	if err != nil {
		return fmt.Errorf("counting down: %w", err)
	}
	if !slices.Equal(updated[:len(updates)], updates) {
		return fmt.Errorf("counting down: %d rows updated, not %d", updated[:len(updates)], updates)
	}
	return nil
}

// divide divides units evenly among n slots. The first ones get the rest.
func divide(units int64, n int) []int64 {
	among := int64(n)
	parts := make([]int64, n)
	for i := range parts {
		parts[i] = units / among
		if int64(i) < units%among {
			parts[i]++
		}
	}
	return parts
}
