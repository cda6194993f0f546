package ledger

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// slowAfter is how long later groups wait for a group before it counts as slow.
	slowAfter = 250 * time.Millisecond
	// maxSlowGroups bounds the slow groups. Slow groups and groups that record single orders leave
	// connections free for reading.
	maxSlowGroups = 6
)

// slowGroups keeps a locked stock row from delaying orders of other SKUs. Later groups do
// not wait for a slow group, which usually waits for a row lock. Orders of its SKUs wait
// until it has ended, and all others are recorded meanwhile. It is safe for concurrent use.
type slowGroups struct {
	mu      sync.Mutex
	of      map[stock.SKU]*slowGroup
	groups  int
	waiting int // number of waiting recordings of all groups
}

// slowGroup is a group under way that is slow, or may become so. It holds the SKUs whose orders wait
// while it is slow, and these orders.
type slowGroup struct {
	skus    []stock.SKU // nil: not known yet
	slow    bool        // later groups do not wait for this one
	ended   bool
	waiting []*recording
}

// hold makes recordings of the SKUs of slow groups wait, refuses those that find no room, and
// returns the others. It does not keep rs.
func (ls *slowGroups) hold(rs []*recording) (free []*recording) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	free = make([]*recording, 0, len(rs)) // nearly always all of them
	for _, r := range rs {
		g := ls.groupOf(r)
		switch {
		case g == nil:
			free = append(free, r)
		case ls.waiting == maxQueue:
			r.answer(order.Refused(fmt.Errorf("%w: the stock row of one of %v is locked, and the queue for it is full", stock.ErrBusy, g.skus)))
		default:
			ls.waiting++
			g.waiting = append(g.waiting, r)
		}
	}
	return free
}

// groupOf returns the slow group that the recording must wait for, or nil.
func (ls *slowGroups) groupOf(r *recording) *slowGroup {
	for _, line := range r.take.Lines {
		if g := ls.of[line.SKU]; g != nil {
			return g
		}
	}
	return nil
}

// add makes the group a slow one. skus are the SKUs of its orders. It reports false if the group has
// ended, or if there are too many.
func (ls *slowGroups) add(g *slowGroup, skus []stock.SKU) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if g.ended || ls.groups == maxSlowGroups {
		return false
	}
	g.slow = true
	ls.groups++
	if g.skus == nil { // otherwise keepOnly has set them
		g.skus = skus
	}
	if ls.of == nil {
		ls.of = make(map[stock.SKU]*slowGroup)
	}
	for _, sku := range g.skus {
		if ls.of[sku] == nil { // otherwise orders of the SKU already wait for an earlier group
			ls.of[sku] = g
		}
	}
	return true
}

// keepOnly reduces the group to the locked SKUs, of which there is at least one, and returns the
// recordings that no longer wait for it.
func (ls *slowGroups) keepOnly(g *slowGroup, locked []stock.SKU) []*recording {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	freed := ls.release(g, func(sku stock.SKU) bool { return !slices.Contains(locked, sku) })
	g.skus = locked
	return freed
}

// remove removes the group, which has ended, and returns the recordings that waited for it.
func (ls *slowGroups) remove(g *slowGroup) []*recording {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	g.ended = true
	if !g.slow {
		return nil
	}
	ls.groups--
	return ls.release(g, func(stock.SKU) bool { return true })
}

// release frees SKUs of the group, and returns the recordings that no longer wait for any of its
// SKUs.
func (ls *slowGroups) release(g *slowGroup, released func(stock.SKU) bool) (freed []*recording) {
	for _, sku := range g.skus {
		if ls.of[sku] == g && released(sku) {
			delete(ls.of, sku)
		}
	}
	g.waiting = slices.DeleteFunc(g.waiting, func(r *recording) bool {
		if ls.groupOf(r) == g {
			return false
		}
		freed = append(freed, r)
		return true
	})
	ls.waiting -= len(freed)
	return freed
}

// setLockedApart is called after a group has waited for row locks until the database gave up. It
// records the orders whose stock rows are not locked and returns the others. It returns all orders
// if no row is locked any more, or if the database cannot list locked rows.
func (l *Ledger) setLockedApart(ctx context.Context, rs []*recording, own *slowGroup, cause error) (held []*recording, err error) {
	asking, cancel := context.WithTimeout(ctx, transactionTimeout)
	defer cancel()
	locked, _ := l.lockedRows(asking, stock.SKUsOf(takesOf(rs)...)) // no rows if the query fails
	if len(locked) == 0 {
		return rs, nil
	}
	l.log.WarnContext(ctx, "stock rows are locked by another transaction", "skus", locked, "error", cause)
	var free []*recording
	for _, r := range rs {
		if slices.ContainsFunc(r.take.Lines, func(line stock.Line) bool { return slices.Contains(locked, line.SKU) }) {
			held = append(held, r)
		} else {
			free = append(free, r)
		}
	}
	for _, r := range l.slow.keepOnly(own, locked) {
		l.submit(r)
	}
	if err := l.commit(ctx, free, own); err != nil { // the held orders would fail too
		refuse(held, err)
		return nil, err
	}
	return held, nil
}
