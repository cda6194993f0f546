package testenv_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// TestWithGoRun kills the parent of a program: one that has the name of the go
// command, and another one, which the program may outlive.
func TestWithGoRun(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	for name, watching := range map[string]string{"go": "watching: true", "shell": "watching: false"} {
		t.Run(name, func(t *testing.T) {
			script := filepath.Join(t.TempDir(), name)
			if err := os.WriteFile(script, []byte("#!/bin/sh\n\"$1\" &\nread line\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			parent := exec.Command(script, os.Args[0])
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
			if !lines.Scan() || lines.Text() != watching {
				t.Errorf("it says %q, want %q", lines.Text(), watching)
			}
			if err := parent.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = parent.Wait() }()
			if name != "go" {
				return
			}
			ended := time.AfterFunc(10*time.Second, func() { out.Close() })
			defer ended.Stop()
			if !lines.Scan() || lines.Text() != "ended" {
				t.Errorf("it says %q when the go command is gone", lines.Text())
			}
		})
	}
}
