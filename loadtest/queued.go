package main

import (
	"context"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/holdfast-stock/holdfast/client"
	"github.com/holdfast-stock/holdfast/internal/retry"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

const (
	// followLimit bounds the wait for the end of all queued orders together. The orders of a killed
	// instance wait 5 s for another instance.
	followLimit = 30 * time.Second
	// followPause is the pause between two reads of an order.
	followPause = 20 * time.Millisecond
)

// follow waits until the orders that were answered 202 have ended, and counts them as
// accepted or as turned down. An order that no instance knows counts as accepted: the
// audit reports it as missing. An order that is still queued at followLimit is a finding.
// Call it after the load, also after an interrupted one.
func (l *loading) follow(ctx context.Context) {
	if l.rec.queued.Load() == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), followLimit)
	defer cancel()
	var readers errgroup.Group
	readers.SetLimit(maxReaders)
	for i := range l.rec.answers {
		if l.rec.answers[i].outcome == queued {
			readers.Go(func() error {
				l.followOne(ctx, &l.rec.answers[i], func(try int) string { return l.fleet.url(i + try) })
				return nil
			})
		}
	}
	_ = readers.Wait()
}

// followOne follows one order. It asks the instance url(n) at the n-th try.
func (l *loading) followOne(ctx context.Context, a *answer, url func(try int) string) {
	for try := 0; ; try++ {
		status, got := l.look(ctx, url(try), a.order.ID)
		switch {
		case status == http.StatusNotFound:
			a.outcome, a.order.Status = accepted, ""
			l.rec.accepted.Add(1)
			return
		case status == http.StatusOK && got.Status == client.OrderRefused:
			a.outcome, a.order.Status = turnedDown, got.Status
			l.rec.turnedDown.Add(1)
			return
		case status == http.StatusOK && got.Status != client.OrderQueued:
			a.outcome, a.order.Status = accepted, got.Status
			l.rec.accepted.Add(1)
			return
		}
		if retry.Sleep(ctx, followPause) != nil {
			l.rec.find(results.Unended, a.order.String())
			return
		}
	}
}

// sampleQueued looks an order up right after its 202, at another instance. Every instance
// must know it.
func (l *loading) sampleQueued(ctx context.Context, url string, a answer) {
	if a.outcome != queued {
		return
	}
	status, _ := l.look(ctx, url, a.order.ID)
	switch status {
	case http.StatusNotFound:
		l.rec.find(results.Unseen, a.order.String())
	case http.StatusOK:
	default: // no answer, for example because the instance was killed
		return
	}
	l.rec.mu.Lock()
	defer l.rec.mu.Unlock()
	l.rec.sampled++
}

// look reads an order from the service. A status of 0 means that there was no answer, or a 200 that
// is no order.
func (l *lab) look(ctx context.Context, url, id string) (status int, got order) {
	a := l.client.Send(ctx, url, func(ctx context.Context, s *client.Client) (client.Order, error) {
		o, err := s.Order(ctx, id)
		return o.Order, err
	})
	if a.Status == http.StatusOK && a.Order == nil {
		return 0, got
	}
	return a.Status, orderIn(a)
}
