package main

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

const (
	// couponLimit is how many coupons one buyer may hold.
	couponLimit = 2
	// soldOutPause is how long a client waits after a refusal before it tries to order units that
	// have returned.
	soldOutPause = 20 * time.Millisecond
	// finalLimit bounds the tries of a call that pays, cancels or refunds.
	finalLimit = 30 * time.Second
	// restLimit bounds the wait for orders that are due to expire.
	restLimit = 20 * time.Second
)

// Actions on an order.
const (
	pay    = "pay"
	cancel = "cancel"
	refund = "refund"
)

// call is a request that changes an order, with its final answer.
type call struct {
	action  string
	payment string        // ID of the payment to pay with
	restock bool          // whether a refund returns the units
	sent    time.Duration // time of the first try, since the start of the load
	status  int           // HTTP status; 0: there was no final answer
	got     order         // the order in a 200
	problem client.ProblemType
}

// make makes the call with the order.
func (c call) make(ctx context.Context, s *client.Client, id string) (client.Order, error) {
	switch c.action {
	case pay:
		return s.Pay(ctx, id, c.payment)
	case refund:
		return s.Refund(ctx, id, c.restock)
	}
	return s.Cancel(ctx, id)
}

// read reads an answer. It reports whether the answer is final, so that the call need
// not be repeated.
func (c *call) read(a load.Answer) (final bool) {
	if a.Status == 0 || a.Status >= 500 || a.Problem == client.InProgress {
		return false
	}
	c.status, c.problem, c.got = a.Status, a.Problem, orderIn(a) // the audit reports an answer without an order
	return true
}

// goods are the two SKUs of a lifecycle load. All orders contain the product, and some also the
// coupon.
type goods struct {
	product, coupon string
	units, coupons  int64
}

// lifecycleLoad is a load in which buyers order, and then pay, cancel, or let their orders
// expire. It is safe for concurrent use.
type lifecycleLoad struct {
	*loading
	goods  goods
	buyers []string
	watch  *watch
	due    []sent        // requests to repeat after the load
	slots  chan struct{} // its capacity bounds the calls under way
	owners sync.WaitGroup

	mu    sync.Mutex
	calls map[string][]call // calls by order ID
}

// runLifecycle runs a lifecycle load with the strategy. Buyers order for two payment
// windows, so that they also get units of orders that have expired. The audit begins when
// no order is pending.
func (l *lab) runLifecycle(ctx context.Context, spec assembly.Spec, f *fleet) (*results.Result, error) {
	v, err := l.newLifecycleLoad(ctx, spec, f)
	if err != nil {
		return nil, err
	}
	v.watch = v.startWatch(ctx, v.goods.product, v.goods.coupon)
	defer v.watch.end()
	cost := v.startMeter(ctx)
	stop := v.showProgress(spec.Name)
	v.order(ctx)
	v.owners.Wait()
	v.repeatAll(ctx, v.due) // the repeats come after all changes of the orders
	stop()
	cost.stop(ctx)
	r := v.newResult(l.Stock)
	r.Describe("orders for %v, %d clients, payment window %v", "下单持续 %v，%d 个客户端，付款时限 %v", 2*l.PaymentWindow, l.Clients, l.PaymentWindow)
	addTimes(r, v.rec)
	r.Sales = nil // their chart would not show returned units
	cost.addTo(r)
	if ctx.Err() == nil { // after an interruption, orders may be pending, and an audit would be meaningless
		err = v.judge(ctx, r, l.terms(spec, soldOut))
	}
	return r, err
}

// judge audits the load and sets the verdict.
func (v *lifecycleLoad) judge(ctx context.Context, r *results.Result, t terms) error {
	if err := v.audit(ctx, r, t); err != nil {
		return err
	}
	v.watch.addTo(ctx, r)
	judgeFailures(r, t)
	judgeUncertain(r, t)
	judgeRepairs(r, t)
	r.Verdict = results.AsPromised
	if len(r.Faults) > 0 {
		r.Verdict = results.Broken
	}
	return nil
}

// newLifecycleLoad creates the SKUs of a lifecycle load. There are so few buyers and
// coupons that some orders exceed the buyer limit, and some find the coupons sold out.
func (l *lab) newLifecycleLoad(ctx context.Context, spec assembly.Spec, f *fleet) (*lifecycleLoad, error) {
	v := &lifecycleLoad{
		slots: make(chan struct{}, l.Clients), calls: make(map[string][]call),
		goods: goods{units: l.Stock, coupons: max(l.Stock/8, 1)},
	}
	name := buyers(l.Seed, 0)
	for range max(l.Stock/10, 1) {
		v.buyers = append(v.buyers, name())
	}
	return v, v.create(ctx, l, spec, f, "life", client.Setting{BuyerLimit: new(int64(couponLimit))})
}

// create creates the SKUs. The coupon gets the given setting, with its kind and total replaced.
func (v *lifecycleLoad) create(ctx context.Context, l *lab, spec assembly.Spec, f *fleet, part string, coupon client.Setting) (err error) {
	if v.loading, err = l.begin(ctx, spec, f, part, v.goods.units); err != nil {
		return err
	}
	v.goods.product = v.sku
	v.goods.coupon = v.goods.product + "-coupon"
	v.created = append(v.created, v.goods.coupon)
	coupon.Kind, coupon.Total = client.Coupon, v.goods.coupons
	return v.admin.Create(ctx, v.fleet.url(0), v.goods.coupon, coupon)
}

// order lets the clients order until two payment windows have passed. Refused clients try again, to
// order units that have returned.
func (v *lifecycleLoad) order(ctx context.Context) {
	limited, stop := context.WithTimeout(ctx, 2*v.PaymentWindow)
	defer stop()
	randoms, names := make([]*rand.Rand, v.Clients), make([]func() string, v.Clients)
	all := make([]*buyer, v.Clients)
	for i := range all {
		randoms[i], names[i] = rand.New(rand.NewPCG(v.Seed, uint64(i+1))), buyers(v.Seed, uint64(i+1))
		all[i] = &buyer{loading: v.loading}
	}
	<-load.Crowd(limited, v.Clients, func(i, n int) (pause time.Duration, more bool) {
		a := all[i].order(ctx, i+n, v.request(randoms[i]), names[i]())
		if n%sampleEvery == 0 {
			v.sample(ctx, a)
		}
		more = !v.rec.add(a)
		switch a.outcome {
		case accepted:
			if more {
				v.begin(ctx, a, randoms[i])
			}
		case refused:
			pause = soldOutPause
		default:
			pause = load.FailurePause
		}
		return pause, more
	})
	for _, b := range all {
		v.due = append(v.due, b.due...)
	}
}

// request returns an order of a random buyer for the product. Every third order has a
// coupon too.
func (v *lifecycleLoad) request(random *rand.Rand) order {
	o := oneUnit(v.buyers[random.IntN(len(v.buyers))], v.goods.product)
	if random.IntN(3) == 0 {
		o.Lines = append(o.Lines, line{SKU: v.goods.coupon, Quantity: 1})
	}
	return o
}

// begin starts a goroutine that acts as the owner of an accepted order.
func (v *lifecycleLoad) begin(ctx context.Context, a answer, random *rand.Rand) {
	if a.order.ID == "" {
		return // the audit reports the answer
	}
	owner := &owner{lifecycleLoad: v, order: a.order, answered: v.rec.start.Add(a.at), random: rand.New(rand.NewPCG(random.Uint64(), 0))}
	plan := plans[random.IntN(len(plans))]
	v.owners.Go(func() { plan(ctx, owner) })
}

// plans are what an owner may do after the 201. Each is equally likely.
var plans = []func(context.Context, *owner){
	func(context.Context, *owner) {}, // the order expires
	func(ctx context.Context, o *owner) { o.pay(ctx, 1) },
	func(ctx context.Context, o *owner) { // the callback comes twice, then once more
		o.together(func() { o.pay(ctx, 1) }, func() { o.pay(ctx, 1) })
		o.pay(ctx, 1)
	},
	func(ctx context.Context, o *owner) { o.together(func() { o.pay(ctx, 1) }, func() { o.pay(ctx, 2) }) },
	func(ctx context.Context, o *owner) {
		o.cancel(ctx)
		o.pay(ctx, 1)
	},
	func(ctx context.Context, o *owner) { o.together(func() { o.pay(ctx, 1) }, func() { o.cancel(ctx) }) },
	func(ctx context.Context, o *owner) {
		if o.pay(ctx, 1).status == http.StatusOK {
			o.refund(ctx)
		}
		o.pay(ctx, 1)
	},
	func(ctx context.Context, o *owner) { // the payment races with expiry
		o.waitForExpiry(ctx, -50*time.Millisecond, 100*time.Millisecond)
		o.pay(ctx, 1)
	},
	func(ctx context.Context, o *owner) {
		o.waitForExpiry(ctx, 0, o.PaymentWindow)
		o.together(func() { o.pay(ctx, 1) }, func() { o.pay(ctx, 2) })
	},
	func(ctx context.Context, o *owner) { // payment, cancellation and expiry race
		o.waitForExpiry(ctx, -50*time.Millisecond, 100*time.Millisecond)
		o.together(func() { o.cancel(ctx) }, func() { o.pay(ctx, 1) })
	},
}

// owner makes the calls that change one order.
type owner struct {
	*lifecycleLoad
	order    order
	answered time.Time
	random   *rand.Rand // not safe for concurrent use
}

// together runs first and second at the same time.
func (o *owner) together(first, second func()) {
	var both sync.WaitGroup
	both.Go(first)
	both.Go(second)
	both.Wait()
}

// waitForExpiry waits until the order expires by this machine's clock, plus offset and a random
// part of spread. It ignores a time later than one payment window after the 201.
func (o *owner) waitForExpiry(ctx context.Context, offset, spread time.Duration) {
	until := o.answered.Add(o.PaymentWindow)
	if expires := o.order.ExpiresAt; expires != nil && expires.Before(until) {
		until = *expires
	}
	_ = retry.Sleep(ctx, time.Until(until.Add(offset+time.Duration(o.random.Int64N(int64(spread))))))
}

// pay reports the n-th payment of the order.
func (o *owner) pay(ctx context.Context, n int) call {
	return o.send(ctx, o.order.ID, call{action: pay, payment: paymentIDs(o.order.ID)[n-1]})
}

func (o *owner) cancel(ctx context.Context) { o.send(ctx, o.order.ID, call{action: cancel}) }

// refund refunds the order. The order must be paid.
func (o *owner) refund(ctx context.Context) {
	o.send(ctx, o.order.ID, call{action: refund, restock: o.random.IntN(2) == 0})
}

// paymentIDs returns the IDs of all payments that a lifecycle load may report for the
// order.
func paymentIDs(orderID string) []string {
	return []string{prefix + orderID + "-1", prefix + orderID + "-2"}
}

// send sends a call until it gets a final answer, and records it. Each try goes to a
// random instance.
func (v *lifecycleLoad) send(ctx context.Context, id string, c call) call {
	v.slots <- struct{}{}
	defer func() { <-v.slots }()
	c.sent = time.Since(v.rec.start)
	repeatUntil(ctx, finalLimit, load.FailurePause, func() (final bool) {
		a := v.client.Send(ctx, v.fleet.url(rand.IntN(v.Instances)), func(ctx context.Context, s *client.Client) (client.Order, error) { return c.make(ctx, s, id) })
		v.rec.heard(a)
		return c.read(a)
	})
	v.mu.Lock()
	defer v.mu.Unlock()
	v.calls[id] = append(v.calls[id], c)
	return c
}
