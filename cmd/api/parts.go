package main

import (
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/assembly"
)

// parts returns the parts of an instance as the flags name them.
func (c config) parts() assembly.Parts {
	return assembly.Parts{
		Strategy: c.strategy, Guard: c.Guard, Redis: c.Redis, DB: c.DB, Migrate: c.Migrate,
		Locks: c.Locks, Fence: c.Fence, Segments: c.Segments, Slots: c.Slots,
	}
}

// options returns the rules of an instance that the flags set.
func (c config) options(log *slog.Logger, metrics prometheus.Registerer) assembly.Options {
	return assembly.Options{
		TakeDeadline: c.TakeDeadline, PaymentWindow: c.PaymentWindow, LatePayments: c.LatePayment, SoldOutMemory: c.SoldOutMemory,
		Log: log, Metrics: metrics,
	}
}
