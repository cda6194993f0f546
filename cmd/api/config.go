package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/store"
)

const (
	// requestTimeout bounds the work for one request.
	requestTimeout = 10 * time.Second
	// minToken and maxToken bound the length of the admin token, in bytes. A
	// shorter token can be guessed; a longer one may not fit into the headers of
	// a request.
	minToken, maxToken = 16, 4096
	// minTakeDeadline is the shortest --take-deadline. One shorter than a
	// request is safe but wasteful: recovery voids the order while the request
	// still runs, and the request must take the units again.
	minTakeDeadline = time.Second
	// maxSoldOutMemory bounds --sold-out-memory: how long buyers are refused after
	// another instance has added stock.
	maxSoldOutMemory = time.Second
	// minPaymentWindow and maxPaymentWindow bound --payment-window, unless it is 0.
	minPaymentWindow, maxPaymentWindow = time.Second, 365 * 24 * time.Hour
)

// The commands of the program.
const (
	verbServe          = "serve"
	verbMigrateUp      = "migrate up"
	verbMigrateDown    = "migrate down"
	verbMigrateVersion = "migrate version"
	verbReconcile      = "reconcile"
	verbDoctor         = "doctor"
	verbDrain          = "drain"
)

// config is the command line and the environment. Its tags define the flags.
type config struct {
	Version kong.VersionFlag `help:"Show the version."`

	DB      string `group:"Stores:" placeholder:"URL" help:"The ledger: mysql://user:password@host:port/name, postgres://user:password@host:port/name, sqlite:///path. Of several hosts, h1:p1,h2:p2, the first that accepts writes is used."`
	Redis   string `group:"Stores:" placeholder:"URL" help:"The gate: redis://host:port/0, rediss://, redis+sentinel://h1:p1,h2:p2/mymaster, redis+cluster://h1:p1,h2:p2."`
	Migrate bool   `group:"Stores:" help:"Migrate an old schema before serving."`

	StrategyName  string        `group:"How stock is cut:" name:"strategy" default:"${strategy}" enum:"${strategies}" help:"The way stock is cut: ${enum}."`
	Guard         bool          `group:"How stock is cut:" default:"on" help:"Let the ledger, behind a gate, refuse orders that exceed the stock (on|off, default on)."`
	Segments      int           `group:"How stock is cut:" default:"8" help:"Number of segments of each SKU, for strategies with segments."`
	Slots         int           `group:"How stock is cut:" default:"8" help:"Number of rows of the ledger that each SKU is sold from, for strategies with slots."`
	SoldOutMemory time.Duration `group:"How stock is cut:" default:"100ms" help:"How long a strategy without a gate answers sold out from memory after the ledger said so, at most 1s; 0: every order asks the ledger. With a gate it has no effect."`
	TakeDeadline  time.Duration `group:"How stock is cut:" default:"30s" help:"How long a take may be in flight before recovery resolves it."`

	Locks backends.Flags `group:"Locks:" embed:""`
	Fence bool           `group:"Locks:" default:"on" help:"Check fencing tokens, so that a lock holder with an expired lease cannot change counts (on|off, default on)."`

	PaymentWindow time.Duration `group:"Orders:" default:"15m" help:"How long an order may wait for its payment before it expires and its units return; 0: forever."`
	LatePayment   order.Late    `group:"Orders:" default:"revive" enum:"revive, refuse" help:"What a payment does to an order that has expired: revive (it pays the order if the units can be cut again) or refuse (it is due back to the buyer)."`
	Ack           removed       `hidden:""`

	serverFlags `group:"Who may call:"`

	Console       bool          `group:"The process:" default:"on" help:"Serve a web page at /console/ that shows this instance and its stock; with an admin token, it asks for the token (on|off, default on)."`
	DrainDelay    time.Duration `group:"The process:" default:"0s" help:"How long to accept requests after SIGTERM while /readyz is 503, so that load balancers notice."`
	StopWithStdin bool          `group:"The process:" help:"Stop serving when standard input ends, for example because the parent process has ended."`
	LogLevel      string        `group:"The process:" default:"info" enum:"debug, info, warn, error" help:"Lowest level that is logged: ${enum}."`

	Repair bool `group:"Reconcile and doctor:" help:"reconcile: correct the counts that differ."`
	JSON   bool `group:"Reconcile and doctor:" help:"reconcile, doctor: print JSON instead of a table."`

	verbs

	verb     string        // one of the commands above
	strategy assembly.Spec // the strategy that --strategy names
}

// verbs are the commands of the program.
type verbs struct {
	Serve     struct{} `cmd:"" default:"1" help:"Serve (the default command); without --redis and --db on embedded stores, to try it out."`
	Reconcile struct{} `cmd:"" help:"Compare the counts of gate and ledger while instances run; takes the same flags as they do."`
	Drain     struct{} `cmd:"" help:"Commit the orders that strategy ${queueing} has queued, and free the stock for other strategies; takes the same flags as its instances."`
	Doctor    struct{} `cmd:"" help:"Check what an instance with these flags would find, and say what to change."`
	Migrate   struct {
		Up      struct{} `cmd:"" help:"Migrate the schema of --db."`
		Down    struct{} `cmd:"" help:"Revert one migration of --db."`
		Version struct{} `cmd:"" help:"Show the schema version of --db."`
	} `cmd:""`
}

// embedded reports whether the service runs on embedded stores.
func (c config) embedded() bool { return c.parts().Embedded() }

// level returns the level of the log.
func (c config) level() (level slog.Level) {
	_ = level.UnmarshalText([]byte(c.LogLevel)) // the flag's enum allows only valid levels
	return level
}

// parts returns the parts of an instance that the flags choose.
func (c config) parts() assembly.Parts {
	return assembly.Parts{
		Strategy: c.strategy, Guard: c.Guard, Redis: c.Redis, DB: c.DB, Migrate: c.Migrate,
		Locks: c.Locks, Fence: c.Fence, Segments: c.Segments, Slots: c.Slots,
	}
}

// options returns the rules of an instance that the flags set.
func (c config) options(log *slog.Logger, metrics prometheus.Registerer) assembly.Options {
	return assembly.Options{
		TakeDeadline: c.TakeDeadline, PaymentWindow: c.PaymentWindow, LatePayments: c.LatePayment, SoldOutMemory: c.SoldOutMemory,
		Log: log, Metrics: metrics,
	}
}

// parse reads the flags, before or after the verb, and the environment, as
// commandline.Parse does.
func parse(args, environ []string, stdout io.Writer) (c config, err error) {
	err = commandline.Parse(&c, args, environ, stdout, c.check, options()...)
	return c, err
}

// options describe the program.
func options() []kong.Option {
	return []kong.Option{
		kong.Name("api"),
		kong.Description("Holdfast cuts stock over HTTP without selling a unit twice."),
		kong.Vars{
			"version":    "holdfast " + buildVersion(),
			"strategy":   assembly.DefaultStrategy,
			"strategies": strings.Join(assembly.StrategyNames(), ", "),
			"queueing":   assembly.Queueing().Name,
		},
		kong.Vars(backends.Vars("the strategies' locks")),
	}
}

// Help returns what --help says after the description.
func (config) Help() string {
	return commandline.EnvironmentHelp + `

OTEL_EXPORTER_OTLP_ENDPOINT=http://host:4318 exports traces; see "Traces" in docs/operations.md.

Exit status: 0 on success, 1 on failure, if reconcile leaves a difference or if doctor finds a problem, 2 if a flag or variable is invalid.`
}

// isSecret reports whether s can be sent as a bearer token and is long enough not
// to be guessed.
func isSecret(s string, minLength int) bool {
	foreign := func(r rune) bool { return r < '!' || r > '~' }
	return len(s) >= minLength && len(s) <= maxToken && !strings.ContainsFunc(s, foreign)
}

// check returns the first invalid flag or combination of flags. It stores the verb and the
// strategy.
func (c *config) check(line *kong.Context) error {
	c.verb = line.Command()
	c.strategy, _ = assembly.FindStrategy(c.StrategyName)
	switch {
	case commandline.IsSet(line, "admin-token") && !isSecret(c.AdminToken, minToken):
		return fmt.Errorf("--admin-token: must be %d to %d visible ASCII characters, without spaces", minToken, maxToken)
	case c.verb != verbReconcile && c.Repair:
		return fmt.Errorf("--repair: only for reconcile")
	case c.verb != verbReconcile && c.verb != verbDoctor && c.JSON:
		return fmt.Errorf("--json: only for reconcile and doctor")
	case c.DB == "" && (strings.HasPrefix(c.verb, "migrate") || c.verb == verbDrain):
		return fmt.Errorf("--db: required by %s", c.verb)
	}
	switch c.verb {
	case verbMigrateUp, verbMigrateDown, verbMigrateVersion:
		return c.checkDatabase()
	case verbDrain:
		c.strategy = assembly.Queueing()
		return cmp.Or(c.checkDatabase(), c.checkStores(), c.checkQueue(), c.checkBounds())
	case verbReconcile:
		return cmp.Or(c.checkDatabase(), c.checkShared(), c.checkStores(), c.checkBounds(), c.Locks.Check(c.strategy.NeedsLock, c.DB))
	}
	return cmp.Or(c.serverFlags.check(), c.checkDatabase(), c.checkStores(), c.checkQueue(), c.checkBounds(), c.Locks.Check(c.strategy.NeedsLock, c.DB))
}

// checkShared checks that --redis and --db name stores that instances can share.
func (c *config) checkShared() error {
	switch {
	case c.DB == "":
		return fmt.Errorf("--db: required by %s", c.verb)
	case c.Redis == "" && c.strategy.HasGate():
		return fmt.Errorf("--redis: required by %s with strategy %s; it cannot read the in-process Redis of an instance", c.verb, c.strategy.Name)
	}
	return nil
}

// checkURL checks the URL in a flag that names the database or the Redis.
func (c *config) checkURL(flag, url string, check func(url string) error) error {
	if url == "" {
		return nil
	}
	if err := check(url); err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	return nil
}

func (c *config) checkDatabase() error { return c.checkURL("--db", c.DB, store.CheckSQL) }

// checkStores checks that --redis and --db name the stores that the strategy needs, and
// the URL of --redis.
func (c *config) checkStores() error {
	switch {
	case c.Redis != "" && c.DB == "":
		return fmt.Errorf("--db: required with --redis; without it no order would survive the process")
	case c.DB != "" && c.Redis == "" && c.strategy.HasGate() && !strings.HasPrefix(c.DB, "sqlite:"):
		return fmt.Errorf("--redis: required by strategy %s with a database server", c.strategy.Name)
	}
	if c.strategy.NeedsRowLocks && (c.DB == "" || strings.HasPrefix(c.DB, "sqlite:")) {
		return fmt.Errorf("--db: strategy %s needs row locks, which SQLite and the embedded stores do not have; use a database with mysql:// or postgres://, or use another --strategy", c.strategy.Name)
	}
	return c.checkURL("--redis", c.Redis, store.CheckRedis)
}

// checkQueue checks that the strategy, if it queues orders, can do so on --redis.
func (c *config) checkQueue() error {
	if c.strategy.Queues && store.OnCluster(c.Redis) {
		return fmt.Errorf("--redis: strategy %s cannot run on a Redis Cluster, where a count and the journal may be on different servers", c.strategy.Name)
	}
	return nil
}

// checkBounds checks the numbers and durations.
func (c *config) checkBounds() error {
	switch {
	case c.Segments < 1 || c.Segments > assembly.MaxSegments:
		return fmt.Errorf("--segments: %d is not between 1 and %d", c.Segments, assembly.MaxSegments)
	case c.Slots < 1 || c.Slots > assembly.MaxSlots:
		return fmt.Errorf("--slots: %d is not between 1 and %d", c.Slots, assembly.MaxSlots)
	case c.TakeDeadline < minTakeDeadline:
		return fmt.Errorf("--take-deadline: %v is shorter than %v", c.TakeDeadline, minTakeDeadline)
	case c.SoldOutMemory < 0 || c.SoldOutMemory > maxSoldOutMemory:
		return fmt.Errorf("--sold-out-memory: %v is not between 0 and %v", c.SoldOutMemory, maxSoldOutMemory)
	case c.PaymentWindow != 0 && (c.PaymentWindow < minPaymentWindow || c.PaymentWindow > maxPaymentWindow):
		return fmt.Errorf("--payment-window: %v is neither 0 nor between %v and %v", c.PaymentWindow, minPaymentWindow, maxPaymentWindow)
	case c.DrainDelay < 0:
		return fmt.Errorf("--drain-delay: %v is negative", c.DrainDelay)
	}
	return nil
}

// removed is a flag that no longer exists.
type removed string

// UnmarshalText returns an error that says what to use instead.
func (*removed) UnmarshalText([]byte) error {
	return errors.New("there is no such flag any more; use --strategy " + assembly.Queueing().Name + " to answer orders with 202 before the database has them")
}
