package main

import (
	"context"
	"fmt"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lab/machine"
	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/internal/lab/table"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// maxWhole bounds the wait until every count is at the gate.
const maxWhole = 30 * time.Minute

// refillsTotal counts the counts that the service has filled.
const refillsTotal = "holdfast_gate_refills_total"

// many measures what the number of stock rows costs: starts, a change of strategy,
// the sweeps at rest, and an emptied Redis.
func (l *lab) many(ctx context.Context) error {
	if err := l.reset(ctx, variant{strategy: "before"}, situation{skus: l.Rows}); err != nil {
		return err
	}
	results := table.New(fmt.Sprintf("%d stock rows", l.Rows), "")
	defer results.WriteMarkdown(l.report)
	add := func(what, format string, values ...any) {
		results.Add(what, fmt.Sprintf(format, values...))
		fmt.Fprintf(l.progress, "%s many: %s: %s\n", l.database, what, fmt.Sprintf(format, values...))
	}
	var api *testenv.APIServer
	stop := func() {
		if api != nil {
			testenv.End(api)
		}
	}
	defer func() { stop() }()
	sku := 0
	// refill measures the first order of a SKU, and the time until every count is at the gate.
	// refills is the service's counter beforehand.
	refill := func(when string, refills float64) error {
		begin := time.Now()
		sku += l.Rows / 7
		if err := l.order(ctx, api.URL(), "u-1", fmt.Sprint("s", 1+sku%l.Rows)); err != nil {
			return err
		}
		add("first order "+when, "%d ms", time.Since(begin).Milliseconds())
		slowest, err := l.untilWhole(ctx, api, refills)
		if err != nil {
			return err
		}
		add("every count is filled "+when, "after %.0f s; of an order each 100 ms meanwhile, the slowest took %d ms", time.Since(begin).Seconds(), slowest.Milliseconds())
		add("the service's memory "+when, "%.1f MiB", machine.ResidentMiB(api.PID()))
		return nil
	}
	for _, strategy := range []string{"lua", "segment"} {
		stop()
		begin := time.Now()
		api = l.serve(strategy)
		add("start to ready, "+strategy+" after another strategy", "%d ms", time.Since(begin).Milliseconds())
		if err := refill("after the start of "+strategy, 0); err != nil {
			return err
		}
		if strategy != "lua" {
			continue
		}
		l.atRest(api, add)
		counters, err := measure.Counters(ctx, api.URL()+"/metrics")
		if err != nil {
			return err
		}
		if err := l.client.FlushAll(ctx).Err(); err != nil {
			return err
		}
		if err := refill("after FLUSHALL", counters[refillsTotal]); err != nil {
			return err
		}
		stop()
		begin = time.Now()
		api = l.serve(strategy)
		add("start to ready, the same strategy", "%d ms", time.Since(begin).Milliseconds())
	}
	return nil
}

// untilWhole waits until the service has filled every count since its counter stood at refills.
// Meanwhile it places an order every 100 ms. It returns the duration of the slowest order.
func (l *lab) untilWhole(ctx context.Context, api *testenv.APIServer, refills float64) (slowest time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxWhole)
	defer cancel()
	for n := 0; ; n++ {
		begin := time.Now()
		if err := l.order(ctx, api.URL(), "u-2", fmt.Sprint("s", 1+n*7919%l.Rows)); err != nil {
			return 0, err
		}
		slowest = max(slowest, time.Since(begin))
		now, err := measure.Counters(ctx, api.URL()+"/metrics")
		if err != nil {
			return 0, err
		}
		if now[refillsTotal]-refills >= float64(l.Rows) {
			return slowest, nil
		}
		time.Sleep(100 * time.Millisecond) // the pace of the orders
	}
}

// atRest measures the CPU time of each process while no request is sent.
func (l *lab) atRest(api *testenv.APIServer, add func(what, format string, values ...any)) {
	before := l.cpu(service{api})
	time.Sleep(time.Duration(l.Seconds) * time.Second) // the measurement
	after := l.cpu(service{api})
	share := func(before, after time.Duration) float64 {
		return 100 * (after - before).Seconds() / float64(l.Seconds)
	}
	add("at rest, of one processor", "%.2f %% Redis, %.2f %% the database, %.2f %% the service",
		share(before.redis, after.redis), share(before.db, after.db), share(before.app, after.app))
}
