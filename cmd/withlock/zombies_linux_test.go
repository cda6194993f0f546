package main

import (
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// endMainThreadVariable makes the test program end its first thread and keep running.
const endMainThreadVariable = "HOLDFAST_TEST_ENDS_MAIN_THREAD"

func init() {
	if os.Getenv(endMainThreadVariable) != "" {
		runtime.LockOSThread() // init functions run in the first thread
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // blocks until the test has ended
			os.Exit(0)
		}()
		_, _, _ = syscall.Syscall(syscall.SYS_EXIT, 0, 0, 0)
	}
}

// TestZombies checks that a group whose only process is a zombie counts as ended, but not if only
// the first thread of the process has ended.
func TestZombies(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name  string
		cmd   *exec.Cmd
		alive bool
	}{
		{"process", exec.CommandContext(t.Context(), "true"), false},
		{"first thread", exec.CommandContext(t.Context(), os.Args[0]), true},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.cmd.Env = append(os.Environ(), endMainThreadVariable+"=1")
			if _, err := test.cmd.StdinPipe(); err != nil {
				t.Fatal(err)
			}
			test.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := test.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = test.cmd.Process.Kill()
				_ = test.cmd.Wait()
			}()
			pid := test.cmd.Process.Pid
			testenv.Await(t, "the first thread ends", func() bool { return hasEnded(pid) })
			if got := isAlive(pid); got != test.alive {
				t.Errorf("isAlive returns %v, want %v", got, test.alive)
			}
		})
	}
	if onlyZombies(1 << 30) {
		t.Error("a group without a process has zombies")
	}
}

// TestGuardIgnoresSignals checks that the guard outlives the signals that a supervisor may send to
// all processes at once. Then only the command decides how it ends.
func TestGuardIgnoresSignals(t *testing.T) {
	t.Parallel()
	flags, _ := onRedis(t)
	w, letGo := startHolder(t, t.TempDir(), flags)
	status, err := os.ReadFile("/proc/" + strconv.Itoa(guardOf(t, w.cmd.Process.Pid)) + "/status")
	if err != nil {
		t.Fatal(err)
	}
	_, mask, _ := strings.Cut(string(status), "\nSigIgn:\t")
	ignored, err := strconv.ParseUint(mask[:min(16, len(mask))], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range endingSignals {
		if n := s.(syscall.Signal); ignored&(1<<(n-1)) == 0 {
			t.Errorf("%v would end the guard", n)
		}
	}
	letGo()
	w.mustExit(0)
}
