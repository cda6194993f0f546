package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
)

// place posts an order for one unit, and returns the record of it.
func (l *lab) place(ctx context.Context, url, sku, buyer string) (a answer) {
	a.asked = oneUnit(buyer, sku)
	start := time.Now()
	status, text, err := l.post(ctx, url+"/orders", a.asked.body())
	a.took = time.Since(start)
	if err != nil {
		status, text = 0, []byte(err.Error())
	}
	a.read(status, text)
	return a
}

func (l *lab) post(ctx context.Context, url string, body []byte) (status int, text []byte, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := l.client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	text, err = io.ReadAll(response.Body)
	return response.StatusCode, text, err
}

// mark begins the names of the SKUs and buyers that the harness makes up.
const mark = "lt-"

// buyers names the buyers of one client, or of one rate. Who they are depends on
// the seed and on nothing else.
func buyers(seed, stream uint64) func() string {
	random := rand.New(rand.NewPCG(seed, stream))
	return func() string { return fmt.Sprintf(mark+"%016x", random.Uint64()) }
}

// failurePause is how long a client waits after a failure before it asks again.
const failurePause = 10 * time.Millisecond

// crowd is the clients of a rush, each with one order at a time.
type crowd struct {
	// leave has every client finish the order under way and go.
	leave context.CancelFunc
	gone  chan struct{} // closed when all have gone
	// limited ends with --limit, or before.
	limited context.Context
}

// crowd sends the clients in. Each goes when it hears that all units are sold, at
// the limit, or when the record is full.
func (l *lab) crowd(ctx context.Context, f *fleet, sku string, rec *record) *crowd {
	c := &crowd{gone: make(chan struct{})}
	c.limited, c.leave = context.WithTimeout(ctx, l.limit)
	var clients sync.WaitGroup
	for i := range l.clients {
		buyer := buyers(l.seed, uint64(i))
		clients.Go(func() {
			for n := 0; c.limited.Err() == nil; n++ {
				a := l.place(ctx, f.url(i+n), sku, buyer())
				a.at = time.Since(rec.start)
				if n%sampleEvery == 0 {
					l.sample(ctx, rec, a)
				}
				if rec.add(a) || a.outcome == refused {
					return
				}
				if a.outcome == failed {
					time.Sleep(failurePause)
				}
			}
		})
	}
	go func() {
		clients.Wait()
		close(c.gone)
	}()
	return c
}

// await waits until the condition holds, or all clients have gone.
func (c *crowd) await(condition func() bool) {
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for !condition() {
		select {
		case <-c.gone:
			return
		case <-ticker.C:
		}
	}
}

// expired reports whether the limit ended the rush.
func (c *crowd) expired() bool { return errors.Is(c.limited.Err(), context.DeadlineExceeded) }

// rush is the closed load: each client orders one unit after the other until it
// hears that all are sold. It says how fast a strategy sells and whether it
// oversells, not how long one would wait at a given rate.
func (l *lab) rush(ctx context.Context, spec strategy.Spec, f *fleet, try int) (*Result, error) {
	sku, err := l.lay(ctx, f, spec, fmt.Sprint(try), l.stock)
	if err != nil {
		return nil, err
	}
	caught := l.guardCaught(ctx, spec, f)
	cost := l.meter(ctx, f.pids())
	rec := newRecord()
	stop := l.display.show(spec.Name, l.stock, rec)
	clients := l.crowd(ctx, f, sku, rec)
	<-clients.gone
	end := soldOut
	switch {
	case ctx.Err() != nil:
		end = interrupted
	case clients.expired(), len(rec.answers) >= maxAnswers:
		end = atLimit
	}
	clients.leave()
	stop()
	cost.stop(ctx)
	result := l.result(spec, rec, l.stock)
	result.Load = fmt.Sprintf("rush, %d clients", l.clients)
	result.timed(rec)
	cost.into(result, rec.accepted.Load())
	// What was cut short is audited all the same.
	ctx = context.WithoutCancel(ctx)
	result.Caught = since(caught, l.guardCaught(ctx, spec, f))
	if err := l.audit(ctx, result, rec, f, sku, restOf(spec)); err != nil {
		return result, err
	}
	result.judge(l.terms(spec, end))
	return result, nil
}

const (
	// killAfter bounds the orders that are accepted before an instance is killed,
	// and again after it is back.
	killAfter = 200
	// crashRest bounds the wait for recovery.
	crashRest = 20 * time.Second
)

// crash is a rush in which one instance is killed with SIGKILL and started again.
// Afterwards, when recovery has resolved what the dead instance left, every order
// that was answered 201 must be there, and no unit be missing or sold twice.
func (l *lab) crash(ctx context.Context, spec strategy.Spec, f *fleet) (*Result, error) {
	sku, err := l.lay(ctx, f, spec, "crash", l.stock)
	if err != nil {
		return nil, err
	}
	rec := newRecord()
	stop := l.display.show(spec.Name+", kill -9", l.stock, rec)
	clients := l.crowd(ctx, f, sku, rec)
	defer clients.leave()
	more := min(max(l.stock/4, 1), killAfter)
	clients.await(func() bool { return rec.accepted.Load() >= more })
	before, end := rec.accepted.Load(), interrupted
	if ctx.Err() == nil {
		f.crash()
		before = rec.accepted.Load()
		f.restart()
		clients.await(func() bool { return rec.accepted.Load() >= before+more })
		end = crashed
	}
	clients.leave()
	<-clients.gone
	stop()
	result := l.result(spec, rec, l.stock)
	result.Load = fmt.Sprintf("rush, %d clients, an instance killed after %d orders", l.clients, before)
	if err := l.audit(context.WithoutCancel(ctx), result, rec, f, sku, rest{crashRest, counts.agree}); err != nil {
		return result, err
	}
	result.judge(l.terms(spec, end))
	return result, nil
}
