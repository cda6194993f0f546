// Command api serves orders over HTTP, reconciles the counts of stock, commits queued
// orders, migrates the database schema, and checks what it needs. See api --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/store"
)

// gcPercent is the default of GOGC. The live heap is a few MiB, so Go's default
// of 100 would collect it many times a second. 400 needs about 20 MiB more. GOGC
// in the environment takes precedence.
const gcPercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	uuid.EnableRandPool()                         // asks the system for the random bytes of 16 IDs at once
	store.LogRedis(slog.New(slog.DiscardHandler)) // until the verb has a log
	ctx, stop := context.WithCancel(context.Background())
	stopAtSignal(stop)
	os.Exit(exitCode(run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr), os.Stderr))
}

// errSecondSignal: the process ends before it is done.
var errSecondSignal = errors.New("a second signal: stopping at once; what was under way is recovered as after a crash")

// stopAtSignal calls stop on the first SIGTERM or interrupt. The second one exits
// the process immediately.
func stopAtSignal(stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		<-signals
		os.Exit(exitCode(errSecondSignal, os.Stderr))
	}()
}

// exitCode prints err to stderr and returns the exit code of the process.
func exitCode(err error, stderr io.Writer) int {
	switch {
	case err == nil:
		return 0
	case errors.As(err, new(commandline.UsageError)): // also a bad URL, because check refuses it
		fmt.Fprintf(stderr, "api: %v\nRun api --help for the flags.\n", err)
		return 2
	default:
		fmt.Fprintf(stderr, "api: %v\n", err)
		return 1
	}
}

// run runs the command that args and environ name until it is done or ctx ends. Text
// for people goes to stdout, the log to stderr.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	c, err := parse(args, environ, stdout)
	switch {
	case errors.Is(err, commandline.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	log := newLogger(stderr, c.level())
	switch c.verb {
	case verbServe:
		if c.StopWithStdin {
			var stop context.CancelFunc
			ctx, stop = context.WithCancel(ctx)
			defer stop()
			go stopAtEnd(os.Stdin, stop)
		}
		return serve(ctx, c, stdout, log)
	case verbReconcile:
		return reconcileOnce(ctx, c, maxSilence, stdout, log)
	case verbDoctor:
		return examine(ctx, c, stdout)
	case verbDrain:
		return drainQueued(ctx, c, stdout, log)
	}
	return migrate(ctx, c, stdout)
}

// stopAtEnd calls stop when the stream ends. A pipe ends when the process at its
// other end dies, even by SIGKILL. The read cannot be cancelled; it lasts until
// this process ends.
func stopAtEnd(stream io.Reader, stop func()) {
	_, _ = io.Copy(io.Discard, stream)
	stop()
}

// newLogger returns a logger that writes text to a terminal and JSON to anything
// else.
func newLogger(w io.Writer, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// isTerminal reports whether w is a terminal.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// buildVersion returns the module's version, the commit if the build recorded it,
// and the Go version.
func buildVersion() string {
	b := readBuild()
	version := b.version
	if b.commit != unknown {
		version += " " + b.commit
	}
	return version + " " + b.goVersion
}
