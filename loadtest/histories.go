package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/loadtest/history"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

const (
	// historyClients, historyUnits and historyCalls are small, because the time of the search for
	// an order of calls grows exponentially with the calls that overlap.
	historyClients = 6
	historyUnits   = 20
	// Each client orders historyCalls times, or up to maxHistoryCalls times while something fails.
	historyCalls, maxHistoryCalls = 6, 60
	// historySets is how often an administrator changes each total in one part of a history.
	historySets = 4
	// historyTimeout bounds the search in one part of a history.
	historyTimeout = 10 * time.Second
)

// historyLoad is a load whose calls are recorded, on two SKUs.
type historyLoad struct {
	*lifecycleLoad
	random *rand.Rand
}

// runHistory runs and checks a history of a strategy. It repeats the history of a broken strategy
// that was not detected as broken, unless ctx is done.
func (l *lab) runHistory(ctx context.Context, spec assembly.Spec, f *fleet) (*results.Result, error) {
	for try := 1; ; try++ {
		r, conclusive, err := l.tryHistory(ctx, spec, f, try)
		if err != nil || conclusive || try == maxTries || ctx.Err() != nil {
			return r, err
		}
	}
}

// tryHistory runs and checks one history of a strategy. conclusive is false if a broken strategy
// was not detected as broken.
func (l *lab) tryHistory(ctx context.Context, spec assembly.Spec, f *fleet, try int) (_ *results.Result, conclusive bool, _ error) {
	h, err := l.newHistoryLoad(ctx, spec, f, try)
	if err != nil {
		return nil, false, err
	}
	end, err := h.run(ctx, spec)
	r := h.newResult(2 * historyUnits)
	r.Describe("a history, %d clients", "调用历史，%d 个客户端", historyClients)
	r.History = &results.History{}
	if err != nil {
		return r, false, err
	}
	verdicts, err := h.verdicts()
	if err != nil {
		return r, false, err
	}
	h.rec.addTo(r)
	return r, judgeHistory(r, verdicts, l.terms(spec, end)), nil
}

func (l *lab) newHistoryLoad(ctx context.Context, spec assembly.Spec, f *fleet, try int) (*historyLoad, error) {
	v := &lifecycleLoad{
		slots: make(chan struct{}, historyClients), calls: make(map[string][]call),
		goods: goods{units: historyUnits, coupons: historyUnits},
	}
	seed := l.Seed<<8 + uint64(try)
	return &historyLoad{v, rand.New(rand.NewPCG(seed, 0))}, v.create(ctx, l, spec, f, fmt.Sprintf("history%d", try), client.Setting{})
}

// run runs the parts of a history. A sound strategy first sells, gives back and changes its stock,
// then does so again while something fails. At the end every strategy sells out, so that the
// check detects a strategy that has refused an order while units were left.
func (h *historyLoad) run(ctx context.Context, spec assembly.Spec) (end ending, err error) {
	defer h.showProgress(spec.Name)()
	end = soldOut
	if spec.Sound {
		h.part(ctx, func() bool { return true })
		if err := h.rest(ctx); err != nil {
			return end, err
		}
		if h.killsInstance() {
			end = crashed
			failed, random := make(chan struct{}), rand.New(rand.NewPCG(h.random.Uint64(), 0))
			go func() {
				defer close(failed)
				h.fail(ctx, random)
			}()
			h.part(ctx, func() bool {
				select {
				case <-failed:
					return true
				default:
					return false
				}
			})
			<-failed
			if err := h.rest(ctx); err != nil {
				return end, err
			}
		}
	}
	h.sellOut(ctx)
	if err := ctx.Err(); err != nil { // the history is incomplete
		return end, err
	}
	if spec.Sound || h.guarded(spec) { // the counts of other strategies may never agree
		if err := h.rest(ctx); err != nil {
			return end, err
		}
	}
	return end, h.readOrders(ctx)
}

// fail kills an instance and starts another, and causes two other faults, in an order that the seed
// determines.
func (h *historyLoad) fail(ctx context.Context, random *rand.Rand) {
	faults := make(map[string]func())
	for name, fail := range h.disturb {
		faults[name] = fail
	}
	var names []string
	for name := range faults {
		names = append(names, name)
	}
	slices.Sort(names)
	random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:min(len(names), 2)]
	const kill = "an instance is killed with SIGKILL and replaced"
	faults[kill] = func() { h.fleet.crash(); h.fleet.restart() }
	names = slices.Insert(names, random.IntN(len(names)+1), kill)
	for _, name := range names {
		if retry.Sleep(ctx, time.Duration(random.IntN(100))*time.Millisecond) != nil {
			return
		}
		h.history.Fault(name, faults[name])
	}
}

// part lets the clients order, and cancel, pay and refund their orders, until each has ordered some
// times and over returns true. Meanwhile an administrator changes the totals.
func (h *historyLoad) part(ctx context.Context, over func() bool) {
	var admin sync.WaitGroup
	for _, sku := range []string{h.goods.product, h.goods.coupon} {
		random := rand.New(rand.NewPCG(h.random.Uint64(), 0))
		admin.Go(func() { h.setTotals(history.As(ctx, "admin"), sku, random) })
	}
	h.crowd(ctx, func(ctx context.Context, name func() string, random *rand.Rand, i, n int) (time.Duration, bool) {
		a := h.take(ctx, i+n, h.order(name(), random), true)
		if a.outcome == accepted && a.order.ID != "" {
			owner := &owner{lifecycleLoad: h.lifecycleLoad, order: a.order, random: random}
			historyPlans[random.IntN(len(historyPlans))](ctx, owner)
		}
		pause := time.Duration(random.IntN(5)) * time.Millisecond
		if !over() {
			pause *= 10
		}
		return pause, n+1 < historyCalls || !over() && n+1 < maxHistoryCalls
	})
	admin.Wait()
}

// historyPlans are what a client may do with an order. Each is equally likely.
var historyPlans = []func(context.Context, *owner){
	func(context.Context, *owner) {},
	func(ctx context.Context, o *owner) { o.pay(ctx, 1) },
	func(ctx context.Context, o *owner) { o.cancel(ctx) },
	func(ctx context.Context, o *owner) {
		if o.pay(ctx, 1).status == http.StatusOK {
			o.refund(ctx)
		}
	},
}

// order returns an order of up to three units, or of one unit of each SKU.
func (h *historyLoad) order(buyer string, random *rand.Rand) order {
	skus := []string{h.goods.product, h.goods.coupon}
	if random.IntN(4) == 0 {
		return order{BuyerID: buyer, Lines: []line{{SKU: skus[0], Quantity: 1}, {SKU: skus[1], Quantity: 1}}}
	}
	return order{BuyerID: buyer, Lines: []line{{SKU: skus[random.IntN(2)], Quantity: 1 + random.Int64N(3)}}}
}

// sellOut lets the clients order one unit after the other until they are refused. Nothing
// is repeated or given back, so that every refusal must be exact.
func (h *historyLoad) sellOut(ctx context.Context) {
	h.crowd(ctx, func(ctx context.Context, name func() string, _ *rand.Rand, i, n int) (time.Duration, bool) {
		sku := []string{h.goods.product, h.goods.coupon}[i%2]
		a := h.take(ctx, i+n, oneUnit(name(), sku), false)
		if a.outcome == failed {
			return load.FailurePause, n < maxHistoryCalls
		}
		return 0, a.outcome != refused
	})
}

// crowd runs the clients.
func (h *historyLoad) crowd(ctx context.Context, act func(ctx context.Context, name func() string, random *rand.Rand, i, n int) (time.Duration, bool)) {
	randoms, names := make([]*rand.Rand, historyClients), make([]func() string, historyClients)
	for i := range randoms {
		seed := h.random.Uint64()
		randoms[i], names[i] = rand.New(rand.NewPCG(seed, 1)), buyers(seed, 2)
	}
	<-load.Crowd(ctx, historyClients, func(i, n int) (time.Duration, bool) {
		return act(history.As(ctx, fmt.Sprintf("client %d", i+1)), names[i], randoms[i], i, n)
	})
}

// take sends an order, and may repeat it under its key, by its plan. It follows an order that
// was queued to its end in the queue.
func (h *historyLoad) take(ctx context.Context, n int, asked order, repeats bool) answer {
	p := planOf(asked.BuyerID, asked.Lines[0].SKU)
	if p.repeat == later || !repeats {
		p.repeat = never
	}
	a := h.place(ctx, n, asked, p).answer
	h.rec.add(a)
	if a.outcome == queued {
		limited, cancel := context.WithTimeout(ctx, followLimit)
		h.followOne(limited, &a, func(try int) string { return h.fleet.url(n + try) })
		cancel()
	}
	return a
}

// setTotals changes the total of the SKU some times. It repeats each change until the change is
// answered.
func (h *historyLoad) setTotals(ctx context.Context, sku string, random *rand.Rand) {
	kind, total := client.Product, int64(historyUnits)
	if sku == h.goods.coupon {
		kind = client.Coupon
	}
	for n := range historySets {
		next := max(1, total+random.Int64N(9)-4)
		repeatUntil(ctx, finalLimit, load.FailurePause, func() (answered bool) {
			err := h.set(ctx, n, sku, client.Setting{Kind: kind, Total: next})
			if err == nil {
				total = next
			}
			n++ // the next try goes to another instance
			return err == nil || errors.Is(err, client.BelowSold)
		})
		_ = retry.Sleep(ctx, time.Duration(random.IntN(10))*time.Millisecond)
	}
}

func (h *historyLoad) set(ctx context.Context, n int, sku string, set client.Setting) error {
	s, err := h.admin.At(h.fleet.url(n))
	if err == nil {
		_, _, err = s.SetStock(ctx, sku, set)
	}
	return err
}

// rest waits until no order is pending, if orders expire. Then it reads every order, and waits
// until the counts of both SKUs agree and no units are in flight. Each wait lasts at most
// restLimit. The check then reports what is missing.
func (h *historyLoad) rest(ctx context.Context) error {
	if h.expires() {
		if err := h.awaitRest(ctx); err != nil {
			return err
		}
	}
	if err := h.readOrders(ctx); err != nil {
		return err
	}
	s, err := h.client.At(h.fleet.url(0))
	if err != nil {
		return err
	}
	for _, sku := range []string{h.goods.product, h.goods.coupon} {
		repeatUntil(ctx, restLimit, 20*time.Millisecond, func() bool {
			counts, err := s.Audit(history.As(ctx, "auditor"), sku)
			return err == nil && counts.Drift == 0 && (counts.GateInFlight == nil || *counts.GateInFlight == 0)
		})
	}
	return nil
}

// readOrders lists the orders of each buyer, and reads them and those that an answer named.
func (h *historyLoad) readOrders(ctx context.Context) error {
	ctx = history.As(ctx, "auditor")
	s, err := h.client.At(h.fleet.url(0))
	if err != nil {
		return err
	}
	buyers, ids := make(map[string]bool), make(map[string]bool)
	for _, a := range h.rec.answers {
		buyers[a.asked.BuyerID] = true
		if a.order.ID != "" {
			ids[a.order.ID] = true
		}
	}
	for buyer := range buyers {
		err := untilRead(ctx, func() error {
			page, err := s.ListOrders(ctx, client.OrderFilter{BuyerID: buyer})
			for _, o := range page.Orders {
				ids[o.ID] = true
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	for id := range ids {
		err := untilRead(ctx, func() error {
			_, err := s.Order(ctx, id)
			return err
		})
		if err != nil && !errors.Is(err, client.UnknownOrder) { // the check reports the order as missing
			return err
		}
	}
	return nil
}

// untilRead repeats a read until the service can answer it.
func untilRead(ctx context.Context, read func() error) (err error) {
	repeatUntil(ctx, restLimit, load.FailurePause, func() bool {
		err = read()
		return err == nil || errors.Is(err, client.UnknownOrder)
	})
	return err
}

// verdicts checks the history of this load.
func (h *historyLoad) verdicts() ([]history.Verdict, error) {
	if err := h.history.Err(); err != nil {
		return nil, err
	}
	calls, err := readHistory(h.History)
	if err != nil {
		return nil, err
	}
	all := history.Check(calls, history.Options{Timeout: historyTimeout})
	return slices.DeleteFunc(all, func(v history.Verdict) bool { return v.SKU != h.goods.product && v.SKU != h.goods.coupon }), nil
}

func readHistory(name string) ([]history.Call, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	calls, err := history.Read(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return calls, nil
}
