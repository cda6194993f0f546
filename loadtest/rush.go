package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// prefix begins the names of all SKUs and buyers of load tests.
const prefix = "lt-"

// buyers returns a function that names one buyer after the other. The names depend only
// on the seed and the stream.
func buyers(seed, stream uint64) func() string {
	random := rand.New(rand.NewPCG(seed, stream))
	return func() string { return fmt.Sprintf(prefix+"%016x", random.Uint64()) }
}

// loading is one load on a fleet.
type loading struct {
	*lab
	spec  assembly.Spec
	fleet *fleet
	rec   *record
	sku   string // the SKU of all its orders; of a lifecycle load, the product
}

// begin creates the units of a load.
func (l *lab) begin(ctx context.Context, spec assembly.Spec, f *fleet, part string, units int64) (*loading, error) {
	x := &loading{lab: l, spec: spec, fleet: f, rec: newRecord(), sku: fmt.Sprintf(prefix+"%s-%s-%s", l.runID, spec.Name, part)}
	l.created = append(l.created, x.sku) // the SKU may exist even if the call fails
	return x, l.admin.Create(ctx, f.url(0), x.sku, client.Setting{Kind: client.Product, Total: units})
}

// crowd is the clients of a rush. Each has one order under way.
type crowd struct {
	stop context.CancelFunc // stops the clients, so that no client sends another order
	done <-chan struct{}    // closed when all clients have finished
	// limited ends at --limit, or when the clients have finished or are stopped.
	limited context.Context
	clients []*buyer
}

// startCrowd starts the clients. A client finishes when it is refused, at the limit, or
// when the record is full. measured says that repeats wait for the end of the load.
func (l *loading) startCrowd(ctx context.Context, measured bool) *crowd {
	c := &crowd{}
	c.limited, c.stop = context.WithTimeout(ctx, l.Limit)
	names := make([]func() string, l.Clients)
	for i := range l.Clients {
		names[i] = buyers(l.Seed, uint64(i))
		c.clients = append(c.clients, &buyer{loading: l, measured: measured})
	}
	c.done = load.Crowd(c.limited, l.Clients, func(i, n int) (pause time.Duration, more bool) {
		name := names[i]()
		a := c.clients[i].order(ctx, i+n, oneUnit(name, l.sku), name)
		if n%sampleEvery == 0 {
			l.sample(ctx, a)
			l.sampleQueued(ctx, l.fleet.url(i+n+1), a)
		}
		if a.outcome == failed {
			pause = load.FailurePause
		}
		return pause, !l.rec.add(a) && a.outcome != refused
	})
	go func() {
		<-c.done
		c.stop()
	}()
	return c
}

// expired reports whether --limit has passed.
func (c *crowd) expired() bool { return errors.Is(c.limited.Err(), context.DeadlineExceeded) }

// due returns the orders that remain to be repeated. All clients must have finished.
func (c *crowd) due() (all []sent) {
	for _, b := range c.clients {
		all = append(all, b.due...)
	}
	return all
}

// maxKeysStock bounds the units of a rush with repeated keys.
const maxKeysStock = 1000

// rush is the closed load: each client orders one unit after the other until it is
// refused. It shows how fast a strategy sells and whether it oversells, but not how long
// buyers wait at a given rate. For conclusive see judge.
//
// A rush that is not measured repeats orders under their keys while units are left, so that a
// repeat could become a second order. A repeat costs more than an order, and would slow the
// strategies by different amounts.
func (l *lab) rush(ctx context.Context, spec assembly.Spec, f *fleet, part string, units int64, measured bool) (result *results.Result, conclusive bool, err error) {
	x, err := l.begin(ctx, spec, f, part, units)
	if err != nil {
		return nil, false, err
	}
	watch := x.startWatch(ctx, x.sku)
	defer watch.end()
	cost := x.startMeter(ctx)
	x.rec.start = time.Now() // of the orders
	name := spec.Name
	if !measured {
		name += ", repeated keys"
	}
	stop := x.showProgress(name)
	clients := x.startCrowd(ctx, measured)
	<-clients.done
	stop()
	end := soldOut
	switch {
	case ctx.Err() != nil:
		end = interrupted
	case clients.expired(), len(x.rec.answers) >= maxAnswers:
		end = atLimit
	}
	cost.stop(ctx)
	x.repeatAll(ctx, clients.due())
	x.follow(ctx)
	result = x.newResult(units)
	result.Describe("rush, %d clients", "抢购，%d 个客户端", l.Clients)
	if measured {
		addTimes(result, x.rec)
		cost.addTo(result)
	} else {
		result.Describe(", repeating orders under their keys", "，并用同一幂等键重复下单")
	}
	ctx = context.WithoutCancel(ctx) // audit an interrupted load too
	if err := x.audit(ctx, result, settledAfterLoad(spec)); err != nil {
		return result, false, err
	}
	watch.addTo(ctx, result)
	if !measured {
		result.Undersold = 0 // a repeat may hold a unit for a moment, and the last clients may be refused because of it
	}
	return result, judge(result, l.terms(spec, end)), nil
}

// progressEvery is the time between two lines about a load.
const progressEvery = 10 * time.Second

// showProgress reports that the load named so has begun, and how far it is, until stop is called.
func (l *loading) showProgress(name string) (stop func()) {
	l.tell("%s: loading\n", name)
	ctx, cancel := context.WithCancel(context.Background())
	var showing sync.WaitGroup
	showing.Go(func() {
		for retry.Sleep(ctx, progressEvery) == nil {
			l.tell("%s: %d accepted, %d refused, %d failed so far\n", name, l.rec.acknowledged(), l.rec.refused.Load(), l.rec.failed.Load())
		}
	})
	return func() {
		cancel()
		showing.Wait()
	}
}

// newResult returns a result with the numbers of answers. It is undecided until it is judged.
func (l *loading) newResult(stock int64) *results.Result {
	instances := l.Instances
	if len(l.Targets) > 0 {
		instances = len(l.Targets)
	}
	return &results.Result{
		Strategy: l.spec.Name, Sound: l.spec.Sound, Instances: instances, Stock: stock,
		Accepted: l.rec.accepted.Load(), Queued: l.rec.queued.Load(), TurnedDown: l.rec.turnedDown.Load(),
		Refused: l.rec.refused.Load(), Failed: l.rec.failed.Load(), Failures: l.rec.failures,
		Verdict: results.Undecided,
	}
}

const (
	// maxBeforeKill bounds the orders accepted before an instance is killed, and
	// again after its replacement has started.
	maxBeforeKill = 200
	// recoveryLimit bounds the wait for recovery.
	recoveryLimit = 20 * time.Second
)

// crashRush is a rush in which one instance is killed with SIGKILL and replaced. Once
// recovery has resolved the takes that the instance left, every order that was accepted
// must exist, and no unit may be missing or sold twice.
func (l *lab) crashRush(ctx context.Context, spec assembly.Spec, f *fleet) (*results.Result, error) {
	x, err := l.begin(ctx, spec, f, "crash", l.Stock)
	if err != nil {
		return nil, err
	}
	stop := x.showProgress(spec.Name + ", kill -9")
	clients := x.startCrowd(ctx, false)
	defer clients.stop()
	more := min(max(l.Stock/4, 1), maxBeforeKill)
	await := func(orders int64) {
		repeatUntil(clients.limited, l.Limit, time.Millisecond, func() bool { return x.rec.acknowledged() >= orders })
	}
	await(more)
	before, end := x.rec.acknowledged(), interrupted
	if ctx.Err() == nil {
		f.crash()
		before = x.rec.acknowledged()
		f.restart()
		await(before + more)
		end = crashed
	}
	clients.stop()
	<-clients.done
	stop()
	x.repeatAll(ctx, clients.due())
	x.follow(ctx)
	result := x.newResult(l.Stock)
	result.Describe("rush, %d clients, an instance killed after %d orders", "抢购，%d 个客户端，%d 单之后强杀一个实例", l.Clients, before)
	if err := x.audit(context.WithoutCancel(ctx), result, settled{recoveryLimit, counts.agree}); err != nil {
		return result, err
	}
	judge(result, l.terms(spec, end))
	return result, nil
}
