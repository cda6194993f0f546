// Package session holds what every benchmark run has: rounds, their length and a
// report.
package session

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/internal/lab/machine"
)

// Session is one run of a benchmark.
type Session struct {
	Rounds  int
	Seconds int    // measured in each round
	Out     string // file for a copy of the report; empty: none
}

// Define adds the flags of the session.
func (s *Session) Define(flags *pflag.FlagSet, seconds int) {
	flags.IntVar(&s.Rounds, "rounds", 3, "number of rounds; the tables show medians")
	flags.IntVar(&s.Seconds, "seconds", seconds, "measured seconds of each run")
	flags.StringVar(&s.Out, "out", "", "also write the report to this `file`")
}

// Check checks the values of the flags.
func (s *Session) Check() error {
	return cmp.Or(command.Between("rounds", int64(s.Rounds), 1, math.MaxInt32), command.Between("seconds", int64(s.Seconds), 1, math.MaxInt32))
}

// Report opens the report and writes its heading: the command, the commit, the date,
// the machine and the versions of the programs that it uses. The caller closes it.
func (s *Session) Report(stdout io.Writer, pkg string, args []string, versions ...string) (report io.Writer, closeFile func() error, err error) {
	report, closeFile = stdout, func() error { return nil }
	if s.Out != "" {
		file, err := os.Create(s.Out)
		if err != nil {
			return nil, nil, command.Usagef("--out: %w", err)
		}
		report, closeFile = io.MultiWriter(stdout, file), file.Close
	}
	fmt.Fprintf(report, "`%s`, commit %s, %s\n\nOn %s.\n\n", strings.Join(append([]string{"go run", pkg}, args...), " "), machine.Commit(),
		time.Now().UTC().Format(time.DateOnly), strings.Join(append([]string{machine.Describe()}, versions...), "; "))
	return report, closeFile, nil
}
