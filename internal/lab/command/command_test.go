package command

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/commandline"
)

func TestExitCode(t *testing.T) {
	t.Parallel()
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	for _, test := range []struct {
		name string
		ctx  context.Context
		err  error
		want int
		says string
	}{
		{"success", t.Context(), nil, ExitOK, ""},
		{"help", t.Context(), commandline.ErrHelp, ExitOK, ""},
		{"failure", t.Context(), errors.New("no server"), ExitFailed, "bench: no server\n"},
		{"usage", t.Context(), commandline.Usagef("--rounds: too few"), ExitUsage, "bench: --rounds: too few\n"},
		{"interrupt without an error", interrupted, nil, ExitInterrupted, "bench: interrupted\n"},
		{"interrupt with an error", interrupted, errors.New("no server"), ExitInterrupted, "bench: interrupted\n"},
	} {
		var stderr bytes.Buffer
		if got := ExitCode(test.ctx, "bench", test.err, &stderr); got != test.want || stderr.String() != test.says {
			t.Errorf("%s: exit code %d, %q", test.name, got, &stderr)
		}
	}
}

func TestChecks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		says string
	}{
		{Between("rounds", 1, 1, 9), ""},
		{Between("rounds", 9, 1, 9), ""},
		{Between("rounds", 10, 1, 9), "--rounds: 10 is not between 1 and 9"},
	} {
		if test.says == "" && test.err != nil || test.says != "" && (test.err == nil || test.err.Error() != test.says) {
			t.Errorf("%v, want %q", test.err, test.says)
		}
	}
}
