package main

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// settings are the command line. The tags define the flags.
type settings struct {
	Strategies []string      `xor:"strategies" enum:"${strategies}" help:"Only these: ${enum}."`
	Instances  int           `default:"2" help:"Number of api processes, which share the stores."`
	Stock      int64         `default:"1000" help:"Units to sell in each rush."`
	Clients    int           `default:"32" help:"Clients of a rush; each has one order under way."`
	Guard      bool          `default:"off" help:"Let the ledger refuse orders that a gate should have refused, and count them in a column (on|off, default off)."`
	Limit      time.Duration `default:"20s" help:"Maximum duration of one rush."`
	Crash      bool          `default:"on" help:"Run a second rush for each sound strategy, in which one instance is killed and replaced (on|off, default on)."`
	Seed       uint64        `default:"1" help:"Seed of the buyers; the same seed sends the same orders."`
	Out        string        `placeholder:"FOLDER" help:"Write results.json and report.html into this folder."`
	API        string        `xor:"api" placeholder:"FILE" help:"Run this api file instead of building ./cmd/api."`

	MaxFailures    share `default:"5%" help:"Share of the orders, without those refused, that may fail."`
	ExpectOversell bool  `help:"The services at --target must oversell."`
	Faults         bool  `help:"Something fails during the load: allow unknown outcomes and repairs."`
	Keep           bool  `help:"Keep the SKUs and orders of this run in --db; clean deletes them later."`

	Redis      string   `placeholder:"URL" help:"A Redis, as for the service; without --redis and --db the stores are embedded."`
	DB         string   `placeholder:"URL" help:"A database, as for the service."`
	Lock       string   `default:"${lock}" enum:"${locks}" help:"Lock backend of the strategies with locks: ${enum}."`
	ZooKeeper  string   `name:"zookeeper" placeholder:"SERVERS" help:"ZooKeeper servers: [user:password@]h1:p1,h2:p2[/path]."`
	Etcd       string   `placeholder:"SERVERS" help:"etcd servers: [https://][user:password@]h1:p1,h2:p2[/path][?ca=file&cert=file&key=file]."`
	Redlock    string   `placeholder:"SERVERS" help:"Independent Redis servers: h1:p1,h2:p2,h3:p3."`
	Targets    []string `xor:"strategies,api,lifecycle,history" name:"target" placeholder:"URL" help:"URLs of running services to load instead; --db and --redis then name their stores, for the audit."`
	AdminToken string   `placeholder:"TOKEN" help:"Admin token of the services at --target."`

	Rate     int           `xor:"load" help:"Open load: orders that arrive in a second, however long the answers take."`
	Duration time.Duration `default:"5s" help:"Duration of each open load."`
	Search   bool          `xor:"load" help:"Open loads: find the highest rate at which the p99 keeps --p99."`
	Probes   int           `default:"3" help:"Loads of each rate in a search, an odd number; the majority decides."`
	P99      time.Duration `name:"p99" default:"50ms" help:"Limit of a search."`

	Lifecycle     bool          `xor:"load,lifecycle" help:"Pay, cancel, refund orders or let them expire, with every sound strategy, and audit where each order and payment ended."`
	PaymentWindow time.Duration `default:"3s" help:"With --lifecycle, and with --history and an odd --seed: how long an order may wait for its payment."`

	History string `xor:"load,history" placeholder:"FILE" help:"Run short loads of orders, payments, cancellations, refunds, restocks and shrinks, write every call with its begin and end into this file, and check that the answers are those of counters."`

	Compare struct{} `cmd:"" default:"1" help:"Load the strategies, and compare them."`
	Clean   struct{} `cmd:"" help:"Delete what earlier runs left in --db and --redis, and run nothing."`

	clean bool // the command is the clean command
	// disturb has additional faults for a history, by name. Each function causes a fault and
	// returns when the fault is over. Only tests set disturb, because their stores may fail.
	disturb map[string]func()
	wiredDB string // URL of --db for the instances, if their connections may be cut
}

// open reports whether orders arrive at a fixed rate, instead of each client waiting
// for its answers.
func (s settings) open() bool { return s.Rate > 0 || s.Search }

// killsInstance reports whether each sound strategy gets a second rush in which an
// instance is killed.
func (s settings) killsInstance() bool {
	return s.Crash && !s.open() && !s.Lifecycle && len(s.Targets) == 0
}

// expires reports whether orders expire during the load. A short payment window costs a
// history a second or more, and changes how orders are committed: half of the histories
// have one.
func (s settings) expires() bool { return s.Lifecycle || s.History != "" && s.Seed%2 == 1 }

// Help returns what --help says after the description.
func (settings) Help() string {
	return `"go run ./loadtest pitfalls [NAME…]" runs well-known mistakes; see pitfalls --help. "go run ./loadtest history FILE" checks a history. docs/loadtest.md explains the table.

Exit status: 0 no promise was broken (but a load may be undecided), 1 a promise was broken or the run failed, 2 usage, 130 interrupted.`
}

func parse(args []string, stdout io.Writer) (*settings, error) {
	s := &settings{}
	return s, commandline.Parse(s, args, nil, stdout, s.check,
		kong.Name("go run ./loadtest"),
		kong.Description("Puts every strategy under the same load, and audits from outside the service which of them oversold and how fast each was."),
		kong.Vars{"strategies": strings.Join(assembly.StrategyNames(), ", ")}, kong.Vars(backends.Vars("")))
}

// check checks the values of the flags, and that none contradicts another.
func (s *settings) check(line *kong.Context) error {
	s.clean = line.Command() == "clean"
	return cmp.Or(s.checkValues(), s.checkLock(), s.checkStrategies(), s.checkEffect(line), s.checkStores(), s.checkTargets())
}

// checkValues checks the values of numbers and durations.
func (s *settings) checkValues() error {
	if err := cmp.Or(
		command.Between("instances", s.Instances, 1, 64),
		command.Between("stock", s.Stock, 1, 1_000_000),
		command.Between("clients", s.Clients, 1, 1000),
		command.Between("rate", s.Rate, 0, 1_000_000),
		command.Between("probes", s.Probes, 1, 99),
		command.Between("duration", s.Duration, time.Second, time.Hour),
		command.Between("payment-window", s.PaymentWindow, time.Second, time.Minute),
	); err != nil {
		return err
	}
	switch {
	case s.Limit < time.Second:
		return fmt.Errorf("--limit: %v is less than a second", s.Limit)
	case s.Probes%2 == 0:
		return fmt.Errorf("--probes: %d is not an odd number", s.Probes)
	case s.P99 <= 0:
		return fmt.Errorf("--p99: %v is not above 0", s.P99)
	case int64(s.Rate)*int64(s.Duration/time.Second) > maxAnswers:
		return fmt.Errorf("--duration: %v at --rate %d is more than %d orders", s.Duration, s.Rate, maxAnswers)
	}
	return nil
}

// checkLock checks that the flags name the servers of the lock backend, and those of no other
// backend.
func (s *settings) checkLock() error {
	backend, _ := backends.Find(s.Lock)
	locks := s.locks()
	for flag, value := range locks.Addresses() {
		if value != "" && flag != backend.Flag {
			return fmt.Errorf("--%s: only used with --lock %s", flag, flag)
		}
	}
	return locks.Check(len(s.Targets) == 0, s.DB)
}

// checkStrategies returns an error if the load or the Redis does not support one of --strategies.
func (s *settings) checkStrategies() error {
	for _, name := range s.Strategies {
		switch spec, _ := assembly.FindStrategy(name); {
		case s.Lifecycle && !spec.Sound:
			return fmt.Errorf("--strategies: %s oversells, and --lifecycle tests sound strategies only", name)
		case s.Lifecycle && spec.Queues:
			return fmt.Errorf("--strategies: --lifecycle cannot pay for orders that %s has queued", name)
		case spec.Queues && store.OnCluster(s.Redis):
			return fmt.Errorf("--strategies: %s cannot run on a Redis Cluster", name)
		}
	}
	return nil
}

// locks returns the flags of the instances' locks.
func (s *settings) locks() *backends.Flags {
	return &backends.Flags{Backend: s.Lock, Lease: shortLease, ZooKeeper: s.ZooKeeper, Etcd: s.Etcd, Redlock: s.Redlock}
}

// checkEffect refuses a flag that would have no effect.
func (s *settings) checkEffect(line *kong.Context) error {
	var (
		open    = s.open()
		targets = len(s.Targets) > 0
	)
	for flag, used := range map[string]bool{
		"clients": !open && s.History == "", "stock": s.History == "", "out": s.History == "", "limit": !open && !s.Lifecycle && s.History == "", "payment-window": s.expires(), "duration": open, "p99": s.Search, "probes": s.Search, "max-failures": !s.Search,
		"crash": !open && !targets && !s.Lifecycle, "keep": s.DB != "", "expect-oversell": targets && !open,
		"instances": !targets, "guard": !targets, "lock": !targets,
	} {
		if commandline.IsSet(line, flag) && !used {
			return fmt.Errorf("--%s: has no effect on this load; see --help", flag)
		}
	}
	return nil
}

// checkStores checks that the stores which the run needs are named.
func (s *settings) checkStores() error {
	targets := len(s.Targets) > 0
	switch {
	case s.clean && s.DB == "":
		return fmt.Errorf("--db: required by clean")
	case !targets && !s.clean && (s.Redis == "") != (s.DB == ""):
		return fmt.Errorf("--redis and --db: set both, or neither for embedded stores")
	case targets && s.Redis != "" && s.DB == "":
		return fmt.Errorf("--redis: the audit compares the gate with the database: set --db too")
	}
	return nil
}

// checkTargets checks the URLs of --target.
func (s *settings) checkTargets() error {
	for _, target := range s.Targets {
		u, err := url.Parse(target)
		if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
			return fmt.Errorf("--target: %q is not http://host:port", store.Redact(target))
		}
	}
	return nil
}

// redacted returns the arguments without passwords and tokens.
func redacted(args []string) []string {
	hidden := make([]string, len(args))
	for i, arg := range args {
		flag, value := "", arg
		if before, after, joined := strings.Cut(arg, "="); joined && strings.HasPrefix(before, "--") {
			flag, value = before+"=", after
		}
		at := strings.LastIndexByte(value, '@')
		switch {
		case i > 0 && args[i-1] == "--admin-token":
			flag, value = "", "***"
		case flag == "--admin-token=":
			value = "***"
		case strings.Contains(value, "://"):
			value = store.Redact(value)
		case at >= 0: // user:password@host:port, for example of ZooKeeper
			value = "***" + value[at:]
		}
		hidden[i] = flag + value
	}
	return hidden
}

// share is a part of a whole, between 0 and 1. It is written as a percentage.
type share float64

func (s share) String() string { return strconv.FormatFloat(float64(s)*100, 'g', 3, 64) + "%" }

// UnmarshalText parses "5%" or "5".
func (s *share) UnmarshalText(text []byte) error {
	percent, err := strconv.ParseFloat(strings.TrimSuffix(string(text), "%"), 64)
	if err != nil || percent < 0 || percent > 100 {
		return fmt.Errorf("%q is not between 0%% and 100%%", text)
	}
	*s = share(percent / 100)
	return nil
}
