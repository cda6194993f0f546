// Package command is the command line of the laboratory's programs.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// Exit codes.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitInterrupted = 130 // as shells report a program that SIGINT ended
)

// UsageError is a mistake on the command line.
type UsageError struct{ Err error }

func (e UsageError) Error() string { return e.Err.Error() }

func (e UsageError) Unwrap() error { return e.Err }

// Usagef formats a UsageError.
func Usagef(format string, args ...any) error { return UsageError{fmt.Errorf(format, args...)} }

// Main calls run and exits with the code of its error. The context ends on SIGINT,
// on SIGTERM, and when the go run that started the program is killed. A second
// signal ends the program at once.
func Main(name string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	ctx = testenv.WithGoRun(ctx)
	os.Exit(ExitCode(ctx, name, run(ctx, os.Args[1:], os.Stdout, os.Stderr), os.Stderr))
}

// ExitCode prints err and returns the exit code for it. An interrupt outranks err.
func ExitCode(ctx context.Context, name string, err error, stderr io.Writer) int {
	if ctx.Err() != nil {
		fmt.Fprintf(stderr, "%s: interrupted\n", name)
		return ExitInterrupted
	}
	if err == nil || errors.Is(err, pflag.ErrHelp) {
		return ExitOK
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	if errors.As(err, new(UsageError)) {
		return ExitUsage
	}
	return ExitFailed
}

// Flags returns an empty flag set. Its help lists the flags in the order in which
// they are defined.
func Flags(name string) *pflag.FlagSet {
	flags := pflag.NewFlagSet(name, pflag.ContinueOnError)
	flags.SortFlags = false
	flags.SetOutput(io.Discard)
	return flags
}

// Parse parses args. On --help it prints the help text to stdout, with the flags in
// place of %s, and returns pflag.ErrHelp. Every other error is a UsageError.
func Parse(flags *pflag.FlagSet, args []string, help string, stdout io.Writer) error {
	err := flags.Parse(args)
	if errors.Is(err, pflag.ErrHelp) {
		fmt.Fprintf(stdout, help, flags.FlagUsages())
		return err
	}
	if err != nil {
		return UsageError{err}
	}
	return nil
}

// OneOf returns a UsageError unless the flag's value is one of those allowed.
func OneOf(flag, value string, allowed []string) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return Usagef("--%s: %q is none of %s", flag, value, strings.Join(allowed, ", "))
}

// Between returns a UsageError unless least ≤ value ≤ most.
func Between(flag string, value, least, most int64) error {
	if least <= value && value <= most {
		return nil
	}
	return Usagef("--%s: %d is not between %d and %d", flag, value, least, most)
}
