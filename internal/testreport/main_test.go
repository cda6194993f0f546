package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestReport runs real tests of every fate and reports on them.
func TestReport(t *testing.T) {
	const header = "package x\n\nimport \"testing\"\n\n"
	for _, test := range []struct {
		name, code string
		noSkips    bool
		failed     bool
		says       []string
		silent     string
	}{
		{"passes", header + `func TestA(t *testing.T) { t.Log("quiet") }`, true, false, []string{"ok   x "}, "quiet"},
		{"fails", header + `func TestA(t *testing.T) { t.Run("sub", func(t *testing.T) { t.Error("because") }) }`, false, true,
			[]string{"because", "--- FAIL: TestA/sub", "FAIL x "}, ""},
		{"does not build", header + `func TestA(t *testing.T) { undefined() }`, false, true, []string{"undefined: undefined", "FAIL x "}, ""},
		{"panics", header + `func TestA(t *testing.T) { panic("horror") }`, false, true, []string{"panic: horror", "FAIL x "}, ""},
		{"exits", header + "func TestA(t *testing.T) { go func() { select {} }(); println(\"last words\"); exit() }\n" +
			`func exit() { var p *int; *p = 1 }`, false, true, []string{"last words", "FAIL x "}, ""},
		{"skips", header + `func TestA(t *testing.T) { t.Skip("no server") }`, false, false, []string{"SKIP x TestA", "no server", "ok   x "}, ""},
		{"skips where it must not", header + `func TestA(t *testing.T) { t.Skip("no server") }`, true, true, []string{"SKIP x TestA", "1 tests were skipped"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			folder := t.TempDir()
			for name, text := range map[string]string{"go.mod": "module x\n\ngo 1.26\n", "x_test.go": test.code} {
				if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			run := exec.Command("go", "test", "-json", "./...")
			run.Dir = folder
			events, err := run.Output()
			if failing := err != nil; failing != (test.failed && !test.noSkips) {
				t.Fatalf("go test: %v", err)
			}
			var out strings.Builder
			failed, err := report(strings.NewReader(string(events)), &out, test.noSkips)
			if err != nil || failed != test.failed {
				t.Errorf("failed %v, %v; want %v", failed, err, test.failed)
			}
			for _, says := range test.says {
				if !strings.Contains(out.String(), says) {
					t.Errorf("does not say %q:\n%s", says, out.String())
				}
			}
			if test.silent != "" && strings.Contains(out.String(), test.silent) {
				t.Errorf("says %q:\n%s", test.silent, out.String())
			}
		})
	}
}

func TestNothingTested(t *testing.T) {
	var out strings.Builder
	if failed, err := report(strings.NewReader("go: no such thing\n"), &out, false); !failed || err != nil || !strings.Contains(out.String(), "no such thing") {
		t.Errorf("failed %v, %v: %s", failed, err, out.String())
	}
}
