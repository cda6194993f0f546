package main

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// settings are the command line.
type settings struct {
	clean bool // delete the rows of earlier runs, and run nothing

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
	faults         bool
	keep           bool

	redisURL, dbURL          string
	lock                     string
	zookeeper, etcd, redlock string
	targets                  []string
	adminToken               string

	rate     int
	duration time.Duration
	search   bool
	probes   int
	p99      time.Duration

	lifecycle     bool
	paymentWindow time.Duration
}

// open reports whether orders arrive at a fixed rate, instead of each client waiting
// for its answers.
func (s settings) open() bool { return s.rate > 0 || s.search }

// killsInstance reports whether each sound strategy gets a second rush in which an
// instance is killed.
func (s settings) killsInstance() bool {
	return s.crash && !s.open() && !s.lifecycle && len(s.targets) == 0
}

const help = `Puts every strategy under the same load, and audits from outside the service which
of them oversold and how fast each was.

Usage:
  go run ./loadtest [compare] [flags]
  go run ./loadtest clean --db URL [--redis URL]    delete what earlier runs left there
  go run ./loadtest pitfalls [NAME…] [flags]        run well-known mistakes; see pitfalls --help

Flags:
%s
Exit status: 0 every promise was kept (sound strategies did not oversell, broken ones
did), 1 a promise was broken or the run failed, 2 usage, 130 interrupted.
docs/loadtest.md explains the table.
`

func parse(args []string, stdout io.Writer) (*settings, error) {
	s, flags := flagSet()
	if err := command.Parse(flags, args, help, stdout); err != nil {
		return nil, err
	}
	switch name := strings.Join(flags.Args(), " "); name {
	case "", "compare":
	case "clean":
		s.clean = true
	default:
		return nil, command.Usagef("unknown command %q: expected compare, clean, pitfalls as the first argument, or nothing", store.Redact(name))
	}
	return s, s.check(flags.Changed)
}

func flagSet() (*settings, *pflag.FlagSet) {
	s := &settings{maxFailures: 0.05}
	flags := command.Flags("loadtest")
	flags.StringSliceVar(&s.strategies, "strategies", nil, "only these: "+strings.Join(assembly.StrategyNames(), ", "))
	flags.IntVar(&s.instances, "instances", 2, "number of api processes, which share the stores")
	flags.Int64Var(&s.stock, "stock", 1000, "units to sell in each rush")
	flags.IntVar(&s.clients, "clients", 32, "clients of a rush; each has one order under way")
	flags.StringVar(&s.guard, "guard", "off", "on: the ledger refuses orders that a gate should have refused, and a column counts them")
	flags.DurationVar(&s.limit, "limit", 20*time.Second, "maximum duration of one rush")
	flags.BoolVar(&s.crash, "crash", true, "run a second rush for each sound strategy, in which one instance is killed and replaced")
	flags.Var(&s.maxFailures, "max-failures", "share of the orders, without those refused, that may fail")
	flags.Uint64Var(&s.seed, "seed", 1, "seed of the buyers; the same seed sends the same orders")
	flags.StringVar(&s.out, "out", "", "write results.json and report.html into this `folder`")
	flags.StringVar(&s.api, "api", "", "run this api `file` instead of building ./cmd/api")
	flags.StringVar(&s.redisURL, "redis", "", "`URL` of a Redis, as for the service; without --redis and --db the stores are embedded")
	flags.StringVar(&s.dbURL, "db", "", "`URL` of a database, as for the service")
	flags.StringVar(&s.lock, "lock", backends.Default, "lock backend of the strategies with locks: "+strings.Join(backends.Names(), ", "))
	flags.StringVar(&s.zookeeper, "zookeeper", "", "ZooKeeper `servers`: [user:password@]h1:p1,h2:p2[/path]")
	flags.StringVar(&s.etcd, "etcd", "", "etcd `servers`: [https://][user:password@]h1:p1,h2:p2[/path][?ca=file&cert=file&key=file]")
	flags.StringVar(&s.redlock, "redlock", "", "independent Redis servers: `h1:p1,h2:p2,h3:p3`")
	flags.StringSliceVar(&s.targets, "target", nil, "`URLs` of running services to load instead; --db and --redis then name their stores, for the audit")
	flags.StringVar(&s.adminToken, "admin-token", "", "admin `token` of the services at --target")
	flags.BoolVar(&s.expectOversell, "expect-oversell", false, "the services at --target must oversell")
	flags.BoolVar(&s.faults, "faults", false, "something fails during the load: allow unknown outcomes and repairs")
	flags.BoolVar(&s.keep, "keep", false, "keep the SKUs and orders of this run in --db; clean deletes them later")
	flags.IntVar(&s.rate, "rate", 0, "open load: orders that arrive in a second, however long the answers take")
	flags.DurationVar(&s.duration, "duration", 5*time.Second, "duration of each open load")
	flags.BoolVar(&s.search, "search", false, "open loads: find the highest rate at which the p99 keeps --p99")
	flags.IntVar(&s.probes, "probes", 3, "loads of each rate in a search, an odd number; the majority decides")
	flags.DurationVar(&s.p99, "p99", 50*time.Millisecond, "limit of a search")
	flags.BoolVar(&s.lifecycle, "lifecycle", false, "pay, cancel, refund orders or let them expire, with every sound strategy, and audit where each order and payment ended")
	flags.DurationVar(&s.paymentWindow, "payment-window", 3*time.Second, "with --lifecycle: how long an order may wait for its payment")
	return s, flags
}

// check checks the values of the flags, and that none contradicts another. given
// reports whether a flag is on the command line.
func (s *settings) check(given func(flag string) bool) error {
	return cmp.Or(s.checkValues(), s.checkLock(), s.checkQueueing(), s.checkEffect(given), s.checkRate(), s.checkLifecycle(), s.checkStores(), s.checkTargets())
}

// checkValues checks each flag by itself.
func (s *settings) checkValues() error {
	for _, name := range s.strategies {
		if err := command.OneOf("strategies", name, assembly.StrategyNames()); err != nil {
			return err
		}
	}
	if err := cmp.Or(
		command.OneOf("guard", s.guard, []string{"on", "off"}),
		command.Between("instances", int64(s.instances), 1, 64),
		command.Between("stock", s.stock, 1, 1_000_000),
		command.Between("clients", int64(s.clients), 1, 1000),
		command.Between("rate", int64(s.rate), 0, 1_000_000),
		command.Between("probes", int64(s.probes), 1, 99),
	); err != nil {
		return err
	}
	switch {
	case s.limit < time.Second:
		return command.Usagef("--limit: %v is less than a second", s.limit)
	case s.duration < time.Second || s.duration > time.Hour:
		return command.Usagef("--duration: %v is not between a second and an hour", s.duration)
	case s.probes%2 == 0:
		return command.Usagef("--probes: %d is not an odd number", s.probes)
	case s.p99 <= 0:
		return command.Usagef("--p99: %v is not above 0", s.p99)
	case s.paymentWindow < time.Second || s.paymentWindow > time.Minute:
		return command.Usagef("--payment-window: %v is not between a second and a minute", s.paymentWindow)
	}
	return nil
}

// checkLock checks that the servers of the lock backend are named, and those of no
// other.
func (s *settings) checkLock() error {
	if err := command.OneOf("lock", s.lock, backends.Names()); err != nil {
		return err
	}
	backend, _ := backends.Find(s.lock)
	servers := s.lockServers()
	for flag, value := range servers {
		if value == "" {
			continue
		}
		if flag != backend.Flag {
			return command.Usagef("--%s: only used with --lock %s", flag, flag)
		}
		if err := backends.CheckAddress(flag, value); err != nil {
			return command.Usagef("--%s: %v", flag, err)
		}
	}
	if value, needed := servers[backend.Flag]; needed && value == "" {
		return command.Usagef("--%s: required with --lock %s", backend.Flag, s.lock)
	}
	if backend.Flag == "db" && len(s.targets) == 0 && !strings.HasPrefix(s.dbURL, s.lock) {
		return command.Usagef("--lock: %s needs a --db with the scheme %s://", s.lock, s.lock)
	}
	return nil
}

// checkQueueing checks that no strategy is named that queues orders, if the load or the
// Redis does not allow it.
func (s *settings) checkQueueing() error {
	queueing := assembly.Queueing().Name
	switch {
	case !slices.Contains(s.strategies, queueing):
		return nil
	case s.lifecycle:
		return command.Usagef("--strategies: --lifecycle cannot pay for orders that %s has queued", queueing)
	case strings.HasPrefix(s.redisURL, "redis+cluster:"):
		return command.Usagef("--strategies: %s cannot run on a Redis Cluster", queueing)
	}
	return nil
}

// lockServers returns the servers of the lock backends that have a flag of their own,
// by the name of that flag.
func (s *settings) lockServers() map[string]string {
	return map[string]string{"zookeeper": s.zookeeper, "etcd": s.etcd, "redlock": s.redlock}
}

// checkEffect refuses a flag that would have no effect.
func (s *settings) checkEffect(given func(flag string) bool) error {
	var (
		open    = s.open()
		targets = len(s.targets) > 0
	)
	for flag, used := range map[string]bool{
		"clients": !open, "limit": !open && !s.lifecycle, "payment-window": s.lifecycle, "duration": open, "p99": s.search, "probes": s.search, "max-failures": !s.search,
		"crash": !open && !targets && !s.lifecycle, "keep": s.dbURL != "", "expect-oversell": targets && !open,
		"instances": !targets, "guard": !targets, "lock": !targets,
	} {
		if given(flag) && !used {
			return command.Usagef("--%s: has no effect on this load; see --help", flag)
		}
	}
	return nil
}

// checkRate checks the flags of an open load.
func (s *settings) checkRate() error {
	if s.rate > 0 && s.search {
		return command.Usagef("--rate and --search: choose one")
	}
	if int64(s.rate)*int64(s.duration/time.Second) > maxAnswers {
		return command.Usagef("--duration: %v at --rate %d is more than %d orders", s.duration, s.rate, maxAnswers)
	}
	return nil
}

// checkLifecycle checks the flags of a lifecycle load.
func (s *settings) checkLifecycle() error {
	switch {
	case !s.lifecycle:
		return nil
	case s.open():
		return command.Usagef("--lifecycle: not with --rate or --search")
	case len(s.targets) > 0:
		return command.Usagef("--lifecycle: not with --target: it starts instances with a short payment window")
	}
	for _, name := range s.strategies {
		if spec, _ := assembly.FindStrategy(name); !spec.Sound {
			return command.Usagef("--strategies: %s oversells, and --lifecycle tests sound strategies only", name)
		}
	}
	return nil
}

// checkStores checks that the stores which the run needs are named.
func (s *settings) checkStores() error {
	targets := len(s.targets) > 0
	switch {
	case s.clean && s.dbURL == "":
		return command.Usagef("--db: required by clean")
	case !targets && !s.clean && (s.redisURL == "") != (s.dbURL == ""):
		return command.Usagef("--redis and --db: name both, or neither for embedded stores")
	case targets && s.redisURL != "" && s.dbURL == "":
		return command.Usagef("--redis: the audit compares the gate with the database: name --db too")
	}
	return nil
}

// checkTargets checks the URLs of --target. It refuses the flags of instances that the
// load test would start.
func (s *settings) checkTargets() error {
	if len(s.targets) > 0 && len(s.strategies) > 0 {
		return command.Usagef("--strategies: the services at --target run their own strategy")
	}
	if len(s.targets) > 0 && s.api != "" {
		return command.Usagef("--api and --target: choose one")
	}
	for _, target := range s.targets {
		u, err := url.Parse(target)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
			return command.Usagef("--target: %q is not http://host:port", store.Redact(target))
		}
	}
	return nil
}

// redacted returns the arguments without passwords and tokens.
func redacted(args []string) []string {
	hidden := make([]string, len(args))
	for i, arg := range args {
		flag, value, joined := strings.Cut(arg, "=")
		switch {
		case i > 0 && args[i-1] == "--admin-token":
			hidden[i] = "***"
		case joined && flag == "--admin-token":
			hidden[i] = flag + "=***"
		case joined && strings.Contains(value, "://"):
			hidden[i] = flag + "=" + store.Redact(value)
		case strings.Contains(arg, "://"):
			hidden[i] = store.Redact(arg)
		default:
			hidden[i] = arg
		}
	}
	return hidden
}

// share is a part of a whole, between 0 and 1. It is written as a percentage.
type share float64

func (s share) String() string { return strconv.FormatFloat(float64(s)*100, 'g', 3, 64) + "%" }

// Set parses "5%" or "5".
func (s *share) Set(text string) error {
	percent, err := strconv.ParseFloat(strings.TrimSuffix(text, "%"), 64)
	if err != nil || percent < 0 || percent > 100 {
		return fmt.Errorf("%q is not between 0%% and 100%%", text)
	}
	*s = share(percent / 100)
	return nil
}

// Type names the value in the help text.
func (s *share) Type() string { return "percent" }
