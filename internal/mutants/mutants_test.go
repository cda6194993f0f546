//go:build mutants

// Package mutants breaks the code in one place at a time and expects a test to
// fail. Code that can be broken without a failing test is not protected by the
// tests.
package mutants

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// mutant is one change to a file, and the test that must fail on it. Mutants of
// the gate's scripts are also in internal/stock/gate.
type mutant struct {
	name     string
	file     string // relative to the module's root
	old, new string
	test     string // the package, a space, and the path of the test within it
}

// mutants lists the mutants of all areas. Each area has a file.
var mutants = slices.Concat(placing, queued, limits, lifecycle, expiry, scripts, databases, locks, face, laboratory, gateway)

// TestApplies checks that the text that each mutant replaces occurs exactly once
// in its file.
func TestApplies(t *testing.T) {
	for _, m := range mutants {
		sound, err := os.ReadFile(filepath.Join("../..", m.file))
		if err != nil {
			t.Error(err)
		} else if n := strings.Count(string(sound), m.old); n != 1 {
			t.Errorf("%s: %q occurs %d times in %s, want once", m.name, m.old, n, m.file)
		}
	}
}

// TestMutants runs the test of each mutant and expects it to fail.
func TestMutants(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel() // the number of processors bounds how many run at once
			out, err := m.run(t, root)
			pkg, path, _ := strings.Cut(m.test, " ")
			name, _, _ := strings.Cut(path, "/")
			switch {
			case err == nil:
				t.Errorf("%s passes on the mutant:\n%s", path, out)
			case !strings.Contains(out, "--- FAIL: "+name):
				t.Errorf("the run of %s in %s failed, but the test itself did not:\n%s", path, pkg, out)
			}
		})
	}
}

// run runs the test on the mutated module. It uses a build overlay, so the files
// on disk do not change.
func (m mutant) run(t *testing.T, root string) (output string, err error) {
	t.Helper()
	sound, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(sound), m.old); n != 1 {
		t.Fatalf("%q occurs %d times in %s, want once", m.old, n, m.file)
	}
	folder := t.TempDir()
	mutated := filepath.Join(folder, filepath.Base(m.file))
	overlay := filepath.Join(folder, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(root, m.file): mutated}})
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string][]byte{mutated: []byte(strings.Replace(string(sound), m.old, m.new, 1)), overlay: replace} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	pkg, path, _ := strings.Cut(m.test, " ")
	levels := strings.Split(path, "/")
	for i, level := range levels {
		levels[i] = "^" + regexp.QuoteMeta(level) + "$"
	}
	cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-ldflags=-w", "-count=1", "-timeout=2m",
		"-run="+strings.Join(levels, "/"), "./"+pkg)
	cmd.Dir = root
	// The overlay is set in the environment, so that programs which tests build
	// are mutated too.
	cmd.Env = append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -overlay="+overlay)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	text, err := cmd.CombinedOutput()
	return string(text), err
}
