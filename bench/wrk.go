package main

import (
	"bufio"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

//go:embed order.lua
var orderLua []byte

// wrkLoad is the load of one run of wrk.
//
// wrk stays here although package load drives every other load: on the machine that also
// runs the servers, a client in Go would use more CPU than the service does, and the
// tables would compare what is left.
type wrkLoad struct {
	urls        []string // of the instances
	connections int
	skus        int
	keyed       bool
	run         string // part of every key
}

// result is what wrk counted.
type result struct {
	Created, Refused, Other, Broken int64 // Broken: connections
	Elapsed                         time.Duration
	P50, P99                        time.Duration
}

// answers is the number of orders that were created or refused.
func (r result) answers() int64 { return r.Created + r.Refused }

// generator runs wrk with order.lua.
type generator struct{ script string }

// newGenerator writes the script into the folder.
func newGenerator(folder string) (*generator, error) {
	g := &generator{filepath.Join(folder, "order.lua")}
	return g, os.WriteFile(g.script, orderLua, 0o600)
}

// run generates the load for the duration, which it cuts to whole seconds.
func (g *generator) run(ctx context.Context, l wrkLoad, duration time.Duration) (result, error) {
	keyed := "plain"
	if l.keyed {
		keyed = "keyed"
	}
	args := []string{
		fmt.Sprintf("-t%d", max(2, len(l.urls))), fmt.Sprintf("-c%d", l.connections), fmt.Sprintf("-d%ds", int(duration.Seconds())),
		"-s", g.script, l.urls[0], "--", fmt.Sprint(l.skus), keyed, l.run,
	}
	for _, url := range l.urls {
		args = append(args, strings.TrimPrefix(url, "http://"))
	}
	cmd := exec.CommandContext(ctx, "wrk", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal reaches only this program, which ends ctx
	out, err := cmd.CombinedOutput()
	if err != nil {
		return result{}, fmt.Errorf("wrk: %w: %s", errors.Join(ctx.Err(), err), out)
	}
	return parseResult(string(out))
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
