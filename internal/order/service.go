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
	"github.com/holdfast-stock/holdfast/internal/store"
)

const (
	// placeTries bounds how often one request meets a stale or empty gate, or
	// a void order under its ID, before it is told ErrBusy.
	placeTries = 10
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
)

// Service places orders by one strategy. It is safe for concurrent use, and
// several instances may share the stores.
type Service struct {
	gate         stock.Gate // nil: none
	strategy     string
	ledger       *ledger
	log          *slog.Logger
	metrics      *Metrics
	takeDeadline time.Duration

	settles  *group.Batcher[stock.Deduction] // nil without a gate
	refills  singleflight.Group
	distrust distrust
	sweeper  sweeper
}

// NewService returns a service that cuts stock by strategy and keeps its
// orders in db. takeDeadline is how long a take may be in flight before
// recovery resolves it; one shorter than a request may take is safe and makes
// requests take twice. Close
// releases what the service holds; db and the gate's store stay the caller's.
func NewService(db *gorm.DB, strategy stock.Strategy, takeDeadline time.Duration, log *slog.Logger, metrics *Metrics) *Service {
	s := &Service{
		gate:         strategy.Gate,
		strategy:     strategy.Name,
		ledger:       newLedger(db, strategy, log, metrics),
		log:          log,
		metrics:      metrics,
		takeDeadline: takeDeadline,
	}
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

// Close finishes what was accepted: orders queued for the ledger, then settles.
// No call may follow it.
func (s *Service) Close() {
	s.ledger.close()
	if s.settles != nil {
		s.settles.Close()
	}
}

// Ready reports whether the stores answer and the stock is laid out for this
// instance's strategy.
func (s *Service) Ready(ctx context.Context) error {
	rows, err := s.ledger.Rows(ctx, "", 1)
	if err != nil {
		return err
	}
	for _, row := range rows {
		if row.Layout != s.ledger.strategy.Layout {
			return stock.Refuse(row.SKU, stock.ErrLayout)
		}
	}
	if s.gate != nil {
		if _, err := s.gate.Level(ctx, "-"); err != nil { // no SKU has this name
			return fmt.Errorf("asking the gate: %w", err)
		}
	}
	return nil
}

// Place places an order. replayed says that the request was answered before,
// and that o is that first answer.
//
// Errors: stock.ErrSoldOut and stock.ErrUnknownSKU (as *stock.Refusal),
// ErrInProgress, ErrKeyReused, ErrBusy, ErrUnavailable. With the last two, and
// only with them, it pays to try again; a request without a key that gets
// ErrUnavailable may have been recorded.
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
	generation := 0
	var last error // why the latest try was not the last
	for try := 1; try <= placeTries; try++ {
		if err := ctx.Err(); err != nil {
			return Order{}, false, fmt.Errorf("%w: %w", ErrBusy, errors.Join(err, last))
		}
		d := stock.Deduction{OrderID: orderID(r, generation), TakeID: uuid.New(), Buyer: r.Buyer, Lines: r.Lines}
		o, err := s.attempt(ctx, d)
		var found *existing
		switch {
		case err == nil:
			return o, false, nil
		case errors.As(err, &found) && found.entry.Status == Void:
			generation++ // a void order moves the key on
		case errors.As(err, &found):
			return s.replay(r, found.entry)
		case errors.Is(err, stock.ErrNotFilled):
			err = s.refill(ctx, skuOf(err))
			if err != nil && !errors.Is(err, errMoved) {
				return s.refused(ctx, r, generation, err)
			}
			last = stock.ErrNotFilled
			waitFor(ctx, try)
		case errors.Is(err, stock.ErrStaleEpoch):
			err = s.refill(ctx, skuOf(err))
			if err != nil && !errors.Is(err, errMoved) {
				return s.refused(ctx, r, generation, err)
			}
			last = stock.ErrStaleEpoch
			waitFor(ctx, try)
		default:
			return s.refused(ctx, r, generation, err)
		}
	}
	return Order{}, false, fmt.Errorf("%w: %w", ErrBusy, last)
}

// attempt takes the units at the gate and records the order, once. Whatever
// the answer, the take is settled, given back, or left to recovery.
func (s *Service) attempt(ctx context.Context, d stock.Deduction) (Order, error) {
	if s.gate != nil {
		start := time.Now()
		taken, err := s.gate.Take(ctx, d)
		s.metrics.gateSeconds.Observe(time.Since(start).Seconds())
		if err != nil {
			if !atGate(err) { // its outcome is open: take it back, or bar its way
				s.give(ctx, d)
				return Order{}, fmt.Errorf("%w: taking at the gate: %w", ErrUnavailable, err)
			}
			return Order{}, err
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
	err := s.ledger.Record(ctx, e, d)
	s.metrics.ledgerSeconds.Observe(time.Since(start).Seconds())
	var found *existing
	switch {
	case err == nil:
		s.settle(d)
		return e.Order, nil
	case errors.As(err, &found) && found.entry.takeID == d.TakeID && found.entry.Status != Void:
		s.settle(d) // a try whose answer was lost had committed
		return found.entry.Order, nil
	case errors.Is(err, store.ErrUnknownOutcome):
		return s.resolve(ctx, e.Order, d, err)
	}
	s.give(ctx, d)
	if s.gate != nil && errors.Is(err, stock.ErrSoldOut) {
		s.metrics.guardRefusals.Inc()
		s.disbelieve(ctx, d, skuOf(err))
	}
	return Order{}, err
}

// atGate reports whether err is a gate's own answer, after which nothing of
// the take is at the gate.
func atGate(err error) bool {
	for _, own := range []error{stock.ErrSoldOut, stock.ErrNotFilled, stock.ErrInFlight, stock.ErrBurned, stock.ErrBusy} {
		if errors.Is(err, own) {
			return true
		}
	}
	return false
}

// resolve finds out what became of a commit whose answer was lost. Where the
// database does not say, the take is left to recovery.
func (s *Service) resolve(ctx context.Context, o Order, d stock.Deduction, cause error) (Order, error) {
	ctx, cancel := detached(ctx)
	defer cancel()
	recorded, err := s.ledger.Resolve(ctx, d)
	switch {
	case err != nil:
		return Order{}, fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(cause, err))
	case recorded:
		s.settle(d)
		return o, nil
	}
	s.give(ctx, d)
	return Order{}, fmt.Errorf("%w: %w", ErrBusy, cause)
}

// refused turns the reason of a refusal into the service's errors. A request
// with a key is looked up first: what was answered 201 once is so for ever,
// though the stock is gone since.
func (s *Service) refused(ctx context.Context, r Request, generation int, reason error) (Order, bool, error) {
	if r.Key != "" {
		e, err := s.findKeyed(ctx, r, generation)
		switch {
		case err == nil:
			return s.replay(r, e)
		case !errors.Is(err, errMissing):
			return Order{}, false, fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(reason, err))
		}
	}
	switch {
	case errors.Is(reason, stock.ErrSoldOut), errors.Is(reason, stock.ErrUnknownSKU), errors.Is(reason, ErrUnavailable):
	case errors.Is(reason, stock.ErrInFlight):
		reason = fmt.Errorf("%w: %w", ErrInProgress, reason)
	case errors.Is(reason, stock.ErrBusy), errors.Is(reason, stock.ErrBurned):
		reason = fmt.Errorf("%w: %w", ErrBusy, reason)
	case errors.Is(reason, ErrBusy):
	default:
		reason = fmt.Errorf("%w: %w", ErrUnavailable, reason)
	}
	return Order{}, false, reason
}

// findKeyed looks a key's live order up, from the generation given on.
func (s *Service) findKeyed(ctx context.Context, r Request, generation int) (*entry, error) {
	for range placeTries {
		e, err := s.ledger.Entry(ctx, orderID(r, generation))
		if err != nil || e.Status != Void {
			return e, err
		}
		generation++
	}
	return nil, fmt.Errorf("the key has %d void orders", placeTries)
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

// give returns the take's units, or leaves them to recovery.
func (s *Service) give(ctx context.Context, d stock.Deduction) {
	if s.gate == nil {
		return
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := s.gate.Give(ctx, d); err != nil {
		s.log.WarnContext(ctx, "a take is left in flight for recovery", "order", d.OrderID, "error", err)
	}
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

// orderID is fresh without a key, and with one the hash of buyer, key and
// generation, each with its length before it.
func orderID(r Request, generation int) uuid.UUID {
	if r.Key == "" {
		return uuid.Must(uuid.NewV7())
	}
	b := make([]byte, 0, 16+4+len(r.Buyer)+4+len(r.Key)+4)
	b = append(b, orderNamespace[:]...)
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

// waitFor waits with jitter before the next try of a request, 128 ms at the
// most.
func waitFor(ctx context.Context, try int) {
	t := time.NewTimer(jitter(4*time.Millisecond, try))
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
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
