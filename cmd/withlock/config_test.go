package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/holdfast-stock/holdfast/internal/commandline"
	"github.com/holdfast-stock/holdfast/internal/lock"
)

// TestVariables checks that no program refuses the variables of withlock.
func TestVariables(t *testing.T) {
	none := pflag.NewFlagSet("another program", pflag.ContinueOnError)
	flagSet(&config{}).VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" {
			return
		}
		if err := commandline.Environment(none, []string{commandline.Variable(f.Name) + "=x"}); err != nil {
			t.Error(err)
		}
	})
}

// TestNameWithHolders checks that a name which is too long for the names of the slots is a
// mistake in the flags, and not a lock that is held.
func TestNameWithHolders(t *testing.T) {
	for _, test := range []struct {
		bytes   int
		holders string
		valid   bool
	}{{255, "1", true}, {249, "2", true}, {250, "2", false}} {
		_, err := parse([]string{"--redis", "redis://127.0.0.1:1/0", "--name", strings.Repeat("a", test.bytes), "--holders", test.holders, "--", "true"}, nil)
		if (err == nil) != test.valid || err != nil && !errors.Is(err, lock.ErrName) {
			t.Errorf("%d bytes, %s holders: error %v", test.bytes, test.holders, err)
		}
	}
}
