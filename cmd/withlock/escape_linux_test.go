package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestForeignUser checks that withlock reports a command that it may not signal, and keeps the lock
// until the command ends. This happens in a container without CAP_KILL in which the command changes
// its user.
func TestForeignUser(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process as another user")
	}
	folder := testenv.Folder(t, "foreign-user")
	if err := os.Chmod(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	letGo := makeGo(t, folder)
	flags, _ := onRedis(t)
	const nobody = "65534"
	const script = "echo > ready; " + awaitGo + "; exit 5"
	command := []string{"--", "setpriv", "--reuid", nobody, "sh", "-c", script}
	w := startProgram(t, folder, "setpriv", with([]string{"--bounding-set", "-kill", os.Args[0]}, with(flags, command...)...)...)
	awaitFile(t, filepath.Join(folder, "ready"))
	w.signal(syscall.SIGTERM)
	start(t, folder, with(flags, "--wait", "1s", "--", "true")...).mustExit(exitNotAcquired)
	letGo()
	w.mustExit(5)
	if report := "runs as another user"; strings.Count(w.errors.String(), report) != 1 {
		t.Errorf("withlock wrote %q, want %q once", w.errors.String(), report)
	}
	start(t, folder, with(flags, "--", "true")...).mustExit(0)
}

// TestEscapes checks which programs leave the process group of the command, so that withlock does
// not end them.
func TestEscapes(t *testing.T) {
	t.Parallel()
	const child = `sh -c 'echo $$ > pid; exec sleep 60'`
	for _, test := range []struct {
		name    string
		command []string
		escapes bool
	}{
		{"child", shell(child + " & wait"), false},
		{"setsid", shell("setsid " + child + " & wait"), true},
		{"timeout", shell("timeout 60 " + child + " & wait"), true},
		{"timeout in the foreground", shell("timeout --foreground 60 " + child + " & wait"), false},
		{"timeout as the command", []string{"--", "timeout", "60", "sh", "-c", "echo $$ > pid; exec sleep 60"}, false},
		{"job control", []string{"--", "bash", "-c", "set -m; " + child + " & wait"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			flags, name := onRedis(t)
			w := start(t, folder, with(flags, test.command...)...)
			pid := int(number(t, awaitFile(t, filepath.Join(folder, "pid"))))
			t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
			w.signal(syscall.SIGTERM)
			w.wait()
			mustBeFree(t, name)
			if escaped := !hasEnded(pid); escaped != test.escapes {
				t.Errorf("the process runs after withlock: %v, want %v", escaped, test.escapes)
			}
		})
	}
}
