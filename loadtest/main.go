// Command loadtest drives every strategy under the same load, then audits from
// outside which of them sold a unit twice, and how fast each one was. See
// go run ./loadtest --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-stock/holdfast/internal/lock/backends"
	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// settings are the command line.
type settings struct {
	strategies []string
	instances  int
	stock      int64
	clients    int
	guard      string
	limit      time.Duration
	crash      bool
	seed       uint64
	out        string
	api        string

	maxFailures    share
	expectOversell bool
	keep           bool // leave what the run laid
	clean          bool // delete what runs left, and nothing else

	redis, db                string
	lock                     string
	zookeeper, etcd, redlock string
	targets                  []string
	adminToken               string

	rate     int
	duration time.Duration
	search   bool
	probes   int
	p99      time.Duration
}

// open reports whether arrivals follow a clock instead of the answers.
func (s settings) open() bool { return s.rate > 0 || s.search }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // who interrupts twice does not want the table
	ctx = testenv.WithGoRun(ctx)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Exit codes.
const (
	exitOK     = 0
	exitBroken = 1 // a promise was broken, or the run failed
	exitUsage  = 2
	exitCut    = 130 // as shells say of what SIGINT ended
)

// run returns the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	s, code := parse(args, stdout, stderr)
	if s == nil {
		return code
	}
	broken := false
	err := testenv.Run(func(t testenv.T) (err error) {
		broken, err = s.load(ctx, t, args, stdout, stderr)
		return err
	})
	return exitCode(ctx, broken, err, stderr)
}

// parse reads the command line. Without settings there is nothing to do but to
// exit.
func parse(args []string, stdout, stderr io.Writer) (*settings, int) {
	s, flags := flagSet()
	switch err := flags.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, usage(flags))
		return nil, exitOK
	case err != nil:
		fmt.Fprintf(stderr, "loadtest: %v\n", err)
		return nil, exitUsage
	}
	switch command := strings.Join(flags.Args(), " "); command {
	case "", "compare":
	case "clean":
		s.clean = true
	default:
		fmt.Fprintf(stderr, "loadtest: unknown command %q: expected compare, clean, or nothing\n", store.Redact(command))
		return nil, exitUsage
	}
	if err := s.check(flags.Changed); err != nil {
		fmt.Fprintf(stderr, "loadtest: %v\nRun go run ./loadtest --help for the flags.\n", err)
		return nil, exitUsage
	}
	return s, exitOK
}

// usageError is a mistake on the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// load opens the stores, drives what was asked for and reports.
func (s settings) load(ctx context.Context, t testenv.T, args []string, stdout, stderr io.Writer) (broken bool, err error) {
	lab, err := newLab(ctx, t, s, args, stdout, stderr)
	if err != nil {
		return false, err
	}
	defer lab.close()
	if s.clean {
		return false, lab.cleanAll(ctx)
	}
	return lab.run(ctx)
}

func exitCode(ctx context.Context, broken bool, err error, stderr io.Writer) int {
	var usage usageError
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stderr, "loadtest: cut short")
		return exitCut
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "loadtest: %v\n", err)
		return exitUsage
	case err != nil:
		fmt.Fprintf(stderr, "loadtest: %v\n", err)
		return exitBroken
	case broken:
		return exitBroken
	}
	return exitOK
}

func flagSet() (*settings, *pflag.FlagSet) {
	s := &settings{}
	flags := pflag.NewFlagSet("loadtest", pflag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.SortFlags = false
	flags.StringSliceVar(&s.strategies, "strategies", nil, "only these: "+strings.Join(strategy.Names(), ", "))
	flags.IntVar(&s.instances, "instances", 2, "api processes that share the stores")
	flags.Int64Var(&s.stock, "stock", 1000, "units to sell in each rush")
	flags.IntVar(&s.clients, "clients", 32, "clients of a rush, each with one order at a time")
	flags.StringVar(&s.guard, "guard", "off", "on: the ledger refuses what a gate should have refused, and a column counts it")
	flags.DurationVar(&s.limit, "limit", 20*time.Second, "the longest that one rush may take")
	flags.BoolVar(&s.crash, "crash", true, "rush each sound strategy once more, with an instance killed and started again")
	s.maxFailures = 0.05
	flags.Var(&s.maxFailures, "max-failures", "the most of the orders, but for those refused, that may fail: above it the run is failed")
	flags.Uint64Var(&s.seed, "seed", 1, "the same seed sends the same orders")
	flags.StringVar(&s.out, "out", "", "`folder` for results.json and report.html")
	flags.StringVar(&s.api, "api", "", "an api `file` to load instead of building ./cmd/api")
	flags.StringVar(&s.redis, "redis", "", "`URL` of a real Redis, as the service takes it; without it and --db, embedded stores")
	flags.StringVar(&s.db, "db", "", "`URL` of a real database, as the service takes it")
	flags.StringVar(&s.lock, "lock", backends.Default, "where the strategies' locks are kept: "+strings.Join(backends.Names(), ", "))
	flags.StringVar(&s.zookeeper, "zookeeper", "", "ZooKeeper servers: `h1:p1,h2:p2`")
	flags.StringVar(&s.etcd, "etcd", "", "etcd servers: `h1:p1,h2:p2`")
	flags.StringVar(&s.redlock, "redlock", "", "independent Redis servers: `h1:p1,h2:p2,h3:p3`")
	flags.StringSliceVar(&s.targets, "target", nil, "`URLs` of services already running, to load instead; --db and --redis are what they use, for the audit")
	flags.StringVar(&s.adminToken, "admin-token", "", "their bearer `token` of administrators")
	flags.BoolVar(&s.expectOversell, "expect-oversell", false, "the services at --target are to oversell: they break their promise if they do not")
	flags.BoolVar(&s.keep, "keep", false, "leave the SKUs and orders of this run in --db; clean deletes them")
	flags.IntVar(&s.rate, "rate", 0, "open load: so many orders a second arrive, however slowly they are answered")
	flags.DurationVar(&s.duration, "duration", 5*time.Second, "how long the open load lasts, each one of a search")
	flags.BoolVar(&s.search, "search", false, "open loads: find the highest rate that holds --p99")
	flags.IntVar(&s.probes, "probes", 3, "loads of each rate of a search: most of them must hold --p99")
	flags.DurationVar(&s.p99, "p99", 50*time.Millisecond, "what --search holds")
	return s, flags
}

// check holds the flags against one another. given tells which were: one that
// would do nothing is a mistake.
func (s *settings) check(given func(flag string) bool) error {
	for _, name := range s.strategies {
		if _, ok := strategy.Find(name); !ok {
			return fmt.Errorf("--strategies: %q is none of %s", name, strings.Join(strategy.Names(), ", "))
		}
	}
	backend, ok := backends.Find(s.lock)
	if !ok {
		return fmt.Errorf("--lock: %q is none of %s", s.lock, strings.Join(backends.Names(), ", "))
	}
	servers := map[string]string{"zookeeper": s.zookeeper, "etcd": s.etcd, "redlock": s.redlock}
	for flag, value := range servers {
		if value != "" && flag != backend.Flag {
			return fmt.Errorf("--%s: used with --lock %s only", flag, flag)
		}
		for server := range strings.SplitSeq(value, ",") {
			if _, _, err := net.SplitHostPort(server); value != "" && err != nil {
				return fmt.Errorf("--%s: %q is not host:port", flag, server)
			}
		}
	}
	if value, needed := servers[backend.Flag]; needed && value == "" {
		return fmt.Errorf("--%s: needed with --lock %s", backend.Flag, s.lock)
	}
	for flag, used := range map[string]bool{
		"clients": !s.open(), "limit": !s.open(), "duration": s.open(), "p99": s.search, "probes": s.search, "max-failures": !s.search,
		"crash": !s.open() && len(s.targets) == 0, "keep": s.db != "", "expect-oversell": len(s.targets) > 0 && !s.open(),
		"instances": len(s.targets) == 0, "guard": len(s.targets) == 0, "lock": len(s.targets) == 0,
	} {
		if given(flag) && !used {
			return fmt.Errorf("--%s: has no effect on this load; see --help", flag)
		}
	}
	switch {
	case s.instances < 1 || s.instances > 64:
		return fmt.Errorf("--instances: %d is not between 1 and 64", s.instances)
	case s.stock < 1 || s.stock > 1_000_000:
		return fmt.Errorf("--stock: %d is not between 1 and 1,000,000", s.stock)
	case s.clients < 1 || s.clients > 1000:
		return fmt.Errorf("--clients: %d is not between 1 and 1,000", s.clients)
	case s.guard != "on" && s.guard != "off":
		return fmt.Errorf("--guard: %q is none of on, off", s.guard)
	case s.limit < time.Second:
		return fmt.Errorf("--limit: %v is too short, at least a second", s.limit)
	case s.rate < 0 || s.rate > 1_000_000:
		return fmt.Errorf("--rate: %d is not between 1 and 1,000,000", s.rate)
	case s.rate > 0 && s.search:
		return errors.New("--rate and --search: choose one")
	case s.duration < time.Second || s.duration > time.Hour:
		return fmt.Errorf("--duration: %v is not between a second and an hour", s.duration)
	case int64(s.rate)*int64(s.duration/time.Second) > maxAnswers:
		return fmt.Errorf("--duration: %v at --rate %d is more than %d orders", s.duration, s.rate, maxAnswers)
	case s.probes < 1 || s.probes > 99 || s.probes%2 == 0:
		return fmt.Errorf("--probes: %d is not an odd number between 1 and 99", s.probes)
	case s.p99 <= 0:
		return fmt.Errorf("--p99: %v", s.p99)
	case len(s.targets) == 0 && !s.clean && (s.redis == "") != (s.db == ""):
		return errors.New("--redis and --db: name both, or neither for embedded stores")
	case len(s.targets) > 0 && len(s.strategies) > 0:
		return errors.New("--strategies: what runs at --target is what is loaded")
	case len(s.targets) > 0 && s.api != "":
		return errors.New("--api and --target: choose one")
	case len(s.targets) > 0 && s.redis != "" && s.db == "":
		return errors.New("--redis: the gate at --target is audited against the database: name --db too")
	case s.clean && s.db == "":
		return errors.New("--db: clean needs a database")
	}
	return s.checkTargets()
}

// checkTargets checks the URLs, and takes slashes off their ends.
func (s *settings) checkTargets() error {
	for i, target := range s.targets {
		u, err := url.Parse(target)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
			return fmt.Errorf("--target: %q is not http://host:port", store.Redact(target))
		}
		s.targets[i] = strings.TrimRight(target, "/")
	}
	return nil
}

func usage(flags *pflag.FlagSet) string {
	return `Loads every strategy alike and audits, from outside the service, which of them
oversold, and how fast each was.

Usage:
  go run ./loadtest [compare] [flags]
  go run ./loadtest clean --db URL [--redis URL]    delete what runs have left there

Flags:
` + flags.FlagUsages() + `
Exit status: 0 as promised (the sound strategies did not oversell, the broken
ones did), 1 a promise was broken or the run failed, 2 usage, 130 cut short.
docs/loadtest.md says how to read the table.
`
}
