package gate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// scanRecords is the approximate number of records that one step of a scan reads, and scanKeys the
// number of keys of a cluster's server.
const scanRecords, scanKeys = 500, 1000

// InFlight lists up to limit takes of the SKUs, in no particular order. Each take is listed once,
// with all its lines, and with the units of its records of these SKUs. InFlight scans all records
// in bounded steps. It may miss or list a take that begins or ends meanwhile. It leaves out
// unreadable records, whose units only a refill returns; ScanInFlight reports them. If InFlight
// fails, it returns an error and the takes that it could read.
func (c *Counter) InFlight(ctx context.Context, limit int, skus ...stock.SKU) ([]stock.Take, error) {
	names := c.layout.segmentsOf(skus...)
	wanted := make(map[stock.SKU]bool, len(names))
	for _, name := range names {
		wanted[name] = true
	}
	listing := &listing{queued: true, limit: limit, wanted: wanted, at: make(map[takeID]int)}
	if !c.cluster {
		names = names[:min(1, len(names))] // all SKUs share the keys
	}
	var errs []error
	for _, name := range names {
		if err := c.scan(ctx, c.keys(name), listing); err != nil {
			errs = append(errs, fmt.Errorf("listing takes in flight: %w", err))
		}
	}
	c.layout.undivide(listing.takes)
	return listing.takes, errors.Join(errs...)
}

// listing collects takes up to its limit, each once.
type listing struct {
	olderThan time.Duration      // minimum age of the takes, by Redis's clock
	queued    bool               // include takes of queued orders
	limit     int                // maximum number of takes
	wanted    map[stock.SKU]bool // SKUs of the takes, without unreadable records; nil: any SKU
	at        map[takeID]int     // index of each take in takes: a take has a record for each line
	takes     []stock.Take
}

type takeID struct{ order, take uuid.UUID }

func (l *listing) full() bool { return len(l.takes) >= l.limit }

// add adds the take of a record, or adds the record to its take. A scan may return a
// record twice.
func (l *listing) add(field, record string) error {
	name, order, _ := strings.Cut(field, " ")
	sku := stock.SKU(name)
	if l.wanted != nil && !l.wanted[sku] {
		return nil
	}
	t, err := parseRecord(order, record)
	switch {
	case err != nil && l.wanted != nil:
		return nil
	case err != nil:
		return fmt.Errorf("SKU %s, record of order %q: %w", sku, order, err)
	}
	id := takeID{t.OrderID, t.TakeID}
	at, listed := l.at[id]
	if !listed {
		at = len(l.takes)
		l.at[id], l.takes = at, append(l.takes, t)
	}
	if found := &l.takes[at]; lineOf(found.Recorded, sku) < 0 {
		if i := lineOf(t.Lines, sku); i >= 0 {
			found.Recorded = append(found.Recorded, t.Lines[i])
		}
	}
	return nil
}

// scan adds the takes whose records are under the keys. An unreadable record is an error, but does
// not keep it from adding the others.
func (c *Counter) scan(ctx context.Context, keys keys, to *listing) error {
	var errs []error
	for cursor := firstCursor; !to.full(); {
		next, err := c.scanStep(ctx, keys, cursor, to)
		if err != nil {
			errs = append(errs, err)
		}
		if cursor = next; cursor == firstCursor {
			break
		}
	}
	return errors.Join(errs...)
}

// firstCursor is Redis' cursor of the first step of a scan. The last step returns it
// again.
const firstCursor = "0"

// scanStep runs one step of scan and returns the next cursor. If the step fails, it
// returns firstCursor.
func (c *Counter) scanStep(ctx context.Context, keys keys, cursor string, to *listing) (next string, err error) {
	names := []string{keys.count, keys.flight}
	if !to.queued && !c.cluster {
		names = append(names, c.queuedKey())
	}
	page, err := c.strings(ctx, &c.scripts.Load().inFlight, names,
		cursor, strconv.Itoa(scanRecords), strconv.FormatInt(to.olderThan.Microseconds(), 10))
	if err != nil {
		return firstCursor, err
	}
	var errs []error
	for pairs := page[1:]; len(pairs) >= 2 && !to.full(); pairs = pairs[2:] {
		if err := to.add(pairs[0], pairs[1]); err != nil {
			errs = append(errs, err)
		}
	}
	return page[0], errors.Join(errs...)
}

// ScanInFlight lists the takes of all SKUs that were recorded at least olderThan ago. Each call is
// one step, which reads a bounded number of records and may list none. On a cluster, a step reads
// some of the keys of one server. The first step has an empty cursor, and each later step the
// cursor that the previous one returned. An empty next means that the scan is complete.
//
// A take that is in flight throughout the scan is listed at least once, with all its lines. Takes
// of queued orders are not listed, because a consumer ends them, whatever their age. If
// ScanInFlight fails, it returns an error and the takes that it could read.
func (c *Counter) ScanInFlight(ctx context.Context, olderThan time.Duration, cursor string) (takes []stock.Take, next string, err error) {
	listing := &listing{olderThan: olderThan, limit: math.MaxInt, at: make(map[takeID]int)}
	if c.cluster {
		next, err = c.scanServers(ctx, cursor, listing)
	} else {
		next, err = c.scanStep(ctx, c.shared, cmp.Or(cursor, firstCursor), listing)
		if next == firstCursor {
			next = ""
		}
	}
	c.layout.undivide(listing.takes)
	if err != nil {
		return listing.takes, next, fmt.Errorf("listing takes in flight: %w", err)
	}
	return listing.takes, next, nil
}

// scanServers adds the takes whose records are under some of the keys of one of a cluster's
// masters. The cursor is the master's address and the cursor of its keys. The scan visits the
// masters in order of their addresses, so it can continue when one has left the cluster. After the
// error of a master, next is the following master.
func (c *Counter) scanServers(ctx context.Context, cursor string, to *listing) (next string, err error) {
	var mu sync.Mutex
	masters := make(map[string]*redis.Client) // masters by address
	err = eachMaster(ctx, c.client, func(_ context.Context, master *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		masters[master.Options().Addr] = master
		return nil
	})
	if err != nil {
		return "", proven(err)
	}
	addresses := slices.Sorted(maps.Keys(masters))
	address, keyCursor, _ := strings.Cut(cursor, " ")
	at, found := slices.BinarySearch(addresses, address)
	if at == len(addresses) {
		return "", nil
	}
	if !found {
		keyCursor = firstCursor
	}
	if at+1 < len(addresses) {
		next = addresses[at+1] + " " + firstCursor
	}
	from, err := strconv.ParseUint(keyCursor, 10, 64)
	if err != nil {
		return "", fmt.Errorf("cursor %q: %w", cursor, err)
	}
	prefix, suffix := c.ledgerPrefix+":", keysOf("}").flight
	flights, rest, err := masters[addresses[at]].Scan(ctx, from, prefix+"*"+suffix, scanKeys).Result()
	if err != nil {
		return next, proven(err)
	}
	var errs []error
	for _, key := range flights {
		sku := stock.SKU(strings.TrimSuffix(strings.TrimPrefix(key, prefix), suffix))
		if err := c.scan(ctx, c.keys(sku), to); err != nil {
			errs = append(errs, err)
		}
	}
	if rest != 0 {
		next = addresses[at] + " " + strconv.FormatUint(rest, 10)
	}
	return next, errors.Join(errs...)
}
