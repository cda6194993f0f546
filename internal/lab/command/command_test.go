package command

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"
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
		{"help", t.Context(), pflag.ErrHelp, ExitOK, ""},
		{"failure", t.Context(), errors.New("no server"), ExitFailed, "bench: no server\n"},
		{"usage", t.Context(), Usagef("--rounds: too few"), ExitUsage, "bench: --rounds: too few\n"},
		{"interrupt with an error", interrupted, errors.New("no server"), ExitInterrupted, "bench: interrupted\n"},
	} {
		var stderr bytes.Buffer
		if got := ExitCode(test.ctx, "bench", test.err, &stderr); got != test.want || stderr.String() != test.says {
			t.Errorf("%s: exit code %d, %q", test.name, got, &stderr)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	parse := func(arg string) (stdout string, err error) {
		var out bytes.Buffer
		flags := Flags("bench")
		flags.Int("rounds", 3, "number of rounds")
		err = Parse(flags, []string{arg}, "Usage: bench\n\n%s", &out)
		return out.String(), err
	}
	if _, err := parse("--rounds=4"); err != nil {
		t.Error(err)
	}
	if _, err := parse("--nonesuch"); !errors.As(err, new(UsageError)) {
		t.Errorf("unknown flag: %v", err)
	}
	if help, err := parse("--help"); !errors.Is(err, pflag.ErrHelp) || !strings.Contains(help, "--rounds int   number of rounds") {
		t.Errorf("--help: %v: %s", err, help)
	}
}

func TestChecks(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		err  error
		says string
	}{
		{OneOf("lock", "redis", []string{"local", "redis"}), ""},
		{OneOf("lock", "file", []string{"local", "redis"}), `--lock: "file" is none of local, redis`},
		{Between("rounds", 1, 1, 9), ""},
		{Between("rounds", 9, 1, 9), ""},
		{Between("rounds", 10, 1, 9), "--rounds: 10 is not between 1 and 9"},
	} {
		if test.says == "" && test.err != nil || test.says != "" && (test.err == nil || test.err.Error() != test.says) {
			t.Errorf("%v, want %q", test.err, test.says)
		}
	}
}
