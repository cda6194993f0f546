package main

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// lockMetrics counts what happens to the strategy's locks. No label holds a lock's
// name, so that the number of series stays bounded.
type lockMetrics struct {
	requests *prometheus.CounterVec
	lost     *prometheus.CounterVec
	wait     prometheus.Histogram
	held     prometheus.Histogram
}

func newLockMetrics(r prometheus.Registerer) *lockMetrics {
	latency := prometheus.ExponentialBuckets(0.0001, 2, 16) // 100 µs to 3.3 s
	m := &lockMetrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_lock_requests_total", Help: "Requests for the strategy's locks, by result.",
		}, []string{"result"}),
		lost: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_lock_lost_total", Help: "Locks that were lost before they were unlocked, by reason.",
		}, []string{"reason"}),
		wait: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_lock_wait_seconds", Help: "Time from a request for a lock to its grant.", Buckets: latency,
		}),
		held: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "holdfast_lock_held_seconds", Help: "Time from the grant of a lock until it is unlocked or lost.", Buckets: latency,
		}),
	}
	r.MustRegister(m.requests, m.lost, m.wait, m.held)
	return m
}

// observe counts an event.
func (m *lockMetrics) observe(e lock.Event) {
	switch e.What {
	case lock.Granted:
		m.requests.WithLabelValues("granted").Inc()
		m.wait.Observe(e.Took.Seconds())
	case lock.Refused:
		m.requests.WithLabelValues(refusal(e.Err)).Inc()
	case lock.Lost:
		m.lost.WithLabelValues(lossReason(e.Err)).Inc()
		m.held.Observe(e.Took.Seconds())
	case lock.Released:
		m.held.Observe(e.Took.Seconds())
	}
}

// refusal is the label of a request that was not granted.
func refusal(err error) string {
	switch {
	case errors.Is(err, lock.ErrHeld), errors.Is(err, context.DeadlineExceeded):
		return "held"
	case errors.Is(err, context.Canceled):
		return "cancelled"
	}
	return "failed"
}

// lossReason is the label of a lost lock.
func lossReason(err error) string {
	switch {
	case errors.Is(err, lock.ErrExpired):
		return "expired"
	case errors.Is(err, lock.ErrDeleted):
		return "deleted"
	case errors.Is(err, lock.ErrSessionExpired):
		return "session_expired"
	case errors.Is(err, lock.ErrDisconnected):
		return "disconnected"
	}
	return "unknown"
}
