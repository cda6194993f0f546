// Command api serves orders over HTTP, and migrates the schema they are kept
// in. See api --help.
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
)

// garbagePercent is how much the heap grows before it is collected. What lives
// is a few MiB, so the default would collect many times a second; this costs
// some 20 MiB. GOGC in the environment wins.
const garbagePercent = 400

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(garbagePercent)
	}
	ctx, stop := context.WithCancel(context.Background())
	stopAtSignal(stop)
	os.Exit(exitCode(run(ctx, os.Args[1:], os.Getenv, os.Stdout, os.Stderr), os.Stderr))
}

// stopAtSignal calls stop at the first SIGTERM or interrupt. The second ends the
// process at once.
func stopAtSignal(stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		stop()
		<-signals
		os.Exit(1)
	}()
}

// exitCode reports err and says how the process ends.
func exitCode(err error, stderr io.Writer) int {
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "api: %v\nRun api --help for the flags.\n", err)
		return 2
	default:
		fmt.Fprintf(stderr, "api: %v\n", err)
		return 1
	}
}

// run does what the command line says, until it is done or ctx ends. What is
// for people goes to stdout, the log to stderr.
func run(ctx context.Context, args []string, getenv func(string) string, stdout, stderr io.Writer) error {
	c, err := parse(args, getenv)
	switch {
	case err != nil:
		return err
	case c.help:
		_, err := io.WriteString(stdout, usage())
		return err
	case c.version:
		_, err := fmt.Fprintln(stdout, "holdfast", buildVersion())
		return err
	}
	log := newLogger(stderr, c.logLevel)
	if c.verb == verbServe {
		if c.stopWithIn {
			var stop context.CancelFunc
			ctx, stop = context.WithCancel(ctx)
			defer stop()
			go stopAtEnd(os.Stdin, stop)
		}
		return serve(ctx, c, stdout, log)
	}
	return migrate(ctx, c, stdout)
}

// stopAtEnd calls stop when the stream ends: a pipe does when the process at its
// other end dies, however it dies. Nothing can stop the reading before; it ends
// with this process.
func stopAtEnd(stream io.Reader, stop func()) {
	_, _ = io.Copy(io.Discard, stream)
	stop()
}

// newLogger writes text to a terminal and JSON to everything else.
func newLogger(w io.Writer, level slog.Level) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if f, ok := w.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return slog.New(slog.NewTextHandler(w, options))
		}
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// buildVersion is the module's version and, where the build knows it, the
// commit.
func buildVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "(unknown)"
	}
	version := info.Main.Version
	if version == "" {
		version = "(devel)"
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			version += " " + s.Value
		}
	}
	return version + " " + info.GoVersion
}
