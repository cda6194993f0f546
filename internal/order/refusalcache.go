package order

import (
	"errors"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// maxHoursAge bounds how long a refusal for opening hours is repeated without asking the
	// ledger. A change of the hours through another instance takes effect at most that much later.
	maxHoursAge = time.Second
	// clockError bounds the error of reading a database's clock: SQLite rounds it to whole
	// milliseconds.
	clockError = time.Millisecond
	// maxRefusals bounds the SKUs that are remembered.
	maxRefusals = 10_000
)

// refusalCache repeats the ledger's refusals of SKUs that are closed or sold out, so that a rush
// before the opening, or after the last unit, does not reach the stores. It is safe for concurrent
// use.
//
// Once the SKU is open by the database's clock, no order is refused as not open. But a change of
// the hours through another instance may take effect up to maxHoursAge later. Once the ledger has
// the units of an order, it does not refuse the order for lack of units. But it may still do so for
// up to soldOut if another instance has added or returned the units, or if this instance has
// returned them and its COMMIT had no answer.
//
// It compares no clocks. It measures each time from before the request to the ledger, and the
// ledger's answer contains the time left until the opening.
type refusalCache struct {
	soldOut time.Duration // how long "sold out" is repeated; 0: not at all

	mu   sync.RWMutex
	last map[stock.SKU]cachedRefusal
	// changed is when any SKU was last changed. A refusal is not remembered if the ledger was asked
	// before that.
	changed time.Time
}

// cachedRefusal is a refusal, and the time until which it may be repeated.
type cachedRefusal struct {
	refusal *stock.Refusal
	units   int64 // the smallest quantity that is refused; 0: any
	until   time.Time
}

// refuse returns the refusal of one of the lines that may be repeated now, or nil. Only the first
// line counts for "sold out": for a later line, the ledger may instead report that an earlier SKU
// is unknown.
func (c *refusalCache) refuse(lines []stock.Line) error {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if len(c.last) == 0 {
		return nil
	}
	now := time.Now()
	for i, line := range lines {
		r := c.last[line.SKU]
		if now.Before(r.until) && line.Quantity >= r.units && (i == 0 || r.units == 0) {
			return r.refusal
		}
	}
	return nil
}

// learn remembers the reason for which the ledger refused an order of the lines, if it was the
// opening hours or a lack of units. asked is a time before the request to the ledger.
func (c *refusalCache) learn(asked time.Time, lines []stock.Line, reason error) {
	var (
		r       cachedRefusal
		notOpen *stock.NotOpen
		age     = maxHoursAge
	)
	switch {
	case !errors.As(reason, &r.refusal):
		return
	case errors.As(reason, &notOpen):
		age = min(age, notOpen.In-clockError)
	case errors.Is(reason, stock.ErrSoldOut):
		// The refusal says nothing about smaller quantities or the other lines.
		age, r.units = c.soldOut, quantity(lines, r.refusal.SKU)
	case !errors.Is(reason, stock.ErrClosed):
		return
	}
	if age <= 0 {
		return
	}
	r.until = asked.Add(age)
	c.mu.Lock()
	defer c.mu.Unlock()
	known := c.last[r.refusal.SKU]
	if asked.Before(c.changed) || known.units < r.units && time.Now().Before(known.until) { // which refuses more
		return
	}
	if c.last == nil || len(c.last) >= maxRefusals {
		c.last = make(map[stock.SKU]cachedRefusal)
	}
	c.last[r.refusal.SKU] = r
}

// quantity returns the units of the SKU in the lines.
func quantity(lines []stock.Line, sku stock.SKU) (units int64) {
	for _, line := range lines {
		if line.SKU == sku {
			units += line.Quantity
		}
	}
	return units
}

// forget ends the repetition of the SKU's refusal, because its hours or its units may have
// changed.
func (c *refusalCache) forget(sku stock.SKU) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.last, sku)
	c.changed = time.Now()
}
