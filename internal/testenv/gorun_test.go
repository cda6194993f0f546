package testenv_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestWithGoRun kills the parent of a program. If the parent has the name of the go command, the
// program must end. Otherwise the program must not watch it.
func TestWithGoRun(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	for name, want := range map[string]string{"go": "watching: true", "shell": "watching: false"} {
		t.Run(name, func(t *testing.T) {
			// Use a link and not a script: a file just written cannot be run while a process that
			// another test starts still has it open.
			shell := filepath.Join(t.TempDir(), name)
			if err := os.Symlink("/bin/sh", shell); err != nil {
				t.Fatal(err)
			}
			parent := exec.Command(shell, "-c", "\"$0\" &\nread line", os.Args[0])
			parent.Env = append(os.Environ(), childEnv+"=go run")
			if _, err := parent.StdinPipe(); err != nil {
				t.Fatal(err)
			}
			out, err := parent.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := parent.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			if !lines.Scan() || lines.Text() != want {
				t.Errorf("the program printed %q, want %q", lines.Text(), want)
			}
			if err := parent.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = parent.Wait() }()
			if name != "go" {
				return
			}
			timeout := time.AfterFunc(testenv.Patience, func() { out.Close() })
			defer timeout.Stop()
			if !lines.Scan() || lines.Text() != "ended" {
				t.Errorf("the program printed %q after the go command ended, want %q", lines.Text(), "ended")
			}
		})
	}
}
