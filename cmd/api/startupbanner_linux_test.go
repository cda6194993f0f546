package main

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestBanner_Terminal checks that the banner is printed on a terminal, even if the log is not.
func TestBanner_Terminal(t *testing.T) {
	t.Parallel()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	if err := unix.IoctlSetPointerInt(int(screen.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(screen.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	api := exec.CommandContext(t.Context(), thisProgram(t), "--listen", "127.0.0.1:0", "--stop-with-stdin")
	api.Stdout, api.Stderr = terminal, &log
	stdin, err := api.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := api.Start(); err != nil {
		t.Fatal(err)
	}
	terminal.Close() // ends the screen when the service ends
	said := false
	for lines := bufio.NewScanner(screen); !said && lines.Scan(); {
		said = strings.Contains(lines.Text(), "Holdfast listening on http://127.0.0.1:")
	}
	stdin.Close()
	if err := api.Wait(); err != nil || !said {
		t.Errorf("%v, a banner: %v; the log:\n%s", err, said, &log)
	}
}
