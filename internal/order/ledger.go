package order

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/group"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/store"
)

const (
	// queueLength bounds the orders, and the lookups, that wait for a group.
	queueLength = 4096
	// groupLines bounds the lines, and with them the bytes, of one group.
	groupLines = 1000
	// transactionTimeout bounds one transaction, retries not included.
	transactionTimeout = 5 * time.Second
	// transactionTries bounds how often a group meets a deadlock, a
	// serialization failure or a moved version before it is told ErrBusy.
	transactionTries = 10
	// maxLockWaits bounds how often an order waits for a row lock in vain.
	maxLockWaits = 2
	// lookups at once: groups, and IDs in a group.
	lookupParallel, lookupGroup = 2, 100
)

// errMissing: the ledger has no such row.
var errMissing = errors.New("no such row")

// ledger is the only truth: the stock rows and the order rows. It is safe for
// concurrent use.
type ledger struct {
	db       *gorm.DB
	strategy stock.Strategy
	log      *slog.Logger
	metrics  *Metrics

	generation atomic.Int64 // in use: see generations

	records *group.Batcher[*recording]
	lanes   lanes
	groups  sync.WaitGroup // under way
	lookups *group.Batcher[*lookup]

	// misfits says that the last plan did not fit: stock is out, or a gate
	// stale. Until a group fits again, orders are not inserted on trust.
	misfits atomic.Bool
}

// recording is one order on its way through a group transaction.
type recording struct {
	entry     entry
	deduction stock.Deduction
	outcome   outcome
	answered  bool
	done      chan struct{} // closed once outcome stands
}

func newRecording(e entry, d stock.Deduction) *recording {
	return &recording{entry: e, deduction: d, done: make(chan struct{})}
}

// answer sets the outcome, which stands from then on.
func (r *recording) answer(o outcome) {
	r.outcome, r.answered = o, true
	close(r.done)
}

type lookup struct {
	id    uuid.UUID
	found *entry // nil: absent
	err   error
}

func newLedger(db *gorm.DB, strategy stock.Strategy, log *slog.Logger, metrics *Metrics) *ledger {
	l := &ledger{db: db, strategy: strategy, log: log, metrics: metrics}
	l.records = group.New(
		group.Limits{Size: strategy.Group, Parallel: strategy.Parallel, Queue: queueLength, Weight: groupLines},
		func(r *recording) int { return len(r.deduction.Lines) },
		l.admit)
	l.lookups = group.New(
		group.Limits{Size: lookupGroup, Parallel: lookupParallel, Queue: queueLength},
		nil, l.lookUp)
	return l
}

// Generation is the generation in use.
func (l *ledger) Generation() stock.Generation { return stock.Generation(l.generation.Load()) }

// close finishes what is queued.
func (l *ledger) close() {
	l.records.Close()
	l.groups.Wait()
	l.lookups.Close()
}

// Record commits the order and the cut of its units, in a group with others,
// and returns once the outcome is known, or ctx has ended.
//
// Reasons to refuse: ErrSoldOut, ErrStaleEpoch, ErrUnknownSKU, ErrNotAdopted and
// ErrSuperseded of package stock (as *stock.Refusal); stock.ErrBusy.
func (l *ledger) Record(ctx context.Context, e entry, d stock.Deduction) outcome {
	r := newRecording(e, d)
	l.queue(r)
	select {
	case <-r.done:
		return r.outcome
	case <-ctx.Done(): // the group runs all the same, and r is not ours to read
		return unknownFor(ctx.Err())
	}
}

// queue has the recording join a group.
func (l *ledger) queue(r *recording) {
	if err := l.records.Send(r); err != nil {
		r.answer(refusedFor(fmt.Errorf("%w: %w", stock.ErrBusy, err)))
	}
}

// admit records a group, and returns when it is done or has got a lane of its
// own.
func (l *ledger) admit(rs []*recording) {
	rs = l.lanes.admit(slices.Clone(rs))
	if len(rs) == 0 {
		return
	}
	own := &lane{skus: skusOf(rs)}
	done := make(chan struct{})
	l.groups.Go(func() {
		defer close(done)
		l.record(rs, own)
		for _, r := range l.lanes.end(own) {
			l.queue(r)
		}
	})
	patience := time.NewTimer(lanePatience)
	defer patience.Stop()
	select {
	case <-done:
		return
	case <-patience.C:
	}
	if !l.lanes.enter(own) {
		<-done
	}
}

// deductionsOf returns what the recordings ask for, in their order.
func deductionsOf(rs []*recording) []stock.Deduction {
	ds := make([]stock.Deduction, len(rs))
	for i, r := range rs {
		ds[i] = r.deduction
	}
	return ds
}

func skusOf(rs []*recording) []stock.SKU { return stock.SKUsOf(deductionsOf(rs)...) }

// record gives every recording its outcome. One that it left out is unknown, and
// so never a success.
func (l *ledger) record(rs []*recording, own *lane) {
	l.metrics.groupSize.Observe(float64(len(rs)))
	all := rs
	for len(rs) > 0 {
		first, twins := distinct(rs)
		if err := l.commit(first, own); err != nil {
			refuse(twins, err)
			break
		}
		rs = twins // these find the first of their ID recorded, or free
	}
	for _, r := range all {
		if !r.answered {
			r.answer(outcome{})
		}
	}
}

// commit gives every recording its outcome; their IDs are distinct. An error
// says that the database is away: the recordings have been refused for it, and
// others would be.
func (l *ledger) commit(rs []*recording, own *lane) error {
	waits := 0 // for row locks, in vain
	for try := 1; len(rs) > 0; try++ {
		err := l.transact(rs)
		switch {
		case err == nil || errors.Is(err, store.ErrUnknownOutcome):
			return nil
		case store.IsDuplicate(err):
			left, err := l.withoutExisting(rs)
			if err != nil {
				return away(rs, err)
			}
			if len(left) == len(rs) { // gone again: an administrator's hand, or a bug
				return l.divide(rs, own, errVanished)
			}
			rs = left
		case store.IsLockTimeout(err):
			l.metrics.retries.Inc()
			if rs, err = l.setLockedApart(rs, own, err); err != nil {
				return err
			}
			if waits++; waits == maxLockWaits {
				refuse(rs, fmt.Errorf("%w: the stock row of one of %v is locked by another transaction", stock.ErrBusy, skusOf(rs)))
				return nil
			}
		case store.IsRetryable(err) || errors.Is(err, stock.ErrConflict):
			l.metrics.retries.Inc()
			if try >= transactionTries {
				refuse(rs, fmt.Errorf("%w: %w", stock.ErrBusy, err))
				return nil
			}
			pause(try)
		case store.IsStatementError(err):
			return l.divide(rs, own, err)
		default: // that is nobody's order's fault
			return away(rs, err)
		}
	}
	return nil
}

var errVanished = errors.New("an order with the same ID was there, and is gone")

// away refuses the recordings because the database is away.
func away(rs []*recording, err error) error {
	err = fmt.Errorf("%w: %w", stock.ErrBusy, err)
	refuse(rs, err)
	return err
}

// divide commits the halves apart, so that the order that makes the group fail
// is left alone with its error and its neighbours are recorded.
func (l *ledger) divide(rs []*recording, own *lane, err error) error {
	if len(rs) == 1 {
		refuse(rs, fmt.Errorf("%w: %w", stock.ErrBusy, err))
		return nil
	}
	for _, half := range [][]*recording{rs[:len(rs)/2], rs[len(rs)/2:]} {
		// The second half is tried though the first found the database away.
		err = l.commit(half, own)
	}
	return err
}

// distinct keeps the first recording of each ID, and returns the others apart.
func distinct(rs []*recording) (first, others []*recording) {
	if len(rs) == 1 {
		return rs, nil
	}
	seen := make(map[uuid.UUID]bool, len(rs))
	first = make([]*recording, 0, len(rs)) // rs stays as it is
	for _, r := range rs {
		if seen[r.entry.ID] {
			others = append(others, r)
			continue
		}
		seen[r.entry.ID] = true
		first = append(first, r)
	}
	return first, others
}

func refuse(rs []*recording, err error) {
	for _, r := range rs {
		r.answer(refusedFor(err))
	}
}

// setLockedApart finds out which stock rows are locked, after a group has waited
// for them in vain, and records what needs none of them. It returns the others:
// all, where no row is locked any more or the database does not tell.
func (l *ledger) setLockedApart(rs []*recording, own *lane, cause error) (held []*recording, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), transactionTimeout)
	defer cancel()
	var asked []string
	for _, sku := range skusOf(rs) {
		asked = append(asked, string(sku))
	}
	locked, err := store.LockedRows(ctx, l.db, asked...)
	if err != nil || len(locked) == 0 {
		return rs, nil
	}
	l.log.Warn("stock rows are locked by another transaction", "skus", locked, "error", cause)
	var free []*recording
	for _, r := range rs {
		if slices.ContainsFunc(r.deduction.Lines, func(line stock.Line) bool { return slices.Contains(locked, string(line.SKU)) }) {
			held = append(held, r)
		} else {
			free = append(free, r)
		}
	}
	for _, r := range l.lanes.narrow(own, locked) {
		l.queue(r)
	}
	if err := l.commit(free, own); err != nil {
		return nil, away(held, err)
	}
	return held, nil
}

// pause waits with jitter before the next try of a transaction, 64 ms at the
// most.
func pause(try int) { time.Sleep(jitter(2*time.Millisecond, try)) }

// transact runs one transaction over the group. Without an error every recording
// has its outcome; with store.ErrUnknownOutcome too, and those that would be
// committed are unknown. With another error none has, and nothing is committed.
func (l *ledger) transact(rs []*recording) error {
	ctx, cancel := context.WithTimeout(context.Background(), transactionTimeout)
	defer cancel()
	db := l.db.WithContext(ctx)

	generation := l.Generation()
	ds := deductionsOf(rs)
	cutter := l.strategy.Cutter
	if viewer, ok := cutter.(stock.Viewer); ok {
		var err error
		if cutter, err = viewer.View(db, generation, ds); err != nil {
			return err
		}
	}

	if planner, ok := cutter.(stock.Planner); ok && !l.misfits.Load() {
		if plan, ok := planner.Plan(db, generation, ds); ok {
			fits, err := l.transactPlanned(ctx, rs, plan)
			if err != nil || fits {
				return err
			}
			l.misfits.Store(true)
		}
	}

	tx := db.Begin()
	if tx.Error != nil {
		return fmt.Errorf("beginning: %w", tx.Error)
	}
	decisions, err := cutter.Cut(tx, generation, ds)
	if err != nil {
		tx.Rollback()
		return err
	}
	accepted := make([]entry, 0, len(rs))
	for i, r := range rs {
		if decisions[i].Taken() {
			accepted = append(accepted, r.entry)
		}
	}
	l.misfits.Store(len(accepted) < len(rs))
	if len(accepted) == 0 {
		tx.Rollback()
		answer(rs, decisions, nil)
		return nil
	}
	sortByID(accepted)
	if err := insert(ctx, tx, accepted); err != nil {
		tx.Rollback()
		return fmt.Errorf("inserting orders: %w", err)
	}
	err = store.Commit(tx)
	if err == nil || errors.Is(err, store.ErrUnknownOutcome) {
		answer(rs, decisions, err)
	}
	return err
}

// transactPlanned is transact with the orders sent along with the planned cut.
// Nothing is committed if not all was taken: fits is false then, and no
// recording has its answer.
func (l *ledger) transactPlanned(ctx context.Context, rs []*recording, plan stock.Plan) (fits bool, err error) {
	es := make([]entry, len(rs))
	for i, r := range rs {
		es[i] = r.entry
	}
	sortByID(es)
	cut := store.Statement{SQL: plan.SQL, Args: plan.Args}
	fits, err = store.CommitIf(ctx, l.db, cut, plan.Rows, func(guard store.Guard) []store.Statement {
		return inserts(l.db, es, guard)
	})
	switch {
	case fits || errors.Is(err, store.ErrUnknownOutcome):
		for _, r := range rs {
			r.answer(commitOutcome(err))
		}
	case err != nil:
		err = fmt.Errorf("cutting, and inserting orders: %w", err)
	}
	return fits, err
}

// sortByID puts orders into the order in which every transaction inserts them,
// so that two cannot wait for each other.
func sortByID(es []entry) {
	slices.SortFunc(es, func(a, b entry) int { return bytes.Compare(a.ID[:], b.ID[:]) })
}

// answer hands out the outcomes after a COMMIT that returned err: it decides for
// those that were taken.
func answer(rs []*recording, decisions []stock.Decision, err error) {
	for i, r := range rs {
		if decisions[i].Taken() {
			r.answer(commitOutcome(err))
		} else {
			r.answer(refusedFor(decisions[i].Reason()))
		}
	}
}

// commitOutcome is the outcome of orders whose COMMIT returned err: nil, or
// store.ErrUnknownOutcome.
func commitOutcome(err error) outcome {
	if err != nil {
		return unknownFor(err)
	}
	return outcome{kind: committed}
}

// withoutExisting answers the recordings whose IDs the ledger has, and returns
// the others.
func (l *ledger) withoutExisting(rs []*recording) (left []*recording, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), transactionTimeout)
	defer cancel()
	ids := make([]uuid.UUID, len(rs))
	for i, r := range rs {
		ids[i] = r.entry.ID
	}
	found, err := l.durable(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, r := range rs {
		switch e, ok := found[r.entry.ID]; {
		case !ok:
			left = append(left, r)
		case e.takeID == r.entry.takeID && e.Status != Void:
			r.answer(outcome{kind: committed}) // a try whose answer was lost
		default:
			r.answer(outcome{kind: duplicate, found: e})
		}
	}
	return left, nil
}

// Entry reads one order, in a group with others. errMissing: there is none.
func (l *ledger) Entry(ctx context.Context, id uuid.UUID) (*entry, error) {
	q := &lookup{id: id}
	if err := l.lookups.Do(ctx, q); err != nil {
		return nil, err
	}
	switch {
	case q.err != nil:
		return nil, q.err
	case q.found == nil:
		return nil, errMissing
	}
	return q.found, nil
}

// durable reads the orders with these IDs, by ID, and returns once they are as
// durable as their COMMIT promised. Absent ones are left out.
func (l *ledger) durable(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]*entry, error) {
	found, err := entries(l.db.WithContext(ctx), ids)
	if err != nil || len(found) == 0 {
		return found, err
	}
	return found, store.Confirm(ctx, l.db)
}

func (l *ledger) lookUp(qs []*lookup) {
	ctx, cancel := context.WithTimeout(context.Background(), transactionTimeout)
	defer cancel()
	ids := make([]uuid.UUID, len(qs))
	for i, q := range qs {
		ids[i] = q.id
	}
	found, err := l.durable(ctx, ids)
	for _, q := range qs {
		q.found, q.err = found[q.id], err
	}
}

// Resolve finds out what became of a take whose commit outcome is unknown, by
// inserting the void order under its ID: the insert waits for a transaction that
// still holds the ID, where a read would see nothing and be overtaken.
//
// Committed: the ledger has the take's own order. Refused: it never will. Unknown:
// the database did not say; the void order may have been inserted or not.
func (l *ledger) Resolve(ctx context.Context, d stock.Deduction) outcome {
	err := insert(ctx, l.db.WithContext(ctx), []entry{{
		Order: Order{
			ID: d.OrderID, Buyer: d.Buyer, Status: Void,
			Strategy: l.strategy.Name, CreatedAt: now(),
		},
		takeID: d.TakeID,
	}})
	if err == nil {
		return refusedFor(errVoided)
	}
	if !store.IsDuplicate(err) {
		return unknownFor(fmt.Errorf("inserting the void order %s: %w", d.OrderID, err))
	}
	found, err := l.durable(ctx, []uuid.UUID{d.OrderID})
	if err != nil {
		return unknownFor(err)
	}
	switch e, ok := found[d.OrderID]; {
	case !ok:
		return unknownFor(fmt.Errorf("order %s: %w", d.OrderID, errMissing))
	case e.Status != Void && e.takeID == d.TakeID:
		return outcome{kind: committed}
	default:
		return refusedFor(errVoided)
	}
}

// errVoided: a void order, or another take's, stands under the order's ID.
var errVoided = errors.New("the order was not committed and never will be")

// now is the time as the ledger keeps it: UTC, whole microseconds.
func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
