// Package cuttertest checks what every cutter promises, on a real database. A
// broken promise is returned as an error, so that another test can prove that the
// suite rejects a broken cutter. WithCut changes a cutter for tests of other code.
package cuttertest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/ledger/sqltx"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// Suite is a cutter, and the database on which its promises are checked.
type Suite struct {
	// DB has the ledger's schema, and bounds its lock waits. The checks leave
	// stock rows behind in it.
	DB *sqltx.DB
	// New returns the cutter.
	New func() cutter.Cutter
	// Counts says that the cutter refuses nothing for lack of stock, because a
	// gate has admitted the takes.
	Counts bool
}

// Promise is one thing that every cutter promises.
type Promise struct {
	Name  string
	check func(t *trial) error
}

// Promises returns the promises of a cutter that refuses what does not fit, or of one that only
// counts. Each promise uses its own SKUs, so they can be checked at the same time on one database.
func Promises(counts bool) []Promise {
	all := []Promise{
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
		{"BuyerLimit", buyerLimit},
		{"BuyerLimitInAGroup", buyerLimitInAGroup},
		{"LimitOfEveryLine", limitOfEveryLine},
		{"LimitUnderRush", limitUnderRush},
		{"LimitedMeanwhile", limitedMeanwhile},
		{"OpeningHours", openingHours},
	}
	if counts {
		return append(all, Promise{"CountsBelowZero", countsBelowZero})
	}
	return append(all,
		Promise{"LastUnits", lastUnits},
		Promise{"AllLinesOrNone", allLinesOrNone},
		Promise{"OnlyWhatDoesNotFitIsRefused", onlyWhatDoesNotFit},
		Promise{"NeverBelowZero", neverBelowZero},
		Promise{"SoldOutClaimsNothing", soldOutClaimsNothing},
	)
}

// Run checks all promises.
func Run(t *testing.T, s Suite) {
	t.Helper()
	for _, p := range Promises(s.Counts) {
		t.Run(p.Name, func(t *testing.T) {
			if err := p.Check(t.Context(), s); err != nil {
				t.Error(err)
			}
		})
	}
}

// Check returns an error if the cutter breaks the promise. If the cutter has a statement that cuts a
// whole group, Check runs the check without that statement and then with it.
func (p Promise) Check(ctx context.Context, s Suite) error {
	ctx, cancel := context.WithTimeout(ctx, 2*testenv.Patience) // a check waits for several events
	defer cancel()
	for _, whole := range []bool{false, true} {
		t := &trial{ctx: ctx, db: s.DB, run: uuid.NewString()[:8], counts: s.Counts, cutter: s.New(), whole: whole}
		if err := p.check(t); err != nil {
			return err
		}
		if t.err != nil || !t.wholeSeen.Load() {
			return t.err
		}
	}
	return nil
}

// trial runs the steps of one check. After the first failed step the others do nothing, and err has
// the reason.
type trial struct {
	ctx    context.Context
	db     *sqltx.DB
	cutter cutter.Cutter
	counts bool
	run    string // part of every SKU
	// generation of the cutter. Epochs below 2²⁸ are of generation 0.
	generation stock.Generation
	whole      bool        // use the statement that cuts a whole group
	wholeSeen  atomic.Bool // the cutter has a statement for a whole group
	err        error
}

func (t *trial) sku(name string) stock.SKU { return stock.SKU(name + "." + t.run) }

// line is a line of a take and the epoch under which a gate cut it.
type line struct {
	stock.Line
	epoch int64
}

func (t *trial) line(name string, units, epoch int64) line {
	return line{stock.Line{SKU: t.sku(name), Quantity: units}, epoch}
}

func sortLines(lines []line) {
	slices.SortFunc(lines, func(a, b line) int { return strings.Compare(string(a.SKU), string(b.SKU)) })
}

// order returns a take for an order with these lines.
func order(lines ...line) stock.Take {
	t := stock.Take{Deduction: stock.Deduction{OrderID: uuid.New(), TakeID: uuid.New(), Buyer: "buyer-1"}}
	for _, l := range lines {
		t.Lines = append(t.Lines, l.Line)
		t.Receipt = append(t.Receipt, stock.Cut{Epoch: l.epoch})
	}
	return t
}

func takes(ts ...stock.Take) []stock.Take { return ts }

// lay inserts a stock row under epoch 7.
func (t *trial) lay(name string, units int64) { t.layUnder(name, units, 7) }

func (t *trial) layUnder(name string, units, epoch int64) {
	if t.err == nil {
		_, t.err = t.db.Exec(t.ctx, "INSERT INTO stock (sku, kind, total, available, epoch) VALUES (?, 'product', ?, ?, ?)",
			string(t.sku(name)), units, units, epoch)
	}
}

// change changes the stock row as the ledger does: under its lock, and after taking its parts
// back.
func (t *trial) change(name, assignments string, args ...any) {
	if t.err != nil {
		return
	}
	sku := t.sku(name)
	t.err = t.db.Transact(t.ctx, func(tx *sqltx.Tx) error {
		if err := tx.QueryEach(t.ctx, func(*sql.Rows) error { return nil }, "SELECT sku FROM stock WHERE sku = ?"+tx.Dialect().RowLock(), string(sku)); err != nil {
			return err
		}
		if _, err := cutter.Collect(t.ctx, tx, sku); err != nil {
			return err
		}
		_, err := tx.Exec(t.ctx, "UPDATE stock SET "+assignments+" WHERE sku = ?", append(args, string(sku))...)
		return err
	})
}

// left fails the trial unless the stock row and its parts have that many units available.
func (t *trial) left(name string, want int64) {
	var got int64
	if t.err == nil {
		t.err = t.db.QueryRow(t.ctx, []any{&got}, "SELECT available + "+cutter.InParts(t.db.Dialect())+" FROM stock WHERE sku = ?", string(t.sku(name)))
	}
	if t.err == nil && got != want {
		t.err = fmt.Errorf("%s has %d units left, want %d", name, got, want)
	}
}

// transact cuts in a transaction of its own, as the ledger does, and commits it. It retries
// conflicts and retryable errors of the database.
func (t *trial) transact(ts ...stock.Take) ([]cutter.Decision, error) {
	for {
		decisions, err := t.once(true, ts)
		if err == nil || !errors.Is(err, cutter.ErrConflict) && !sqltx.IsRetryable(err) {
			return decisions, err
		}
		if t.ctx.Err() != nil {
			return nil, err
		}
		testenv.Dither()
	}
}

func (t *trial) once(commit bool, ts []stock.Take) ([]cutter.Decision, error) {
	plan, err := t.cutter.Plan(t.ctx, t.db, t.generation, ts)
	if err != nil {
		return nil, err
	}
	if plan.GroupCut != nil {
		t.wholeSeen.Store(true)
		if t.whole {
			fits, err := t.cutWhole(commit, plan.GroupCut)
			if err != nil || fits {
				return slices.Repeat([]cutter.Decision{{Taken: true}}, len(ts)), err
			}
		}
	}
	tx, err := t.db.Begin(t.ctx)
	if err != nil {
		return nil, err
	}
	decisions, err := plan.Cut(t.ctx, tx)
	if err == nil && len(decisions) != len(ts) {
		err = fmt.Errorf("%d decisions on %d takes", len(decisions), len(ts))
	}
	if err != nil || !commit {
		tx.Rollback()
		return decisions, err
	}
	return decisions, tx.Commit()
}

// cutWhole runs the statements that cut a whole group, and commits if it fits.
func (t *trial) cutWhole(commit bool, cut *cutter.GroupCut) (fits bool, err error) {
	tx, err := t.db.Begin(t.ctx)
	if err != nil {
		return false, err
	}
	tx.AtCommit(t.guarded(tx.Expect(cut.Rows, cut.Statement, "1")))
	tx.AtCommit(cut.Claims...)
	if !commit {
		tx.AtCommit(sqltx.Statement{SQL: "UPDATE nothing SET fails = 1"})
	}
	if err = tx.Commit(); errors.Is(err, sqltx.ErrUnmet) {
		return false, nil
	}
	if !commit {
		return err != nil, nil
	}
	return err == nil, err
}

// guarded returns a statement that contains one, an SQL expression that is 1 or fails. The
// statement changes nothing that a check reads.
func (t *trial) guarded(one string) sqltx.Statement {
	return sqltx.Statement{
		SQL:  "INSERT INTO outbox (sku, epoch, number, delta, created_at) VALUES (?, ?, " + one + ", 1, ?)",
		Args: []any{uuid.NewString(), 1, time.Now().UTC()},
	}
}

// cut fails the trial unless the takes of one transaction get the answers want.
func (t *trial) cut(ts []stock.Take, want ...error) {
	if t.err != nil {
		return
	}
	decisions, err := t.transact(ts...)
	if err != nil {
		t.err = fmt.Errorf("cutting %d takes: %w", len(ts), err)
		return
	}
	if len(decisions) != len(want) {
		t.err = fmt.Errorf("%d decisions on %d takes", len(decisions), len(want))
		return
	}
	for i, decision := range decisions {
		if (want[i] == nil) != decision.Taken || !errors.Is(decision.Reason(), want[i]) {
			t.err = fmt.Errorf("take %d of %v was answered %v, want %v", i+1, ts[i].Lines, decision.Reason(), want[i])
			return
		}
	}
}
