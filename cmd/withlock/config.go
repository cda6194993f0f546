//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/pflag"

	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// config is the parsed and checked command line and environment.
type config struct {
	locks   backends.Flags
	redis   string
	db      string
	name    string
	holders int
	wait    time.Duration // negative: without end
	grace   time.Duration
	list    bool
	help    bool
	command []string
}

// flagSet returns the flags, which set the fields of c.
func flagSet(c *config) *pflag.FlagSet {
	flags := pflag.NewFlagSet("withlock", pflag.ContinueOnError)
	flags.SetOutput(io.Discard) // the caller prints errors and usage
	flags.SortFlags = false
	flags.SetInterspersed(false) // the flags after the command are the command's
	flags.StringVar(&c.name, "name", "", "`name` of the lock")
	flags.IntVar(&c.holders, "holders", 1, "`number` of processes that may hold the name at once; all users of a name must give the same number")
	flags.DurationVar(&c.wait, "wait", 0, "how long to wait for the lock; 0s: ask once (default: without end)")
	flags.DurationVar(&c.grace, "grace", 5*time.Second, "how long the command may take to end after SIGTERM when the lock is lost; at most half of --lease, and without the flag at most a third")
	flags.BoolVar(&c.list, "list", false, "list the holders of the name, and run nothing")
	c.locks.Add(flags, "the lock")
	flags.StringVar(&c.redis, "redis", "", "`URL` of the Redis of --lock redis: redis://host:port/0, rediss://, redis+sentinel://h1:p1,h2:p2/mymaster, redis+cluster://h1:p1,h2:p2")
	flags.StringVar(&c.db, "db", "", "`URL` of the migrated database of --lock mysql or postgres: mysql://user:password@host:port/name, postgres://user:password@host:port/name")
	flags.BoolVarP(&c.help, "help", "h", false, "show this help")
	return flags
}

// variables returns the names of the environment variables that set flags.
func variables() (names []string) {
	flagSet(new(config)).VisitAll(func(f *pflag.Flag) { names = append(names, commandline.Variable(f.Name)) })
	return names
}

// parse reads the flags and the environment. Flags take precedence.
func parse(args, environ []string) (config, error) {
	var c config
	flags := flagSet(&c)
	if err := commandline.Parse(flags, args); err != nil {
		return c, err
	}
	if c.help {
		return c, nil
	}
	if err := commandline.Environment(flags, environ); err != nil {
		return c, err
	}
	if !flags.Changed("wait") {
		c.wait = -1
	} else if c.wait < 0 {
		return c, commandline.Blame(flags, fmt.Errorf("--wait: %v is negative", c.wait))
	}
	if !flags.Changed("grace") {
		c.grace = min(c.grace, c.locks.Lease/3)
	}
	c.command = flags.Args()
	return c, commandline.Blame(flags, c.check())
}

// check returns an error for the first invalid flag or combination of flags.
func (c config) check() error {
	if err := c.checkBackend(); err != nil {
		return err
	}
	switch {
	case c.name == "":
		return errors.New("--name: required")
	case lock.CheckName(c.name) != nil:
		return fmt.Errorf("--name: %w", lock.CheckName(c.name))
	case c.holders < 1 || c.holders > recipe.MaxHolders:
		return fmt.Errorf("--holders: %d is not between 1 and %d", c.holders, recipe.MaxHolders)
	case c.grace < 0 || c.grace > c.locks.Lease/2:
		return fmt.Errorf("--grace: %v is not between 0s and half of --lease %v: the command must have ended before the lease does", c.grace, c.locks.Lease)
	case c.list && len(c.command) > 0:
		return errors.New("--list: runs no command")
	case !c.list && len(c.command) == 0:
		return errors.New("a command is required: withlock --name NAME [flags] -- COMMAND [ARGUMENT…]")
	}
	if _, err := recipe.NewSemaphore(nil, c.name, c.holders); err != nil {
		return fmt.Errorf("--name: with --holders %d: %w", c.holders, err)
	}
	return nil
}

// checkBackend returns an error if the backend does not lock between processes, if its
// servers are missing, or if it cannot list holders and --list is set.
func (c config) checkBackend() error {
	if err := c.locks.Check(true, c.db); err != nil {
		return err
	}
	backend, _ := backends.Find(c.locks.Backend)
	switch {
	case c.list && backend.Flag != "" && !backend.Lists:
		return fmt.Errorf("--list: --lock %s cannot list holders", c.locks.Backend)
	case backend.Flag == "":
		return fmt.Errorf("--lock %s: locks within one process only, so it cannot keep others from running", c.locks.Backend)
	case backend.Flag == "redis" && c.redis == "":
		return fmt.Errorf("--redis: required with --lock %s", c.locks.Backend)
	}
	return nil
}

// openRedis opens the Redis of --lock redis; for another backend it returns nil. The
// caller must call close.
func (c config) openRedis(ctx context.Context) (client redis.UniversalClient, close func(), err error) {
	if backend, _ := backends.Find(c.locks.Backend); backend.Flag != "redis" {
		return nil, func() {}, nil
	}
	client, err = store.OpenRedis(ctx, c.redis)
	if err != nil {
		return nil, nil, fmt.Errorf("--redis: %w", err)
	}
	return client, func() { client.Close() }, nil
}

// usage returns the text of --help.
func usage() string {
	var c config
	return `Withlock runs a command while it holds a lock, so that one process in the cluster, or
--holders processes, run it at a time.

Usage:
  withlock --name NAME [flags] -- COMMAND [ARGUMENT…]
  withlock --name NAME --list [flags]

Flags (each can be set in the environment too, as ` + commandline.Prefix + ` and its name in
capitals, with _ for -; a flag on the command line takes precedence; a variable with
another name after ` + commandline.Prefix + ` is refused):
` + flagSet(&c).FlagUsages() + `
The command does not inherit these variables, because some have passwords.

The command gets the fencing token as ` + tokenVariable + `, if the backend has tokens, and
the number of its slot as ` + slotVariable + `. Signals to withlock are passed on to the command
and its children: its process group. When the lock is lost, and when the command has
ended and has left children behind, the process group gets SIGTERM, and after --grace
SIGKILL. The lock is free after that.

Exit status: that of the command, or 128 + N if signal N has ended it;
  2    a flag or variable is invalid
  75   the lock was not acquired
  76   the lock was lost; the command was ended
  126  the command could not be run
  127  the command was not found
  1    another failure
`
}
