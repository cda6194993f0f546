package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// auditPage bounds the SKUs that one step of an audit reads.
	auditPage = 500
	// auditPause is the pause between two reads of a SKU whose counts differ, and maxReadings
	// bounds the reads.
	auditPause, maxReadings = 300 * time.Millisecond, 6
	// maxWrongClaims bounds the wrong claims that one statement lists.
	maxWrongClaims = 1000
	// maxRepairs bounds the SKUs that are repaired at once.
	maxRepairs = 8
)

// AuditLedger is what audits need of the ledger.
type AuditLedger interface {
	Rows(ctx context.Context, after stock.SKU, limit int) ([]ledger.StockRow, error)
	Counts(ctx context.Context, skus []stock.SKU) ([]ledger.Count, error)
	Recount(ctx context.Context, skus []stock.SKU) ([]ledger.Count, error)
	WrongClaims(ctx context.Context, skus []stock.SKU, limit int) ([]ledger.Claim, error)
	Correct(ctx context.Context, sku stock.SKU, above int64) error
}

// Kind says which counts of a SKU differ.
type Kind string

// The kinds of difference.
const (
	// LedgerDiffers means that the stock row's available is not the total minus the units that
	// orders hold.
	LedgerDiffers Kind = "ledger"
	// ClaimsDiffer means that the claims of some buyers are not the units in their orders. This
	// difference is measured in claims, not in units.
	ClaimsDiffer Kind = "claims"
	// NotFilled means that the gate, or a segment, has no count under the stock row's epoch.
	NotFilled Kind = "not-filled"
	// GateDiffers means that the gate does not have as many units as the stock row.
	GateDiffers Kind = "gate"
	// Unrecorded means that the gate counts units in flight that no record accounts for.
	Unrecorded Kind = "in-flight"
	// Unsteady means that no two reads agreed, so it is unknown whether the counts differ.
	Unsteady Kind = "unsteady"
)

// Difference says by how many units a count is too high. A negative number means that it is too
// low. The number is between Least and Most. These are equal unless the SKU was being sold. Both
// are 0 for NotFilled and Unsteady.
type Difference struct {
	Kind        Kind
	Least, Most int64
}

// Finding is a SKU whose counts differ.
type Finding struct {
	Count       ledger.Count
	Level       stock.Level   // zero value without a gate
	Segments    []stock.Level // levels of a divided SKU's segments, in their order
	Recorded    *int64        // units in the records of takes in flight; nil: the records were not counted
	Claims      []ledger.Claim
	Differences []Difference
	Repaired    bool
	Err         error // why a repair failed
}

// AuditOptions are the options of an audit.
type AuditOptions struct {
	Repair   bool
	Report   func(Finding) error // called for each finding, in SKU order
	Progress func(compared int)  // called after each page of SKUs
}

// AuditSummary counts SKUs.
type AuditSummary struct {
	Compared int
	// NotAdopted counts the SKUs that have not been used since the generation last changed. The
	// gate needs no counts of these SKUs until they are used.
	NotAdopted int
	Different  int
	Repaired   int // number of SKUs in Different that were repaired
}

// Attach prepares the Reconciler for audits beside the instances that sell the stock.
// Call it instead of Start. It does not take over the stock, and returns an error if
// the stock belongs to another layout.
func (r *Reconciler) Attach(ctx context.Context) error {
	r.generations.auditor = true
	if err := r.generations.join(ctx); err != nil {
		return fmt.Errorf("using the stock: %w", err)
	}
	return nil
}

// AuditAll compares gate, claims and ledger for every SKU, even while orders are placed. It reads
// one page of SKUs at a time. After a pause, it reads the differing SKUs again, and reports only
// the differences that both reads show.
//
// A repair corrects the ledger from the orders, and fills the gate from the ledger under a new
// epoch. Takes from before the repair cannot commit.
func (r *Reconciler) AuditAll(ctx context.Context, o AuditOptions) (s AuditSummary, err error) {
	var (
		after       stock.SKU
		unconfirmed []reading
	)
	for last := false; !last; {
		rows, err := r.ledger.Rows(ctx, after, auditPage)
		if err != nil {
			return s, err
		}
		readings, err := r.read(ctx, ledger.SKUsOf(rows))
		if err != nil {
			return s, err
		}
		for _, seen := range readings {
			if seen.notAdopted {
				s.NotAdopted++
			}
		}
		unconfirmed = append(unconfirmed, differing(readings)...)
		s.Compared += len(rows)
		if last = len(rows) < auditPage; !last {
			after = rows[len(rows)-1].SKU
		}
		if last || len(unconfirmed) >= auditPage {
			if err := r.examine(ctx, unconfirmed, o, &s); err != nil {
				return s, err
			}
			unconfirmed = nil
		}
		o.Progress(s.Compared)
	}
	return s, nil
}

// examine confirms the readings, repairs the SKUs that differ if o requires it, and reports them.
func (r *Reconciler) examine(ctx context.Context, unconfirmed []reading, o AuditOptions, s *AuditSummary) error {
	found, err := r.confirm(ctx, unconfirmed)
	if err != nil {
		return err
	}
	for i := range found {
		if err := r.addSegments(ctx, &found[i].Finding); err != nil {
			return err
		}
	}
	if o.Repair {
		if err := r.repairAll(ctx, found); err != nil {
			return err
		}
	}
	for _, f := range found {
		s.Different++
		if f.Repaired {
			s.Repaired++
		}
		if err := o.Report(f.Finding); err != nil {
			return err
		}
	}
	return nil
}

// addSegments adds the counts of the segments, if the gate has any.
func (r *Reconciler) addSegments(ctx context.Context, f *Finding) (err error) {
	if r.counter != nil {
		f.Segments, err = r.counter.Segments(ctx, f.Count.SKU)
	}
	return err
}

// reading is the result of reading a SKU's counts once.
type reading struct {
	Finding
	notAdopted bool
}

// differing returns the readings that show a difference.
func differing(readings []reading) []reading {
	return slices.DeleteFunc(readings, func(seen reading) bool { return len(seen.Differences) == 0 })
}

// read reads and compares the counts of up to auditPage SKUs, which must be sorted.
func (r *Reconciler) read(ctx context.Context, skus []stock.SKU) ([]reading, error) {
	if err := r.generations.join(ctx); err != nil {
		return nil, fmt.Errorf("using the stock: %w", err)
	}
	// The gate is read between two reads of the ledger. See stock.Compare.
	before, err := r.ledger.Counts(ctx, skus)
	if err != nil {
		return nil, err
	}
	levels := make([]stock.Level, len(skus))
	if r.counter != nil {
		if levels, err = r.counter.Level(ctx, skus...); err != nil {
			return nil, fmt.Errorf("reading the gate's counts: %w", err)
		}
	}
	after, err := r.ledger.Recount(ctx, skus)
	if err != nil {
		return nil, err
	}
	if len(before) != len(skus) || len(after) != len(skus) {
		return nil, errors.New("stock rows were deleted while they were read")
	}
	claims, err := r.wrongClaims(ctx, after)
	if err != nil {
		return nil, err
	}
	flights, err := r.flights(ctx, levels)
	if err != nil {
		return nil, err
	}
	readings := make([]reading, len(skus))
	for i, sku := range skus {
		seen := &readings[i]
		seen.Count, seen.Level, seen.Claims = after[i], levels[i], claims[sku]
		seen.compareLedger()
		if r.counter == nil {
			continue
		}
		switch g := stock.GenerationOf(after[i].Epoch); {
		case g < r.generations.current():
			seen.notAdopted = true
		case g > r.generations.current():
			seen.add(Unsteady, 0, 0)
		default:
			seen.compareGate(before[i], flights)
		}
	}
	return readings, nil
}

func (f *Finding) add(kind Kind, least, most int64) {
	f.Differences = append(f.Differences, Difference{kind, least, most})
}

func (f *Finding) compareLedger() {
	if wrong := stock.Compare(f.Count.Units(), nil, f.Count.Units()).Ledger; wrong != 0 {
		f.add(LedgerDiffers, wrong, wrong)
	}
	if buyers := int64(len(f.Claims)); buyers > 0 {
		f.add(ClaimsDiffer, buyers, buyers)
	}
}

// compareGate compares the gate's count with the stock row. before is the row as it
// was read before the gate; f.Count was read after the gate.
func (f *Finding) compareGate(before ledger.Count, flights map[stock.SKU]flight) {
	after, level := f.Count, f.Level
	switch {
	case before.Epoch != after.Epoch || before.Changes != after.Changes:
		f.add(Unsteady, 0, 0)
		return
	case !level.FilledUnder(after.Epoch):
		f.add(NotFilled, 0, 0)
		return
	}
	if c := stock.Compare(before.Units(), &level, after.Units()); c.Least > 0 || c.Most < 0 {
		f.add(GateDiffers, c.Least, c.Most)
	}
	if flight, counted := flights[after.SKU]; counted {
		f.Recorded = &flight.recorded
		if lost := flight.counted - flight.recorded; lost != 0 {
			f.add(Unrecorded, lost, lost)
		}
	}
}

// wrongClaims returns the wrong claims of the SKUs. It leaves out SKUs whose buyer limit is not in
// effect.
func (r *Reconciler) wrongClaims(ctx context.Context, counts []ledger.Count) (map[stock.SKU][]ledger.Claim, error) {
	var skus []stock.SKU
	for _, c := range counts {
		if c.LimitHolds() {
			skus = append(skus, c.SKU)
		}
	}
	bySKU := make(map[stock.SKU][]ledger.Claim)
	for {
		claims, err := r.ledger.WrongClaims(ctx, skus, maxWrongClaims)
		if err != nil {
			return nil, err
		}
		for _, c := range claims {
			bySKU[c.SKU] = append(bySKU[c.SKU], c)
		}
		if len(claims) < maxWrongClaims {
			return bySKU, nil
		}
		last := claims[len(claims)-1].SKU // the page may not have all claims of the last SKU
		skus = slices.DeleteFunc(skus, func(sku stock.SKU) bool { return sku <= last })
	}
}

// flight has the units in flight of a SKU.
type flight struct {
	counted  int64 // units in the gate's count
	recorded int64 // units in the records of takes
}

// flights adds up the units in the records of takes, for the SKUs that have units in
// flight. It leaves out SKUs whose counts changed meanwhile. If there are more than
// maxCounted takes, it returns none.
func (r *Reconciler) flights(ctx context.Context, levels []stock.Level) (map[stock.SKU]flight, error) {
	var skus []stock.SKU
	for _, level := range levels {
		if level.InFlight != 0 {
			skus = append(skus, level.SKU)
		}
	}
	if len(skus) == 0 {
		return nil, nil
	}
	before, err := r.counter.Level(ctx, skus...)
	if err != nil {
		return nil, fmt.Errorf("reading the gate's counts: %w", err)
	}
	recorded, counted, err := r.recordedUnits(ctx, skus)
	if !counted { // the count failed, or there are too many records
		return nil, err
	}
	after, err := r.counter.Level(ctx, skus...)
	if err != nil {
		return nil, fmt.Errorf("reading the gate's counts: %w", err)
	}
	flights := make(map[stock.SKU]flight)
	for i, sku := range skus {
		if before[i] == after[i] {
			flights[sku] = flight{before[i].InFlight, recorded[sku]}
		}
	}
	return flights, nil
}

// confirm reads the SKU of each reading again until two successive reads show the same difference,
// or one shows none. It returns the readings that differ. A SKU that maxReadings reads could not
// decide is returned as Unsteady.
func (r *Reconciler) confirm(ctx context.Context, unconfirmed []reading) ([]reading, error) {
	var found []reading
	for n := 1; len(unconfirmed) > 0 && n < maxReadings; n++ {
		if err := retry.Sleep(ctx, auditPause); err != nil {
			return nil, err
		}
		earlier := make(map[stock.SKU]reading)
		for _, seen := range unconfirmed {
			earlier[seen.Count.SKU] = seen
		}
		again, err := r.readAgain(ctx, unconfirmed)
		if err != nil {
			return nil, err
		}
		unconfirmed = nil
		for _, seen := range again {
			if agreed := seen.agreed(earlier[seen.Count.SKU].Finding); len(agreed) > 0 {
				seen.Differences = agreed
				found = append(found, seen)
			} else {
				unconfirmed = append(unconfirmed, seen)
			}
		}
	}
	for _, seen := range unconfirmed {
		seen.Differences = []Difference{{Kind: Unsteady}}
		found = append(found, seen)
	}
	slices.SortFunc(found, func(a, b reading) int { return cmp.Compare(a.Count.SKU, b.Count.SKU) })
	return found, nil
}

// readAgain reads the SKUs of the readings again, and returns those that differ. Both are in SKU
// order.
func (r *Reconciler) readAgain(ctx context.Context, readings []reading) ([]reading, error) {
	var found []reading
	for some := range slices.Chunk(readings, auditPage) {
		skus := make([]stock.SKU, len(some))
		for i, seen := range some {
			skus[i] = seen.Count.SKU
		}
		again, err := r.read(ctx, skus)
		if err != nil {
			return nil, err
		}
		found = append(found, differing(again)...)
	}
	return found, nil
}

// agreed returns the differences that both reads show, with bounds that fit both. It returns none
// if the epoch changed between the reads.
func (f Finding) agreed(earlier Finding) (agreed []Difference) {
	if f.Count.Epoch != earlier.Count.Epoch {
		return nil
	}
	for _, d := range f.Differences {
		for _, e := range earlier.Differences {
			least, most := max(d.Least, e.Least), min(d.Most, e.Most)
			if d.Kind == e.Kind && d.Kind != Unsteady && least <= most {
				agreed = append(agreed, Difference{d.Kind, least, most})
			}
		}
	}
	return agreed
}

// has reports whether the finding includes one of the kinds.
func (f Finding) has(kinds ...Kind) bool {
	return slices.ContainsFunc(f.Differences, func(d Difference) bool { return slices.Contains(kinds, d.Kind) })
}

// repairAll repairs the findings, several at once. It then reads them again, and marks those that
// no longer differ as repaired.
func (r *Reconciler) repairAll(ctx context.Context, found []reading) error {
	var g errgroup.Group
	g.SetLimit(maxRepairs)
	for i := range found {
		g.Go(func() error {
			found[i].Err = r.repair(ctx, found[i].Finding)
			return nil
		})
	}
	_ = g.Wait()
	unconfirmed, err := r.readAgain(ctx, found)
	if err != nil {
		return err
	}
	left, err := r.confirm(ctx, unconfirmed)
	if err != nil {
		return err
	}
	differs := make(map[stock.SKU]bool)
	for _, seen := range left {
		differs[seen.Count.SKU] = true
	}
	for i := range found {
		f := &found[i]
		if f.Repaired = !differs[f.Count.SKU]; f.Repaired {
			f.Err = nil
		}
	}
	return nil
}

// repair makes the ledger's counts agree with the orders, and the gate's with the ledger's.
func (r *Reconciler) repair(ctx context.Context, f Finding) error {
	sku := f.Count.SKU
	if f.has(LedgerDiffers, ClaimsDiffer) {
		if err := r.ledger.Correct(ctx, sku, f.Level.Epoch); err != nil {
			return err
		}
		return r.Refill(ctx, sku)
	}
	if f.has(NotFilled, GateDiffers, Unrecorded) {
		return r.refillIf(ctx, sku, always)
	}
	return nil
}
