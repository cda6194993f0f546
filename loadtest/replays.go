package main

import (
	"bytes"
	"context"
	"fmt"
	"hash/fnv"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/lab/load"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// plan is how one order is sent.
type plan struct {
	key    string // Idempotency-Key; empty: none
	repeat repeat // when the request is repeated
	other  bool   // the repeat goes to another instance, if there is one
}

// repeat is when a request with a key is sent a second time.
type repeat int

const (
	never    repeat = iota
	together        // at the same time as the first time
	atOnce          // as soon as the first request was answered
	later           // after laterBy more orders of the client, or after the load
)

const (
	// laterBy is the number of orders of a client between an order and its later repeat.
	laterBy = 4
	// maxDue bounds the orders of a client that wait for the end of a measured load, and
	// are then repeated. Those of an open load are bounded by maxAllDue.
	maxDue, maxAllDue = 64, 2048
)

// planOf returns the plan of an order for the SKU. It depends only on the order's name,
// which tells the orders for that SKU apart. Half of the orders have a key and are sent a
// second time.
func planOf(name, sku string) plan {
	hash := fnv.New32a()
	_, _ = hash.Write([]byte(name)) // cannot fail
	bits := hash.Sum32()
	if bits&1 == 0 {
		return plan{}
	}
	p := plan{key: sku + "-" + name, other: bits&2 == 0}
	switch bits >> 2 & 3 {
	case 0:
		p.repeat = together
	case 1:
		p.repeat = atOnce
	default:
		p.repeat = later
	}
	return p
}

// again returns the number of the instance that gets the repeat of the n-th request.
func (p plan) again(n int) int {
	if p.other {
		return n + 1
	}
	return n
}

// sent is a request with its answer.
type sent struct {
	answer
	n    int // number that selected the instance
	plan plan
}

// try sends a request for the order once, to the n-th instance.
func (l *loading) try(ctx context.Context, n int, asked order, p plan) sent {
	got := l.client.Place(ctx, l.fleet.url(n), asked.request(p.key))
	l.rec.heard(got)
	return sent{answerTo(asked, got), n, p}
}

// place sends an order by its plan, except for a later repeat, and returns the answer that
// counts. A request with a key whose outcome is unknown is sent again, as a client would
// do. A refusal of the second request counts, because the service has looked up the key: an
// order that the audit finds under the key contradicts it.
func (l *loading) place(ctx context.Context, n int, asked order, p plan) sent {
	var (
		twin sent
		both sync.WaitGroup
	)
	if p.repeat == together {
		both.Go(func() { twin = l.try(ctx, p.again(n), asked, p) })
	}
	first := l.try(ctx, n, asked, p)
	both.Wait()
	if p.repeat == together {
		first = l.rec.pair(first, twin)
	}
	if p.key != "" && first.outcome == failed && first.unknown() && retry.Sleep(ctx, load.FailurePause) == nil {
		if second := l.try(ctx, n+1, asked, p); second.promised() || second.outcome == refused {
			second.Took += first.Took + load.FailurePause
			return second
		}
	}
	if p.repeat == atOnce {
		l.repeat(ctx, first)
	}
	return first
}

// pair compares the answers to two simultaneous requests with one key. It returns the one that is
// not marked as a repetition.
func (r *record) pair(first, twin sent) sent {
	switch {
	case first.promised() && !(twin.promised() && first.Replayed):
	case twin.promised(), twin.outcome == failed && twin.unknown(), first.Problem == client.InProgress: // the answer to the twin counts
		first, twin = twin, first
	}
	if !first.promised() {
		return first
	}
	r.repeats.Add(1)
	switch {
	case twin.promised():
		r.compare(first, twin)
	case twin.outcome == failed && twin.Problem != client.InProgress:
		r.fail("repeat: " + twin.Failure())
		r.repeatsFailed.Add(1)
	}
	return first
}

// repeat sends again a request whose answer named an order, and compares the answers. They must be
// the same, whatever happened to the order and the stock since.
func (l *loading) repeat(ctx context.Context, first sent) {
	if !first.promised() {
		return
	}
	n := first.plan.again(first.n)
	second := l.try(ctx, n, first.asked, first.plan)
	l.rec.repeats.Add(1)
	switch {
	case second.outcome == failed:
		l.rec.fail("repeat: " + second.Failure())
		l.rec.repeatsFailed.Add(1)
	case first.Outcome() == queued && !second.repeats(first) && l.wasTurnedDown(ctx, l.fleet.url(n), first.order.ID):
		second.at = time.Since(l.rec.start) // the key was free again, so this is another order
		if second.promised() {
			l.rec.add(second.answer)
		}
	default:
		l.rec.compare(first, second)
	}
}

// wasTurnedDown reports whether the service says that a queued order was refused.
func (l *lab) wasTurnedDown(ctx context.Context, url, id string) bool {
	status, got := l.look(ctx, url, id)
	return status == http.StatusOK && got.Status == client.OrderRefused
}

// repeats reports whether the answer is a repetition of the first one, byte for byte.
func (s sent) repeats(first sent) bool {
	return s.Replayed && s.Status == first.Status && bytes.Equal(s.Body, first.Body)
}

// compare checks that the second answer to a key repeats the first one.
func (r *record) compare(first, second sent) {
	if second.repeats(first) {
		return
	}
	got := second.Failure()
	if second.promised() {
		got = fmt.Sprintf("%d with %v", second.Status, second.order)
	}
	r.find(results.OtherReplay, fmt.Sprintf("%v under key %q, then %s, marked as a repetition: %t", first.order, first.plan.key, got, second.Replayed))
}

// buyer is a client of the crowd: it sends one order after the other, and repeats.
type buyer struct {
	*loading
	measured bool   // repeats wait until the load has been measured
	due      []sent // requests to repeat
}

// order sends an order by its plan, and repeats an earlier one if it is due. name tells the orders
// apart. Orders that are due at the end are left to repeatAll.
func (c *buyer) order(ctx context.Context, n int, asked order, name string) answer {
	p := planOf(name, asked.Lines[0].SKU)
	if c.measured && p.repeat != never {
		p.repeat = later
	}
	s := c.place(ctx, n, asked, p)
	s.at = time.Since(c.rec.start)
	if p.repeat == later && (!c.measured || len(c.due) < maxDue) {
		c.due = append(c.due, s)
	}
	if !c.measured && len(c.due) > 0 && n >= c.due[0].n+laterBy {
		c.repeat(ctx, c.due[0])
		c.due = c.due[1:]
	}
	return s.answer
}

// repeatAll repeats the orders that are left after a load, some at a time.
func (l *loading) repeatAll(ctx context.Context, all []sent) {
	var repeaters errgroup.Group
	repeaters.SetLimit(maxReaders)
	for _, s := range all {
		repeaters.Go(func() error {
			if ctx.Err() == nil {
				l.repeat(ctx, s)
			}
			return nil
		})
	}
	_ = repeaters.Wait()
}
