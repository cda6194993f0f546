package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

//go:embed order.lua
var orderLua []byte

// wrkLoad is the load of one run of wrk.
//
// Package load drives every other load. wrk drives this one because a client in Go would use more
// CPU than the service, on the machine that also runs the servers.
type wrkLoad struct {
	urls        []string // URLs of the instances; the connections are divided evenly among them
	connections int      // at least one for each instance
	skus        int
	keyed       bool
	run         string // part of every key
}

// result is what wrk counted.
type result struct {
	Created, Refused, Other, Broken int64 // Broken counts connections
	Elapsed                         time.Duration
	P50, P99                        time.Duration // latencies of the slowest instance
}

// answers is the number of orders that were created or refused.
func (r result) answers() int64 { return r.Created + r.Refused }

// generate runs wrk with order.lua for the duration, which it cuts to whole seconds. The file script
// has order.lua.
func generate(ctx context.Context, script string, l wrkLoad, duration time.Duration) (result, error) {
	results, errs := make([]result, len(l.urls)), make([]error, len(l.urls))
	var all sync.WaitGroup
	for i := range l.urls {
		all.Go(func() { results[i], errs[i] = runOn(ctx, script, l, i, duration) })
	}
	all.Wait()
	return total(results), errors.Join(errs...)
}

// runOn generates the part of the load that is for one instance.
func runOn(ctx context.Context, script string, l wrkLoad, instance int, duration time.Duration) (result, error) {
	keyed := "plain"
	if l.keyed {
		keyed = "keyed"
	}
	instances := len(l.urls)
	connections := (l.connections + instance) / instances // the instances together get l.connections
	threads := max(1, 2/instances)
	// At the limit of the ledger, an order with its retries may wait longer than wrk's 2 seconds.
	cmd := exec.CommandContext(ctx, "wrk", fmt.Sprintf("-t%d", threads), fmt.Sprintf("-c%d", connections), fmt.Sprintf("-d%ds", int(duration.Seconds())),
		"--timeout", "10s", "-s", script, l.urls[instance], "--", fmt.Sprint(l.skus), keyed, fmt.Sprint(l.run, instance))
	// An interrupt at the terminal reaches only this program, which ends ctx.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return result{}, fmt.Errorf("wrk: %w: %s", errors.Join(ctx.Err(), err), out)
	}
	return parseResult(string(out))
}

// total adds up the results of instances that were loaded at the same time.
func total(results []result) (sum result) {
	for _, r := range results {
		sum.Created, sum.Refused, sum.Other, sum.Broken = sum.Created+r.Created, sum.Refused+r.Refused, sum.Other+r.Other, sum.Broken+r.Broken
		sum.Elapsed, sum.P50, sum.P99 = max(sum.Elapsed, r.Elapsed), max(sum.P50, r.P50), max(sum.P99, r.P99)
	}
	return sum
}

// parseResult reads the line that order.lua prints at the end.
func parseResult(out string) (result, error) {
	for lines := bufio.NewScanner(strings.NewReader(out)); lines.Scan(); {
		var (
			r                    result
			micros, p50us, p99us int64
		)
		n, err := fmt.Sscanf(lines.Text(), "RESULT created=%d refused=%d other=%d broken=%d microseconds=%d p50=%d p99=%d",
			&r.Created, &r.Refused, &r.Other, &r.Broken, &micros, &p50us, &p99us)
		if err != nil || n != 7 {
			continue
		}
		r.Elapsed = time.Duration(micros) * time.Microsecond
		r.P50, r.P99 = time.Duration(p50us)*time.Microsecond, time.Duration(p99us)*time.Microsecond
		return r, nil
	}
	return result{}, fmt.Errorf("wrk printed no result: %s", out)
}
