//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
)

// terminal is the terminal in whose foreground withlock is. A nil terminal does nothing.
type terminal struct {
	file  *os.File
	given bool // the command's group has been in the foreground
}

// openTerminal returns the terminal in whose foreground withlock is, whichever files are
// redirected, or nil. It makes withlock ignore Ctrl-Z, and the command inherits that: a suspended
// command would outlive its lock.
func openTerminal() *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	t := &terminal{file: file}
	if !t.isOurs() {
		file.Close()
		return nil
	}
	signal.Ignore(syscall.SIGTSTP)
	return t
}

// isOurs reports whether withlock is in the foreground.
func (t *terminal) isOurs() bool {
	group, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// give puts the command's group into the foreground, so that it can use the terminal and gets
// Ctrl-C directly. The command must have begun: Ctrl-C can get lost in a process that is about to
// become another program. If the command was stopped because it had used the terminal before, it
// continues.
func (t *terminal) give(group int) {
	if t == nil || !t.isOurs() {
		return
	}
	t.given = true
	t.setForeground(group)
	signalGroup(group, syscall.SIGCONT)
}

// giveUnlessPiped is give if stdin and stdout are terminals. Otherwise another program of the
// pipeline may read from the terminal, such as a pager.
func (t *terminal) giveUnlessPiped(group int) {
	if isTerminal(os.Stdin) && isTerminal(os.Stdout) {
		t.give(group)
	}
}

// takeBack puts withlock into the foreground again if give has put the command there.
func (t *terminal) takeBack() {
	if t == nil {
		return
	}
	if t.given {
		t.setForeground(unix.Getpgrp())
	}
	t.file.Close()
}

func (t *terminal) setForeground(group int) {
	signal.Ignore(syscall.SIGTTOU) // the kernel sends it to a background process that sets the foreground group
	_ = unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group)
}

// isTerminal reports whether the file is a terminal.
func isTerminal(file *os.File) bool {
	_, err := unix.IoctlGetInt(int(file.Fd()), unix.TIOCGPGRP)
	return err == nil
}

// awaitCommand waits until the process has ended and returns how. It sends to stopped each
// time that the process has stopped because its group used the terminal in the background.
func awaitCommand(pid int, stopped chan<- struct{}) syscall.WaitStatus {
	for {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(pid, &status, syscall.WUNTRACED, nil)
		switch {
		case err == nil && !status.Stopped():
			return status
		case err == nil && (status.StopSignal() == syscall.SIGTTIN || status.StopSignal() == syscall.SIGTTOU):
			select {
			case stopped <- struct{}{}:
			default: // the channel already holds a value
			}
		}
	}
}
