package order

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/tracing"
)

// aFault is an error that a call may return by its contract.
type aFault struct {
	name string
	err  error
	lost bool // for an outcome: the outcome is unknown
}

var (
	refusedFaults = []aFault{
		{"sold out", stock.Refuse(apple, stock.ErrSoldOut), false},
		{"stale", stock.Refuse(apple, stock.ErrStaleEpoch), false},
		{"busy", stock.ErrBusy, false},
	}
	lostFault   = aFault{"lost", errUnreachable, true}
	unreachable = aFault{"unreachable", errUnreachable, false}
)

// faultsOf has the errors that each call may return.
var faultsOf = map[string][]aFault{
	"Take":         append(refusedFaults, aFault{"in flight", stock.ErrInFlight, false}, unreachable),
	"Queue":        append(refusedFaults, aFault{"in flight", stock.ErrInFlight, false}, unreachable),
	"Accept":       {lostFault},
	"Record":       append(refusedFaults, lostFault),
	"Revive":       append(refusedFaults, aFault{"changed", stock.ErrRowChanged, false}, lostFault),
	"Usable":       {{"superseded", stock.ErrSuperseded, false}, unreachable},
	"CatchUp":      {{"refilling", stock.Refuse(apple, stock.ErrNotFilled), false}, unreachable},
	"PrepareRetry": {{"superseded", stock.ErrSuperseded, false}, {"unknown SKU", stock.Refuse(apple, stock.ErrUnknownSKU), false}, unreachable},
	"Change":       {{"none", ErrUnknownOrder, false}, {"busy", stock.ErrBusy, false}, {"stale", stock.ErrStaleEpoch, false}, unreachable},

	"Refunded": {{"none", ErrUnknownPayment, false}, unreachable},
}

// flaky makes one call of a service to its stores or its reconciler fail. The failed call has no
// effect. Without a flaky, no call fails.
type flaky struct {
	at    int      // the call that fails, counted from 1
	err   error    // error of the failed call
	lost  bool     // the error means an unknown outcome, and not a refusal
	calls []string // names of all calls
}

// call records a call, and returns the error if this call must fail.
func (f *flaky) call(name string) error {
	if f == nil {
		return nil
	}
	f.calls = append(f.calls, name)
	if len(f.calls) == f.at {
		return f.err
	}
	return nil
}

// outcome is the outcome of a call that failed with err.
func (f *flaky) outcome(err error) Outcome {
	if f.lost {
		return Unknown(err)
	}
	return Refused(err)
}

// makeFlaky makes a call fail to anything that the shop's service calls.
func (s *shop) makeFlaky(f *flaky) {
	if s.gate != nil {
		s.gate.flaky = f
	}
	if q, ok := s.queue.(*fakeQueue); ok {
		q.flaky = f
	}
	s.ledger.flaky, s.reconciler.flaky = f, f
}

// scenario is one request to a service.
type scenario struct {
	name    string
	prepare func(t *testing.T, s *shop) // prepares the shop; may be nil
	// do makes the request and returns the answer besides the error.
	do     func(ctx context.Context, s *shop) (string, error)
	noGate bool
}

var scenarios = []scenario{
	{name: "place", do: placing(ask)},
	{name: "place under a key", do: placing(keyed)},
	{name: "place without a gate", do: placing(keyed), noGate: true},
	{name: "place again", prepare: placedKeyed, do: placing(keyed)},
	{name: "place again what was queued", prepare: func(t *testing.T, s *shop) {
		placedKeyed(t, s)
		o := s.ledger.orders[keyedID(s)]
		o.QueuedUntil = time.Now()
		s.ledger.orders[o.ID] = o
	}, do: placing(keyed)},
	{name: "place behind a void order", prepare: void(keyedID), do: placing(keyed)},
	{name: "place at a stale gate", prepare: stale, do: placing(keyed)},
	{name: "place without an answer of the gate", prepare: func(_ *testing.T, s *shop) { s.gate.lost = errUnreachable }, do: placing(ask)},
	{name: "queue", prepare: queueing(nil), do: placing(ask)},
	{name: "queue under a key", prepare: queueing(nil), do: placing(keyed)},
	{name: "queue, and a consumer commits it", prepare: queueing(func(s *shop, t stock.Take) {
		o := queuedOrder(t)
		o.Status = Pending
		s.ledger.record(t, o)
		s.gate.settle(t)
	}), do: placing(keyed)},
	{name: "queue, and a consumer refuses it", prepare: queueing(func(s *shop, t stock.Take) {
		s.ledger.refuse(t)
		_ = s.gate.give(t)
	}), do: placing(keyed)},
	{name: "queue what the ledger has", prepare: both(placedKeyed, queueing(nil)), do: placing(keyed)},
	{name: "queue what is queued", prepare: both(queueing(nil), placedKeyed), do: placing(keyed)},
	{name: "queue behind a void order", prepare: both(queueing(nil), void(keyedID)), do: placing(keyed)},

	{name: "pay", prepare: placed(Pending), do: paying},
	{name: "pay a queued order", prepare: inQueue(itself), do: paying},
	{name: "pay what is due", prepare: placed("due"), do: paying},
	{name: "pay late", prepare: placed(Expired), do: paying},
	{name: "pay late at a stale gate", prepare: both(placed(Expired), stale), do: paying},
	{name: "pay late before the units are at the gate", prepare: both(placed(Expired), func(_ *testing.T, s *shop) { s.gate.available[apple] = 0 }), do: paying},
	{name: "pay late what is sold out", prepare: both(placed(Expired), func(t *testing.T, s *shop) {
		for range units {
			s.mustPlace(t, ask())
		}
	}), do: paying},
	{name: "pay with a payment of another order", prepare: func(t *testing.T, s *shop) {
		placed(Pending)(t, s)
		s.ledger.payments["payment-1"] = Payment{ID: "payment-1", OrderID: uuid.New()}
	}, do: paying},

	{name: "cancel", prepare: placed(Pending), do: cancelling},
	{name: "cancel a paid order", prepare: placed(Paid), do: cancelling},
	{name: "cancel no order", do: cancelling},
	{name: "cancel a void order", prepare: both(queueing(nil), void(itself)), do: cancelling},
	{name: "refund", prepare: placed(Paid), do: refunding},
	{name: "refund a pending order", prepare: placed(Pending), do: refunding},
	{name: "refunded", prepare: placed(Refunded), do: refunded},
	{name: "refunded, of a paid order", prepare: placed(Paid), do: refunded},

	{name: "read", prepare: placed(Paid), do: reading},
	{name: "read no order", do: reading},
	{name: "read beside a journal", prepare: both(placed(Pending), queueing(nil)), do: reading},
	{name: "read a queued order", prepare: inQueue(itself), do: reading},
	{name: "read a queued order that is void", prepare: both(inQueue(itself), void(itself)), do: reading},
	{name: "list", prepare: placed(Paid), do: func(ctx context.Context, s *shop) (string, error) {
		page, next, err := s.List(ctx, Filter{Limit: 1})
		return fmt.Sprintf("page of %d, more %v", len(page), next != uuid.Nil), err
	}},
	{name: "list payments", prepare: placed(Paid), do: func(ctx context.Context, s *shop) (string, error) {
		page, next, err := s.Payments(ctx, PaymentFilter{Limit: 1})
		return fmt.Sprintf("page of %d, more %v", len(page), next != ""), err
	}},
}

func placing(r func() Request) func(context.Context, *shop) (string, error) {
	return func(ctx context.Context, s *shop) (string, error) {
		o, replayed, err := s.Place(ctx, r())
		if replayed {
			return string(o.Status) + " again", err
		}
		return string(o.Status), err
	}
}

func changing(change func(ctx context.Context, s *shop) (Order, error)) func(context.Context, *shop) (string, error) {
	return func(ctx context.Context, s *shop) (string, error) {
		o, err := change(ctx, s)
		return string(o.Status), err
	}
}

var (
	paying     = changing(func(ctx context.Context, s *shop) (Order, error) { return s.Pay(ctx, theOrder, "payment-1") })
	cancelling = changing(func(ctx context.Context, s *shop) (Order, error) { return s.Cancel(ctx, theOrder, "") })
	refunding  = changing(func(ctx context.Context, s *shop) (Order, error) { return s.Refund(ctx, theOrder, true) })
	reading    = changing(func(ctx context.Context, s *shop) (Order, error) { return s.Order(ctx, theOrder) })
)

func refunded(ctx context.Context, s *shop) (string, error) {
	p, err := s.Refunded(ctx, "payment-1")
	return string(p.Status), err
}

// theOrder is the ID of the order that scenarios change.
var theOrder = uuid.MustParse("0193a5a0-0000-7000-8000-000000000001")

// theTake is the take of that order while it is queued.
func theTake() stock.Take {
	return stock.Take{
		Deduction: stock.Deduction{OrderID: theOrder, TakeID: uuid.MustParse("0193a5a0-0000-7000-8000-000000000002"), Buyer: "buyer-1", Lines: ask().Lines},
		QueuedAt:  time.Now(),
	}
}

func itself(*shop) uuid.UUID    { return theOrder }
func keyedID(s *shop) uuid.UUID { return orderID(s.ledgerID, keyed(), 0) }

// both prepares a shop in two steps.
func both(first, then func(*testing.T, *shop)) func(*testing.T, *shop) {
	return func(t *testing.T, s *shop) { first(t, s); then(t, s) }
}

func placedKeyed(t *testing.T, s *shop) { s.mustPlace(t, keyed()) }

// placed places the order and gives it the status. "due" is a pending order whose payment window
// has ended.
func placed(status Status) func(*testing.T, *shop) {
	return func(t *testing.T, s *shop) {
		_, out := s.takeAndRecord(t.Context(), theTake().Deduction, s.ledger.Record)
		err := out.Reason()
		switch status {
		case "due":
			err = s.passDeadline(theOrder)
		case Expired:
			_ = s.passDeadline(theOrder)
			_, err = s.returning(t.Context(), theOrder, "", onExpiry)
		case Paid, Refunded:
			_, err = s.Pay(t.Context(), theOrder, "payment-1")
		}
		if status == Refunded {
			_, err = s.Refund(t.Context(), theOrder, true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// void records a void order.
func void(id func(*shop) uuid.UUID) func(*testing.T, *shop) {
	return func(_ *testing.T, s *shop) { s.ledger.void(id(s)) }
}

// stale makes the gate's epoch stale.
func stale(_ *testing.T, s *shop) { s.ledger.epoch++ }

// queueing gives the service a queue. consume, if not nil, ends each order at once.
func queueing(consume func(*shop, stock.Take)) func(*testing.T, *shop) {
	return func(_ *testing.T, s *shop) {
		q := &fakeQueue{gate: s.gate, ledger: s.ledger, takes: make(map[uuid.UUID]stock.Take)}
		if consume != nil {
			q.consume = func(t stock.Take) { consume(s, t) }
		}
		s.queue = q
	}
}

// inQueue gives the service a queue with the order in it.
func inQueue(id func(*shop) uuid.UUID) func(*testing.T, *shop) {
	return func(t *testing.T, s *shop) {
		queueing(nil)(t, s)
		take := theTake()
		take.OrderID = id(s)
		s.queue.(*fakeQueue).takes[take.OrderID] = take
	}
}

// documented lists the documented errors of the service's methods, by name.
var documented = []struct {
	name string
	err  error
}{
	{"unavailable", stock.ErrUnavailable},
	{"superseded", stock.ErrSuperseded},
	{"busy", stock.ErrBusy},
	{"in progress", ErrInProgress},
	{"key reused", ErrKeyReused},
	{"sold out", stock.ErrSoldOut},
	{"unknown SKU", stock.ErrUnknownSKU},
	{"unknown order", ErrUnknownOrder},
	{"unknown payment", ErrUnknownPayment},
	{"payment reused", ErrPaymentReused},
	{"wrong status", ErrWrongStatus},
	{"refund due", ErrRefundDue},
}

// answerOf describes an answer: its text, the documented errors that err wraps, whether err's text
// names one of them twice, and whether err has a cause other than the failed call.
func answerOf(said string, err, cause error) string {
	var answer []string
	if said != "" {
		answer = []string{said}
	}
	for _, d := range documented {
		if errors.Is(err, d.err) {
			answer = append(answer, d.name)
			if strings.Count(err.Error(), d.err.Error()) > 1 {
				answer = append(answer, "said twice")
			}
		}
	}
	if err != nil && cause != nil && !errors.Is(err, cause) {
		answer = append(answer, "another cause")
	}
	return strings.Join(answer, " ")
}

// run runs the scenario with f. It returns the answer, and the units sold and in flight
// afterwards.
func (sc scenario) run(t *testing.T, f *flaky) (answer string) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(!sc.noGate)
		if sc.prepare != nil {
			sc.prepare(t, s)
		}
		s.makeFlaky(f)
		said, err := sc.do(t.Context(), s)
		answer = answerOf(said, err, f.err)
		if s.gate != nil && len(s.gate.inFlight) > 0 {
			answer += fmt.Sprintf(" (%d in flight)", len(s.gate.inFlight))
		}
		sold := s.ledger.sold(apple)
		if sold > 0 {
			answer += fmt.Sprintf(" (%d sold)", sold)
		}
		if s.ledger.available[apple]+sold != units {
			t.Errorf("%s: %d units are available and %d sold of %d", sc.name, s.ledger.available[apple], sold, units)
		}
	})
	return answer
}

// TestFailures makes each call of a service fail in turn, with each error that the call may return.
// The answers, and the units sold and in flight afterwards, must match testdata/failures.txt. For
// each scenario, the file has the answer without a failure, and a line for each call.
func TestFailures(t *testing.T) {
	var got []string
	for _, sc := range scenarios {
		sound := &flaky{}
		got = append(got, sc.name+": "+sc.run(t, sound))
		for i, call := range sound.calls {
			faults := faultsOf[call]
			if faults == nil {
				faults = []aFault{unreachable}
			}
			var answers []string
			for _, fault := range faults {
				answers = append(answers, fault.name+" → "+sc.run(t, &flaky{at: i + 1, err: fault.err, lost: fault.lost}))
			}
			got = append(got, "\t"+call+": "+strings.Join(answers, ", "))
		}
	}
	text, err := os.ReadFile("testdata/failures.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	if len(got) != len(want) {
		t.Errorf("%d lines, want %d", len(got), len(want))
	}
	for i, line := range got {
		if i >= len(want) || line != want[i] {
			t.Fatalf("line %d is\n%s\nThe first such line of\n%s", i+1, line, strings.Join(got, "\n"))
		}
	}
}

// dueLedger has a due order, and does not let it expire.
type dueLedger struct{ *fakeLedger }

func (l dueLedger) Change(_ context.Context, id uuid.UUID, _ ChangeOptions, decide Decide) (Order, []stock.Change, error) {
	o := Order{ID: id, Status: Pending}
	_, err := decide(Locked{Order: o, Due: true})
	return o, nil, err
}

// TestPay_DueWithoutEnd checks that a payment gives up after a bounded number of tries, and returns
// the reason.
func TestPay_DueWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(true)
		s.Service.ledger = dueLedger{s.ledger}
		if o, err := s.Pay(t.Context(), theOrder, "payment-1"); !errors.Is(err, stock.ErrBusy) || !errors.Is(err, errDue) || o.ID != uuid.Nil {
			t.Errorf("answered %+v, %v", o, err)
		}
	})
}

// TestPages checks that pages follow each other without a gap or an overlap, and that the last one
// is marked as the last.
func TestPages(t *testing.T) {
	s := newShop(true)
	for n := range units {
		o := s.mustPlace(t, ask())
		if _, err := s.Pay(t.Context(), o.ID, fmt.Sprintf("payment-%d", n)); err != nil {
			t.Fatal(err)
		}
	}
	for _, limit := range []int{1, 2, units - 1, units, units + 1} {
		pages := (units + limit - 1) / limit
		orders, after := make(map[uuid.UUID]bool), uuid.Nil
		for n := range pages {
			page, next, err := s.List(t.Context(), Filter{After: after, Limit: limit})
			if err != nil || len(page) > limit || (next == uuid.Nil) != (n == pages-1) {
				t.Fatalf("page %d of up to %d orders: %d, then %s, %v", n, limit, len(page), next, err)
			}
			for _, o := range page {
				orders[o.ID] = true
			}
			after = next
		}
		payments, last := make(map[string]bool), ""
		for n := range pages {
			page, next, err := s.Payments(t.Context(), PaymentFilter{After: last, Limit: limit})
			if err != nil || len(page) > limit || (next == "") != (n == pages-1) {
				t.Fatalf("page %d of up to %d payments: %d, then %q, %v", n, limit, len(page), next, err)
			}
			for _, p := range page {
				payments[p.ID] = true
			}
			last = next
		}
		if len(orders) != units || len(payments) != units {
			t.Errorf("in pages of %d: %d orders and %d payments, want %d", limit, len(orders), len(payments), units)
		}
	}
}

// TestSpans checks the spans of a request about its takes: a refusal is not an error, but a gate
// that cannot be reconciled is one.
func TestSpans(t *testing.T) {
	for _, test := range []struct {
		name    string
		refuse  error // error of the gate, once
		cannot  error // error of the reconciler
		takes   []string
		refill  string
		orderID bool
	}{
		{name: "taken", takes: []string{"taken"}, orderID: true},
		{name: "sold out", refuse: stock.Refuse(apple, stock.ErrSoldOut), takes: []string{"sold_out"}},
		{name: "busy", refuse: stock.ErrBusy, takes: []string{"busy"}},
		{name: "stale", refuse: stock.ErrStaleEpoch, takes: []string{"stale", "taken"}, orderID: true},
		{name: "not refilled", refuse: stock.ErrStaleEpoch, cannot: stock.ErrSuperseded, takes: []string{"stale"}, refill: "superseded"},
		{name: "unreachable", refuse: errUnreachable, takes: []string{"error unavailable"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, recorder := newShop(true), tracetest.NewSpanRecorder()
			s.tracer = tracing.New(sdk.NewTracerProvider(sdk.WithSpanProcessor(recorder)), false)
			s.gate.refuse, s.reconciler.cannot = failing(1, test.refuse), test.cannot
			ctx, request := s.tracer.Root(t.Context(), "request", time.Now())
			o, _, err := s.Place(ctx, ask())
			request.End()
			if errors.Is(test.refuse, errUnreachable) && !strings.Contains(err.Error(), "taking at the gate") {
				t.Errorf("the error does not say what failed: %v", err)
			}
			var takes []string
			for _, span := range recorder.Ended() {
				attributes := make(map[string]string)
				for _, a := range span.Attributes() {
					attributes[string(a.Key)] = a.Value.AsString()
				}
				outcome := attributes["holdfast.outcome"]
				if span.Status().Code == codes.Error {
					outcome = "error " + attributes["error.type"]
				}
				switch span.Name() {
				case "gate.take":
					takes = append(takes, outcome)
				case "gate.refill":
					if want := strings.TrimSuffix("error "+test.refill, "error "); outcome != want {
						t.Errorf("the refill ended with %q, want %q", outcome, want)
					}
				case "request":
					id := ""
					if test.orderID {
						id = o.ID.String()
					}
					if got := attributes["holdfast.order.id"]; got != id || (err == nil) != test.orderID {
						t.Errorf("the request has the order %q, want %q, %v", got, id, err)
					}
				}
			}
			if !slices.Equal(takes, test.takes) {
				t.Errorf("the takes ended with %q, want %q", takes, test.takes)
			}
		})
	}
}
