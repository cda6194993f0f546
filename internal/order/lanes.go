package order

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// lanePatience is how long a group may take before the groups after it stop
	// waiting for it.
	lanePatience = 250 * time.Millisecond
	// maxLanes bounds the groups that are not waited for. With a worker for
	// every single order they leave connections for reading.
	maxLanes = 6
)

// lanes keeps a locked stock row from stopping the others. A group that takes
// long, which commonly waits for a row lock, gets a lane of its own: orders of
// its SKUs wait there, and all others pass. It is safe for concurrent use.
type lanes struct {
	mu     sync.Mutex
	of     map[stock.SKU]*lane
	open   int
	parked int // recordings in all lanes
}

// lane is a group under way, and the orders that wait for its SKUs.
type lane struct {
	skus   []stock.SKU
	opened bool // others do not wait for the group
	ended  bool
	parked []*recording
}

// admit splits off the recordings that must wait in a lane. Those that no lane
// has room for are refused.
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
		case ls.parked == queueLength:
			r.answer(refusedFor(fmt.Errorf("%w: the stock row of one of %v is locked, and the queue for it is full", stock.ErrBusy, l.skus)))
		default:
			ls.parked++
			l.parked = append(l.parked, r)
		}
	}
	return free
}

func (ls *lanes) laneOf(r *recording) *lane {
	for _, line := range r.deduction.Lines {
		if l := ls.of[line.SKU]; l != nil {
			return l
		}
	}
	return nil
}

// enter opens the group's lane, so that the groups after it need not wait for
// it. It reports whether it did: not where the group has ended, or there are too
// many lanes.
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
		if ls.of[sku] == nil { // else it entered there before this group was formed
			ls.of[sku] = l
		}
	}
	return true
}

// narrow leaves only the locked SKUs to the lane, and returns the recordings
// that need not wait there any more.
func (ls *lanes) narrow(l *lane, locked []string) []*recording {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.release(l, func(sku stock.SKU) bool { return !slices.Contains(locked, string(sku)) })
	return ls.unpark(l)
}

// end closes the lane, and returns the recordings that waited in it.
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

// unpark takes out of the lane what no longer waits for one of its SKUs.
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
