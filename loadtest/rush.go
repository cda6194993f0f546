package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
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
func (l *lab) startCrowd(ctx context.Context, f *fleet, sku string, rec *record, measured bool) *crowd {
	c := &crowd{}
	c.limited, c.stop = context.WithTimeout(ctx, l.Limit)
	names := make([]func() string, l.Clients)
	for i := range l.Clients {
		names[i] = buyers(l.Seed, uint64(i))
		c.clients = append(c.clients, &buyer{lab: l, fleet: f, rec: rec, measured: measured})
	}
	c.done = load.Crowd(c.limited, l.Clients, func(i, n int) (pause time.Duration, more bool) {
		name := names[i]()
		a := c.clients[i].order(ctx, i+n, oneUnit(name, sku), name)
		if n%sampleEvery == 0 {
			l.sample(ctx, rec, a)
			l.sampleQueued(ctx, rec, f.url(i+n+1), a)
		}
		if a.outcome == failed {
			pause = load.FailurePause
		}
		return pause, !rec.add(a) && a.outcome != refused
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
	sku, err := l.createStock(ctx, f, spec, part, units)
	if err != nil {
		return nil, false, err
	}
	watch := l.startWatch(ctx, spec, f, sku)
	defer watch.end()
	cost := l.startMeter(ctx, f.pids())
	rec := newRecord()
	name := spec.Name
	if !measured {
		name += ", repeated keys"
	}
	l.tell("%s: loading\n", name)
	clients := l.startCrowd(ctx, f, sku, rec, measured)
	<-clients.done
	end := soldOut
	switch {
	case ctx.Err() != nil:
		end = interrupted
	case clients.expired(), len(rec.answers) >= maxAnswers:
		end = atLimit
	}
	cost.stop(ctx)
	l.repeatAll(ctx, rec, f, clients.due())
	l.follow(ctx, rec, f)
	result = l.newResult(spec, rec, units)
	result.Describe("rush, %d clients", "抢购，%d 个客户端", l.Clients)
	if measured {
		addTimes(result, rec)
		cost.addTo(result)
	} else {
		result.Describe(", repeating orders under their keys", "，并用同一幂等键重复下单")
	}
	ctx = context.WithoutCancel(ctx) // audit an interrupted load too
	if err := l.audit(ctx, result, rec, f, sku, settledAfterLoad(spec)); err != nil {
		return result, false, err
	}
	watch.addTo(ctx, result)
	if !measured {
		result.Undersold = 0 // a repeat may hold a unit for a moment, and the last clients may be refused because of it
	}
	return result, judge(result, l.terms(spec, end)), nil
}

// newResult returns a result with the numbers of answers. It is undecided until it is judged.
func (l *lab) newResult(spec assembly.Spec, rec *record, stock int64) *results.Result {
	instances := l.Instances
	if len(l.Targets) > 0 {
		instances = len(l.Targets)
	}
	return &results.Result{
		Strategy: spec.Name, Sound: spec.Sound, Instances: instances, Stock: stock,
		Accepted: rec.accepted.Load(), Queued: rec.queued.Load(), TurnedDown: rec.turnedDown.Load(),
		Refused: rec.refused.Load(), Failed: rec.failed.Load(), Failures: rec.failures,
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
	sku, err := l.createStock(ctx, f, spec, "crash", l.Stock)
	if err != nil {
		return nil, err
	}
	rec := newRecord()
	l.tell("%s, kill -9: loading\n", spec.Name)
	clients := l.startCrowd(ctx, f, sku, rec, false)
	defer clients.stop()
	more := min(max(l.Stock/4, 1), maxBeforeKill)
	await := func(orders int64) {
		repeatUntil(clients.limited, l.Limit, time.Millisecond, func() bool { return rec.acknowledged() >= orders })
	}
	await(more)
	before, end := rec.acknowledged(), interrupted
	if ctx.Err() == nil {
		f.crash()
		before = rec.acknowledged()
		f.restart()
		await(before + more)
		end = crashed
	}
	clients.stop()
	<-clients.done
	l.repeatAll(ctx, rec, f, clients.due())
	l.follow(ctx, rec, f)
	result := l.newResult(spec, rec, l.Stock)
	result.Describe("rush, %d clients, an instance killed after %d orders", "抢购，%d 个客户端，%d 单之后强杀一个实例", l.Clients, before)
	if err := l.audit(context.WithoutCancel(ctx), result, rec, f, sku, settled{recoveryLimit, counts.agree}); err != nil {
		return result, err
	}
	judge(result, l.terms(spec, end))
	return result, nil
}
