// Package rounds defines the flags that all benchmarks share: the rounds, their length and the
// report file. It also begins the report.
package rounds

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lab/command"
	"github.com/holdfast-stock/holdfast/internal/lab/machine"
)

// Flags are the flags of one run of a benchmark.
type Flags struct {
	Rounds  int    `default:"3" help:"Number of rounds; the tables show medians."`
	Seconds int    `default:"${seconds}" help:"Measured seconds of each run."`
	Out     string `placeholder:"FILE" help:"Also write the report to this file."`
}

// Check checks the values of the flags.
func (f *Flags) Check() error {
	return cmp.Or(command.Between("rounds", f.Rounds, 1, math.MaxInt32), command.Between("seconds", f.Seconds, 1, math.MaxInt32))
}

// Report opens the report and writes its heading: the command, the commit, the date, the machine
// and the given versions of programs. The caller closes it.
func (f *Flags) Report(stdout io.Writer, pkg string, args []string, versions ...string) (report io.Writer, closeFile func() error, err error) {
	report, closeFile = stdout, func() error { return nil }
	if f.Out != "" {
		file, err := os.Create(f.Out)
		if err != nil {
			return nil, nil, commandline.Usagef("--out: %w", err)
		}
		report, closeFile = io.MultiWriter(stdout, file), file.Close
	}
	fmt.Fprintf(report, "`%s`, commit %s, %s\n\nOn %s.\n\n", strings.Join(append([]string{"go run", pkg}, args...), " "), machine.Commit(),
		time.Now().UTC().Format(time.DateOnly), strings.Join(append([]string{machine.Describe()}, versions...), "; "))
	return report, closeFile, nil
}
