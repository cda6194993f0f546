// Package command is the command line of the laboratory's programs.
package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// Exit codes.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitInterrupted = 130 // as shells report a program that SIGINT ended
)

// Main calls run and exits with the code of its error. The context ends on SIGINT,
// on SIGTERM, and when the go run that started the program is killed. A second
// signal ends the program at once.
func Main(name string, run func(ctx context.Context, args []string, stdout, stderr io.Writer) error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	ctx = testenv.WithGoRun(ctx)
	os.Exit(ExitCode(ctx, name, run(ctx, os.Args[1:], os.Stdout, os.Stderr), os.Stderr))
}

// ExitCode prints err and returns the exit code for it. After an interrupt, the code is
// ExitInterrupted, whatever err is.
func ExitCode(ctx context.Context, name string, err error, stderr io.Writer) int {
	if ctx.Err() != nil {
		fmt.Fprintf(stderr, "%s: interrupted\n", name)
		return ExitInterrupted
	}
	if err == nil || errors.Is(err, commandline.ErrHelp) {
		return ExitOK
	}
	fmt.Fprintf(stderr, "%s: %v\n", name, err)
	if errors.As(err, new(commandline.UsageError)) {
		return ExitUsage
	}
	return ExitFailed
}

// Between returns an error unless least ≤ value ≤ most.
func Between[T cmp.Ordered](flag string, value, least, most T) error {
	if least <= value && value <= most {
		return nil
	}
	return commandline.Usagef("--%s: %v is not between %v and %v", flag, value, least, most)
}
