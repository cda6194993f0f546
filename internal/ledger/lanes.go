package ledger

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// lanePatience is how long later groups wait for a group before it gets a lane
	// of its own.
	lanePatience = 250 * time.Millisecond
	// maxLanes bounds the open lanes. Together with the groups that record single
	// orders they leave connections for reading.
	maxLanes = 6
)

// lanes keeps a locked stock row from delaying orders of other SKUs. A group that
// takes long, usually because it waits for a row lock, gets a lane of its own.
// Orders of its SKUs wait in the lane, and all others are recorded meanwhile. It is
// safe for concurrent use.
type lanes struct {
	mu     sync.Mutex
	of     map[stock.SKU]*lane
	open   int
	parked int // recordings in all lanes
}

// lane holds the SKUs of a group under way, and the orders that wait for them.
type lane struct {
	skus   []stock.SKU
	opened bool // later groups do not wait for this one
	ended  bool
	parked []*recording
}

// admit moves the recordings that must wait into their lanes, refuses those that
// no lane has room for, and returns the others.
func (ls *lanes) admit(rs []*recording) (free []*recording) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.open == 0 {
		return rs
	}
	for _, r := range rs {
		l := ls.laneOf(r)
		switch {
		case l == nil:
			free = append(free, r)
		case ls.parked == maxQueue:
			r.answer(order.Refused(fmt.Errorf("%w: the stock row of one of %v is locked, and the queue for it is full", stock.ErrBusy, l.skus)))
		default:
			ls.parked++
			l.parked = append(l.parked, r)
		}
	}
	return free
}

func (ls *lanes) laneOf(r *recording) *lane {
	for _, line := range r.take.Lines {
		if l := ls.of[line.SKU]; l != nil {
			return l
		}
	}
	return nil
}

// enter opens the group's lane, so that later groups need not wait for it. It
// reports false if the group has ended, or if there are too many lanes.
func (ls *lanes) enter(l *lane) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if l.ended || ls.open == maxLanes {
		return false
	}
	l.opened = true
	ls.open++
	if ls.of == nil {
		ls.of = make(map[stock.SKU]*lane)
	}
	for _, sku := range l.skus {
		if ls.of[sku] == nil { // otherwise an earlier group has the lane of the SKU
			ls.of[sku] = l
		}
	}
	return true
}

// narrow reduces the lane to the locked SKUs, and returns the recordings that need
// not wait in it any more.
func (ls *lanes) narrow(l *lane, locked []stock.SKU) []*recording {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.release(l, func(sku stock.SKU) bool { return !slices.Contains(locked, sku) })
	return ls.unpark(l)
}

// end closes the lane and returns the recordings that waited in it.
func (ls *lanes) end(l *lane) []*recording {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	l.ended = true
	if l.opened {
		ls.open--
	}
	ls.release(l, func(stock.SKU) bool { return true })
	return ls.unpark(l)
}

func (ls *lanes) release(l *lane, released func(stock.SKU) bool) {
	for _, sku := range l.skus {
		if ls.of[sku] == l && released(sku) {
			delete(ls.of, sku)
		}
	}
	l.skus = slices.DeleteFunc(l.skus, released)
}

// unpark removes from the lane the recordings that wait for none of its SKUs any
// more, and returns them.
func (ls *lanes) unpark(l *lane) (freed []*recording) {
	l.parked = slices.DeleteFunc(l.parked, func(r *recording) bool {
		if ls.laneOf(r) == l {
			return false
		}
		freed = append(freed, r)
		return true
	})
	ls.parked -= len(freed)
	return freed
}
