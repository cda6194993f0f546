package main

import (
	"fmt"
	"io"
	"time"

	"github.com/alecthomas/kong"

	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/loadtest/history"
)

// historySettings are the command line of history. The tags define the flags.
type historySettings struct {
	Timeout time.Duration `default:"10s" help:"Time limit of the search in one part of a history, between two moments at which no call is under way."`
	Memory  time.Duration `default:"0s" help:"The --sold-out-memory of the service: how old a refusal may be."`
	File    string        `arg:"" help:"The history: one JSON object a line."`
}

// Help returns what --help says after the description.
func (historySettings) Help() string {
	return `docs/loadtest.md explains the file and the check.

Exit status: 0 every answer is explained, 1 one is not or the check could not decide, 2 usage.`
}

// checkHistory checks a history, and prints a verdict for each SKU.
func checkHistory(args []string, stdout io.Writer) error {
	s := &historySettings{}
	check := func(*kong.Context) error {
		if s.Timeout <= 0 || s.Memory < 0 {
			return fmt.Errorf("--timeout must be above 0, and --memory 0 or above")
		}
		return nil
	}
	if err := commandline.Parse(s, args, nil, stdout, check,
		kong.Name("go run ./loadtest history"),
		kong.Description("Checks a history of calls: for each SKU there must be an order of the calls, each at one moment between its begin and its end, that explains all answers.")); err != nil {
		return err
	}
	calls, err := readHistory(s.File)
	if err != nil {
		return err
	}
	verdicts := history.Check(calls, history.Options{Timeout: s.Timeout, Memory: s.Memory})
	failed := 0
	for _, v := range verdicts {
		writeVerdict(stdout, v)
		if v.Decision != history.Linearizable {
			failed++
		}
	}
	switch {
	case len(verdicts) == 0:
		return fmt.Errorf("%s: the history has no SKU", s.File)
	case failed > 0:
		return fmt.Errorf("%w: %d of %d SKUs", errBroken, failed, len(verdicts))
	}
	return nil
}

// maxPrinted bounds the calls that are printed for one verdict. They are the last ones.
const maxPrinted = 40

// writeVerdict prints a verdict, with the calls that cannot be explained.
func writeVerdict(w io.Writer, v history.Verdict) {
	fmt.Fprintf(w, "%s: %s, %d calls\n", v.SKU, v.Decision, v.Calls)
	if v.Why != "" {
		fmt.Fprintf(w, "  %s\n", v.Why)
	}
	if len(v.Part) == 0 {
		return
	}
	fmt.Fprintf(w, "  before these calls, %d units were left of %d:\n", v.Left, v.Total)
	if more := len(v.Part) - maxPrinted; more > 0 {
		fmt.Fprintf(w, "  (and %d before)\n", more)
	}
	for _, c := range v.Part[max(0, len(v.Part)-maxPrinted):] {
		fmt.Fprintf(w, "    %v\n", c)
	}
}
