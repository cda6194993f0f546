package assembly

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// TestLockMetrics checks which series each event changes.
func TestLockMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m := newLockMetrics(registry)
	for _, e := range []lock.Event{
		{What: lock.Granted, Took: time.Second},
		{What: lock.Refused, Err: fmt.Errorf("locking a: %w", lock.ErrHeld)},
		{What: lock.Refused, Err: context.DeadlineExceeded},
		{What: lock.Refused, Err: context.Canceled},
		{What: lock.Refused, Err: fmt.Errorf("no majority")},
		{What: lock.Released, Took: 2 * time.Second},
		{What: lock.Lost, Took: 3 * time.Second, Err: lock.ErrExpired},
		{What: lock.Lost, Err: lock.ErrDeleted},
		{What: lock.Lost, Err: lock.ErrSessionExpired},
		{What: lock.Lost, Err: lock.ErrDisconnected},
		{What: lock.Lost, Err: lock.ErrLost},
	} {
		m.observe(e)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]float64)
	for _, f := range families {
		for _, series := range f.GetMetric() {
			name := f.GetName()
			for _, label := range series.GetLabel() {
				name += " " + label.GetValue()
			}
			if h := series.GetHistogram(); h != nil {
				got[name] = h.GetSampleSum()
			} else {
				got[name] = series.GetCounter().GetValue()
			}
		}
	}
	want := map[string]float64{
		"holdfast_lock_requests_total granted": 1, "holdfast_lock_requests_total held": 2,
		"holdfast_lock_requests_total cancelled": 1, "holdfast_lock_requests_total failed": 1,
		"holdfast_lock_lost_total expired": 1, "holdfast_lock_lost_total deleted": 1,
		"holdfast_lock_lost_total session_expired": 1, "holdfast_lock_lost_total disconnected": 1,
		"holdfast_lock_lost_total unknown": 1,
		"holdfast_lock_wait_seconds":       1, "holdfast_lock_held_seconds": 5,
	}
	for name, value := range want {
		if got[name] != value {
			t.Errorf("%s is %v, want %v", name, got[name], value)
		}
	}
	if len(got) != len(want) {
		t.Errorf("the series are %v, want %v", got, want)
	}
}
