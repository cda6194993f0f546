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

// TestCredentialsStay sets flags in the environment, one with a password. The command must not
// inherit these variables.
func TestCredentialsStay(t *testing.T) {
	t.Parallel()
	w := startProgram(t, t.TempDir(), "env", "HOLDFAST_REDIS="+testenv.Redis(t), "HOLDFAST_DB=mysql://app:secret@127.0.0.1:3306/app", "HOLDFAST_GRACE=1s", "HOLDFAST_STRATEGY=lua", "flag=others",
		os.Args[0], "--name", "withlock/"+uuid.NewString(), "--", "env")
	w.mustExit(0)
	seen := strings.Split(w.out.String(), "\n")
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
