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

// load is what one run of wrk asks for.
type load struct {
	url         string
	connections int
	skus        int
	keyed       bool
	run         string // part of every key
}

// result is what wrk saw.
type result struct {
	Created, Refused, Other, Broken int64
	Elapsed                         time.Duration
	P50, P99                        time.Duration
}

// answers is how many requests were answered as an order may be.
func (r result) answers() int64 { return r.Created + r.Refused }

// generator runs wrk with the script, which lies in a folder of its own.
type generator struct{ script string }

func newGenerator(folder string) (*generator, error) {
	g := &generator{filepath.Join(folder, "order.lua")}
	return g, os.WriteFile(g.script, orderLua, 0o600)
}

// run loads for so long and returns what came of it.
func (g *generator) run(ctx context.Context, l load, how time.Duration) (result, error) {
	keyed := "plain"
	if l.keyed {
		keyed = "keyed"
	}
	cmd := exec.CommandContext(ctx, "wrk", "-t2", fmt.Sprintf("-c%d", l.connections), fmt.Sprintf("-d%ds", int(how.Seconds())),
		"-s", g.script, l.url, "--", fmt.Sprint(l.skus), keyed, l.run)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal is for this program
	out, err := cmd.CombinedOutput()
	if err != nil {
		return result{}, fmt.Errorf("wrk: %w: %s", errors.Join(ctx.Err(), err), out)
	}
	return parseResult(string(out))
}

// parseResult finds the line that order.lua prints when it is done.
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
