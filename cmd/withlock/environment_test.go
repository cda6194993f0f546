//go:build unix

package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// environmentOf runs env under withlock, with more variables, and returns what the command
// sees.
func environmentOf(t *testing.T, variables, flags []string) []string {
	t.Helper()
	w := startProgram(t, t.TempDir(), "env", append(append(variables, "flag=others", os.Args[0]), with(flags, "--", "env")...)...)
	w.mustExit(0)
	return strings.Split(w.out.String(), "\n")
}

// TestCredentialsStay sets flags in the environment, one with a password. The command must not
// inherit these variables.
func TestCredentialsStay(t *testing.T) {
	t.Parallel()
	redis := testenv.Redis(t)
	seen := environmentOf(t, []string{"HOLDFAST_REDIS=" + redis, "HOLDFAST_DB=mysql://app:secret@127.0.0.1:3306/app", "HOLDFAST_GRACE=1s", "HOLDFAST_STRATEGY=lua"},
		[]string{"--name", "withlock/" + uuid.NewString()})
	for _, variable := range seen {
		name, value, _ := strings.Cut(variable, "=")
		if slices.Contains([]string{"HOLDFAST_REDIS", "HOLDFAST_DB", "HOLDFAST_GRACE"}, name) || strings.Contains(value, "secret") {
			t.Errorf("the command has %s", variable)
		}
	}
	for _, want := range []string{"flag=others", "HOLDFAST_STRATEGY=lua", slotVariable + "=1"} {
		if !slices.Contains(seen, want) {
			t.Errorf("the command lacks %s", want)
		}
	}
}

// TestNestedTokens runs withlock under another withlock, with a backend that has no tokens. The
// inner command must not inherit the outer token.
func TestNestedTokens(t *testing.T) {
	t.Parallel()
	var servers []string
	for range 3 {
		servers = append(servers, testenv.OwnRedis(t).Addr())
	}
	seen := environmentOf(t, []string{tokenVariable + "=7", slotVariable + "=9"},
		[]string{"--lock", "redlock", "--redlock", strings.Join(servers, ","), "--name", "inner"})
	for _, variable := range seen {
		if strings.HasPrefix(variable, tokenVariable+"=") || variable == slotVariable+"=9" {
			t.Errorf("the command has the outer lock's %s", variable)
		}
	}
}
