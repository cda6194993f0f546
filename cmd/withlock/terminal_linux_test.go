package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo terminal, and what was written to it.
type terminal struct {
	control, user *os.File
	mu            sync.Mutex
	out           bytes.Buffer
}

// Write receives what programs write to the terminal.
func (s *terminal) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Write(p)
}

func (s *terminal) has(text string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Contains(s.out.String(), text)
}

// enter types the text.
func (s *terminal) enter(t *testing.T, text string) {
	t.Helper()
	if _, err := s.control.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func newTerminal(t *testing.T) *terminal {
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
	s := &terminal{control: control, user: user}
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

// TestTerminal checks that the command can read from the terminal, that Ctrl-Z does not
// suspend it, that Ctrl-C ends it, and that the shell has the terminal back afterwards.
func TestTerminal(t *testing.T) {
	t.Parallel()
	flags, name := onRedis(t, "30s")
	screen := newTerminal(t)
	script := `"$0" "$@"; echo "code=$?"; read line; echo "shell=$line"`
	command := `echo ready; read line; echo "got=$line"; read line; echo "still=$line"; read line`
	args := with([]string{"-c", script, os.Args[0]}, with(flags, shell(command)...)...)
	cmd := exec.CommandContext(t.Context(), "sh", args...)
	cmd.Env = append(os.Environ(), programVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = screen.user, screen.user, screen.user
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	defer func() {
		if t.Failed() {
			screen.mu.Lock()
			defer screen.mu.Unlock()
			t.Logf("the terminal shows %q", screen.out.String())
		}
	}()
	for _, step := range []struct{ enter, shows string }{
		{"", "ready"},
		{"one\n", "got=one"},
		{"\x1atwo\n", "still=two"}, // Ctrl-Z
		{"\x03", "code=130"},       // Ctrl-C
		{"three\n", "shell=three"},
	} {
		screen.enter(t, step.enter)
		eventually(t, fmt.Sprintf("%q shows %q", step.enter, step.shows), func() bool { return screen.has(step.shows) })
	}
	mustBeFree(t, name)
}
