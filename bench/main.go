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
	"time"

	"github.com/alecthomas/kong"

	"github.com/holdfast-stock/holdfast/bench/rounds"
	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/internal/lab/machine"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func main() { command.Main("bench", run) }

// settings are the command line. The tags define the flags.
type settings struct {
	rounds.Flags
	Only        []string `default:"targets" enum:"${sets}" help:"Measurements: targets, versions (the service against itself at the commit --against), instances (one instance against the most of --instances), spread (one SKU against --skus), bulk (an empty table against one with --bulk orders), expiry (no order expires against a backlog of --due orders), console (nobody watches against one console open, in turns of --seconds under one load), memory (over --orders orders), many (starts, rest and an emptied Redis with --rows stock rows), slots (one SKU sold by --instances, while PostgreSQL delays each COMMIT by --delays; unless --variants names others: ${hot})."`
	Databases   []string `name:"db" default:"mariadb,postgres" enum:"mariadb,postgres" help:"Databases."`
	Variants    []string `enum:"${variants}" help:"Only these: ${enum}."`
	Against     string   `placeholder:"COMMIT" help:"For versions: the commit whose service is compared with this one."`
	WarmUp      int      `default:"2" help:"Seconds of load before each measured run."`
	Connections int      `default:"64" help:"Connections of the load, at least 2."`
	SKUs        int      `name:"skus" default:"10000" help:"For spread: the number of SKUs."`
	Bulk        int      `default:"1000000" help:"For bulk: the number of orders in the table."`
	Due         int      `default:"1000000" help:"For expiry: the number of orders that are due."`
	Orders      int      `default:"1000000" help:"For memory: the number of orders."`
	Rows        int      `default:"1000000" help:"For many: the number of stock rows."`

	Delays    []time.Duration `default:"0s,20ms" help:"For slots: delays of the COMMIT, at most 100 ms."`
	Instances []int           `default:"1,4" help:"For slots: numbers of instances. For instances: the greatest of them."`
}

// sets are the names of the measurements, in the order in which they run.
var sets = []string{"targets", "versions", "instances", "spread", "bulk", "expiry", "console", "memory", "many", "slots"}

func parse(args []string, stdout io.Writer) (s settings, err error) {
	err = commandline.Parse(&s, args, nil, stdout, s.check,
		kong.Name("go run ./bench"),
		kong.Description("Measures every strategy and compares it with reference programs. Needs wrk, redis-server, mariadbd and postgres."),
		kong.Vars{"seconds": "8", "sets": strings.Join(sets, ", "), "variants": strings.Join(names(variants), ", "), "hot": strings.Join(hot, ", ")})
	return s, err
}

func (s *settings) check(*kong.Context) error {
	if slices.Contains(s.Only, "versions") != (s.Against != "") {
		return errors.New("--only versions and --against need each other")
	}
	if slices.Equal(s.Only, []string{"slots"}) && !slices.Contains(s.Databases, "postgres") {
		return errors.New("--only slots needs --db postgres, which can delay a COMMIT while it holds its row locks")
	}
	const most = 100_000_000
	for _, d := range s.Delays {
		if err := command.Between("delays", d, 0, 100*time.Millisecond); err != nil {
			return err
		}
	}
	for _, n := range s.Instances {
		if err := command.Between("instances", n, 1, s.Connections); err != nil {
			return err
		}
	}
	return cmp.Or(
		s.Check(),
		command.Between("warm-up", s.WarmUp, 0, most),
		command.Between("connections", s.Connections, 2, most),
		command.Between("skus", s.SKUs, 1, most),
		command.Between("bulk", s.Bulk, 1, most),
		command.Between("due", s.Due, 1, most),
		command.Between("orders", s.Orders, 1, most),
		command.Between("rows", s.Rows, 10, most),
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
		for _, database := range s.Databases {
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
	var chosen []string
	for _, set := range sets {
		if slices.Contains(s.Only, set) && (set != "slots" || database == "postgres") {
			chosen = append(chosen, set)
		}
	}
	if len(chosen) == 0 {
		return nil
	}
	l, err := newLab(ctx, t, s, database, testenv.Build(t, "./cmd/api"), report, progress)
	if err != nil {
		return err
	}
	defer l.close()
	for _, set := range chosen {
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
	{name: "slots", strategy: "slots"},
	{name: "queue", strategy: "queue"},
	{name: "segment", strategy: "segment"},
	{name: "lock", strategy: "lock"},
	{name: "segment-lock", strategy: "segment-lock"},
	{name: "conditional", strategy: "conditional"},
	{name: "optimistic", strategy: "optimistic"},
	{name: "for-update", strategy: "for-update"},
	{name: "unit-rows", strategy: "unit-rows"},
	{name: "sold-out", strategy: "lua", soldOut: true},
	{name: "merged-sold-out", strategy: "merged", soldOut: true},
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
		if s.Variants == nil || slices.Contains(s.Variants, v.name) {
			chosen = append(chosen, v)
		}
	}
	return chosen
}
