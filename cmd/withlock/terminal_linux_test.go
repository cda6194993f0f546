package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// screen is a pseudo terminal with the output written to it.
type screen struct {
	control, user *os.File
	mu            sync.Mutex
	out           bytes.Buffer
}

// Write receives what programs write to the terminal.
func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(p)
}

func (s *screen) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.out.String(), text)
}

// enter types the text.
func (s *screen) enter(t *testing.T, text string) {
	t.Helper()
	if _, err := s.control.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func newScreen(t *testing.T) *screen {
	t.Helper()
	control, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { control.Close() })
	if err := unix.IoctlSetPointerInt(int(control.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(control.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	user, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { user.Close() })
	s := &screen{control: control, user: user}
	go func() {
		buffer := make([]byte, 4096)
		for {
			n, err := control.Read(buffer)
			if err != nil {
				return
			}
			_, _ = s.Write(buffer[:n])
		}
	}()
	return s
}

// runIn runs the shell's script in the terminal. $0 is the test program and $@ are the arguments.
// It returns the shell's process ID, which is also its process group.
func (s *screen) runIn(t *testing.T, environment []string, script string, args ...string) (pid int) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", with([]string{"-c", script, os.Args[0]}, args...)...)
	cmd.Env = append(os.Environ(), append(environment, programVariable+"=1")...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.user, s.user, s.user
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // the shell, and the one that it starts for a pipe
		_ = cmd.Wait()
		if t.Failed() {
			s.mu.Lock()
			defer s.mu.Unlock()
			t.Logf("the terminal shows %q", s.out.String())
		}
	})
	return cmd.Process.Pid
}

// step is a text to type, and the text that the terminal must show then.
type step struct{ enter, shows string }

func (s *screen) follow(t *testing.T, steps ...step) {
	t.Helper()
	for _, step := range steps {
		s.enter(t, step.enter)
		testenv.Await(t, fmt.Sprintf("%q shows %q", step.enter, step.shows), func() bool { return s.has(step.shows) })
	}
}

// TestTerminal checks that the command can read from the terminal, that Ctrl-Z does not suspend it,
// and that Ctrl-C ends it. Afterwards the shell must have the terminal back, even if withlock's own
// files are redirected.
func TestTerminal(t *testing.T) {
	t.Parallel()
	const redirected = `echo ready; read line < /dev/tty; echo "got=$line"; read line < /dev/tty; echo "still=$line"; read line < /dev/tty`
	const direct = `echo ready; read line; echo "got=$line"; read line; echo "still=$line"; read line`
	for _, test := range []struct{ name, script, command string }{
		{"terminal", `"$0" "$@"; echo "code=$?"`, direct},
		{"pipe behind", `{ "$0" "$@"; echo "code=$?"; } | cat`, direct},
		{"pipe before", `: | "$0" "$@"; echo "code=$?"`, redirected},
		{"all redirected", `: | { "$0" "$@"; echo "code=$?"; } 2>&1 | cat`, redirected},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			flags, name := onRedis(t)
			s := newScreen(t)
			s.runIn(t, nil, test.script+`; read line; echo "shell=$line"`, with(flags, shell(test.command)...)...)
			s.follow(t,
				step{"", "ready"},
				step{"one\n", "got=one"},
				step{"\x1atwo\n", "still=two"}, // Ctrl-Z
				step{"\x03", "code=130"},       // Ctrl-C
				step{"three\n", "shell=three"},
			)
			mustBeFree(t, name)
		})
	}
}

// TestTerminalBeforeTheCommand types Ctrl-C while the command waits to begin. The signal must go to
// withlock, which passes it on, and not to the waiting process, where it can get lost. The command
// is not a shell, because dash can lose a Ctrl-C itself while it starts a process.
func TestTerminalBeforeTheCommand(t *testing.T) {
	t.Parallel()
	flags, name := onRedis(t)
	pause := filepath.Join(t.TempDir(), "pause")
	s := newScreen(t)
	group := s.runIn(t, []string{pauseVariable + "=" + pause}, `"$0" "$@"; echo "code=$?"`, with(flags, "--", "sleep", "60")...)
	awaitFile(t, pause)
	if foreground, err := unix.IoctlGetInt(int(s.control.Fd()), unix.TIOCGPGRP); err != nil || foreground != group {
		t.Errorf("the group %d is in the foreground, want %d, withlock's own (%v)", foreground, group, err)
	}
	s.enter(t, "\x03")
	if err := os.Remove(pause); err != nil {
		t.Fatal(err)
	}
	client := storetest.Redis(t, testenv.Redis(t))
	testenv.Await(t, "the lock is free", func() bool {
		n, err := client.Exists(t.Context(), name).Result()
		return err == nil && n == 0
	})
}

// TestInterruptedGuard makes a signal end the guard before the guard can ignore it, as a Ctrl-C
// can. The command has not begun, so withlock must report an interrupted wait.
func TestInterruptedGuard(t *testing.T) {
	t.Parallel()
	flags, name := onRedis(t)
	w := startProgram(t, t.TempDir(), "env", with([]string{guardDiesVariable + "=1", os.Args[0]}, with(flags, "--", "true")...)...)
	w.mustExit(exitNotAcquired)
	if !strings.Contains(w.errors.String(), "interrupted") {
		t.Errorf("withlock wrote %q", w.errors.String())
	}
	mustBeFree(t, name)
}
