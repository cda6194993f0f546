//go:build unix

// Command withlock runs a command while it holds a lock. See withlock --help.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// The exit codes of withlock itself.
const (
	exitFailed      = 1
	exitUsage       = 2
	exitNotAcquired = 75
	exitLost        = 76
	exitCannotRun   = 126
	exitNotFound    = 127
)

// callTimeout bounds one call to the backend.
const callTimeout = 5 * time.Second

func main() {
	switch {
	case len(os.Args) > 1 && os.Args[1] == guardArgument:
		runGuard(os.Stdin, os.Stdout)
		return
	case len(os.Args) > 3 && os.Args[1] == beginArgument:
		os.Exit(runCommand(os.Args[2], os.Args[3:]))
	}
	os.Exit(run(os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run does what args say and returns the exit code.
func run(args, environ []string, stdout, stderr io.Writer) int {
	store.LogRedis(slog.New(slog.DiscardHandler)) // the errors of failed calls say what the Redis client would log
	c, err := parse(args, environ, stdout)
	switch {
	case errors.Is(err, commandline.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "withlock: %v\nRun withlock --help for the flags.\n", err)
		return exitUsage
	}
	signals := notify()
	if c.List {
		err = list(c, signals, stdout)
	} else {
		err = holdAndRun(c, signals)
	}
	var code exitError
	switch {
	case err == nil:
		return 0
	case !errors.As(err, &code):
		code = exitError{err, exitFailed}
	}
	if code.error != nil {
		fmt.Fprintf(stderr, "withlock: %v\n", code.error)
	}
	return code.code
}

// exitError is an exit code and the error to print. A nil error prints nothing.
type exitError struct {
	error
	code int
}

// The signals that end the wait for the lock, and those that are only passed on to the
// command.
var (
	endingSignals = []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT}
	passedSignals = []os.Signal{syscall.SIGUSR1, syscall.SIGUSR2}
)

// notify returns a channel that receives the signals to withlock. A signal that was
// ignored at the start, as nohup ignores SIGHUP, stays ignored by withlock and by the
// command.
func notify() <-chan os.Signal {
	signals := make(chan os.Signal, 64)
	for _, s := range append(endingSignals, passedSignals...) {
		if !signal.Ignored(s) {
			signal.Notify(signals, s)
		}
	}
	return signals
}

// interruptible returns a context that ends with the first ending signal. After stop it
// no longer ends, and later signals stay in the channel.
func interruptible(signals <-chan os.Signal) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(context.Background())
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case s := <-signals:
				if slices.Contains(endingSignals, s) {
					cancel(fmt.Errorf("interrupted by the signal %q", s))
					return
				}
			case <-stopped:
				return
			}
		}
	}()
	return ctx, func() {
		close(stopped)
		<-done
	}
}

// open opens the backend and the semaphore of the name.
func open(ctx context.Context, c config) (s *recipe.Semaphore, close func(), err error) {
	client, closeClient, err := c.openRedis(ctx)
	if err != nil {
		return nil, nil, err
	}
	locker, closeLocker, err := c.Locks.Open(ctx, client, c.DB)
	if err != nil {
		closeClient()
		return nil, nil, err
	}
	close = func() {
		_ = closeLocker() // the process ends, and its connections with it
		closeClient()
	}
	if s, err = recipe.NewSemaphore(locker, c.Name, c.Holders); err != nil {
		close()
		return nil, nil, err
	}
	return s, close, nil
}

// list prints the holders.
func list(c config, signals <-chan os.Signal, stdout io.Writer) error {
	ctx, stop := interruptible(signals)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, closeSemaphore, err := open(ctx, c)
	if err != nil {
		return err
	}
	defer closeSemaphore()
	holders, err := s.Holders(ctx)
	if err != nil {
		return fmt.Errorf("--lock %s: %w", c.Locks.Backend, err)
	}
	table := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "SLOT\tHOST\tPID\tSINCE\tTOKEN")
	for _, h := range holders {
		fmt.Fprintf(table, "%d\t%s\t%d\t%s\t%d\n", h.Slot, h.Host, h.PID, h.Since.Local().Format(time.RFC3339), h.Token)
	}
	return table.Flush()
}

// holdAndRun runs the command while it holds the lock.
func holdAndRun(c config, signals <-chan os.Signal) error {
	ctx, stop := interruptible(signals)
	slot, closeSemaphore, err := acquire(ctx, c)
	stop()
	if err == nil && ctx.Err() != nil { // the signal came together with the lock
		_ = slot.Unlock(context.Background()) // a lock that cannot be freed ends with its lease
		closeSemaphore()
		err = context.Cause(ctx)
	}
	switch {
	case errors.Is(err, store.ErrBadURL):
		return exitError{err, exitUsage}
	case errors.Is(err, lock.ErrNotMigrated): // waiting does not help
		return err
	case err != nil:
		return notAcquiredError(c, err)
	}
	defer closeSemaphore()
	return runAndUnlock(c, slot, signals)
}

// runAndUnlock runs the command and frees the lock.
func runAndUnlock(c config, slot *recipe.Slot, signals <-chan os.Signal) error {
	err := runUnder(c, slot, signals)
	var code exitError
	failed := errors.As(err, &code) && code.error != nil // the lock was lost, or the command did not run
	// A lock that cannot be freed for another reason ends with its lease.
	if unlocked := slot.Unlock(context.Background()); errors.Is(unlocked, lock.ErrLost) && !failed {
		return lostError(c, unlocked)
	}
	return err
}

// acquire opens the backend and takes the lock. It gives up when ctx ends or --wait is
// over. With --wait 0 it asks once.
func acquire(ctx context.Context, c config) (slot *recipe.Slot, close func(), err error) {
	waiting, cancel := context.WithCancel(ctx)
	bound, once := callTimeout, c.Wait != nil && *c.Wait == 0
	if c.Wait != nil {
		bound = cmp.Or(*c.Wait, callTimeout)
		waiting, cancel = context.WithTimeout(ctx, bound)
	}
	defer cancel()
	s, close, err := open(waiting, c)
	opened := err == nil
	if opened {
		take := s.Acquire
		if once {
			take = s.TryAcquire
		}
		if slot, err = take(waiting); err == nil {
			return slot, close, nil
		}
		close()
	}
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case opened && waiting.Err() != nil && errors.Is(err, context.DeadlineExceeded):
		err = fmt.Errorf("not within %v", bound)
	}
	return nil, nil, err
}
