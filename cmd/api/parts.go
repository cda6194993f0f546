package main

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/order"
)

// parts returns what the flags say an instance is built from.
func (c config) parts() assembly.Parts {
	return assembly.Parts{
		Strategy: c.strategy, Guard: c.guard, Redis: c.redis, DB: c.db, Migrate: c.migrate,
		Locks: c.locks, Fence: c.fence, Segments: c.segments,
	}
}

// options returns what the flags say of an instance's rules.
func (c config) options(log *slog.Logger, metrics prometheus.Registerer) assembly.Options {
	return assembly.Options{
		TakeDeadline: c.takeDeadline, PaymentWindow: c.paymentWindow, LatePayments: order.Late(c.latePayment),
		Log: log, Metrics: metrics,
	}
}
