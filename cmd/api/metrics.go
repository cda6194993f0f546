package main

import (
	"net/http"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
)

// newRegistry returns a registry with the metrics of the process and of its build.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	registerBuildInfo(registry, readBuild())
	return registry
}

// registerPools adds the metrics of the connections to the stores.
func registerPools(registry *prometheus.Registry, s assembly.Stores) {
	registry.MustRegister(collectors.NewDBStatsCollector(s.SQL.Pool(), "ledger"))
	if s.Redis != nil {
		registerRedisPool(registry, s.Redis.PoolStats)
	}
}

// metricsHandler serves the metrics. It speaks OpenMetrics to clients that ask for it.
func metricsHandler(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{Registry: registry, EnableOpenMetrics: true})
}

// build says what the program was built from. A field that cannot be read is "unknown".
type build struct{ version, commit, goVersion string }

const unknown = "unknown"

// readBuild reads what the build recorded in the program.
func readBuild() build {
	b := build{unknown, unknown, unknown}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	b.goVersion = info.GoVersion
	if info.Main.Version != "" {
		b.version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.commit = s.Value
		}
	}
	return b
}

// registerBuildInfo adds the metric that says what the instance runs.
func registerBuildInfo(registry *prometheus.Registry, b build) {
	promauto.With(registry).NewGauge(prometheus.GaugeOpts{
		Name: "holdfast_build_info", Help: "1. The labels say what the instance runs.",
		ConstLabels: prometheus.Labels{"version": b.version, "commit": b.commit, "go_version": b.goVersion},
	}).Set(1)
}

// registerRedisPool adds the statistics of the connections to Redis, as read returns them.
func registerRedisPool(registry *prometheus.Registry, read func() *redis.PoolStats) {
	auto := promauto.With(registry)
	counter := func(name, help string, of func(s *redis.PoolStats) float64) {
		opts := prometheus.CounterOpts{Name: "holdfast_redis_pool_" + name, Help: help}
		auto.NewCounterFunc(opts, func() float64 { return of(read()) })
	}
	gauge := func(name, help string, of func(s *redis.PoolStats) float64) {
		opts := prometheus.GaugeOpts{Name: "holdfast_redis_pool_" + name, Help: help}
		auto.NewGaugeFunc(opts, func() float64 { return of(read()) })
	}
	counter("hits_total", "Times that a free connection to Redis was found.", func(s *redis.PoolStats) float64 { return float64(s.Hits) })
	counter("misses_total", "Times that no free connection to Redis was found.", func(s *redis.PoolStats) float64 { return float64(s.Misses) })
	counter("timeouts_total", "Times that no connection to Redis became free in time.", func(s *redis.PoolStats) float64 { return float64(s.Timeouts) })
	counter("waits_total", "Times that a command waited for a connection to Redis.", func(s *redis.PoolStats) float64 { return float64(s.WaitCount) })
	counter("wait_seconds_total", "Time that commands waited for connections to Redis.", func(s *redis.PoolStats) float64 { return float64(s.WaitDurationNs) / 1e9 })
	counter("stale_connections_total", "Connections to Redis that were closed because they were stale.", func(s *redis.PoolStats) float64 { return float64(s.StaleConns) })
	gauge("connections", "Open connections to Redis.", func(s *redis.PoolStats) float64 { return float64(s.TotalConns) })
	gauge("idle_connections", "Open connections to Redis that are not in use.", func(s *redis.PoolStats) float64 { return float64(s.IdleConns) })
}
