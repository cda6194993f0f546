package order

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/singleflight"
	"gorm.io/gorm"

	"github.com/holdfast-stock/holdfast/internal/group"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

const (
	// placeTries bounds how often one request meets a stale or empty gate, or
	// a void order under its ID, before it is told ErrBusy.
	placeTries = 10
	// maxVoids bounds the void orders that one key is followed over.
	maxVoids = 10_000
	// compensationTimeout bounds what mends a request after the fact. It does
	// not run on the request's context, which may have ended already.
	compensationTimeout = 5 * time.Second
	// settles in one call, calls at once, and settles waiting for one.
	settleGroup, settleParallel, settleQueue = 512, 1, 1 << 15
	// settlePause is between two calls, so that settles gather: nobody waits for
	// them, and a call costs Redis as much as ten of the settles in it.
	settlePause = 4 * time.Millisecond
)

// Results by which orders are counted.
const (
	resultAccepted    = "accepted"
	resultReplayed    = "replayed"
	resultSoldOut     = "sold_out"
	resultInProgress  = "in_progress"
	resultKeyReused   = "key_reused"
	resultUnknownSKU  = "unknown_sku"
	resultBusy        = "busy"
	resultUnavailable = "unavailable"
	resultSuperseded  = "superseded"
)

// Service places orders by one strategy. It is safe for concurrent use, and
// several instances may share the stores.
type Service struct {
	gate         stock.Gate // nil: none
	strategy     string
	ledgerID     uuid.UUID
	ledger       *ledger
	generations  *generations
	log          *slog.Logger
	metrics      *Metrics
	takeDeadline time.Duration

	settles  *group.Batcher[stock.Deduction] // nil without a gate
	refills  singleflight.Group
	distrust distrust
	sweeper  sweeper
	open     chan openTake
}

// NewService returns a service that cuts stock by strategy and keeps its
// orders in db, the ledger of that ID. takeDeadline is how long a take may be in
// flight before recovery resolves it; one shorter than a request may take is
// safe and makes requests take twice. Call Start before the first order, and Run
// beside them. Close releases what the service holds; db and the gate's store
// stay the caller's.
func NewService(db *gorm.DB, ledgerID uuid.UUID, strategy stock.Strategy, takeDeadline time.Duration, log *slog.Logger, metrics *Metrics) *Service {
	s := &Service{
		gate:         strategy.Gate,
		strategy:     strategy.Name,
		ledgerID:     ledgerID,
		ledger:       newLedger(db, strategy, log, metrics),
		log:          log,
		metrics:      metrics,
		takeDeadline: takeDeadline,
		open:         make(chan openTake, maxOpenTakes),
	}
	s.generations = &generations{ledger: s.ledger, gate: s.gate, layout: strategy.Layout, log: log}
	if s.gate != nil {
		s.settles = group.New(
			group.Limits{Size: settleGroup, Parallel: settleParallel, Queue: settleQueue},
			nil, func(ds []stock.Deduction) {
				s.settleNow(ds...)
				time.Sleep(settlePause)
			})
	}
	return s
}

// Start takes the stock over for this instance's strategy, so that instances of
// another strategy are refused from now on. Call it once, before the first
// order. However much stock there is, it writes one row.
func (s *Service) Start(ctx context.Context) error {
	if err := s.generations.start(ctx); err != nil {
		return fmt.Errorf("taking the stock over: %w", err)
	}
	return nil
}

// StoreChanged says that the gate's store may have been replaced, or may have
// lost writes. Nothing is cut until every count is due to be filled anew, which
// Run, or the next order, sees to. It does not wait.
func (s *Service) StoreChanged() { s.generations.suspect() }

// Close finishes what was accepted: orders queued for the ledger, then settles.
// No call may follow it.
func (s *Service) Close() {
	s.ledger.close()
	if s.settles != nil {
		s.settles.Close()
	}
}

// Ready reports why orders cannot be placed now, if so: a store does not
// answer or does not take writes, or the stock belongs to another layout.
func (s *Service) Ready(ctx context.Context) error { return s.generations.check(ctx) }

// Place places an order. replayed says that the request was answered before,
// and that o is that first answer.
//
// Errors: stock.ErrSoldOut and stock.ErrUnknownSKU (as *stock.Refusal),
// ErrInProgress, ErrKeyReused, ErrBusy, ErrSuperseded, ErrUnavailable. With
// ErrBusy and ErrUnavailable, and only with them, it pays to try this instance
// again; a request without a key that gets ErrUnavailable may have been recorded.
//
// What ctx bounds is the waiting: what was taken is settled or given back all
// the same. Place keeps and sorts r.Lines.
func (s *Service) Place(ctx context.Context, r Request) (o Order, replayed bool, err error) {
	stock.SortLines(r.Lines)
	o, replayed, err = s.place(ctx, r)
	s.metrics.orders.WithLabelValues(result(replayed, err)).Inc()
	return o, replayed, err
}

func result(replayed bool, err error) string {
	switch {
	case err == nil && replayed:
		return resultReplayed
	case err == nil:
		return resultAccepted
	case errors.Is(err, ErrUnavailable): // first: these may wrap what led to them
		return resultUnavailable
	case errors.Is(err, ErrSuperseded):
		return resultSuperseded
	case errors.Is(err, ErrBusy):
		return resultBusy
	case errors.Is(err, ErrInProgress):
		return resultInProgress
	case errors.Is(err, ErrKeyReused):
		return resultKeyReused
	case errors.Is(err, stock.ErrSoldOut):
		return resultSoldOut
	case errors.Is(err, stock.ErrUnknownSKU):
		return resultUnknownSKU
	default:
		return resultUnavailable
	}
}

func (s *Service) place(ctx context.Context, r Request) (Order, bool, error) {
	generation := 0 // of the key
	var last error  // why the latest try was not the last
	for try := 1; try <= placeTries; try++ {
		if err := ctx.Err(); err != nil {
			return s.refused(ctx, r, generation, fmt.Errorf("%w: %w", ErrBusy, errors.Join(err, last)))
		}
		if err := s.generations.usable(ctx); err != nil {
			return s.refused(ctx, r, generation, nothingCut(err))
		}
		d := stock.Deduction{OrderID: s.orderID(r, generation), TakeID: uuid.New(), Buyer: r.Buyer, Lines: r.Lines}
		o, out := s.attempt(ctx, d)
		switch {
		case out.kind == committed:
			return o, false, nil
		case out.kind == duplicate && out.found.Status == Void:
			e, at, err := s.findKeyed(ctx, r, generation+1) // a void order moves the key on
			switch {
			case err == nil:
				return s.replay(r, e)
			case !errors.Is(err, errMissing):
				return Order{}, false, fmt.Errorf("%w: %w", ErrUnavailable, err)
			}
			generation, last = at, errVoided
		case out.kind == duplicate:
			return s.replay(r, out.found)
		case out.kind == refused && mendable(out.err):
			if err := s.mend(ctx, out.err, r.Lines); err != nil {
				return s.refused(ctx, r, generation, nothingCut(err))
			}
			last = out.err
			waitFor(ctx, try)
		case out.kind == refused:
			return s.refused(ctx, r, generation, out.err)
		default:
			return s.refused(ctx, r, generation, fmt.Errorf("%w: %w", ErrUnavailable, out.reason()))
		}
	}
	return s.refused(ctx, r, generation, fmt.Errorf("%w: %w", ErrBusy, last))
}

// attempt takes the units at the gate and records the order, once. Whatever
// the outcome, the take is settled, given back, or left to recovery.
func (s *Service) attempt(ctx context.Context, d stock.Deduction) (Order, outcome) {
	if s.gate != nil {
		start := time.Now()
		taken, err := s.gate.Take(ctx, d)
		s.metrics.gateSeconds.Observe(time.Since(start).Seconds())
		switch {
		case stock.Refuses(err):
			return Order{}, refusedFor(err)
		case err != nil: // its outcome is open: take it back, or bar its way
			err = fmt.Errorf("taking at the gate: %w", err)
			if !s.give(ctx, d) {
				return Order{}, unknownFor(err)
			}
			return Order{}, refusedFor(fmt.Errorf("%w: %w", ErrBusy, err))
		}
		d = taken
	}

	e := entry{
		Order: Order{
			ID: d.OrderID, Buyer: d.Buyer, Status: Pending, Lines: d.Lines,
			Strategy: s.strategy, CreatedAt: now(),
		},
		takeID: d.TakeID,
	}
	start := time.Now()
	out := s.ledger.Record(ctx, e, d)
	s.metrics.ledgerSeconds.Observe(time.Since(start).Seconds())
	out = s.resolveTake(ctx, d, out)
	if out.kind == refused && s.gate != nil && errors.Is(out.err, stock.ErrSoldOut) {
		s.metrics.guardRefusals.Inc()
		s.refillAfterGuardRefusal(ctx, d, skuOf(out.err))
	}
	return e.Order, out
}

// resolveTake ends the take at the gate by what the ledger said, and returns that.
// An unknown commit outcome is found out first. Where the database does not say,
// Run asks again until it does.
func (s *Service) resolveTake(ctx context.Context, d stock.Deduction, out outcome) outcome {
	if out.kind != unknown {
		s.endTake(ctx, d, out)
		return out
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	resolved := s.ledger.Resolve(ctx, d)
	switch resolved.kind {
	case unknown:
		s.leaveOpen(openTake{d, true})
		return unknownFor(errors.Join(out.err, resolved.err))
	case refused:
		resolved.err = fmt.Errorf("%w: %w", ErrBusy, out.reason())
	}
	s.endTake(ctx, d, resolved)
	return resolved
}

// endTake ends the take at the gate by what the ledger said, which must not be
// unknown: committed takes are settled, all others are given back.
func (s *Service) endTake(ctx context.Context, d stock.Deduction, out outcome) {
	if out.kind == committed {
		s.settle(d)
		return
	}
	s.give(ctx, d)
}

// mendable reports whether the instance can do something about the reason why
// an order was refused, and then try again.
func mendable(reason error) bool {
	for _, mendable := range []error{
		stock.ErrNotFilled, stock.ErrStaleEpoch, stock.ErrNotAdopted, stock.ErrSuperseded, stock.ErrNoGeneration,
	} {
		if errors.Is(reason, mendable) {
			return true
		}
	}
	return false
}

// mend removes the reason why an order was refused: it brings gate and ledger
// to agree on the epochs, or the instance to the current generation. It looks at
// all lines, since what ails one SKU commonly ails them all.
func (s *Service) mend(ctx context.Context, reason error, lines []stock.Line) error {
	if errors.Is(reason, stock.ErrNoGeneration) {
		return s.generations.follow(ctx, s.generations.current())
	}
	for _, line := range lines {
		if err := s.refill(ctx, line.SKU); err != nil {
			return err
		}
	}
	return nil
}

// nothingCut makes err, met before anything was cut, an error of the service.
func nothingCut(err error) error {
	for _, own := range []error{stock.ErrUnknownSKU, ErrSuperseded, ErrBusy} {
		if errors.Is(err, own) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", ErrBusy, err)
}

// refused turns the reason of a refusal into the service's errors. A request
// with a key is looked up first: what was answered 201 once is so for ever,
// though the stock is gone since.
func (s *Service) refused(ctx context.Context, r Request, generation int, reason error) (Order, bool, error) {
	if r.Key != "" {
		e, _, err := s.findKeyed(ctx, r, generation)
		switch {
		case err == nil:
			return s.replay(r, e)
		case !errors.Is(err, errMissing):
			return Order{}, false, fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(reason, err))
		}
	}
	switch {
	case errors.Is(reason, ErrUnavailable), errors.Is(reason, ErrSuperseded), errors.Is(reason, ErrBusy):
	case errors.Is(reason, stock.ErrSoldOut), errors.Is(reason, stock.ErrUnknownSKU):
	case errors.Is(reason, stock.ErrInFlight):
		reason = fmt.Errorf("%w: %w", ErrInProgress, reason)
	default: // a refusal: nothing was cut
		reason = fmt.Errorf("%w: %w", ErrBusy, reason)
	}
	return Order{}, false, reason
}

// findKeyed looks the key's live order up, from the generation given on. With
// errMissing, at is the first generation that the ledger has no order of.
func (s *Service) findKeyed(ctx context.Context, r Request, from int) (e *entry, at int, err error) {
	for at = from; at < from+maxVoids; at++ {
		e, err = s.ledger.Entry(ctx, s.orderID(r, at))
		if err != nil || e.Status != Void {
			return e, at, err
		}
	}
	return nil, at, fmt.Errorf("the key has more than %d void orders in a row", maxVoids)
}

// replay answers a request from the order that its key already names.
func (s *Service) replay(r Request, e *entry) (Order, bool, error) {
	if r.Key == "" { // a fresh ID that is taken: no client's doing
		return Order{}, false, fmt.Errorf("%w: order %s exists", ErrUnavailable, e.ID)
	}
	same := func(a, b stock.Line) bool { return a.SKU == b.SKU && a.Quantity == b.Quantity }
	if !slices.EqualFunc(r.Lines, e.Lines, same) {
		return Order{}, false, ErrKeyReused
	}
	o := e.Order
	o.Status = Pending // the first answer, whatever became of the order since
	return o, true, nil
}

// settle forgets the take at the gate, in a group and without waiting for it.
func (s *Service) settle(d stock.Deduction) {
	if s.gate == nil {
		return
	}
	if err := s.settles.Send(d); err != nil {
		s.settleNow(d)
	}
}

// settleNow is best effort: recovery settles what it misses.
func (s *Service) settleNow(ds ...stock.Deduction) {
	ctx, cancel := context.WithTimeout(context.Background(), compensationTimeout)
	defer cancel()
	if err := s.gate.Settle(ctx, ds...); err != nil {
		s.log.Warn("takes are left in flight for recovery", "takes", len(ds), "error", err)
	}
}

// give returns the take's units, and reports whether it did. If not, Run tries
// again until it does.
func (s *Service) give(ctx context.Context, d stock.Deduction) bool {
	if s.gate == nil {
		return true
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.gate.Give(ctx, d); err != nil {
		s.log.WarnContext(ctx, "a take is left in flight for recovery", "order", d.OrderID, "error", err)
		s.leaveOpen(openTake{d, false})
		return false
	}
	return true
}

// detached is a context for compensation: with ctx's values, not its end.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), compensationTimeout)
}

// Order returns an order, void ones too.
//
// Errors: ErrUnknownOrder, ErrUnavailable.
func (s *Service) Order(ctx context.Context, id uuid.UUID) (Order, error) {
	e, err := s.ledger.Entry(ctx, id)
	switch {
	case errors.Is(err, errMissing), err == nil && e.Status == shrink:
		return Order{}, ErrUnknownOrder
	case err != nil:
		return Order{}, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return e.Order, nil
}

// orderNamespace keeps IDs that are hashed from keys apart from all others.
var orderNamespace = uuid.MustParse("6f1d7a52-5a0e-4c8e-9a3b-0d2c1e4f7b68")

// orderID is fresh without a key, and with one the hash of the ledger's ID,
// buyer, key and generation, the names each with its length before it. The
// ledger's ID is secret, so nobody else can work out the ID of a buyer's order.
func (s *Service) orderID(r Request, generation int) uuid.UUID {
	if r.Key == "" {
		return uuid.Must(uuid.NewV7())
	}
	b := make([]byte, 0, 32+4+len(r.Buyer)+4+len(r.Key)+4)
	b = append(b, orderNamespace[:]...)
	b = append(b, s.ledgerID[:]...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Buyer)))
	b = append(b, r.Buyer...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(r.Key)))
	b = append(b, r.Key...)
	b = binary.BigEndian.AppendUint32(b, uint32(generation))
	sum := sha256.Sum256(b)
	id := uuid.UUID(sum[:16])
	id[6] = id[6]&0x0f | 0x80 // version 8, variant of RFC 9562
	id[8] = id[8]&0x3f | 0x80
	return id
}

// skuOf is the SKU that a refusal concerns.
func skuOf(err error) stock.SKU {
	var refusal *stock.Refusal
	if errors.As(err, &refusal) {
		return refusal.SKU
	}
	return ""
}

// jitter is a random time below most, doubled with every try up to 32 times.
func jitter(most time.Duration, try int) time.Duration { return rand.N(most << min(try-1, 5)) }

// sleep waits for d, or returns ctx's error when that ends first.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// waitFor waits with jitter before the next try of a request, 128 ms at the
// most.
func waitFor(ctx context.Context, try int) {
	_ = sleep(ctx, jitter(4*time.Millisecond, try))
}

// distrust remembers when each SKU's gate was last refilled on a guard's word.
type distrust struct {
	mu   sync.Mutex
	last map[stock.SKU]time.Time
}

// allow reports whether the SKU was not allowed within the last second.
func (d *distrust) allow(sku stock.SKU, at time.Time) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if at.Sub(d.last[sku]) < time.Second {
		return false
	}
	if len(d.last) >= 10_000 || d.last == nil { // bounded: what is forgotten costs one refill
		d.last = make(map[stock.SKU]time.Time)
	}
	d.last[sku] = at
	return true
}
