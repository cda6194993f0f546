package async

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

var errFault = errors.New("the call has failed")

// otherSKU is the SKU of the second line of a take.
const otherSKU = sku + "-2"

// answers are the answers that a consumer gets, and the calls that it makes.
type answers struct {
	Journal
	Ledger
	Reconciler
	recorded []order.Outcome  // outcomes of the calls of Record; the last one also of all further calls
	down     order.Outcome    // outcome of RecordRefusal
	found    *order.Order     // order that Order returns
	errs     map[string]error // errors of PrepareRetry, CatchUp, GiveBack, Order and Requeue
	calls    []string
	began    time.Time // when the last call of Record began
	asked    time.Time // when it ended
}

func (a *answers) called(name string) error {
	a.calls = append(a.calls, name)
	return a.errs[name]
}

func (a *answers) Record(context.Context, stock.Take) (order.Order, order.Outcome) {
	if n := len(a.calls); n > 0 && a.calls[n-1] != "Requeue" && !a.asked.Before(time.Now()) {
		_ = a.called("without a pause")
	}
	_ = a.called("Record")
	a.began = time.Now()
	time.Sleep(time.Millisecond) // in a bubble
	a.asked = time.Now()
	out := a.recorded[0]
	a.recorded = a.recorded[min(1, len(a.recorded)-1):]
	return order.Order{}, out
}

func (a *answers) Order(context.Context, uuid.UUID) (*order.Order, error) {
	if err := a.called("Order"); err != nil {
		return nil, err
	}
	if a.found == nil {
		return nil, order.ErrUnknownOrder
	}
	return a.found, nil
}

func (a *answers) RecordRefusal(context.Context, stock.Take) order.Outcome {
	_ = a.called("Refusal")
	return a.down
}

func (a *answers) Finish(context.Context, ...stock.Take) error { return a.called("Finish") }

func (a *answers) Learn(asked time.Time, _ error) {
	if asked.After(a.began) {
		_ = a.called("too late")
	}
	_ = a.called("Learn")
}

func (a *answers) PrepareRetry(_ context.Context, _ error, skus ...stock.SKU) error {
	return a.calledFor("PrepareRetry", skus)
}

func (a *answers) CatchUp(_ context.Context, skus ...stock.SKU) error {
	return a.calledFor("CatchUp", skus)
}

// calledFor is called for a call that must be for both SKUs of the take.
func (a *answers) calledFor(name string, skus []stock.SKU) error {
	if !slices.Equal(skus, []stock.SKU{sku, otherSKU}) {
		name += " for one SKU"
	}
	return a.called(name)
}

func (a *answers) GiveBack(context.Context, stock.Take) bool { return a.called("GiveBack") == nil }

func (a *answers) AfterRefusal(context.Context, stock.Take, error) { _ = a.called("AfterRefusal") }

func (a *answers) Requeue(_ context.Context, t stock.Take, take uuid.UUID) (stock.Take, error) {
	t.TakeID = take
	return t, a.called("Requeue")
}

// TestEnds checks what a consumer does with an order after every possible answer. The order must
// end only when its outcome is certain and its units are where they belong.
func TestEnds(t *testing.T) {
	t.Parallel()
	take := stock.Take{Deduction: oneUnit()}
	take.Lines = append(take.Lines, stock.Line{SKU: otherSKU, Quantity: 1})
	refusal := func(reason error) error { return stock.Refuse(sku, reason) }
	refused := func(reason error) []order.Outcome { return []order.Outcome{order.Refused(reason)} }
	twin := order.Duplicate(&order.Order{TakeID: uuid.New(), Status: order.Pending})
	void := order.Duplicate(&order.Order{Status: order.Void})
	down, sold, unknown := order.Refused(errFault), refusal(stock.ErrSoldOut), order.Unknown(errFault)
	stale := order.Refused(refusal(stock.ErrStaleEpoch))
	staleOnce := []order.Outcome{stale, order.Committed()}
	fails := func(call string, err error) map[string]error { return map[string]error{call: err} }
	const (
		turnedDown = " Learn Refusal GiveBack AfterRefusal: refused"
		again      = "Record PrepareRetry Order GiveBack Requeue "
	)
	for _, test := range []struct {
		name    string
		stopped bool
		answers
		want string // the calls, and how the order ended
	}{
		{name: "committed", answers: answers{recorded: []order.Outcome{order.Committed()}}, want: "Record: committed"},
		{name: "unknown", answers: answers{recorded: []order.Outcome{unknown, order.Committed()}}, want: "Record Record: committed"},
		{name: "unknown for long", answers: answers{recorded: []order.Outcome{unknown}}, want: "Record Record Record Record Record: " + errFault.Error()},
		{name: "unknown, and no time is left", stopped: true, answers: answers{recorded: []order.Outcome{unknown}}, want: "Record: " + errFault.Error()},
		{name: "unknown because of a stale epoch", stopped: true, answers: answers{recorded: []order.Outcome{order.Unknown(stale.Reason())}}, want: "Record: " + stale.Reason().Error()},
		{name: "unknown after a refusal", stopped: true, answers: answers{recorded: []order.Outcome{order.Unknown(sold)}}, want: "Record: " + sold.Error()},
		{name: "busy", answers: answers{recorded: refused(stock.ErrBusy)}, want: "Record: " + stock.ErrBusy.Error()},
		{name: "sold out", answers: answers{recorded: refused(sold), down: down}, want: "Record" + turnedDown},
		{name: "sold out, and it cannot be recorded", answers: answers{recorded: refused(sold), down: unknown}, want: "Record Learn Refusal: " + errFault.Error()},
		{name: "sold out, and committed by another consumer", answers: answers{recorded: refused(sold), down: order.Committed()}, want: "Record Learn Refusal: committed"},
		{name: "sold out, and not given back", answers: answers{recorded: refused(sold), down: down, errs: fails("GiveBack", errFault)}, want: "Record Learn Refusal GiveBack: " + errNotGiven.Error()},
		{name: "another order's ID", answers: answers{recorded: []order.Outcome{twin}}, want: "Record GiveBack: duplicate"},
		{name: "another order's ID, and not given back", answers: answers{recorded: []order.Outcome{twin}, errs: fails("GiveBack", errFault)}, want: "Record GiveBack: " + errNotGiven.Error()},
		{name: "void", answers: answers{recorded: []order.Outcome{void}, down: down}, want: "Record Refusal GiveBack AfterRefusal: refused"},
		{name: "void, and not given back", answers: answers{recorded: []order.Outcome{void}, down: down, errs: fails("GiveBack", errFault)}, want: "Record Refusal GiveBack: " + errNotGiven.Error()},
		{name: "not adopted", answers: answers{recorded: append(refused(refusal(stock.ErrNotAdopted)), order.Committed())}, want: "Record PrepareRetry Record: committed"},
		{name: "not adopted for long", answers: answers{recorded: refused(stock.ErrNotAdopted)}, want: strings.Repeat("Record PrepareRetry ", maxTries-1) + "Record: " + stock.ErrNotAdopted.Error()},
		{name: "no retry", answers: answers{recorded: staleOnce, errs: fails("PrepareRetry", errFault)}, want: "Record PrepareRetry: " + errFault.Error()},
		{name: "no retry because the SKU is gone", answers: answers{recorded: staleOnce, down: down, errs: fails("PrepareRetry", refusal(stock.ErrUnknownSKU))}, want: "Record PrepareRetry" + turnedDown},
		{name: "stale", answers: answers{recorded: staleOnce}, want: again + "Record: committed, another take"},
		{name: "stale, and committed before", answers: answers{recorded: staleOnce, found: &order.Order{TakeID: take.TakeID, Status: order.Paid}}, want: "Record PrepareRetry Order: committed"},
		{name: "stale, and another order's ID", answers: answers{recorded: staleOnce, found: &order.Order{TakeID: uuid.New(), Status: order.Paid}}, want: "Record PrepareRetry Order GiveBack: duplicate"},
		{name: "stale, and the ledger does not answer", answers: answers{recorded: staleOnce, errs: fails("Order", errFault)}, want: "Record PrepareRetry Order: " + errFault.Error()},
		{name: "stale, and not given back", answers: answers{recorded: staleOnce, errs: fails("GiveBack", errFault)}, want: "Record PrepareRetry Order GiveBack: " + errNotGiven.Error()},
		{name: "taken again, perhaps", answers: answers{recorded: staleOnce, errs: fails("Requeue", errFault)}, want: again[:len(again)-1] + ": taking the units again: " + errFault.Error()},
		{name: "taken again, perhaps, in spite of a refusal", answers: answers{recorded: staleOnce, errs: fails("Requeue", refusal(stock.ErrUnknownSKU))},
			want: again[:len(again)-1] + ": taking the units again: " + refusal(stock.ErrUnknownSKU).Error()},
		{name: "not taken again, because none is left", answers: answers{recorded: staleOnce, down: down, errs: fails("Requeue", sold)}, want: again + "CatchUp Requeue Learn Refusal GiveBack: refused"},
		{name: "not taken again, because none is at the gate", answers: answers{recorded: staleOnce, errs: map[string]error{"Requeue": sold, "CatchUp": errFault}}, want: again + "CatchUp: " + errFault.Error()},
		{name: "not taken again, because none is at the gate during a refill", answers: answers{recorded: []order.Outcome{stale}, errs: map[string]error{"Requeue": sold, "CatchUp": refusal(stock.ErrNotFilled)}},
			want: strings.Repeat(again+"CatchUp ", maxTries-1) + "Record: " + stale.Reason().Error()},
		{name: "not taken again, because it is not filled", answers: answers{recorded: []order.Outcome{stale}, errs: fails("Requeue", refusal(stock.ErrNotFilled))},
			want: strings.Repeat(again, maxTries-1) + "Record: " + stale.Reason().Error()},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := &test.answers
				c := NewConsumer(a, a, a, a.Learn, slog.New(slog.DiscardHandler), prometheus.NewRegistry(), nil)
				ctx, stop := context.WithCancel(t.Context())
				defer stop()
				if test.stopped {
					stop()
				}
				e := c.trace(ctx, take)
				got := strings.Join(a.calls, " ") + ": " + e.became
				if e.err != nil {
					got += e.err.Error()
				}
				if e.take.TakeID != take.TakeID {
					got += ", another take"
				}
				if got != test.want || e.take.OrderID != take.OrderID {
					t.Errorf("%s, want %s", got, test.want)
				}
			})
		})
	}
}

// shaky has one order, which it delivers until the order is finished. Some of its calls fail.
type shaky struct {
	Journal
	Ledger
	Reconciler
	take      stock.Take
	fails     func(call string, nth int) error // called for each call; returns the error of the call
	mu        sync.Mutex
	calls     map[string][]time.Time
	delivered time.Time
	ended     int
	log       bytes.Buffer // of the consumer
}

func (s *shaky) called(call string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[call] = append(s.calls[call], time.Now())
	if len(s.calls[call]) > 10_000 {
		panic(call + " is called without a pause")
	}
	return s.fails(call, len(s.calls[call]))
}

func (s *shaky) Open(context.Context, string) error { return s.called("Open") }

func (s *shaky) Usable(context.Context) error { return s.called("Usable") }

func (s *shaky) Record(context.Context, stock.Take) (order.Order, order.Outcome) {
	if err := s.called("Record"); err != nil {
		return order.Order{}, order.Refused(stock.Busy(err))
	}
	return order.Order{}, order.Committed()
}

func (s *shaky) Read(_ context.Context, _ string, _ int, wait time.Duration) ([]stock.Take, error) {
	if err := s.called("Read"); err != nil {
		return nil, err
	}
	if s.deliver(func() bool { return s.delivered.IsZero() }) {
		return []stock.Take{s.take}, nil
	}
	time.Sleep(wait) // in a bubble
	return nil, nil
}

func (s *shaky) Claim(_ context.Context, _ string, _ int, idle time.Duration) ([]stock.Take, error) {
	if err := s.called("Claim"); err != nil {
		return nil, err
	}
	idled := func() bool { return time.Since(s.delivered) >= idle } // in a bubble
	if s.deliver(func() bool { return s.ended == 0 && !s.delivered.IsZero() && idled() }) {
		return []stock.Take{s.take}, nil
	}
	return nil, nil
}

// deliver records that the order is delivered if it is due.
func (s *shaky) deliver(due func() bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !due() {
		return false
	}
	s.delivered = time.Now()
	return true
}

func (s *shaky) Finish(_ context.Context, takes ...stock.Take) error {
	if err := s.called("Finish"); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended += len(takes)
	return nil
}

func (s *shaky) Backlog(context.Context) (int64, time.Duration, error) {
	if err := s.called("Backlog"); err != nil {
		return 0, 0, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(1 - min(s.ended, 1)), 0, nil
}

func (s *shaky) Redeliver(context.Context) (int, error) { return 0, s.called("Redeliver") }

func (s *shaky) Leave(context.Context, string) error { return s.called("Leave") }

func (s *shaky) consumer() *Consumer {
	s.calls, s.take = make(map[string][]time.Time), stock.Take{Deduction: oneUnit()}
	return NewConsumer(s, s, s, ignore, slog.New(slog.NewTextHandler(&s.log, nil)), prometheus.NewRegistry(), nil)
}

// failFirst makes the first n calls with a name fail.
func failFirst(name string, n int, err error) func(string, int) error {
	return func(call string, nth int) error {
		if call == name && nth <= n {
			return err
		}
		return nil
	}
}

// TestFailingCalls has calls of a consumer fail. It logs each failure, goes on with pauses,
// and the order ends once.
func TestFailingCalls(t *testing.T) {
	t.Parallel()
	for call, says := range map[string]string{
		"Usable": "reading queued orders failed", "Claim": "reading queued orders failed", "Read": "reading queued orders failed",
		"Record": "committing a queued order failed", "Finish": "removing orders from the journal failed", "Backlog": "measuring the journal failed",
		"Redeliver": "looking for queued orders without a message failed", "Leave": "removing consumers from the journal failed",
	} {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &shaky{fails: failFirst(call, 3, errFault)}
				ctx, stop := context.WithTimeout(t.Context(), 3*time.Minute)
				defer stop()
				c := s.consumer()
				c.Run(ctx)
				var counted dto.Metric
				if err := c.metrics.ended.WithLabelValues(committed).Write(&counted); err != nil || s.ended != 1 || counted.GetCounter().GetValue() != 1 {
					t.Errorf("the order has ended %d times, counted %v, %v", s.ended, &counted, err)
				}
				series := make(chan prometheus.Metric, 9)
				if c.metrics.ended.Collect(series); len(series) != 3 {
					t.Errorf("%d outcomes are counted, want committed, refused and duplicate", len(series))
				}
				if len(s.calls[call]) == 0 {
					t.Error("there was no such call")
				}
				if n := len(s.calls["Leave"]); n != 3 {
					t.Errorf("consumers were removed %d times, want twice, and once at the end", n)
				}
				if logged, want := strings.Count(s.log.String(), says), min(3, len(s.calls[call])); logged != want || strings.Count(s.log.String(), "\n") != want {
					t.Errorf("%d lines say %q, want %d, and no others: %s", logged, says, want, &s.log)
				}
				if slices.Contains([]string{"Backlog", "Redeliver", "Leave"}, call) {
					return // these calls do not delay the end of the order
				}
				failed, claims := s.calls[call], s.calls["Claim"]
				if call != "Finish" && failed[1].Sub(failed[0]) < failurePause {
					t.Errorf("the next try came after %s", failed[1].Sub(failed[0]))
				}
				if n := len(claims); n < 90 || n > 210 {
					t.Errorf("orders of others were claimed %d times in three minutes", n)
				}
			})
		})
	}
}

// measured is a journal of some orders, of which some have lost their messages.
type measured struct {
	Journal
	queued int64
	lost   int
	err    error // of Backlog
}

func (m *measured) Backlog(context.Context) (int64, time.Duration, error) {
	return m.queued, time.Duration(m.queued) * time.Minute, m.err
}

func (m *measured) Redeliver(context.Context) (int, error) { return m.lost, nil }

// TestWatch checks that the metrics of the journal keep their values while it cannot be measured, and
// that orders without a message are logged.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		j := &measured{}
		c := NewConsumer(j, nil, nil, ignore, slog.New(slog.NewTextHandler(&log, nil)), prometheus.NewRegistry(), nil)
		for _, step := range []struct {
			measured
			length, seconds float64
		}{
			{measured{queued: 7, lost: 3}, 7, 420},
			{measured{err: errFault}, 7, 420},
			{measured{}, 0, 0},
		} {
			*j = step.measured
			log.Reset()
			ctx, cancel := context.WithTimeout(t.Context(), watchPause/2)
			defer cancel()
			c.watch(ctx)
			var length, oldest dto.Metric
			if err := errors.Join(c.metrics.length.Write(&length), c.metrics.oldest.Write(&oldest)); err != nil {
				t.Fatal(err)
			}
			if n, s := length.GetGauge().GetValue(), oldest.GetGauge().GetValue(); n != step.length || s != step.seconds {
				t.Errorf("%+v: %v orders, the oldest for %v s", step.measured, n, s)
			}
			if logged := strings.Contains(log.String(), "they are delivered again\" orders=3"); logged != (step.lost > 0) {
				t.Errorf("%+v: logged %s", step.measured, &log)
			}
		}
	})
}

// TestClaimsBesideFailures checks that orders of others are claimed although the consumer's
// own reads fail all the time.
func TestClaimsBesideFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shaky{fails: failFirst("Read", 1<<30, errFault)}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		s.consumer().Run(ctx)
		if n := len(s.calls["Claim"]); n < 20 || n > 61 {
			t.Errorf("orders of others were claimed %d times in a minute", n)
		}
	})
}

// TestPausesAfterFailures checks that the pause after a failure is short again once a
// call has succeeded.
func TestPausesAfterFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &shaky{fails: func(call string, nth int) error {
			if call == "Read" && (nth < 10 || nth%2 == 1 && nth < 30) {
				return errFault
			}
			return nil
		}}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		s.consumer().Run(ctx)
		reads := s.calls["Read"]
		for n := 11; n < 30; n += 2 {
			if pause := reads[n].Sub(reads[n-1]); pause > 2*failurePause {
				t.Errorf("the pause after failed read %d is %s", n, pause)
			}
		}
	})
}

// TestSuperseded checks that a consumer leaves the orders to the instances that sell now, and only
// rarely checks whether they still sell. It logs nothing, even when it stops.
func TestSuperseded(t *testing.T) {
	t.Parallel()
	superseded := failFirst("Usable", 1<<30, fmt.Errorf("usable: %w", stock.ErrSuperseded))
	synctest.Test(t, func(t *testing.T) {
		s := &shaky{fails: superseded}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute+claimPause/2)
		defer stop()
		s.consumer().Run(ctx)
		if n := len(s.calls["Usable"]); n < 30 || n > 61 {
			t.Errorf("it asked %d times in a minute", n)
		}
		if n := len(s.calls["Claim"]) + len(s.calls["Read"]); n != 0 {
			t.Errorf("it made %d calls", n)
		}
		if s.log.Len() > 0 {
			t.Errorf("it logged %s", &s.log)
		}
	})
}
