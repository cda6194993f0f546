// Command bench measures every strategy over HTTP against small reference
// programs, in one interleaved run on real servers with their default
// durability: orders per second, CPU per order of the service, Redis and the
// database apart, and latency. It starts all it needs but wrk, and leaves
// nothing behind. docs/benchmarks.md says how to read what it prints.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-stock/holdfast/internal/machine"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	switch {
	case errors.Is(err, pflag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("run go run ./bench --help")

// settings are the command line.
type settings struct {
	only, databases, variants []string
	rounds, seconds           int
	warmUp, connections       int
	skus, bulk, orders        int
	out                       string
}

// sets are what can be measured, in this order.
var sets = []string{"targets", "spread", "bulk", "memory"}

func parse(args []string) (s settings, err error) {
	flags := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.StringSliceVar(&s.only, "only", []string{"targets"}, "what to measure: targets, spread (one SKU against --skus), bulk (an empty table against --bulk orders), memory (over --orders orders)")
	flags.StringSliceVar(&s.databases, "db", []string{"mariadb", "postgres"}, "databases")
	flags.StringSliceVar(&s.variants, "variants", nil, "only these: a, b, c, d, lua, lua-keyed, sold-out, a strategy's name")
	flags.IntVar(&s.rounds, "rounds", 3, "rounds; the tables show medians")
	flags.IntVar(&s.seconds, "seconds", 8, "measured seconds of each run")
	flags.IntVar(&s.warmUp, "warm-up", 2, "seconds of load before each measured run")
	flags.IntVar(&s.connections, "connections", 64, "connections of the load")
	flags.IntVar(&s.skus, "skus", 10_000, "SKUs of the spread")
	flags.IntVar(&s.bulk, "bulk", 1_000_000, "orders that are there already")
	flags.IntVar(&s.orders, "orders", 1_000_000, "orders of the memory run")
	flags.StringVar(&s.out, "out", "", "also write the tables to this `file`")
	flags.Usage = func() {
		fmt.Fprintf(os.Stderr, "Usage: go run ./bench [flags]\n\nMeasures every strategy against reference programs; needs wrk, redis-server, mariadbd and postgres.\n\n%s", flags.FlagUsages())
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return s, err
		}
		return s, fmt.Errorf("%w: %w", err, errUsage)
	}
	for _, set := range s.only {
		if !slices.Contains(sets, set) {
			return s, fmt.Errorf("--only: %q is none of %s: %w", set, strings.Join(sets, ", "), errUsage)
		}
	}
	for _, d := range s.databases {
		if d != "mariadb" && d != "postgres" {
			return s, fmt.Errorf("--db: %q is neither mariadb nor postgres: %w", d, errUsage)
		}
	}
	for _, v := range s.variants {
		if _, ok := findVariant(v); !ok {
			return s, fmt.Errorf("--variants: there is no %q: %w", v, errUsage)
		}
	}
	if min(s.rounds, s.seconds, s.connections, s.skus, s.bulk, s.orders) < 1 || s.warmUp < 0 || s.connections < 2 {
		return s, fmt.Errorf("numbers must be positive, --connections at least 2: %w", errUsage)
	}
	return s, nil
}

func run(ctx context.Context, args []string) error {
	s, err := parse(args)
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("wrk"); err != nil {
		return fmt.Errorf("wrk is not installed: apt-get install wrk (make bench does it when root)")
	}
	tables := []io.Writer{os.Stdout}
	if s.out != "" {
		file, err := os.Create(s.out)
		if err != nil {
			return err
		}
		defer file.Close()
		tables = append(tables, file)
	}
	report := io.MultiWriter(tables...)
	fmt.Fprintf(report, "`go run ./bench %s`, commit %s, %s\n\nOn %s.\n", strings.Join(args, " "), machine.Commit(), time.Now().UTC().Format(time.DateOnly), measuredOn())
	return testenv.Run(func(t testenv.T) error {
		for _, database := range s.databases {
			l, err := newLab(ctx, t, s, database, report)
			if err != nil {
				return err
			}
			for _, set := range sets {
				if !slices.Contains(s.only, set) {
					continue
				}
				if err := l.measure(ctx, set); err != nil {
					return err
				}
			}
			l.close()
		}
		return nil
	})
}

// variant is one thing that is measured.
type variant struct {
	name     string
	program  string // of the reference; empty: the service
	strategy string
	keyed    bool
	soldOut  bool
}

var variants = []variant{
	{name: "a", program: "a"},
	{name: "b", program: "b"},
	{name: "c", program: "c"},
	{name: "d", program: "d"},
	{name: "lua", strategy: "lua"},
	{name: "lua-keyed", strategy: "lua", keyed: true},
	{name: "merged", strategy: "merged"},
	{name: "conditional", strategy: "conditional"},
	{name: "optimistic", strategy: "optimistic"},
	{name: "for-update", strategy: "for-update"},
	{name: "sold-out", strategy: "lua", soldOut: true},
}

func findVariant(name string) (variant, bool) {
	i := slices.IndexFunc(variants, func(v variant) bool { return v.name == name })
	if i < 0 {
		return variant{}, false
	}
	return variants[i], true
}

// chosen are the variants that were asked for, of those that the set measures.
func (s settings) chosen(servicesOnly bool) (chosen []variant) {
	for _, v := range variants {
		if servicesOnly && (v.program != "" || v.soldOut || v.keyed) {
			continue
		}
		if s.variants == nil || slices.Contains(s.variants, v.name) {
			chosen = append(chosen, v)
		}
	}
	return chosen
}
