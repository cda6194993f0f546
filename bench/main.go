// Command bench measures every strategy over HTTP and compares it with small
// reference programs, interleaved in one run on real servers with their default
// durability. It measures orders per second, CPU time per order (of the service, of
// Redis and of the database) and latency. It needs wrk, starts everything else itself,
// and leaves nothing behind. docs/benchmarks.md explains the tables that it prints.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"

	"github.com/holdfast-stock/holdfast/bench/session"
	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/internal/lab/machine"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func main() { command.Main("bench", run) }

// settings are the command line.
type settings struct {
	session.Session
	only, databases, variants []string
	against                   string // commit
	warmUp, connections       int
	skus, bulk, due           int
	orders, rows              int
}

// sets are the names of the measurements, in the order in which they run.
var sets = []string{"targets", "versions", "spread", "bulk", "expiry", "console", "memory", "many"}

const help = `Measures every strategy and compares it with reference programs. Needs wrk,
redis-server, mariadbd and postgres.

Usage:
  go run ./bench [flags]

Flags:
%s`

func parse(args []string, stdout io.Writer) (s settings, err error) {
	flags := command.Flags("bench")
	flags.StringSliceVar(&s.only, "only", []string{"targets"}, "measurements: targets, versions (the service against itself at the commit --against), spread (one SKU against --skus), bulk (an empty table against one with --bulk orders), expiry (no order expires against a backlog of --due orders), console (nobody watches against one console open, in turns of --seconds under one load), memory (over --orders orders), many (starts, rest and an emptied Redis with --rows stock rows)")
	flags.StringSliceVar(&s.databases, "db", []string{"mariadb", "postgres"}, "databases")
	flags.StringSliceVar(&s.variants, "variants", nil, "only these: "+strings.Join(names(variants), ", "))
	flags.StringVar(&s.against, "against", "", "`commit` whose service versions compares this one with")
	s.Define(flags, 8)
	flags.IntVar(&s.warmUp, "warm-up", 2, "seconds of load before each measured run")
	flags.IntVar(&s.connections, "connections", 64, "connections of the load, at least 2")
	flags.IntVar(&s.skus, "skus", 10_000, "number of SKUs in spread")
	flags.IntVar(&s.bulk, "bulk", 1_000_000, "number of orders in the table in bulk")
	flags.IntVar(&s.due, "due", 1_000_000, "number of orders in expiry whose time has passed")
	flags.IntVar(&s.orders, "orders", 1_000_000, "number of orders in memory")
	flags.IntVar(&s.rows, "rows", 1_000_000, "number of stock rows in many")
	if err := command.Parse(flags, args, help, stdout); err != nil {
		return s, err
	}
	return s, s.check()
}

func (s *settings) check() error {
	for _, list := range []struct {
		flag    string
		values  []string
		allowed []string
	}{
		{"only", s.only, sets}, {"db", s.databases, []string{"mariadb", "postgres"}}, {"variants", s.variants, names(variants)},
	} {
		for _, value := range list.values {
			if err := command.OneOf(list.flag, value, list.allowed); err != nil {
				return err
			}
		}
	}
	if slices.Contains(s.only, "versions") != (s.against != "") {
		return command.Usagef("--only versions and --against need each other")
	}
	const most = 100_000_000
	return cmp.Or(
		s.Check(),
		command.Between("warm-up", int64(s.warmUp), 0, most),
		command.Between("connections", int64(s.connections), 2, most),
		command.Between("skus", int64(s.skus), 1, most),
		command.Between("bulk", int64(s.bulk), 1, most),
		command.Between("due", int64(s.due), 1, most),
		command.Between("orders", int64(s.orders), 1, most),
		command.Between("rows", int64(s.rows), 10, most),
	)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parse(args, stdout)
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("wrk"); err != nil {
		return errors.New("wrk is not installed: apt-get install wrk (make bench does so as root)")
	}
	report, closeReport, err := s.Report(stdout, "./bench", args, machine.Version("redis-server", "--version"), machine.Version("mariadbd", "--version"),
		cmp.Or(machine.Version("postgres", "--version"), machine.Version("psql", "--version")), machine.Version("wrk", "-v"))
	if err != nil {
		return err
	}
	err = testenv.Run(func(t testenv.T) error {
		for _, database := range s.databases {
			if err := measureOn(ctx, t, s, database, report, stderr); err != nil {
				return fmt.Errorf("%s: %w", database, err)
			}
		}
		return nil
	})
	return errors.Join(err, closeReport())
}

// measureOn runs the measurements on one database.
func measureOn(ctx context.Context, t testenv.T, s settings, database string, report, progress io.Writer) error {
	l, err := newLab(ctx, t, s, database, testenv.Build(t, "./cmd/api"), report, progress)
	if err != nil {
		return err
	}
	defer l.close()
	for _, set := range sets {
		if !slices.Contains(s.only, set) {
			continue
		}
		if err := l.measure(ctx, set); err != nil {
			return fmt.Errorf("%s: %w", set, err)
		}
	}
	return nil
}

// variant is one program, or one strategy of the service, under one kind of load.
type variant struct {
	name     string
	program  string // reference program; empty: the service
	strategy string
	keyed    bool // orders have idempotency keys
	soldOut  bool // no stock is left
}

var variants = []variant{
	{name: "a", program: "a"},
	{name: "b", program: "b"},
	{name: "c", program: "c"},
	{name: "d", program: "d"},
	{name: "lua", strategy: "lua"},
	{name: "lua-keyed", strategy: "lua", keyed: true},
	{name: "merged", strategy: "merged"},
	{name: "queue", strategy: "queue"},
	{name: "segment", strategy: "segment"},
	{name: "conditional", strategy: "conditional"},
	{name: "optimistic", strategy: "optimistic"},
	{name: "for-update", strategy: "for-update"},
	{name: "sold-out", strategy: "lua", soldOut: true},
}

func names(of []variant) []string {
	list := make([]string, len(of))
	for i, v := range of {
		list[i] = v.name
	}
	return list
}

// chosen returns the variants of --variants. With strategiesOnly it leaves out the
// reference programs and the special loads.
func (s settings) chosen(strategiesOnly bool) (chosen []variant) {
	for _, v := range variants {
		if strategiesOnly && (v.program != "" || v.soldOut || v.keyed) {
			continue
		}
		if s.variants == nil || slices.Contains(s.variants, v.name) {
			chosen = append(chosen, v)
		}
	}
	return chosen
}
