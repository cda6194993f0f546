package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-stock/holdfast/internal/assembly"
	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/store"
	"github.com/holdfast-stock/holdfast/internal/token"
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

// verbs are the first words of the commands.
var verbs = []string{verbServe, verbReconcile, verbDoctor, verbDrain, "migrate"}

// config is the parsed and checked command line and environment.
type config struct {
	serverFlags
	verb         string
	strategy     assembly.Spec
	guard        bool
	redis        string
	db           string
	migrate      bool
	locks        backends.Flags
	fence        bool
	segments     int
	takeDeadline time.Duration
	// paymentWindow is how long an order may be pending. 0: for ever.
	paymentWindow time.Duration
	latePayment   latePayment
	drainDelay    time.Duration
	stopWithIn    bool
	console       bool
	logLevel      slog.Level
	repair        bool // reconcile: correct what differs
	json          bool // reconcile, doctor: print JSON
	help          bool
	version       bool
	cut           bool // the URLs are cut off, and not checked
}

// embedded reports whether the service runs on embedded stores.
func (c config) embedded() bool { return c.redis == "" && c.db == "" }

// usageError is a mistake on the command line or in the environment.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// parse reads the flags, before or after the verb, and the environment, which has the
// form of os.Environ. Flags take precedence. Its errors are usageErrors. They contain no
// URL, because a URL may contain a password. A store.ErrBadURL, a backends.AddressError
// and a token.SourceError need no second try without URLs.
func parse(args, environ []string) (config, error) {
	c, err := parseUnredacted(args, environ, false)
	if err == nil || errors.Is(err, store.ErrBadURL) || errors.As(err, new(backends.AddressError)) || errors.As(err, new(token.SourceError)) {
		return c, err
	}
	// Repeat the mistake with all URLs cut off, for an error without them.
	var cutArgs, cutEnviron []string
	for _, arg := range args {
		cutArgs = append(cutArgs, cutURL(arg))
	}
	for _, variable := range environ {
		cutEnviron = append(cutEnviron, cutURL(variable))
	}
	_, err = parseUnredacted(cutArgs, cutEnviron, true)
	if err == nil {
		err = usagef("an argument is invalid; it is not shown because it contains a URL")
	}
	return c, err
}

// cutURL cuts s after the scheme of a URL.
func cutURL(s string) string {
	if scheme, _, found := strings.Cut(s, "://"); found {
		return scheme + ":…"
	}
	return s
}

// parseUnredacted is parse with errors that repeat the arguments. cut says that the URLs
// are cut off, and cannot be checked.
func parseUnredacted(args, environ []string, cut bool) (config, error) {
	c := config{strategy: assembly.Spec{}, cut: cut}
	flags, name := flagSet(&c)
	if err := commandline.Parse(flags, joinSwitches(flags, args)); err != nil {
		return c, usageError{err}
	}
	if c.help || c.version {
		return c, nil
	}
	if err := commandline.Environment(flags, environ); err != nil {
		return c, usageError{err}
	}
	switch verb := strings.Join(flags.Args(), " "); verb {
	case "":
		c.verb = verbServe
	case verbServe, verbReconcile, verbDoctor, verbDrain, verbMigrateUp, verbMigrateDown, verbMigrateVersion:
		c.verb = verb
	case "migrate":
		return c, usagef("migrate: one of up, down, version is required")
	default:
		return c, usagef("unknown command %q: expected serve, reconcile, doctor, drain, or migrate up|down|version", verb)
	}
	if f := flags.Lookup("admin-token"); f.Changed && !isSecret(c.adminToken, minToken) {
		return c, commandline.Blame(flags, usagef("--admin-token: must be %d to %d visible ASCII characters, without spaces", minToken, maxToken))
	}
	return c, commandline.Blame(flags, c.check(*name))
}

// isSecret reports whether s can be sent as a bearer token and is long enough not
// to be guessed.
func isSecret(s string, minLength int) bool {
	foreign := func(r rune) bool { return r < '!' || r > '~' }
	return len(s) >= minLength && len(s) <= maxToken && !strings.ContainsFunc(s, foreign)
}

// check returns the first invalid flag or combination of flags. name is the
// value of --strategy; check stores the strategy of that name.
func (c *config) check(name string) error {
	switch {
	case c.verb != verbReconcile && c.repair:
		return usagef("--repair: only for reconcile")
	case c.verb != verbReconcile && c.verb != verbDoctor && c.json:
		return usagef("--json: only for reconcile and doctor")
	}
	if strings.HasPrefix(c.verb, "migrate") {
		if c.db == "" {
			return usagef("--db: required by %s", c.verb)
		}
		return c.checkDatabase()
	}
	spec, ok := assembly.FindStrategy(name)
	if !ok {
		return usagef("--strategy: %q is not one of %s", name, strings.Join(assembly.StrategyNames(), ", "))
	}
	c.strategy = spec
	if c.verb == verbDrain {
		c.strategy = assembly.Queueing()
		if c.db == "" {
			return usagef("--db: required by %s", c.verb)
		}
		return cmp.Or(c.checkDatabase(), c.checkStores(), c.checkQueue(), c.checkBounds())
	}
	if c.verb == verbReconcile {
		return cmp.Or(c.checkDatabase(), c.checkShared(), c.checkStores(), c.checkBounds(), c.checkLocks())
	}
	return cmp.Or(c.serverFlags.check(), c.checkDatabase(), c.checkStores(), c.checkQueue(), c.checkBounds(), c.checkLocks())
}

// checkShared checks that --redis and --db name stores that instances can share.
func (c *config) checkShared() error {
	switch {
	case c.db == "":
		return usagef("--db: required by %s", c.verb)
	case c.redis == "" && c.strategy.HasGate():
		return usagef("--redis: required by %s with strategy %s; it cannot read the in-process Redis of an instance", c.verb, c.strategy.Name)
	}
	return nil
}

// checkURL checks the URL that a flag names the database or the Redis with.
func (c *config) checkURL(flag, url string, check func(url string) error) error {
	if url == "" || c.cut {
		return nil
	}
	if err := check(url); err != nil {
		return usagef("%s: %w", flag, err)
	}
	return nil
}

func (c *config) checkDatabase() error { return c.checkURL("--db", c.db, store.CheckSQL) }

// checkStores checks that --redis and --db name the stores that the strategy needs, and
// the URL of --redis.
func (c *config) checkStores() error {
	switch {
	case c.redis != "" && c.db == "":
		return usagef("--db: required with --redis; without it no order would survive the process")
	case c.db != "" && c.redis == "" && c.strategy.HasGate() && !strings.HasPrefix(c.db, "sqlite:"):
		return usagef("--redis: required by strategy %s with a database server", c.strategy.Name)
	}
	return c.checkURL("--redis", c.redis, store.CheckRedis)
}

// checkQueue checks that the strategy, if it queues orders, can do so on --redis.
func (c *config) checkQueue() error {
	if c.strategy.Queues() && strings.HasPrefix(c.redis, "redis+cluster:") {
		return usagef("--redis: strategy %s cannot run on a Redis Cluster, where a count and the journal may be on different servers", c.strategy.Name)
	}
	return nil
}

// checkLocks checks the flags of the lock backend.
func (c *config) checkLocks() error {
	if err := c.locks.Check(c.strategy.NeedsLock(), c.db); err != nil {
		return usageError{err}
	}
	return nil
}

// checkBounds checks the numbers and durations.
func (c *config) checkBounds() error {
	switch {
	case c.segments < 1 || c.segments > assembly.MaxSegments:
		return usagef("--segments: %d is not between 1 and %d", c.segments, assembly.MaxSegments)
	case c.takeDeadline < minTakeDeadline:
		return usagef("--take-deadline: %v is shorter than %v", c.takeDeadline, minTakeDeadline)
	case c.paymentWindow != 0 && (c.paymentWindow < minPaymentWindow || c.paymentWindow > maxPaymentWindow):
		return usagef("--payment-window: %v is neither 0 nor between %v and %v", c.paymentWindow, minPaymentWindow, maxPaymentWindow)
	case c.drainDelay < 0:
		return usagef("--drain-delay: %v is negative", c.drainDelay)
	}
	return nil
}

// flagSet returns the flags, which set the fields of c, and the value of
// --strategy.
func flagSet(c *config) (flags *pflag.FlagSet, strategyName *string) {
	flags = pflag.NewFlagSet("api", pflag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller prints errors and usage
	flags.SortFlags = false
	c.guard, c.fence, c.console = true, true, true
	flags.StringVar(&c.listen, "listen", "127.0.0.1:8080", "`address` to serve on")
	strategyName = flags.String("strategy", assembly.DefaultStrategy, "the way stock is cut: "+strings.Join(assembly.StrategyNames(), ", "))
	addSwitch(flags, &c.guard, "guard", "let the ledger, behind a gate, refuse orders that exceed the stock")
	addSwitch(flags, &c.fence, "fence", "check fencing tokens, so that a lock holder with an expired lease cannot change counts")
	c.locks.Add(flags, "the strategies' locks")
	flags.IntVar(&c.segments, "segments", 8, "`number` of segments of each SKU, for strategies with segments")
	flags.StringVar(&c.redis, "redis", "", "`URL` of the gate's Redis: redis://host:port/0, rediss://, redis+sentinel://h1:p1,h2:p2/mymaster, redis+cluster://h1:p1,h2:p2")
	flags.StringVar(&c.db, "db", "", "`URL` of the ledger: mysql://user:password@host:port/name, postgres://user:password@host:port/name, sqlite:///path")
	addSwitch(flags, &c.migrate, "migrate", "migrate an old schema before serving")
	flags.DurationVar(&c.takeDeadline, "take-deadline", 30*time.Second, "how long a take may be in flight before recovery resolves it")
	flags.DurationVar(&c.paymentWindow, "payment-window", 15*time.Minute, "how long an order may wait for its payment before it expires and its units return; 0: for ever")
	c.latePayment = latePayment(order.Revive)
	flags.Var(&c.latePayment, "late-payment", "what a payment does to an order that has expired: revive (it pays the order if the units can be cut again) or refuse (it is due back to the buyer)")
	flags.Var(removed("use --strategy "+assembly.Queueing().Name+" to answer orders with 202 before the database has them"), "ack", "")
	_ = flags.MarkHidden("ack")
	c.addFlags(flags)
	flags.DurationVar(&c.drainDelay, "drain-delay", 0, "how long to accept requests after SIGTERM while /readyz is 503, so that load balancers notice")
	addSwitch(flags, &c.console, "console", "serve a web page at /console/ that shows this instance and its stock; with an admin token, it asks for the token")
	addSwitch(flags, &c.stopWithIn, "stop-with-stdin", "stop serving when standard input ends, for example because the parent process has ended")
	addSwitch(flags, &c.repair, "repair", "reconcile: correct the counts that differ")
	addSwitch(flags, &c.json, "json", "reconcile, doctor: print JSON instead of a table")
	flags.VarPF((*level)(&c.logLevel), "log-level", "", "debug, info, warn or error")
	flags.BoolVarP(&c.help, "help", "h", false, "show this help")
	flags.BoolVar(&c.version, "version", false, "show the version")
	return flags, strategyName
}

// onOff is the value of a switch: on, off, true or false. A switch without a
// value means on.
type onOff bool

func addSwitch(flags *pflag.FlagSet, value *bool, name, usage string) {
	flags.VarPF((*onOff)(value), name, "", usage+" (on|off)").NoOptDefVal = "on"
}

func (o *onOff) String() string {
	if *o {
		return "on"
	}
	return "off"
}

func (o *onOff) Type() string { return "switch" }

func (o *onOff) Set(s string) error {
	switch s {
	case "on", "true":
		*o = true
	case "off", "false":
		*o = false
	default:
		return fmt.Errorf("%q is not one of on, off, true, false", s)
	}
	return nil
}

// removed is the value of a flag that is gone. It says what to use instead.
type removed string

func (removed) String() string { return "" }

func (removed) Type() string { return "" }

// Set returns the error.
func (r removed) Set(string) error { return errors.New("there is no such flag any more; " + string(r)) }

// joinSwitches writes "--guard off" as "--guard=off". The flag library would
// parse "off" as a verb, because the value of a switch is optional.
func joinSwitches(flags *pflag.FlagSet, args []string) []string {
	var joined []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		f := flags.Lookup(strings.TrimPrefix(arg, "--"))
		if strings.HasPrefix(arg, "--") && f != nil && f.Value.Type() == "switch" && i+1 < len(args) {
			if next := args[i+1]; !strings.HasPrefix(next, "-") && !slices.Contains(verbs, next) {
				arg += "=" + next
				i++
			}
		}
		joined = append(joined, arg)
	}
	return joined
}

// latePayment is the value of --late-payment.
type latePayment order.Late

func (l *latePayment) String() string { return string(*l) }

func (l *latePayment) Type() string { return "policy" }

func (l *latePayment) Set(s string) error {
	switch order.Late(s) {
	case order.Revive, order.Refuse:
		*l = latePayment(s)
		return nil
	}
	return fmt.Errorf("%q is not one of %s, %s", s, order.Revive, order.Refuse)
}

// level is a log level, written in lower case.
type level slog.Level

func (l *level) String() string { return strings.ToLower(slog.Level(*l).String()) }

func (l *level) Type() string { return "level" }

func (l *level) Set(s string) error {
	switch s {
	case "debug", "info", "warn", "error":
		return (*slog.Level)(l).UnmarshalText([]byte(s))
	}
	return fmt.Errorf("%q is not one of debug, info, warn, error", s)
}

// usage returns the text of --help.
func usage() string {
	var c config
	flags, _ := flagSet(&c)
	return `Holdfast cuts stock over HTTP without selling a unit twice.

Usage:
  api [serve] [flags]                     serve; without --redis and --db on embedded stores, to try it out
  api reconcile [--repair] [--json] [flags]
                                          compare the counts of gate and ledger beside running instances; flags as theirs
  api drain [flags]                       commit the orders that strategy ` + assembly.Queueing().Name + ` has queued, and free the stock for other strategies; flags as its instances'
  api doctor [--json] [flags]             check what an instance with these flags would find, and say what to mend
  api migrate up|down|version [flags]     change or show the schema version of --db; down reverts one migration

Flags (each can be set in the environment too, as ` + commandline.Prefix + ` and its name in
capitals, with _ for -; a flag on the command line takes precedence; a variable with
another name after ` + commandline.Prefix + ` is refused):
` + flags.FlagUsages() + `
OTEL_EXPORTER_OTLP_ENDPOINT=http://host:4318 exports traces; see "Traces" in docs/operations.md.

Exit status: 0 on success, 1 on failure, if reconcile leaves a difference or if doctor finds a problem, 2 if a flag or variable is invalid.
`
}
