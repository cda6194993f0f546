package order

import (
	"errors"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// maxHoursAge bounds how long a refusal is repeated without asking the ledger, and
	// so how late a change of the opening hours through another instance takes effect.
	maxHoursAge = time.Second
	// clockError bounds how far a database's clock is read wrong: SQLite rounds it
	// to whole milliseconds.
	clockError = time.Millisecond
	// maxHours bounds the SKUs that are remembered.
	maxHours = 10_000
)

// hours repeats the ledger's refusals of SKUs that are not open, so that a rush
// before the opening does not reach the stores. It never refuses an order once the
// SKU is open by the database's clock, unless an administrator has changed the hours
// through another instance less than maxHoursAge ago. It compares no clocks: the ledger's
// answer says how long it was before the opening, and that time is counted from before
// the ledger was asked. It is safe for concurrent use.
type hours struct {
	mu       sync.RWMutex
	refusals map[stock.SKU]repeated
}

// repeated is a refusal, and until when it may be repeated.
type repeated struct {
	refusal *stock.Refusal
	until   time.Time
	asked   time.Time // before the ledger was asked, or when the hours were changed
}

// refuse returns the refusal of one of the lines that may be repeated now, or nil.
func (h *hours) refuse(lines []stock.Line) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if len(h.refusals) == 0 {
		return nil
	}
	now := time.Now()
	for _, line := range lines {
		if r, ok := h.refusals[line.SKU]; ok && now.Before(r.until) {
			return r.refusal
		}
	}
	return nil
}

// learn remembers the reason for which the ledger refused an order, if it was the
// opening hours. asked is a time before the ledger was asked.
func (h *hours) learn(asked time.Time, reason error) {
	var (
		refusal *stock.Refusal
		notOpen *stock.NotOpen
		age     = maxHoursAge
	)
	switch {
	case !errors.As(reason, &refusal):
		return
	case errors.As(reason, &notOpen):
		age = min(age, notOpen.In-clockError)
	case !errors.Is(reason, stock.ErrClosed):
		return
	}
	h.remember(refusal.SKU, repeated{refusal, asked.Add(age), asked})
}

// forget ends the repetition of the SKU's refusal, because its hours may have been
// changed. A refusal for which the ledger was asked before is not repeated.
func (h *hours) forget(sku stock.SKU) { h.remember(sku, repeated{asked: time.Now()}) }

// remember replaces what is known of the SKU, unless that is more recent.
func (h *hours) remember(sku stock.SKU, r repeated) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if r.asked.Before(h.refusals[sku].asked) {
		return
	}
	if h.refusals == nil || len(h.refusals) >= maxHours {
		h.refusals = make(map[stock.SKU]repeated)
	}
	h.refusals[sku] = r
}
