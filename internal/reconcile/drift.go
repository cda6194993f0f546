package reconcile

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// pageSize bounds the stock rows that one step compares.
	pageSize = 500
	// maxRechecks bounds the SKUs that wait for a second check.
	maxRechecks = 10_000
	// maxCounted bounds the takes that are read to account for units in flight. Each needs about
	// 500 bytes while they are counted. The journal of queued orders alone may have half as many.
	maxCounted = 200_000
)

// comparison cycles through the stock rows in SKU order, a page at a time, and compares the ledger
// with the gate.
type comparison struct {
	mu       sync.Mutex // held during a step
	after    stock.SKU  // the last SKU of the previous page
	rechecks map[stock.SKU]recheck

	inFlight, drift, oversold int64 // units in the pages of this round
}

// recheck is a second check that a SKU needs, because the first found that its gate and ledger
// differ. A sale between the read of the ledger and that of the gate can cause the difference.
type recheck struct {
	difference
	seen time.Time
}

// difference is the result of one check of the counts of a SKU.
type difference struct {
	epoch, gate, inFlight, ledger int64
}

// look returns the counts of the row and of the gate. same reports whether the two counts are of
// one epoch.
func look(row ledger.StockRow, level stock.Level) (d difference, same bool) {
	return difference{row.Epoch, level.Available, level.InFlight, row.Available}, level.FilledUnder(row.Epoch)
}

// compareNext does the second checks that are due, and compares the next page of stock rows. It
// returns the pace for the next step. A failed second check is only logged and repeated later,
// because an error would release the job.
func (r *Reconciler) compareNext(ctx context.Context) (pace, error) {
	c := &r.comparison
	c.mu.Lock()
	defer c.mu.Unlock()
	due := c.rechecksBefore(time.Now().Add(-sweepPause))
	if err := r.lookAgain(ctx, due[:min(pageSize, len(due))]); err != nil && ctx.Err() == nil {
		r.log.Warn("looking again at SKUs whose gate and ledger differ failed and will be retried", "error", err)
	}
	start := time.Now()
	refilled, last, err := r.comparePage(ctx)
	r.trace(ctx, "job.drift", start, refilled, err)
	switch {
	case last:
		return afterRound, err
	case refilled > 0:
		return whileRefilling, err
	}
	return withinRound, err
}

// compareAll does all second checks, and compares all stock rows.
func (r *Reconciler) compareAll(ctx context.Context) error {
	c := &r.comparison
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for some := range slices.Chunk(c.rechecksBefore(time.Now()), pageSize) {
		errs = append(errs, r.lookAgain(ctx, some))
	}
	c.begin()
	for last := false; !last; {
		var err error
		_, last, err = r.comparePage(ctx)
		errs = append(errs, err)
	}
	return joined(errs)
}

// hideComparison is called when the instance no longer compares gate and ledger. It resets the
// metrics, which the comparing instance reports. The comparison keeps its position until the
// instance holds the job again. So an error of one page, which releases the job, does not keep it
// from later pages or second checks.
func (r *Reconciler) hideComparison() {
	r.metrics.inFlight.Set(0)
	r.metrics.drift.Set(0)
	r.metrics.oversold.Set(0)
}

// begin begins a round.
func (c *comparison) begin() { c.after, c.inFlight, c.drift, c.oversold = "", 0, 0, 0 }

// rechecksBefore returns the SKUs whose first check was at the given time or before, sorted.
func (c *comparison) rechecksBefore(at time.Time) []stock.SKU {
	var due []stock.SKU
	for sku, again := range c.rechecks {
		if !again.seen.After(at) {
			due = append(due, sku)
		}
	}
	slices.Sort(due)
	return due
}

// comparePage compares the next page of stock rows with the gate. It refills the counts that the
// gate lacks or has under another epoch, and returns their number. last reports whether the round
// is complete or cannot continue; in the second case the next call reads the same page.
func (r *Reconciler) comparePage(ctx context.Context) (refilled int, last bool, err error) {
	c := &r.comparison
	rows, err := r.ledger.Rows(ctx, c.after, pageSize)
	if err != nil {
		return 0, true, err
	}
	levels, err := r.Levels(ctx, rows)
	if err != nil && !slices.ContainsFunc(levels, func(l stock.Level) bool { return l.Err == nil }) {
		return 0, true, err
	}
	var lacking []ledger.StockRow
	var lackLevels []stock.Level
	for i, row := range rows {
		level := levels[i]
		found := stock.Compare(row.Units(), &level, row.Units())
		c.oversold += found.Oversold
		switch seen, same := look(row, level); {
		case level.Err != nil: // err includes level.Err
		case same:
			c.note(row.SKU, seen, found)
		default:
			lacking, lackLevels = append(lacking, row), append(lackLevels, level)
		}
	}
	refilled, refillErr := r.refillRows(ctx, lacking, lackLevels)
	err = joined([]error{err, refillErr})
	if len(rows) == pageSize {
		c.after = rows[len(rows)-1].SKU
		return refilled, false, err
	}
	r.metrics.inFlight.Set(float64(c.inFlight))
	r.metrics.drift.Set(float64(c.drift))
	r.metrics.oversold.Set(float64(c.oversold))
	c.begin()
	return refilled, true, err
}

// note adds the counts of a SKU to the round's sums, and a second check of the SKU if they differ.
// A SKU with units in flight is also checked again, because records may not account for all of them.
func (c *comparison) note(sku stock.SKU, seen difference, found stock.Comparison) {
	c.inFlight += seen.inFlight
	if seen.inFlight == 0 {
		c.drift += abs(found.Least)
		if found.Least == 0 {
			return
		}
	}
	if before, known := c.rechecks[sku]; known && before.difference == seen || !known && len(c.rechecks) == maxRechecks {
		return
	}
	c.rechecks[sku] = recheck{seen, time.Now()}
}

// lookAgain checks the SKUs a second time, and refills those whose counts have not changed since the
// first check. It does not count units in flight that records account for as a difference.
func (r *Reconciler) lookAgain(ctx context.Context, skus []stock.SKU) error {
	if len(skus) == 0 {
		return nil
	}
	rechecks := r.comparison.rechecks
	rows, err := r.ledger.RowsOf(ctx, skus)
	if err != nil {
		return err
	}
	levels, err := r.Levels(ctx, rows)
	errs := []error{err}
	var unchanged, inFlight []stock.SKU
	for i, row := range rows {
		if seen, same := look(row, levels[i]); !same || rechecks[row.SKU].difference != seen {
			delete(rechecks, row.SKU)
			continue
		}
		unchanged = append(unchanged, row.SKU)
		if levels[i].InFlight != 0 {
			inFlight = append(inFlight, row.SKU)
		}
	}
	recorded, counted, err := r.recordedUnits(ctx, inFlight)
	errs = append(errs, err)
	if err == nil && !counted {
		r.log.Warn("too many takes are in flight to compare their units; other SKUs are compared", "more_than", maxCounted, "skus", len(inFlight))
	}
	for _, sku := range unchanged {
		seen := rechecks[sku].difference
		if seen.inFlight != 0 && (!counted || recorded[sku] == seen.inFlight) {
			delete(rechecks, sku)
			continue
		}
		errs = append(errs, r.refillDrifted(ctx, sku, seen))
	}
	return joined(errs)
}

// refillDrifted refills the SKU if its counts are still those seen. The SKU keeps its recheck, which
// finds another epoch the next time, or refills the SKU again.
func (r *Reconciler) refillDrifted(ctx context.Context, sku stock.SKU, seen difference) error {
	r.log.Warn("gate and ledger differ at rest; refilling",
		"sku", sku, "gate", seen.gate, "in_flight", seen.inFlight, "ledger", seen.ledger)
	return r.refillIf(ctx, sku, func(row ledger.StockRow, level stock.Level) bool {
		now, _ := look(row, level) // if the count has another epoch, the row has changed too
		return now == seen
	})
}

// recordedUnits adds up the units in the records of takes in flight, by SKU. A take of several SKUs
// has a record for each of them. Some of these records may be lost. If there are more than
// maxCounted takes, counted is false.
func (r *Reconciler) recordedUnits(ctx context.Context, skus []stock.SKU) (units map[stock.SKU]int64, counted bool, err error) {
	if len(skus) == 0 {
		return nil, true, nil
	}
	takes, err := r.counter.InFlight(ctx, maxCounted, skus...)
	if err != nil || len(takes) == maxCounted {
		return nil, false, err
	}
	units = make(map[stock.SKU]int64)
	for _, t := range takes {
		for _, line := range t.Recorded {
			units[line.SKU] += line.Quantity
		}
	}
	return units, true, nil
}

// Levels reads the gate's counts of the rows, in the order of the rows. If some counts cannot be
// read, it returns an error and the counts that it could read.
func (r *Reconciler) Levels(ctx context.Context, rows []ledger.StockRow) ([]stock.Level, error) {
	levels, err := r.counter.Level(ctx, ledger.SKUsOf(rows)...)
	if err != nil {
		return levels, fmt.Errorf("reading the gate's counts: %w", err)
	}
	return levels, nil
}

func abs(n int64) int64 { return max(n, -n) }
