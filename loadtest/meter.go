package main

import (
	"context"
	"net"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/lab/machine"
	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/loadtest/results"
)

// meter measures the CPU time that a load costs the instances, Redis, the database and
// the gateway.
type meter struct {
	lab                      *lab
	instances, gateway       []int // process IDs; empty if the processes are not on this machine
	api, redis, sql, gateCPU time.Duration
	// Whether the CPU time of Redis and of the database can be measured.
	redisKnown, sqlKnown bool
}

func (l *loading) startMeter(ctx context.Context) *meter {
	m := &meter{lab: l.lab, instances: l.fleet.pids()}
	for _, target := range l.Targets {
		m.addTarget(target)
	}
	m.api, m.gateCPU = machine.CPUTime(m.instances), machine.CPUTime(m.gateway)
	database := l.databaseProcesses()
	m.sql, m.sqlKnown = machine.CPUTime(database), len(database) > 0
	m.redis, m.redisKnown = l.redisCPU(ctx)
	return m
}

// gateways are the names of processes that pass requests on to the service.
var gateways = []string{"nginx", "openresty", "haproxy", "envoy", "caddy", "traefik"}

// addTarget adds the processes that listen at a target on this machine: the service, or a gateway.
// It leaves out other listeners, such as a forwarded port of a container.
func (m *meter) addTarget(target string) {
	for _, pid := range listeningAt(target) {
		switch name := machine.Name(pid); {
		case name == "api":
			m.instances = append(m.instances, pid)
		case slices.Contains(gateways, name):
			m.gateway = append(m.gateway, pid)
		}
	}
}

// stop ends the measurement.
func (m *meter) stop(ctx context.Context) {
	redis, known := m.lab.redisCPU(ctx)
	m.api, m.gateCPU = machine.CPUTime(m.instances)-m.api, machine.CPUTime(m.gateway)-m.gateCPU
	m.sql = machine.CPUTime(m.lab.databaseProcesses()) - m.sql // PostgreSQL has a process for each connection
	m.redis, m.redisKnown = redis-m.redis, m.redisKnown && known
}

// addTo adds the cost of each accepted order to the result, if it is known.
func (m *meter) addTo(r *results.Result) {
	if r.Accepted == 0 {
		return
	}
	each := func(cpu time.Duration) *float64 {
		millis := measure.Millis(cpu) / float64(r.Accepted)
		return &millis
	}
	if len(m.instances) > 0 {
		r.APICPU = each(m.api)
	}
	if len(m.gateway) > 0 {
		r.GatewayCPU = each(m.gateCPU)
	}
	if m.redisKnown {
		r.RedisCPU = each(m.redis)
	}
	if m.sqlKnown {
		r.DatabaseCPU = each(m.sql)
	}
}

// databaseProcesses returns the processes of the database server: those that listen on
// its port, and their descendants. There are none if it runs on another machine.
func (l *lab) databaseProcesses() []int { return listeningAt(l.DB) }

// listeningAt returns the processes that listen at a URL, and their descendants. It returns none if
// the URL names another machine, or no port.
func listeningAt(address string) []int {
	u, err := url.Parse(address)
	if err != nil || u.Port() == "" {
		return nil
	}
	if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return nil
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		return nil
	}
	return machine.Listening(port)
}

// redisCPU returns the CPU time that Redis reports. It is unknown for a cluster and for the
// embedded Redis.
func (l *lab) redisCPU(ctx context.Context) (used time.Duration, known bool) {
	client, single := l.redis.(*redis.Client)
	if !single || l.embedded != nil {
		return 0, false
	}
	info := client.InfoMap(ctx, "cpu")
	for _, field := range []string{"used_cpu_sys", "used_cpu_user"} {
		seconds, err := strconv.ParseFloat(info.Item("CPU", field), 64)
		if err != nil {
			return 0, false
		}
		used += time.Duration(seconds * float64(time.Second))
	}
	return used, true
}
