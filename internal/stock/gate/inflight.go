package gate

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// scanStep is about how many records one step of InFlight reads.
const scanStep = 500

// InFlight lists takes of the SKUs in no particular order. It scans all records
// under their keys in bounded steps. It may miss or list a take that begins or
// ends meanwhile.
func (c *counts) InFlight(ctx context.Context, olderThan time.Duration, limit int, skus ...stock.SKU) ([]stock.Take, error) {
	listing := listing{limit: limit, wanted: make(map[stock.SKU]bool), seen: make(map[takeID]bool)}
	for _, sku := range skus {
		listing.wanted[sku] = true
	}
	if !c.cluster {
		skus = skus[:min(1, len(skus))] // all SKUs share the keys
	}
	var errs []error
	for _, sku := range skus {
		if err := c.scan(ctx, c.keys(sku), olderThan, &listing); err != nil {
			errs = append(errs, fmt.Errorf("listing takes in flight: %w", err))
		}
	}
	return listing.takes, errors.Join(errs...)
}

// listing collects takes, each once, up to its limit.
type listing struct {
	limit  int
	wanted map[stock.SKU]bool
	seen   map[takeID]bool // a scan may return a record twice, and a take has a record for each line
	takes  []stock.Take
}

type takeID struct{ order, take uuid.UUID }

func (l *listing) full() bool { return len(l.takes) >= l.limit }

func (l *listing) add(field, record string) error {
	sku, order, _ := strings.Cut(field, " ")
	if !l.wanted[stock.SKU(sku)] {
		return nil
	}
	t, err := parseRecord(order, record)
	if err != nil {
		return fmt.Errorf("SKU %s, record of order %q: %w", sku, order, err)
	}
	if id := (takeID{t.OrderID, t.TakeID}); !l.seen[id] {
		l.seen[id] = true
		l.takes = append(l.takes, t)
	}
	return nil
}

// scan adds the takes whose records are under the keys. An unreadable record does
// not keep it from adding the others.
func (c *counts) scan(ctx context.Context, keys keys, olderThan time.Duration, to *listing) error {
	var errs []error
	for cursor := "0"; !to.full(); {
		page, err := c.strings(ctx, &c.scripts().inFlight, []string{keys.count, keys.flight},
			cursor, strconv.Itoa(scanStep), strconv.FormatInt(ageMicros(olderThan), 10))
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		for pairs := page[1:]; len(pairs) >= 2 && !to.full(); pairs = pairs[2:] {
			if err := to.add(pairs[0], pairs[1]); err != nil {
				errs = append(errs, err)
			}
		}
		if cursor = page[0]; cursor == "0" {
			break
		}
	}
	return errors.Join(errs...)
}

// ageMicros returns the age in microseconds as inflight.lua expects it: rounded up,
// because 0 means takes of any age, and of queued orders too.
func ageMicros(age time.Duration) int64 { return (age + time.Microsecond - 1).Microseconds() }
