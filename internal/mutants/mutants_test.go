//go:build mutants

// Package mutants breaks the code in one place at a time and expects a test to
// fail. Code that can be broken without a failing test is not protected by the
// tests.
package mutants

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
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
var mutants = slices.Concat(placing, queued, limits, lifecycle, expiry, scripts, databases, engines, locks, httpAPI, calling, laboratory, gateway, traces)

func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }

// TestApplies checks that the text that each mutant replaces occurs exactly once
// in its file, and that there is a test of the name.
func TestApplies(t *testing.T) {
	for _, m := range mutants {
		sound, err := os.ReadFile(filepath.Join("../..", m.file))
		if err == nil {
			_, err = m.in(sound)
		}
		if err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
		pkg, path, _ := strings.Cut(m.test, " ")
		name, _, _ := strings.Cut(path, "/")
		files, err := filepath.Glob(filepath.Join("../..", pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && strings.Contains(string(text), "\nfunc "+name+"(t *testing.T) ")
		}) {
			t.Errorf("%s: %s has no %s", m.name, pkg, name)
		}
	}
}

// TestMutants runs the test of each mutant and expects it to fail. The tests share
// one MariaDB and one PostgreSQL, unless they need a server of their own.
func TestMutants(t *testing.T) {
	root, woven := weaveAll(t)
	t.Logf("%d of %d mutants are in one build", len(woven.numbers), len(mutants))
	for _, m := range mutants {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel() // -parallel bounds the number that run at once
			if err := woven.broken[m.name]; err != nil {
				t.Fatal(err)
			}
			number, overlay, program, err := m.build(t, root, woven)
			if err != nil {
				t.Fatal(err)
			}
			out, err := m.run(t, root, number, overlay, program)
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

var control = flag.Bool("mutants.control", false, "run TestControl")

// TestControl runs the tests of the mutants on the build with all mutants, while none is active.
// All must pass, because a failing test would detect any mutant.
func TestControl(t *testing.T) {
	if !*control {
		return // only in a thorough run, because it takes as long as TestMutants
	}
	root, woven := weaveAll(t)
	ran := map[string]bool{}
	for _, m := range mutants {
		if ran[m.test] || woven.numbers[m.name] == 0 {
			continue
		}
		ran[m.test] = true
		t.Run(m.test, func(t *testing.T) {
			t.Parallel()
			_, overlay, program, err := m.build(t, root, woven)
			if err != nil {
				t.Fatal(err)
			}
			if out, err := m.run(t, root, 0, overlay, program); err != nil {
				t.Errorf("%v without a mutant:\n%s", err, out)
			}
		})
	}
}

// weaveAll starts the databases that the tests share, and weaves the mutants.
func weaveAll(t *testing.T) (root string, woven *wovenTable) {
	t.Helper()
	shareDatabases(t)
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if woven, err = weaveTable(t, root, mutants); err != nil {
		t.Fatal(err)
	}
	return root, woven
}

// shareDatabases makes the tests of mutants use one MariaDB and one PostgreSQL.
func shareDatabases(t *testing.T) {
	t.Helper()
	t.Setenv("HOLDFAST_TEST_MYSQL", serverOf(t, testenv.MariaDB(t)))
	t.Setenv("HOLDFAST_TEST_POSTGRES", serverOf(t, testenv.Postgres(t)))
}

// serverOf returns the URL of the server that has the database at the URL.
func serverOf(t *testing.T, database string) string {
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = ""
	return u.String()
}

// build builds the program with the mutant's test. number is the value of MUTANT_ON that activates
// the mutant, or 0 if the build has no other mutant. It uses build overlays, so the files on disk
// do not change.
func (m mutant) build(t *testing.T, root string, woven *wovenTable) (number int, overlay, program string, err error) {
	t.Helper()
	pkg, _, _ := strings.Cut(m.test, " ")
	if number = woven.numbers[m.name]; number != 0 {
		program, err = woven.programs[pkg]()
		return number, woven.overlay, program, err
	}
	overlay = m.overlay(t, root)
	program, err = buildTests(t, root, overlay, t.TempDir(), pkg)
	return 0, overlay, program, err
}

// run runs the test of the mutant in the program.
func (m mutant) run(t *testing.T, root string, number int, overlay, program string) (output string, err error) {
	t.Helper()
	pkg, path, _ := strings.Cut(m.test, " ")
	levels := strings.Split(path, "/")
	for i, level := range levels {
		levels[i] = "^" + regexp.QuoteMeta(level) + "$"
	}
	// A mutant must fail the part of the test that every run includes. The flags are set in the
	// environment, so that programs which tests build are mutated too.
	env := append(os.Environ(), "HOLDFAST_TEST_THOROUGH=", "MUTANT_ON="+strconv.Itoa(number), overlaying(overlay))
	test := command(t, filepath.Join(root, pkg), env, program,
		"-test.failfast", "-test.timeout=2m", "-test.run="+strings.Join(levels, "/"))
	start := time.Now()
	text, err := test.CombinedOutput()
	t.Logf("CPU time of the test %.1f s, which took %.1f s",
		(test.ProcessState.UserTime() + test.ProcessState.SystemTime()).Seconds(), time.Since(start).Seconds())
	return string(text), err
}

// in returns where the text that the mutant replaces begins in the source. It must occur
// there exactly once.
func (m mutant) in(source []byte) (start int, err error) {
	if n := bytes.Count(source, []byte(m.old)); n != 1 {
		return 0, fmt.Errorf("%q occurs %d times in %s, want once", m.old, n, m.file)
	}
	return bytes.Index(source, []byte(m.old)), nil
}

// overlay writes the mutated file, and an overlay with it, and returns the overlay's name.
func (m mutant) overlay(t *testing.T, root string) string {
	t.Helper()
	source, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	start, err := m.in(source)
	if err != nil {
		t.Fatal(err)
	}
	o, err := newOverlay(root, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.put(m.file, slices.Concat(source[:start], []byte(m.new), source[start+len(m.old):])); err != nil {
		t.Fatal(err)
	}
	file, err := o.save()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// overlaying returns an environment variable that makes the go command build with the overlay.
// Without inlining and symbols, a build takes a third less time.
func overlaying(overlay string) string {
	return "GOFLAGS=" + os.Getenv("GOFLAGS") + " -overlay=" + overlay +
		" -gcflags=github.com/holdfast-stock/holdfast/...=-l -ldflags=-s"
}

// buildTests builds the tests of the package in the folder, and returns the program.
func buildTests(t *testing.T, root, overlay, folder, pkg string) (program string, err error) {
	program = filepath.Join(folder, strings.ReplaceAll(pkg, "/", "-")+".test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-o", program, "./"+pkg)
	build.Dir, build.Env = root, append(os.Environ(), "GOGC=off", "GOMEMLIMIT=1GiB", overlaying(overlay))
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the tests of %s: %w\n%s", pkg, err, out)
	}
	return program, nil
}

// command returns a command that is interrupted if it takes more than three times testenv.Patience.
func command(t *testing.T, folder string, env []string, name string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), 3*testenv.Patience)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Env = folder, env
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 10 * time.Second
	return cmd
}
