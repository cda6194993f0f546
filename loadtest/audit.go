package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// audit compares the record with the stores, by its own SQL and Redis commands. It does not use the
// service's own audit.
func (l *loading) audit(ctx context.Context, r *results.Result, until settled) error {
	r.Sold = l.rec.accepted.Load() // without a database, only the 201s can be counted
	if l.sql != nil {
		if err := l.addCounts(ctx, r, l.sku, until); err != nil {
			return err
		}
	}
	r.Oversold = max(0, r.Sold-r.Stock)
	r.Undersold = max(0, r.Stock-r.Sold)
	if err := l.checkAnswers(ctx); err != nil {
		return err
	}
	l.rec.addTo(r)
	return l.rec.sampleErr
}

// addCounts waits until the counts of the SKU have settled, and adds them to the result.
func (l *lab) addCounts(ctx context.Context, r *results.Result, sku string, until settled) error {
	now, err := l.await(ctx, sku, until)
	if err != nil {
		return err
	}
	r.Ledger, r.Gate, r.InFlight = &now.ledger, now.gate, now.inFlight
	r.Sold, err = l.sold(ctx, sku)
	return err
}

// settled is the condition under which the counts of a SKU are read. After a limit, the audit reads
// them in any case.
type settled struct {
	limit     time.Duration
	condition func(counts) bool
}

// settledAfterLoad waits until nothing is in flight. For a broken strategy it waits only briefly:
// its counts may never settle, and are not judged.
func settledAfterLoad(spec assembly.Spec) settled {
	if spec.Sound {
		return settled{10 * time.Second, counts.nothingInFlight}
	}
	return settled{time.Second, counts.nothingInFlight}
}

// counts are the units left of one SKU. Those of the gate are nil if there is no gate, or if
// --redis does not name its Redis.
type counts struct {
	ledger         int64
	gate, inFlight *int64
}

// nothingInFlight reports whether gate and ledger can be compared.
func (c counts) nothingInFlight() bool { return c.gate == nil || *c.inFlight == 0 }

// agree reports whether gate and ledger have the same count, with nothing in flight.
func (c counts) agree() bool { return c.nothingInFlight() && (c.gate == nil || *c.gate == c.ledger) }

// await waits until the counts have settled, and returns them.
func (l *lab) await(ctx context.Context, sku string, until settled) (now counts, err error) {
	repeatUntil(ctx, until.limit, 20*time.Millisecond, func() bool {
		now, err = l.counts(ctx, sku)
		return err != nil || until.condition(now)
	})
	return now, err
}

// repeatUntil calls done until it returns true, with a pause after each call. It gives up when the
// limit has passed or ctx ends.
func repeatUntil(ctx context.Context, limit, pause time.Duration, done func() bool) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for !done() {
		if retry.Sleep(ctx, pause) != nil {
			return
		}
	}
}

func (l *lab) counts(ctx context.Context, sku string) (now counts, err error) {
	gate, err := l.gate(ctx, sku)
	if err != nil {
		return now, err
	}
	now.gate, now.inFlight = gate.available, gate.inFlight
	now.ledger, err = l.ledgerCount(ctx, sku)
	return now, err
}

// ledgerCount returns the units left in the stock row of the SKU and in its parts.
func (l *lab) ledgerCount(ctx context.Context, sku string) (available int64, err error) {
	err = l.sql.DB().WithContext(ctx).Raw("SELECT available + COALESCE((SELECT SUM(available) FROM stock_parts WHERE stock_parts.sku = stock.sku), 0) FROM stock WHERE sku = ?", sku).Row().Scan(&available)
	if err != nil {
		return 0, fmt.Errorf("reading the stock row of %s: %w", sku, err)
	}
	return available, nil
}

// holdsUnits is the SQL condition that an order holds its units.
const holdsUnits = "(orders.status IN ('pending', 'paid') OR orders.status = 'refunded' AND NOT orders.restocked)"

// sold counts the units of the SKU in orders that hold their units.
func (l *lab) sold(ctx context.Context, sku string) (units int64, err error) {
	err = l.sql.DB().WithContext(ctx).Raw(`SELECT COALESCE(SUM(order_lines.quantity), 0) FROM order_lines
		JOIN orders ON orders.id = order_lines.order_id
		WHERE order_lines.sku = ? AND `+holdsUnits, sku).Row().Scan(&units)
	if err != nil {
		return 0, fmt.Errorf("counting the orders of %s: %w", sku, err)
	}
	return units, nil
}

// gateKeys are the Redis keys in which the gate keeps one SKU.
type gateKeys struct {
	ledger     string // beginning of every key
	cluster    bool   // each name has its own keys
	generation int64
	names      []string // names under which the counts of the generation are kept: the SKU or its segments
}

func (l *lab) gateOf(ctx context.Context, sku string) (g gateKeys, err error) {
	id, err := l.sql.LedgerID(ctx)
	if err != nil {
		return g, err
	}
	_, cluster := l.redis.(*redis.ClusterClient)
	g = gateKeys{ledger: "holdfast:{" + id.String(), cluster: cluster, names: []string{sku}}
	generation, err := l.redis.Get(ctx, g.ledger+"}:generation").Result()
	if errors.Is(err, redis.Nil) {
		return g, nil
	}
	if err != nil {
		return g, fmt.Errorf("reading the gate's generation: %w", err)
	}
	var segments int
	if _, err := fmt.Sscan(generation, &g.generation, &segments); err != nil {
		return g, fmt.Errorf("parsing the gate's generation %q: %w", generation, err)
	}
	if segments > 0 {
		g.names = segmentsOf(sku, segments)
	}
	return g, nil
}

// segmentsOf returns the names of the SKU's segments.
func segmentsOf(sku string, count int) []string {
	names := make([]string, count)
	for n := range names {
		names[n] = fmt.Sprintf("%s/%d", sku, n)
	}
	return names
}

// ownKey returns a key that belongs to this name only.
func (g gateKeys) ownKey(name, what string) string { return g.ledger + ":" + name + "}:" + what }

// key returns the hash that has the name as a field.
func (g gateKeys) key(name, what string) string {
	if g.cluster {
		return g.ownKey(name, what)
	}
	return g.ledger + "}:" + what
}

// generationBits is the number of lower bits of an epoch. The bits above are its
// generation.
const generationBits = 28

// gateCount is the gate's count of a SKU.
type gateCount struct {
	available, inFlight *int64 // nil if the gate has no count
	text                string // the count in the form in which the gate stores it
}

// gate adds up the gate's counts of the current generation over all segments.
func (l *lab) gate(ctx context.Context, sku string) (all gateCount, err error) {
	if l.redis == nil {
		return all, nil
	}
	g, err := l.gateOf(ctx, sku)
	if err != nil {
		return all, err
	}
	var sum, flight int64
	for _, name := range g.names {
		count, err := l.redis.HGet(ctx, g.key(name, "count"), name).Result()
		if errors.Is(err, redis.Nil) {
			continue
		}
		if err != nil {
			return gateCount{}, fmt.Errorf("reading the gate's count of %s: %w", name, err)
		}
		var epoch, units, held int64
		if _, err := fmt.Sscan(count, &epoch, &units, &held); err != nil {
			return gateCount{}, fmt.Errorf("parsing the gate's count %q of %s: %w", count, name, err)
		}
		if epoch>>generationBits != g.generation { // the gate ignores this count too
			continue
		}
		sum += units
		flight += held
		all.available, all.inFlight = &sum, &flight
		all.text += count + ";"
	}
	return all, nil
}

// watchPause is the pause between two checks of a watch.
const watchPause = 50 * time.Millisecond

// watch checks the counts during a load and its audit. It detects wrong counts that the service
// repairs before the audit reads them.
type watch struct {
	*loading
	caught *int64 // number of orders that the guard had refused before; nil: not known

	stop   context.CancelFunc
	done   sync.WaitGroup
	excess int64 // the greatest excess seen, see [lab.excess]
}

// startWatch starts to watch the SKUs.
func (l *loading) startWatch(ctx context.Context, skus ...string) *watch {
	w := &watch{loading: l, caught: l.guardRefusals(ctx)}
	ctx, w.stop = context.WithCancel(context.WithoutCancel(ctx))
	if l.sql == nil || l.redis == nil || !l.spec.Sound {
		return w
	}
	w.done.Go(func() {
		for retry.Sleep(ctx, watchPause) == nil {
			for _, sku := range skus {
				if units, err := l.excess(ctx, sku); err == nil { // the audit reports stores that do not answer
					w.excess = max(w.excess, units)
				}
			}
		}
	})
	return w
}

// end ends the watch.
func (w *watch) end() {
	w.stop()
	w.done.Wait()
}

// addTo ends the watch, and adds its observations to the result.
func (w *watch) addTo(ctx context.Context, r *results.Result) {
	w.end()
	r.Excess = w.excess
	r.Caught = difference(w.caught, w.guardRefusals(ctx))
}

// excess returns how many units the gate has beyond the stock row of the SKU. It returns 0 if the
// gate's counts change, or if units are in flight. A sound strategy never has an excess, because
// units leave the gate before the ledger and return to it afterwards.
func (l *lab) excess(ctx context.Context, sku string) (units int64, err error) {
	before, err := l.gate(ctx, sku)
	if err != nil || before.available == nil || *before.inFlight != 0 {
		return 0, err
	}
	ledger, err := l.ledgerCount(ctx, sku)
	if err != nil {
		return 0, err
	}
	after, err := l.gate(ctx, sku)
	if err != nil || after.text != before.text {
		return 0, err
	}
	return max(0, *before.available-max(ledger, 0)), nil
}

// guardRefusals returns how many orders the guard has refused on these instances so far, from their
// metrics. It returns nil without a guard, or if a metric cannot be read.
func (l *loading) guardRefusals(ctx context.Context) *int64 {
	if !l.guarded(l.spec) {
		return nil
	}
	var total int64
	for _, url := range l.fleet.urls {
		counters, err := measure.Counters(ctx, url+"/metrics")
		refusals, found := counters["holdfast_guard_refusals_total"]
		if err != nil || !found {
			return nil
		}
		total += int64(refusals)
	}
	return &total
}

// difference returns the increase between two counts, nil if either is not known.
func difference(before, after *int64) *int64 {
	if before == nil || after == nil {
		return nil
	}
	n := *after - *before
	return &n
}
