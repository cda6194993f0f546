// Command loadtest puts every strategy under the same load. Afterwards it audits, from outside the
// service, which strategies sold a unit twice, and prints the speed of each. See go run ./loadtest
// --help.
package main

import (
	"context"
	"errors"
	"io"

	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func main() { command.Main("loadtest", run) }

// errBroken means that the run has finished and found a broken promise.
var errBroken = errors.New("promise broken")

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == "pitfalls" {
		return runPitfalls(ctx, args[1:], stdout)
	}
	if len(args) > 0 && args[0] == "history" {
		return checkHistory(args[1:], stdout)
	}
	s, err := parse(args, stdout)
	if err != nil {
		return err
	}
	return testenv.Run(func(t testenv.T) error { return s.load(ctx, t, args, stdout, stderr) })
}

// load opens the stores and runs the loads.
func (s settings) load(ctx context.Context, t testenv.T, args []string, stdout, stderr io.Writer) error {
	lab, err := newLab(ctx, t, s, args, stdout, stderr)
	if err != nil {
		return err
	}
	defer lab.close()
	if s.clean {
		return lab.cleanAll(ctx)
	}
	return lab.run(ctx)
}
