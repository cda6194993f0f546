package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-stock/holdfast/internal/stock/strategy"
)

// envPrefix begins the environment variable of every flag: HOLDFAST_ADMIN_TOKEN
// is --admin-token.
const envPrefix = "HOLDFAST_"

const (
	// requestTimeout bounds the work for one request.
	requestTimeout = 10 * time.Second
	// shortestToken and longestToken of administrators. A shorter one can be
	// guessed; a longer one may not fit a request's headers.
	shortestToken, longestToken = 16, 4096
	// shortestDeadline of takes. One shorter than a request may last is safe
	// (its order is found void, and it takes again) but makes work for nothing.
	shortestDeadline = time.Second
)

// The verbs.
const (
	verbServe          = "serve"
	verbMigrateUp      = "migrate up"
	verbMigrateDown    = "migrate down"
	verbMigrateVersion = "migrate version"
)

// config is the command line and the environment, parsed and checked.
type config struct {
	verb         string
	listen       string
	strategy     strategy.Spec
	guard        bool
	redis        string
	db           string
	migrate      bool
	locks        lockFlags
	fence        bool
	segments     int
	takeDeadline time.Duration
	adminToken   string
	drainDelay   time.Duration
	stopWithIn   bool
	logLevel     slog.Level
	help         bool
	version      bool
}

// embedded reports whether the service brings its own stores.
func (c config) embedded() bool { return c.redis == "" && c.db == "" }

// loopback reports whether only this machine can reach the service.
func (c config) loopback() bool {
	host, _, err := net.SplitHostPort(c.listen)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// usageError is a mistake on the command line or in the environment.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// parse reads flags, which may stand before or after the verb, and the
// environment, over which flags win. Its errors are usageErrors, and repeat no
// URL, which may hold a password.
func parse(args []string, getenv func(string) string) (config, error) {
	c, err := parseOpenly(args, getenv)
	if err == nil {
		return c, nil
	}
	// The same mistake, made with arguments that end where a URL begins.
	var cut []string
	for _, arg := range args {
		cut = append(cut, cutURL(arg))
	}
	_, err = parseOpenly(cut, func(name string) string { return cutURL(getenv(name)) })
	if err == nil {
		err = usagef("an argument is not understood")
	}
	return c, err
}

// cutURL cuts s where the address of a URL in it begins.
func cutURL(s string) string {
	if scheme, _, found := strings.Cut(s, "://"); found {
		return scheme + ":…"
	}
	return s
}

// parseOpenly is parse with errors that repeat what was given.
func parseOpenly(args []string, getenv func(string) string) (config, error) {
	c := config{strategy: strategy.Spec{}}
	flags, name := flagSet(&c)
	if err := flags.Parse(joinSwitches(flags, args)); err != nil {
		return c, usageError{err}
	}
	if c.help || c.version {
		return c, nil
	}
	var err error
	flags.VisitAll(func(f *pflag.Flag) {
		variable := envPrefix + strings.ToUpper(strings.ReplaceAll(f.Name, "-", "_"))
		value := getenv(variable)
		if f.Changed || value == "" || err != nil {
			return
		}
		if setErr := flags.Set(f.Name, value); setErr != nil {
			err = usagef("%s (for --%s): %w", variable, f.Name, errors.Unwrap(setErr))
		}
	})
	if err != nil {
		return c, err
	}
	switch verb := strings.Join(flags.Args(), " "); verb {
	case "":
		c.verb = verbServe
	case verbServe, verbMigrateUp, verbMigrateDown, verbMigrateVersion:
		c.verb = verb
	case "migrate":
		return c, usagef("migrate needs one of up, down, version")
	default:
		return c, usagef("unknown command %q: expected serve, or migrate up|down|version", verb)
	}
	if f := flags.Lookup("admin-token"); f.Changed && !isToken(c.adminToken) {
		return c, usagef("--admin-token: must be %d to %d visible ASCII characters, without spaces", shortestToken, longestToken)
	}
	return c, c.check(*name)
}

// isToken reports whether a request's header can carry s as a bearer token, and
// it is not easily guessed.
func isToken(s string) bool {
	foreign := func(r rune) bool { return r < '!' || r > '~' }
	return len(s) >= shortestToken && len(s) <= longestToken && !strings.ContainsFunc(s, foreign)
}

// check holds what the flags say against one another.
func (c *config) check(name string) error {
	if strings.HasPrefix(c.verb, "migrate") {
		if c.db == "" {
			return usagef("--db: %s needs a database", c.verb)
		}
		return nil
	}
	spec, ok := strategy.Find(name)
	if !ok {
		return usagef("--strategy: %q is none of %s", name, strings.Join(strategy.Names(), ", "))
	}
	c.strategy = spec
	if _, port, err := net.SplitHostPort(c.listen); err != nil || strings.Contains(port, "/") {
		return usagef("--listen: %q is not host:port", c.listen)
	}
	switch {
	case !c.loopback() && c.adminToken == "":
		return usagef("--admin-token: needed to listen on %s, which other machines can reach", c.listen)
	case c.redis != "" && c.db == "":
		return usagef("--db: needed with --redis, or the orders would not outlive the process")
	case c.db != "" && c.redis == "" && c.strategy.HasGate() && !strings.HasPrefix(c.db, "sqlite:"):
		return usagef("--redis: needed by strategy %s with a database server", c.strategy.Name)
	case c.segments < 1 || c.segments > strategy.MaxSegments:
		return usagef("--segments: %d is not between 1 and %d", c.segments, strategy.MaxSegments)
	case c.takeDeadline < shortestDeadline:
		return usagef("--take-deadline: %v is too short, at least %v", c.takeDeadline, shortestDeadline)
	case c.drainDelay < 0:
		return usagef("--drain-delay: %v is negative", c.drainDelay)
	}
	return c.locks.check(c.strategy.NeedsLock())
}

func flagSet(c *config) (flags *pflag.FlagSet, strategyName *string) {
	flags = pflag.NewFlagSet("api", pflag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller prints errors and usage
	flags.SortFlags = false
	c.guard, c.fence = true, true
	flags.StringVar(&c.listen, "listen", "127.0.0.1:8080", "`address` to serve on")
	strategyName = flags.String("strategy", strategy.Default, "how stock is cut: "+strings.Join(strategy.Names(), ", "))
	addSwitch(flags, &c.guard, "guard", "let the ledger refuse what does not fit, behind a gate")
	addSwitch(flags, &c.fence, "fence", "let counts under a lock refuse a holder whose lease was outlived")
	c.locks.add(flags)
	flags.IntVar(&c.segments, "segments", 8, "`number` of segments of each SKU, of the strategies that have them")
	flags.StringVar(&c.redis, "redis", "", "`URL` of the gate's Redis: redis://host:port/0, rediss://, redis+sentinel://h1:p1,h2:p2/mymaster, redis+cluster://h1:p1,h2:p2")
	flags.StringVar(&c.db, "db", "", "`URL` of the ledger: mysql://user:password@host:port/name, postgres://user:password@host:port/name, sqlite:///path")
	addSwitch(flags, &c.migrate, "migrate", "bring an old schema up to date before serving")
	flags.DurationVar(&c.takeDeadline, "take-deadline", 30*time.Second, "how long a take may be in flight before recovery resolves it")
	flags.StringVar(&c.adminToken, "admin-token", "", "bearer `token` of administrators, 16 characters at least; without one, this machine is trusted if the service listens on loopback")
	flags.DurationVar(&c.drainDelay, "drain-delay", 0, "how long to accept requests after SIGTERM while /readyz is 503, for load balancers to notice")
	addSwitch(flags, &c.stopWithIn, "stop-with-stdin", "stop serving when standard input ends, as it does with whoever started the service")
	flags.VarPF((*level)(&c.logLevel), "log-level", "", "debug, info, warn or error")
	flags.BoolVarP(&c.help, "help", "h", false, "show this help")
	flags.BoolVar(&c.version, "version", false, "show the version")
	return flags, strategyName
}

// onOff is a switch: on, off, true or false; bare means on.
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
		return fmt.Errorf("%q is none of on, off, true, false", s)
	}
	return nil
}

// joinSwitches writes "--guard off" as "--guard=off": the flag library would
// take a word after a switch that may stand bare for a verb.
func joinSwitches(flags *pflag.FlagSet, args []string) []string {
	var joined []string
	for i := 0; i < len(args); i++ {
		arg := args[i]
		f := flags.Lookup(strings.TrimPrefix(arg, "--"))
		if strings.HasPrefix(arg, "--") && f != nil && f.Value.Type() == "switch" && i+1 < len(args) {
			if next := args[i+1]; !strings.HasPrefix(next, "-") && next != verbServe && next != "migrate" {
				arg += "=" + next
				i++
			}
		}
		joined = append(joined, arg)
	}
	return joined
}

// level is a log level by its lower-case name.
type level slog.Level

func (l *level) String() string { return strings.ToLower(slog.Level(*l).String()) }

func (l *level) Type() string { return "level" }

func (l *level) Set(s string) error {
	switch s {
	case "debug", "info", "warn", "error":
		return (*slog.Level)(l).UnmarshalText([]byte(s))
	}
	return fmt.Errorf("%q is none of debug, info, warn, error", s)
}

// usage is the text of --help.
func usage() string {
	var c config
	flags, _ := flagSet(&c)
	return `Holdfast cuts stock over HTTP without selling a unit twice.

Usage:
  api [serve] [flags]                     serve; without --redis and --db with embedded stores, for trying out
  api migrate up|down|version [flags]     change or show the schema of --db; down undoes one step

Flags (each also as ` + envPrefix + `NAME in the environment, - as _; a flag wins):
` + flags.FlagUsages() + `
Exit status: 0 after a clean end, 1 after a failure, 2 after a mistake in flags or environment.
`
}
