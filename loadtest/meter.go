package main

import (
	"context"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lab/machine"
)

// meter takes what a load costs the instances, Redis and the database, each by
// itself, in processor time.
type meter struct {
	lab                *lab
	instances          []int // process IDs; none: not on this machine
	api, redis, ledger time.Duration
	// What can be had.
	redisKnown, ledgerKnown bool
}

// meter begins to measure.
func (l *lab) meter(ctx context.Context, instances []int) *meter {
	m := &meter{lab: l, instances: instances, api: machine.CPUTime(instances)}
	database := l.databaseProcesses()
	m.ledger, m.ledgerKnown = machine.CPUTime(database), len(database) > 0
	m.redis, m.redisKnown = l.redisCPU(ctx)
	return m
}

// stop ends the measuring.
func (m *meter) stop(ctx context.Context) {
	redis, known := m.lab.redisCPU(ctx)
	m.api = machine.CPUTime(m.instances) - m.api
	m.ledger = machine.CPUTime(m.lab.databaseProcesses()) - m.ledger // PostgreSQL has one more for each connection
	m.redis, m.redisKnown = redis-m.redis, m.redisKnown && known
}

// into writes the cost of each accepted order down. What is not known stays so.
func (m *meter) into(r *Result, accepted int64) {
	if accepted == 0 {
		return
	}
	if len(m.instances) > 0 {
		r.APICPU = millisEach(m.api, accepted)
	}
	if m.redisKnown {
		r.RedisCPU = millisEach(m.redis, accepted)
	}
	if m.ledgerKnown {
		r.DatabaseCPU = millisEach(m.ledger, accepted)
	}
}

// databaseProcesses are those of a database server on this machine: whoever
// listens on its port, with their children.
func (l *lab) databaseProcesses() []int {
	u, err := url.Parse(l.dbURL)
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
