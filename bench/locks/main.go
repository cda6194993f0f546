// Command locks compares each lock backend with the library that a Go program would
// use instead, interleaved in one run on real servers. It measures grants and
// hand-offs per second, how evenly contenders are served, the longest wait, and the
// time from an unlock to the next grant. It starts everything it needs and leaves
// nothing behind.
//
// The contenders are goroutines in child processes of this program. Each process opens one locker
// or client. All goroutines contend for one lock and do nothing while they hold it. They record
// when they requested the lock, got it and released it. Their clock is the monotonic one, which all
// processes of a machine share. From these records the program computes the order of the grants,
// and detects two holders at a time, although the contenders share nothing but the lock.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/holdfast-stock/holdfast/bench/rounds"
	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/internal/lab/machine"
	"github.com/holdfast-stock/holdfast/internal/lab/measure"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func main() {
	if encoded := os.Getenv(childEnv); encoded != "" {
		os.Exit(child(encoded))
	}
	command.Main("locks", run)
}

// arrangement is a number of contenders.
type arrangement struct {
	name       string
	processes  int
	goroutines int // in each process
}

func (a arrangement) contenders() int { return a.processes * a.goroutines }

var arrangements = []arrangement{
	{"alone", 1, 1},
	{"4x8", 4, 8},
	{"32x1", 32, 1},
}

// settings are the command line. The tags define the flags.
type settings struct {
	rounds.Flags
	Backends     []string `default:"${backends}" enum:"${backends}" help:"Only these backends."`
	Arrangements []string `default:"${arrangements}" enum:"${arrangements}" help:"Only these numbers of contenders: processes x goroutines of each."`
}

func parse(args []string, stdout io.Writer) (s settings, err error) {
	var backends, names []string
	for _, c := range contestants {
		if !slices.Contains(backends, c.backend) {
			backends = append(backends, c.backend)
		}
	}
	for _, a := range arrangements {
		names = append(names, a.name)
	}
	err = commandline.Parse(&s, args, nil, stdout, func(*kong.Context) error { return s.Check() },
		kong.Name("go run ./bench/locks"),
		kong.Description("Compares each lock backend with other libraries. Needs redis-server, ZooKeeper, etcd, MariaDB and PostgreSQL."),
		kong.Vars{"seconds": "3", "backends": strings.Join(backends, ","), "arrangements": strings.Join(names, ",")})
	return s, err
}

// cell is one contestant in one arrangement: one row of one table.
type cell struct {
	arrangement arrangement
	contestant  contestant
}

func (c cell) key() string {
	return c.contestant.backend + " " + c.arrangement.name + " " + c.contestant.name
}

// tables returns the rows of each table. A table may have none.
func (s settings) tables() (tables [][]cell) {
	for _, backend := range s.Backends {
		for _, arrangement := range s.Arrangements {
			tables = append(tables, rows(backend, arrangement))
		}
	}
	return tables
}

// cells returns everything that the run measures, in the order of the tables.
func (s settings) cells() []cell { return slices.Concat(s.tables()...) }

// turns yields the cells table by table. The contestants of a table alternate: turns yields all of
// them for one round, then for the next. Rounds count from 0, which comes before the measured ones.
func (s settings) turns() iter.Seq2[int, cell] {
	return func(yield func(int, cell) bool) {
		for _, rows := range s.tables() {
			for round, c := range measure.Interleaved(s.Rounds+1, rows) {
				if !yield(round, c) {
					return
				}
			}
		}
	}
}

// rows returns the rows of one table. A lock that works within one process is
// not measured with several.
func rows(backend, arrangement string) (rows []cell) {
	for _, a := range arrangements {
		for _, c := range contestants {
			if a.name == arrangement && c.backend == backend && (a.processes == 1 || !c.withinProcess) {
				rows = append(rows, cell{a, c})
			}
		}
	}
	return rows
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	s, err := parse(args, stdout)
	if err != nil {
		return err
	}
	report, closeReport, err := s.Report(stdout, "./bench/locks", args,
		machine.Version("redis-server", "--version"), machine.Version("etcd", "--version"), zooKeeperVersion(),
		machine.Version("mariadbd", "--version"), machine.Version("postgres", "--version"))
	if err != nil {
		return err
	}
	fmt.Fprintf(report, "Medians of %d × %d s. Contestants:\n\n", s.Rounds, s.Seconds)
	for _, c := range contestants {
		if slices.Contains(s.Backends, c.backend) {
			fmt.Fprintf(report, "- %s, %s: %s\n", c.backend, c.name, c.described())
		}
	}
	fmt.Fprintln(report)
	err = testenv.Run(func(t testenv.T) error {
		servers := make(map[string]servers)
		for _, backend := range s.Backends {
			servers[backend] = startServers(t, backend)
		}
		samples, err := measureCells(ctx, s, servers, stderr)
		if err != nil {
			return err
		}
		return write(report, s, samples)
	})
	return errors.Join(err, closeReport())
}

// zooKeeperVersion returns the version in the name of ZooKeeper's library.
func zooKeeperVersion() string {
	found, _ := filepath.Glob("/usr/share/java/zookeeper-[0-9]*.jar")
	if len(found) == 0 {
		return "unknown ZooKeeper"
	}
	return strings.TrimSuffix(strings.Replace(filepath.Base(found[0]), "zookeeper-", "ZooKeeper ", 1), ".jar")
}

// measureCells runs every cell once in each round. The contestants of one table run in turns, so
// the samples of a round are taken within seconds of each other. Round 0 is a short one that is not
// measured: servers are slower at first. ZooKeeper is slowest, because its JVM compiles code while it
// runs. measureCells returns the samples by cell.
func measureCells(ctx context.Context, s settings, servers map[string]servers, progress io.Writer) (map[string][]sample, error) {
	samples, runs := make(map[string][]sample), 0
	for round, c := range s.turns() {
		runs++
		duration := time.Duration(s.Seconds) * time.Second
		if round == 0 {
			duration = time.Second
		}
		got, err := runCell(ctx, c, servers[c.contestant.backend], fmt.Sprintf("hot-%d-%d", os.Getpid(), runs), duration)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil { // the other samples are still usable
			got = sample{fault: err.Error()}
		}
		fmt.Fprintf(progress, "round %d/%d %-40s %s\n", round, s.Rounds, c.key(), got)
		if round > 0 {
			samples[c.key()] = append(samples[c.key()], got)
		}
	}
	return samples, nil
}
