//go:build unix

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/alecthomas/kong"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// config is the command line and the environment. Its tags define the flags.
type config struct {
	Name    string         `placeholder:"NAME" help:"Name of the lock."`
	Holders int            `default:"1" help:"Number of processes that may hold the name at once; all users of a name must give the same number."`
	Wait    *time.Duration `placeholder:"DURATION" help:"How long to wait for the lock; 0s: ask once; not set: without end."`
	Grace   time.Duration  `default:"5s" help:"How long the command may take to end after SIGTERM when the lock is lost; at most half of --lease. The default is at most a third of --lease."`
	List    bool           `help:"List the holders of the name, and run nothing."`
	Locks   backends.Flags `embed:""`
	Redis   string         `placeholder:"URL" help:"Redis of --lock redis: redis://host:port/0, rediss://, redis+sentinel://h1:p1,h2:p2/mymaster, redis+cluster://h1:p1,h2:p2."`
	DB      string         `placeholder:"URL" help:"Migrated database of --lock mysql or postgres: mysql://user:password@host:port/name, postgres://user:password@host:port/name."`
	Command words          `arg:"" optional:"" passthrough:"partial" help:"What to run, and its arguments. The flags after it are its own."`
}

// words are a command and its arguments.
type words []string

// Decode takes the rest of the line as it is. kong would replace bytes that are not UTF-8.
func (w *words) Decode(c *kong.DecodeContext) error {
	for !c.Scan.Peek().IsEOL() {
		*w = append(*w, c.Scan.Pop().String())
	}
	if (*w)[0] == "--" {
		*w = (*w)[1:]
	}
	return nil
}

// options describe the program.
func options() []kong.Option {
	return []kong.Option{
		kong.Name("withlock"),
		kong.Description("Withlock runs a command while it holds a lock, so that one process in the cluster, or --holders processes, run it at a time."),
		kong.Vars(backends.Vars("the lock")),
	}
}

// variables returns the names of the environment variables that set flags.
func variables() (names []string) {
	for _, f := range commandline.New(new(config), options()...).Model.Flags {
		names = append(names, commandline.Variable(f.Name))
	}
	return names
}

// parse reads the flags and the environment, as commandline.Parse does.
func parse(args, environ []string, stdout io.Writer) (c config, err error) {
	err = commandline.Parse(&c, args, environ, stdout, c.check, options()...)
	return c, err
}

// check returns an error for the first invalid flag or combination of flags.
func (c *config) check(line *kong.Context) error {
	if !c.List && len(c.Command) == 0 { // checked first, because this error has the usage
		return errors.New("a command is required: withlock --name NAME [flags] -- COMMAND [ARGUMENT…]")
	}
	if err := cmp.Or(c.checkTimes(line), c.checkBackend()); err != nil {
		return err
	}
	switch {
	case c.Name == "":
		return errors.New("--name: required")
	case lock.CheckName(c.Name) != nil:
		return fmt.Errorf("--name: %w", lock.CheckName(c.Name))
	case c.Holders < 1 || c.Holders > recipe.MaxHolders:
		return fmt.Errorf("--holders: %d is not between 1 and %d", c.Holders, recipe.MaxHolders)
	case c.Grace < 0 || c.Grace > c.Locks.Lease/2:
		return fmt.Errorf("--grace: %v is not between 0s and half of --lease %v: the command must have ended before the lease does", c.Grace, c.Locks.Lease)
	case c.List && len(c.Command) > 0:
		return errors.New("--list: runs no command")
	}
	if _, err := recipe.NewSemaphore(nil, c.Name, c.Holders); err != nil {
		return fmt.Errorf("--name: with --holders %d: %w", c.Holders, err)
	}
	return nil
}

// checkTimes checks --wait, and sets the times that no flag has set.
func (c *config) checkTimes(line *kong.Context) error {
	if c.Wait != nil && *c.Wait < 0 {
		return fmt.Errorf("--wait: %v is negative", *c.Wait)
	}
	if !commandline.IsSet(line, "grace") {
		c.Grace = min(c.Grace, c.Locks.Lease/3)
	}
	return nil
}

// checkBackend returns an error if the backend does not lock between processes, if its
// servers are missing, or if it cannot list holders and --list is set.
func (c config) checkBackend() error {
	if err := c.Locks.Check(true, c.DB); err != nil {
		return err
	}
	backend, _ := backends.Find(c.Locks.Backend)
	switch {
	case c.List && backend.Flag != "" && !backend.Lists:
		return fmt.Errorf("--list: --lock %s cannot list holders", c.Locks.Backend)
	case backend.Flag == "":
		return fmt.Errorf("--lock %s: locks within one process only, so it cannot keep others from running", c.Locks.Backend)
	case backend.Flag == "redis" && c.Redis == "":
		return fmt.Errorf("--redis: required with --lock %s", c.Locks.Backend)
	}
	return nil
}

// openRedis opens the Redis of --lock redis; for another backend it returns nil. The
// caller must call close.
func (c config) openRedis(ctx context.Context) (client redis.UniversalClient, close func(), err error) {
	if backend, _ := backends.Find(c.Locks.Backend); backend.Flag != "redis" {
		return nil, func() {}, nil
	}
	client, err = store.OpenRedis(ctx, c.Redis)
	if err != nil {
		return nil, nil, fmt.Errorf("--redis: %w", err)
	}
	return client, func() { client.Close() }, nil
}

// Help returns what --help says after the description.
func (config) Help() string {
	return `Usage:

  withlock --name NAME [flags] -- COMMAND [ARGUMENT…]
  withlock --name NAME --list [flags]

` + commandline.EnvironmentHelp + ` The command does not inherit these variables, because some have passwords.

The command gets the fencing token as ` + tokenVariable + `, if the backend has tokens, and the number of its slot as ` + slotVariable + `. Signals to withlock are passed on to the command and its children: its process group. When the lock is lost, and when the command has ended and has left children behind, the process group gets SIGTERM, and after --grace SIGKILL. The lock is free after that.

Exit status: that of the command, or 128 + N if signal N has ended it;

  2    a flag or variable is invalid
  75   the lock was not acquired
  76   the lock was lost; the command was ended
  126  the command could not be run
  127  the command was not found
  1    another failure`
}
