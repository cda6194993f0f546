package assembly

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/holdfast-stock/holdfast/internal/latency"
	"github.com/holdfast-stock/holdfast/internal/lock"
)

// lockMetrics counts what happens to the strategy's locks. No label holds a lock's name, so that
// the number of series stays bounded. Every label value is present from the start.
type lockMetrics struct {
	requests *prometheus.CounterVec
	lost     *prometheus.CounterVec
	wait     prometheus.Histogram
	held     prometheus.Histogram
}

func newLockMetrics(r prometheus.Registerer) *lockMetrics {
	auto := promauto.With(r)
	m := &lockMetrics{
		requests: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_lock_requests_total", Help: "Requests for the strategy's locks, by result.",
		}, []string{"result"}),
		lost: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "holdfast_lock_lost_total", Help: "Locks that were lost before they were unlocked, by reason.",
		}, []string{"reason"}),
		wait: auto.NewHistogram(latency.Options("holdfast_lock_wait_seconds", "Time from a request for a lock to its grant.")),
		// Buckets beyond 10 s are near the default of --lease, and above it.
		held: auto.NewHistogram(latency.Options("holdfast_lock_held_seconds", "Time from the grant of a lock until it is unlocked or lost.", 20, 30, 60)),
	}
	for _, result := range []string{granted, held, cancelled, failed} {
		m.requests.WithLabelValues(result)
	}
	for _, reason := range []string{expired, deleted, sessionExpired, disconnected, unknown} {
		m.lost.WithLabelValues(reason)
	}
	return m
}

// The labels of requests for locks.
const granted, held, cancelled, failed = "granted", "held", "cancelled", "failed"

// The labels of lost locks.
const expired, deleted, sessionExpired, disconnected, unknown = "expired", "deleted", "session_expired", "disconnected", "unknown"

// observe counts an event of a lock.
func (m *lockMetrics) observe(e lock.Event) {
	switch e.What {
	case lock.Granted:
		m.requests.WithLabelValues(granted).Inc()
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
		return held
	case errors.Is(err, context.Canceled):
		return cancelled
	}
	return failed
}

// lossReason is the label of a lost lock.
func lossReason(err error) string {
	switch {
	case errors.Is(err, lock.ErrExpired):
		return expired
	case errors.Is(err, lock.ErrDeleted):
		return deleted
	case errors.Is(err, lock.ErrSessionExpired):
		return sessionExpired
	case errors.Is(err, lock.ErrDisconnected):
		return disconnected
	}
	return unknown
}
