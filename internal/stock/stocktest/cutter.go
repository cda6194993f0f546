package stocktest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/stock"
)

// Cutters is what a cutter's promises are checked on.
type Cutters struct {
	// DB has the ledger's schema, and bounds its lock waits. Stock rows are
	// left behind in it.
	DB *gorm.DB
	// New returns the cutter.
	New func() stock.Cutter
	// Counts says that the cutter refuses nothing for lack of stock: what it
	// is given, a gate has admitted.
	Counts bool
	// Retryable reports whether the database asks for the transaction to be
	// run again: a deadlock, a serialization failure.
	Retryable func(error) bool
}

// CutterPromise is one thing that every cutter promises. Its check returns
// what it saw to the contrary, so that a broken cutter can be convicted by it.
type CutterPromise struct {
	Name  string
	check func(t *cut) error
}

// CutterPromises returns the promises of a cutter: of one that refuses what
// does not fit, or of one that only counts. They use SKUs of their own and may
// be checked at once on one database.
func CutterPromises(counts bool) []CutterPromise {
	all := []CutterPromise{
		{"CutsAllLines", cutsAllLines},
		{"CutsAGroup", cutsAGroup},
		{"CutsOverManySKUs", cutsOverManySKUs},
		{"UnknownSKUAlone", unknownSKUAlone},
		{"StaleEpochAlone", staleEpochAlone},
		{"EpochOfEveryLine", epochOfEveryLine},
		{"AnyEpoch", anyEpoch},
		{"LaterGeneration", laterGeneration},
		{"EarlierGeneration", earlierGeneration},
		{"AdoptedMeanwhile", adoptedMeanwhile},
		{"RollbackCutsNothing", rollbackCutsNothing},
		{"CutsAddUp", cutsAddUp},
		{"CutsOfSeveralLinesAddUp", cutsOfSeveralLinesAddUp},
	}
	if counts {
		return append(all, CutterPromise{"CountsBelowZero", countsBelowZero})
	}
	return append(all,
		CutterPromise{"LastUnits", lastUnits},
		CutterPromise{"AllLinesOrNone", allLinesOrNone},
		CutterPromise{"OnlyWhatDoesNotFitIsRefused", onlyWhatDoesNotFit},
		CutterPromise{"NeverBelowZero", neverBelowZero},
	)
}

// FindCutterPromise returns the promise of that name, and panics if there is
// none.
func FindCutterPromise(name string) CutterPromise {
	for _, p := range slices.Concat(CutterPromises(true), CutterPromises(false)) {
		if p.Name == name {
			return p
		}
	}
	panic("no cutter promises " + name)
}

// RunCutter checks all promises.
func RunCutter(t *testing.T, cutters Cutters) {
	t.Helper()
	for _, p := range CutterPromises(cutters.Counts) {
		t.Run(p.Name, func(t *testing.T) {
			if err := p.Convict(t.Context(), cutters); err != nil {
				t.Error(err)
			}
		})
	}
}

// Convict checks the promise within two minutes and returns what speaks
// against the cutter: a Planner's is checked twice, so that each step is taken
// by its plan and without.
func (p CutterPromise) Convict(ctx context.Context, cutters Cutters) error {
	ctx, cancel := context.WithTimeout(ctx, gateTimeout)
	defer cancel()
	err := p.convict(ctx, cutters, 0)
	if _, plans := cutters.New().(stock.Planner); plans && err == nil {
		err = p.convict(ctx, cutters, 1)
	}
	return err
}

func (p CutterPromise) convict(ctx context.Context, cutters Cutters, planned int64) error {
	run := uuid.NewString()[:8]
	t := &cut{
		ctx: ctx, db: cutters.DB.WithContext(ctx), run: run, counts: cutters.Counts,
		cutter: cutters.New(), retryable: cutters.Retryable,
		planned: new(atomic.Int64),
	}
	t.planned.Store(planned)
	if err := p.check(t); err != nil {
		return err
	}
	return t.err
}

// cut runs the steps of one check. After the first that goes wrong the others
// do nothing, and err tells of it.
type cut struct {
	ctx       context.Context
	db        *gorm.DB
	cutter    stock.Cutter
	counts    bool
	retryable func(error) bool
	run       string // part of every SKU
	// generation is the cutter's; epochs below 2²⁸ are of generation 0.
	generation stock.Generation
	planned    *atomic.Int64 // transactions so far; of a Planner's, every other goes by its plan
	err        error
}

func (t *cut) sku(name string) stock.SKU { return stock.SKU(name + "." + t.run) }

func (t *cut) line(name string, units, epoch int64) stock.Line {
	return stock.Line{SKU: t.sku(name), Quantity: units, Epoch: epoch}
}

// lay makes a stock row under epoch 7.
func (t *cut) lay(name string, units int64) { t.layUnder(name, units, 7) }

func (t *cut) layUnder(name string, units, epoch int64) {
	if t.err == nil {
		t.err = t.db.Exec("INSERT INTO stock (sku, kind, total, available, epoch) VALUES (?, 'product', ?, ?, ?)",
			string(t.sku(name)), units, units, epoch).Error
	}
}

// available is what the stock row says.
func (t *cut) available(name string) (units int64) {
	if t.err == nil {
		t.err = t.db.Raw("SELECT available FROM stock WHERE sku = ?", string(t.sku(name))).Row().Scan(&units)
	}
	return units
}

// left ends the trial unless the stock row has that many units.
func (t *cut) left(name string, want int64) {
	if got := t.available(name); t.err == nil && got != want {
		t.err = fmt.Errorf("%s has %d units left, want %d", name, got, want)
	}
}

// transact cuts in a transaction of its own, as the ledger does, and commits.
// What asks for another transaction gets one, patiently.
func (t *cut) transact(ds ...stock.Deduction) ([]stock.Decision, error) {
	for {
		decisions, err := t.once(true, ds)
		if err == nil || !errors.Is(err, stock.ErrConflict) && !t.retryable(err) {
			return decisions, err
		}
		if t.ctx.Err() != nil {
			return nil, err
		}
		time.Sleep(rand.N(5 * time.Millisecond))
	}
}

func (t *cut) once(commit bool, ds []stock.Deduction) ([]stock.Decision, error) {
	cutter := t.cutter
	if viewer, ok := cutter.(stock.Viewer); ok {
		var err error
		if cutter, err = viewer.View(t.db, t.generation, ds); err != nil {
			return nil, err
		}
	}
	tx := t.db.Begin()
	if tx.Error != nil {
		return nil, tx.Error
	}
	decisions, err := t.decide(&tx, cutter, ds)
	if err == nil && len(decisions) != len(ds) {
		err = fmt.Errorf("%d decisions on %d deductions", len(decisions), len(ds))
	}
	if err != nil || !commit {
		tx.Rollback()
		return decisions, err
	}
	return decisions, tx.Commit().Error
}

// decide cuts by the cutter's plan, and where that does not fit by the cutter,
// in another transaction.
func (t *cut) decide(tx **gorm.DB, cutter stock.Cutter, ds []stock.Deduction) ([]stock.Decision, error) {
	if planner, ok := cutter.(stock.Planner); ok && t.planned.Add(1)%2 == 0 {
		if plan, ok := planner.Plan(t.db, t.generation, ds); ok {
			updated, err := (*tx).Statement.ConnPool.ExecContext(t.ctx, plan.SQL, plan.Args...)
			if err != nil {
				return nil, err
			}
			rows, err := updated.RowsAffected()
			if err != nil || rows == plan.Rows {
				return slices.Repeat([]stock.Decision{stock.Taken()}, len(ds)), err
			}
			(*tx).Rollback()
			if *tx = t.db.Begin(); (*tx).Error != nil {
				return nil, (*tx).Error
			}
		}
	}
	return cutter.Cut(*tx, t.generation, ds)
}

// cut ends the trial unless the deductions of one transaction are answered so.
func (t *cut) cut(ds []stock.Deduction, want ...error) {
	if t.err != nil {
		return
	}
	decisions, err := t.transact(ds...)
	if err != nil {
		t.err = fmt.Errorf("cutting %d deductions: %w", len(ds), err)
		return
	}
	for i, decision := range decisions {
		if (want[i] == nil) != decision.Taken() || !errors.Is(decision.Reason(), want[i]) {
			t.err = fmt.Errorf("deduction %d of %v answered %v, want %v", i+1, ds[i].Lines, decision.Reason(), want[i])
			return
		}
	}
}

func group(ds ...stock.Deduction) []stock.Deduction { return ds }

func cutsAllLines(t *cut) error {
	t.lay("a", 10)
	t.lay("b", 20)
	t.lay("bystander", 5)
	t.cut(group(order(t.line("a", 3, 7), t.line("b", 4, 7))), nil)
	t.left("a", 7)
	t.left("b", 16)
	t.left("bystander", 5)
	return nil
}

func cutsAGroup(t *cut) error {
	t.lay("a", 100)
	t.lay("b", 100)
	t.cut(group(order(t.line("a", 1, 7)), order(t.line("a", 2, 7)), order(t.line("a", 3, 7))), nil, nil, nil)
	t.left("a", 94)
	t.cut(group(order(t.line("b", 1, 7)), order(t.line("a", 2, 7), t.line("b", 5, 7)), order(t.line("a", 4, 7))), nil, nil, nil)
	t.left("a", 88)
	t.left("b", 94)
	return nil
}

func cutsOverManySKUs(t *cut) error {
	const skus = 200
	var ds []stock.Deduction
	for i := range skus {
		name := fmt.Sprintf("many%03d", i)
		t.lay(name, 50)
		ds = append(ds, order(t.line(name, int64(1+i%5), 7)))
	}
	t.cut(ds, make([]error, skus)...)
	for i := range skus {
		t.left(fmt.Sprintf("many%03d", i), int64(49-i%5))
	}
	return nil
}

func unknownSKUAlone(t *cut) error {
	t.lay("a", 10)
	t.cut(group(order(t.line("nowhere", 1, 0))), stock.ErrUnknownSKU)
	t.cut(group(order(t.line("a", 1, 7)), order(t.line("a", 1, 7), t.line("nowhere", 1, 0)), order(t.line("a", 2, 7))),
		nil, stock.ErrUnknownSKU, nil)
	t.left("a", 7)
	return nil
}

func staleEpochAlone(t *cut) error {
	t.lay("a", 10)
	t.cut(group(order(t.line("a", 1, 6))), stock.ErrStaleEpoch)
	t.cut(group(order(t.line("a", 1, 8))), stock.ErrStaleEpoch)
	t.cut(group(order(t.line("a", 1, 7)), order(t.line("a", 5, 6)), order(t.line("a", 2, 7))), nil, stock.ErrStaleEpoch, nil)
	t.cut(group(order(t.line("a", 1, 6)), order(t.line("a", 1, 6))), stock.ErrStaleEpoch, stock.ErrStaleEpoch)
	t.left("a", 7)
	return nil
}

func epochOfEveryLine(t *cut) error {
	t.lay("a", 10)
	t.lay("b", 10)
	t.cut(group(order(t.line("a", 1, 7), t.line("b", 1, 6))), stock.ErrStaleEpoch)
	t.left("a", 10)
	t.left("b", 10)
	return nil
}

func anyEpoch(t *cut) error {
	t.lay("a", 10)
	t.cut(group(order(t.line("a", 4, 0))), nil)
	t.left("a", 6)
	return nil
}

// laterGeneration: a stock row that another generation has adopted is not cut.
func laterGeneration(t *cut) error {
	later, _ := (t.generation + 1).Epochs()
	t.lay("a", 10)
	t.layUnder("theirs", 10, later+7)
	t.cut(group(order(t.line("theirs", 1, 7))), stock.ErrSuperseded)
	t.cut(group(order(t.line("theirs", 1, 0))), stock.ErrSuperseded)
	t.cut(group(order(t.line("a", 1, 7)), order(t.line("a", 1, 7), t.line("theirs", 1, 7))), nil, stock.ErrSuperseded)
	t.left("a", 9)
	t.left("theirs", 10)
	return nil
}

// earlierGeneration: a stock row is not cut before it has been adopted.
func earlierGeneration(t *cut) error {
	t.lay("old", 10)
	t.generation++
	first, last := t.generation.Epochs()
	t.layUnder("first", 10, first)
	t.layUnder("last", 10, last)
	t.cut(group(order(t.line("old", 1, 7))), stock.ErrNotAdopted)
	t.cut(group(order(t.line("old", 1, 0))), stock.ErrNotAdopted)
	t.cut(group(order(t.line("first", 1, 0)), order(t.line("last", 1, last)), order(t.line("first", 1, 0), t.line("old", 1, 0))), nil, nil, stock.ErrNotAdopted)
	t.cut(group(order(t.line("first", 1, 0)), order(t.line("first", 1, 0), t.line("last", 1, 0))), nil, nil)
	t.left("old", 10)
	t.left("first", 7)
	t.left("last", 8)
	return nil
}

// adoptedMeanwhile: a stock row that another generation adopts after the cutter
// has seen it is not cut.
func adoptedMeanwhile(t *cut) error {
	t.lay("a", 10)
	d := order(t.line("a", 1, 0))
	cutter := t.cutter
	if viewer, ok := cutter.(stock.Viewer); ok && t.err == nil {
		cutter, t.err = viewer.View(t.db, t.generation, group(d))
	}
	later, _ := (t.generation + 1).Epochs()
	if t.err == nil {
		t.err = t.db.Exec("UPDATE stock SET epoch = ? WHERE sku = ?", later+1, string(t.sku("a"))).Error
	}
	if t.err != nil {
		return t.err
	}
	tx := t.db.Begin()
	defer tx.Rollback()
	decisions, err := cutter.Cut(tx, t.generation, group(d))
	if err == nil && decisions[0].Taken() || err != nil && !errors.Is(err, stock.ErrConflict) {
		return fmt.Errorf("decided %v, %w", decisions, err)
	}
	return nil
}

func rollbackCutsNothing(t *cut) error {
	t.lay("a", 10)
	if t.err == nil {
		_, t.err = t.once(false, group(order(t.line("a", 3, 7))))
	}
	t.left("a", 10)
	return nil
}

func countsBelowZero(t *cut) error {
	t.lay("a", 1)
	t.lay("b", 1)
	t.cut(group(order(t.line("a", 1, 7)), order(t.line("a", 2, 7))), nil, nil)
	t.left("a", -2)
	t.cut(group(order(t.line("a", 1, 7), t.line("b", 3, 7)), order(t.line("b", 1, 7))), nil, nil)
	t.left("a", -3)
	t.left("b", -3)
	return nil
}

func lastUnits(t *cut) error {
	t.lay("a", 5)
	t.cut(group(order(t.line("a", 4, 7))), nil)
	t.cut(group(order(t.line("a", 2, 7))), stock.ErrSoldOut)
	t.cut(group(order(t.line("a", 1, 7))), nil)
	t.cut(group(order(t.line("a", 1, 7))), stock.ErrSoldOut)
	t.left("a", 0)
	t.lay("b", 3)
	t.cut(group(order(t.line("b", 1, 7)), order(t.line("b", 2, 7))), nil, nil)
	t.left("b", 0)
	return nil
}

func allLinesOrNone(t *cut) error {
	t.lay("a", 10)
	t.lay("b", 1)
	t.lay("c", 10)
	t.cut(group(order(t.line("a", 1, 7), t.line("b", 2, 7), t.line("c", 3, 7))), stock.ErrSoldOut)
	t.left("a", 10)
	t.left("b", 1)
	t.left("c", 10)
	if t.err == nil {
		decisions, err := t.transact(order(t.line("a", 1, 7), t.line("b", 2, 7)))
		var refusal *stock.Refusal
		if err != nil {
			return err
		}
		if !errors.As(decisions[0].Reason(), &refusal) || refusal.SKU != t.sku("b") {
			return fmt.Errorf("%v does not name SKU %s", decisions[0].Reason(), t.sku("b"))
		}
	}
	return nil
}

// onlyWhatDoesNotFit: an order that does not fit leaves its units to those
// that come after it.
func onlyWhatDoesNotFit(t *cut) error {
	t.lay("a", 3)
	t.cut(group(order(t.line("a", 5, 7)), order(t.line("a", 1, 7)), order(t.line("a", 1, 7)), order(t.line("a", 1, 7))),
		stock.ErrSoldOut, nil, nil, nil)
	t.left("a", 0)
	t.lay("b", 2)
	t.lay("c", 1)
	t.cut(group(order(t.line("b", 2, 7), t.line("c", 2, 7)), order(t.line("b", 1, 7)), order(t.line("b", 1, 7), t.line("c", 1, 7)), order(t.line("c", 1, 7))),
		stock.ErrSoldOut, nil, nil, stock.ErrSoldOut)
	t.left("b", 0)
	t.left("c", 0)
	return nil
}

// buyers in a crowd, each with a transaction at a time.
const crowd = 16

// rush lets the crowd cut deductions until each buyer has heard "sold out" or
// has had its turns, and returns the units accepted by line name.
func (t *cut) rush(turns int, next func(i int) stock.Deduction) map[stock.SKU]int64 {
	var (
		mu   sync.Mutex
		sold = make(map[stock.SKU]int64)
		all  sync.WaitGroup
		errs = make(chan error, crowd)
	)
	if t.err != nil {
		return sold
	}
	for i := range crowd {
		all.Go(func() {
			for range turns {
				d := next(i)
				decisions, err := t.transact(d)
				switch {
				case err != nil:
					errs <- err
					return
				case errors.Is(decisions[0].Reason(), stock.ErrSoldOut):
					return
				case !decisions[0].Taken():
					errs <- decisions[0].Reason()
					return
				}
				mu.Lock()
				for _, line := range d.Lines {
					sold[line.SKU] += line.Quantity
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	close(errs)
	t.err = <-errs
	return sold
}

// cutsAddUp: no update is lost between transactions.
func cutsAddUp(t *cut) error {
	t.lay("hot", 10_000)
	sold := t.rush(10, func(i int) stock.Deduction { return order(t.line("hot", int64(1+i%3), 7)) })
	t.left("hot", 10_000-sold[t.sku("hot")])
	return nil
}

func cutsOfSeveralLinesAddUp(t *cut) error {
	names := []string{"x", "y", "z"}
	for _, name := range names {
		t.lay(name, 10_000)
	}
	var turn atomic.Int64
	sold := t.rush(6, func(int) stock.Deduction {
		n := int(turn.Add(1))
		lines := []stock.Line{t.line(names[n%3], 1, 7), t.line(names[(n+1)%3], 2, 7)}
		stock.SortLines(lines)
		return order(lines...)
	})
	for _, name := range names {
		t.left(name, 10_000-sold[t.sku(name)])
	}
	return nil
}

// neverBelowZero: a crowd that wants more than there is gets all of it, and no
// more.
func neverBelowZero(t *cut) error {
	t.lay("scarce", 60)
	sold := t.rush(1000, func(int) stock.Deduction { return order(t.line("scarce", 1, 7)) })
	if got := sold[t.sku("scarce")]; t.err == nil && got != 60 {
		return fmt.Errorf("sold %d of 60 units", got)
	}
	t.left("scarce", 0)
	return nil
}
