package main

import (
	"net/http"
	"runtime/debug"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly"
)

// newRegistry returns a registry with the metrics of the process and of its build.
func newRegistry() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		newBuildInfo(readBuild()))
	return registry
}

// registerPools adds the metrics of the connections to the stores.
func registerPools(registry *prometheus.Registry, s assembly.Stores) {
	registry.MustRegister(collectors.NewDBStatsCollector(s.SQL.Pool(), "ledger"))
	if s.Redis != nil {
		registry.MustRegister(newRedisPool(s.Redis.PoolStats))
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

func newBuildInfo(b build) prometheus.Collector {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "holdfast_build_info", Help: "1. The labels say what the instance runs.",
		ConstLabels: prometheus.Labels{"version": b.version, "commit": b.commit, "go_version": b.goVersion},
	})
	info.Set(1)
	return info
}

// redisPool collects the statistics of the connections to Redis. It is safe for
// concurrent use.
type redisPool struct {
	read    func() *redis.PoolStats
	metrics []poolMetric
}

// poolMetric is one metric of a pool.
type poolMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(s *redis.PoolStats) float64
}

func newRedisPool(read func() *redis.PoolStats) *redisPool {
	metric := func(name, help string, kind prometheus.ValueType, of func(s *redis.PoolStats) float64) poolMetric {
		return poolMetric{prometheus.NewDesc("holdfast_redis_pool_"+name, help, nil, nil), kind, of}
	}
	const counter, gauge = prometheus.CounterValue, prometheus.GaugeValue
	return &redisPool{read: read, metrics: []poolMetric{
		metric("hits_total", "Times that a free connection to Redis was found.", counter, func(s *redis.PoolStats) float64 { return float64(s.Hits) }),
		metric("misses_total", "Times that no free connection to Redis was found.", counter, func(s *redis.PoolStats) float64 { return float64(s.Misses) }),
		metric("timeouts_total", "Times that no connection to Redis became free in time.", counter, func(s *redis.PoolStats) float64 { return float64(s.Timeouts) }),
		metric("waits_total", "Times that a command waited for a connection to Redis.", counter, func(s *redis.PoolStats) float64 { return float64(s.WaitCount) }),
		metric("wait_seconds_total", "Time that commands waited for connections to Redis.", counter, func(s *redis.PoolStats) float64 { return float64(s.WaitDurationNs) / 1e9 }),
		metric("stale_connections_total", "Connections to Redis that were closed because they were stale.", counter, func(s *redis.PoolStats) float64 { return float64(s.StaleConns) }),
		metric("connections", "Open connections to Redis.", gauge, func(s *redis.PoolStats) float64 { return float64(s.TotalConns) }),
		metric("idle_connections", "Open connections to Redis that are not in use.", gauge, func(s *redis.PoolStats) float64 { return float64(s.IdleConns) }),
	}}
}

// Describe implements prometheus.Collector.
func (p *redisPool) Describe(to chan<- *prometheus.Desc) {
	for _, m := range p.metrics {
		to <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (p *redisPool) Collect(to chan<- prometheus.Metric) {
	stats := p.read()
	for _, m := range p.metrics {
		to <- prometheus.MustNewConstMetric(m.desc, m.kind, m.of(stats))
	}
}
