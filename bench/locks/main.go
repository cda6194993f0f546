// Command locks measures each lock backend against the library that a Go program
// would otherwise take, in one interleaved run on real servers: grants and
// hand-offs per second, how evenly contenders are served, the longest wait, and
// the time from an unlock to the next grant. It starts all it needs and leaves
// nothing behind.
//
// Contenders are processes of this same program, one locker or client in each,
// with so many goroutines; all want one lock and do nothing while they hold it.
// Each writes down when it asked, was granted and unlocked, by the monotonic
// clock that all processes of a machine share, so that the order of grants, and
// whether two held the lock at once, is known afterwards without anything being
// shared in between.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
	if how := os.Getenv(childEnv); how != "" {
		os.Exit(child(how))
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	switch {
	case errors.Is(err, pflag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "locks:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "locks:", cmp.Or(ctx.Err(), err))
		os.Exit(1)
	}
}

var errUsage = errors.New("run go run ./bench/locks --help")

// arrangement is how many contend.
type arrangement struct {
	name                  string
	processes, goroutines int // goroutines of each process
}

var arrangements = []arrangement{
	{"alone", 1, 1},
	{"4x8", 4, 8},
	{"32x1", 32, 1},
}

// settings are the command line.
type settings struct {
	rounds, seconds        int
	backends, arrangements []string
	out                    string
}

func parse(args []string) (s settings, err error) {
	var backends, names []string
	for _, c := range contestants {
		if !slices.Contains(backends, c.backend) {
			backends = append(backends, c.backend)
		}
	}
	for _, a := range arrangements {
		names = append(names, a.name)
	}
	flags := pflag.NewFlagSet("locks", pflag.ContinueOnError)
	flags.SortFlags = false
	flags.IntVar(&s.rounds, "rounds", 3, "rounds; the tables show medians")
	flags.IntVar(&s.seconds, "seconds", 3, "measured seconds of each run")
	flags.StringSliceVar(&s.backends, "backends", backends, "backends")
	flags.StringSliceVar(&s.arrangements, "arrangements", names, "processes x goroutines")
	flags.StringVar(&s.out, "out", "", "also write the tables to this `file`")
	flags.Usage = func() {
		fmt.Fprintf(os.Stderr, "Usage: go run ./bench/locks [flags]\n\nMeasures each lock backend against libraries; needs redis-server, ZooKeeper and etcd.\n\n%s", flags.FlagUsages())
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			return s, err
		}
		return s, fmt.Errorf("%w: %w", err, errUsage)
	}
	for _, b := range s.backends {
		if !slices.Contains(backends, b) {
			return s, fmt.Errorf("--backends: %q is none of %s: %w", b, strings.Join(backends, ", "), errUsage)
		}
	}
	for _, a := range s.arrangements {
		if !slices.Contains(names, a) {
			return s, fmt.Errorf("--arrangements: %q is none of %s: %w", a, strings.Join(names, ", "), errUsage)
		}
	}
	if min(s.rounds, s.seconds) < 1 {
		return s, fmt.Errorf("numbers must be positive: %w", errUsage)
	}
	return s, nil
}

// cell is one row of one table.
type cell struct {
	arrangement arrangement
	contestant  contestant
}

func (c cell) key() string {
	return c.contestant.backend + " " + c.arrangement.name + " " + c.contestant.name
}

// cells are all that is measured, in the order of the tables.
func (s settings) cells() (cells []cell) {
	for _, c := range contestants {
		for _, a := range arrangements {
			if slices.Contains(s.backends, c.backend) && slices.Contains(s.arrangements, a.name) && (a.processes == 1 || !c.withinProcess) {
				cells = append(cells, cell{a, c})
			}
		}
	}
	slices.SortStableFunc(cells, func(x, y cell) int {
		return cmp.Or(
			slices.Index(s.backends, x.contestant.backend)-slices.Index(s.backends, y.contestant.backend),
			slices.Index(s.arrangements, x.arrangement.name)-slices.Index(s.arrangements, y.arrangement.name),
		)
	})
	return cells
}

func run(ctx context.Context, args []string) error {
	s, err := parse(args)
	if err != nil {
		return err
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
	fmt.Fprintf(report, "`go run ./bench/locks %s`, commit %s, %s\n\nOn %s.\n\n", strings.Join(args, " "), machine.Commit(), time.Now().UTC().Format(time.DateOnly), measuredOn())
	fmt.Fprintf(report, "Medians of %d × %d s. Contestants:\n\n", s.rounds, s.seconds)
	for _, c := range contestants {
		if slices.Contains(s.backends, c.backend) {
			fmt.Fprintf(report, "- %s, %s: %s\n", c.backend, c.name, c.described())
		}
	}
	return testenv.Run(func(t testenv.T) error {
		servers := make(map[string]servers)
		for _, backend := range s.backends {
			servers[backend] = startServers(t, backend)
		}
		samples, err := measure(ctx, s, servers)
		if err != nil {
			return err
		}
		return write(report, s, samples)
	})
}

// warmUp runs every contestant for a second that does not count, with the most
// processes: servers are slower at first, one that compiles as it runs above all.
func warmUp(ctx context.Context, s settings, servers map[string]servers) error {
	widest := make(map[string]cell)
	for _, c := range s.cells() {
		of := c.contestant.backend + " " + c.contestant.name
		if c.arrangement.processes >= widest[of].arrangement.processes {
			widest[of] = c
		}
	}
	for of, c := range widest {
		if _, err := runCell(ctx, c, servers[c.contestant.backend], fmt.Sprintf("warm-%d", os.Getpid()), time.Second); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			fmt.Fprintf(os.Stderr, "warming up %s: %v\n", of, err) // measuring it will tell
		}
	}
	return nil
}

// measure runs every cell once a round: all of them share whatever else the
// machine does meanwhile. Every second round goes backwards, so that nobody
// always comes after the same other one.
func measure(ctx context.Context, s settings, servers map[string]servers) (map[string][]sample, error) {
	if err := warmUp(ctx, s, servers); err != nil {
		return nil, err
	}
	samples := make(map[string][]sample)
	for round := range s.rounds {
		cells := s.cells()
		if round%2 == 1 {
			slices.Reverse(cells)
		}
		for i, c := range cells {
			got, err := runCell(ctx, c, servers[c.contestant.backend], fmt.Sprintf("hot-%d-%d-%d", os.Getpid(), round, i), time.Duration(s.seconds)*time.Second)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if err != nil { // it is no reason to lose what the others did
				got = sample{fault: err.Error()}
			}
			fmt.Fprintf(os.Stderr, "round %d/%d %-40s %s\n", round+1, s.rounds, c.key(), got)
			samples[c.key()] = append(samples[c.key()], got)
		}
	}
	return samples, nil
}
