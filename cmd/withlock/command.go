//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
)

// The variables of the command's environment.
const (
	tokenVariable = "HOLDFAST_FENCING_TOKEN"
	slotVariable  = "HOLDFAST_SLOT"
)

var (
	errOverdue = errors.New("the backend has not confirmed it in time")
	errNoGuard = errors.New("the guard process has ended or is stopped")
)

// runUnder runs the command while the slot is held. It returns when no process of the
// command's group is left.
func runUnder(c config, slot *recipe.Slot, signals <-chan os.Signal) error {
	l := &lease{slot: slot, length: c.Locks.Lease, grace: c.Grace}
	g, err := startGuard(c.Grace, slot)
	switch {
	case slot.Context().Err() != nil: // the connection that the guard needs may be lost as well
		return notAcquiredError(c, context.Cause(slot.Context()))
	case err != nil:
		return exitError{err, exitFailed}
	}
	defer g.stop()
	cmd, err := newCommand(c, slot)
	if err != nil {
		return exitError{err, exitFailed}
	}
	t := openTerminal()
	defer t.takeBack()
	begin, err := startWaiting(cmd)
	if err != nil {
		return exitError{fmt.Errorf("starting the command: %w", err), exitFailed}
	}
	group := cmd.Process.Pid
	var status syscall.WaitStatus // set when exited is closed
	exited, stopped := make(chan struct{}), make(chan struct{}, 1)
	go func() {
		defer close(exited)
		status = awaitCommand(group, stopped)
	}()
	if err := l.letBegin(group, g, begin); err != nil {
		_ = cmd.Process.Kill() // the process waits, or is stopped, and has not become the command
		begin.Close()
		<-exited
		switch {
		case errors.As(err, new(exitError)):
			return err
		case errors.Is(err, errNoGuard):
			if err := g.interrupted(); err != nil {
				return notAcquiredError(c, err)
			}
			return exitError{err, exitFailed}
		}
		return notAcquiredError(c, err)
	}
	command := &child{group: group, terminal: t, begun: closed(begin), stopped: stopped, exited: exited}
	lost := l.watch(command, g, signals)
	begin.Close()
	if lost != nil || isAlive(group) {
		endGroup(group, monotonicAt(l.killAt()))
		l.outlast(group)
		<-exited
	}
	if lost != nil {
		return lostError(c, lost)
	}
	if code := exitCode(status); code != 0 {
		return exitError{nil, code}
	}
	return nil
}

// letBegin confirms the lock, tells the guard the command's process group, and then lets the
// command begin. It confirms the lock last, because on a busy machine the start of two processes
// can take longer than a short lease.
func (l *lease) letBegin(group int, g *guard, begin io.Writer) error {
	if g.awaitReady() != nil {
		return errNoGuard
	}
	asked := time.Now()
	until, err := l.confirm(context.Background())
	if err != nil {
		return err
	}
	if l.extend(until); !asked.Before(l.term) { // whenever the answer arrived
		return exitError{fmt.Errorf("--grace: %v is too long for the lease that the servers grant: %v", l.grace, until.Sub(asked).Round(time.Millisecond)), exitUsage}
	}
	testHookWaiting()
	if g.extend(group, l.term, l.kill) != nil {
		return errNoGuard
	}
	if l.overdue() { // the confirmation took long, or withlock was stopped
		return errOverdue
	}
	_, _ = begin.Write([]byte{0}) // an error means that the process has ended
	return nil
}

// child is the command, as withlock sees it.
type child struct {
	group    int
	terminal *terminal
	begun    <-chan struct{} // closed when the command has begun
	stopped  <-chan struct{} // see awaitCommand
	exited   <-chan struct{} // closed when the command has ended
}

// watch passes signals on to the command's process group, gives the group the terminal, and keeps
// the guard informed, until the command has exited or the lock is lost. It returns why the lock was
// lost. Signals wait until the command has begun. The waiting process could end differently on a
// signal than the command, or ignore the signal.
func (l *lease) watch(c *child, g *guard, signals <-chan os.Signal) (lost error) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	confirmed, lostAtServer := make(chan time.Time), make(chan error, 1)
	go l.keepConfirming(ctx, l.tenth(), confirmed, lostAtServer)
	begun := c.begun
	var due <-chan os.Signal
	for {
		var (
			ended bool
			term  = time.NewTimer(time.Until(l.term))
		)
		select {
		case <-begun:
			begun, due = nil, signals
			c.terminal.giveUnlessPiped(c.group)
		case <-c.stopped:
			c.terminal.give(c.group)
		case s := <-due:
			forward(s, c.group)
		case until := <-confirmed:
			lost = l.prolong(c.group, g, until)
		case lost = <-lostAtServer:
		case <-l.slot.Context().Done():
			lost = context.Cause(l.slot.Context())
		case <-g.exited:
			lost = errNoGuard
		case <-c.exited:
			ended = true
		case <-term.C:
		}
		term.Stop()
		switch {
		case l.overdue(): // also if withlock was stopped, and the guard has ended the group
			return errOverdue
		case lost != nil || ended:
			return lost
		}
	}
}

// forward passes a signal to withlock on to the group.
func forward(s os.Signal, group int) {
	signalGroup(group, s.(syscall.Signal))
	if slices.Contains(endingSignals, s) {
		signalGroup(group, syscall.SIGCONT) // a stopped process cannot handle the signal
	}
}

// newCommand returns the command, which waits as runCommand says, in a process group of its
// own. It does not inherit the variables that set flags of withlock: some have passwords.
func newCommand(c config, slot *recipe.Slot) (*exec.Cmd, error) {
	cmd, err := newPart(append([]string{beginArgument}, c.Command...)...)
	if err != nil {
		return nil, err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	own := append(variables(), tokenVariable, slotVariable)
	cmd.Env = slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return slices.Contains(own, name)
	})
	cmd.Env = append(cmd.Env, slotVariable+"="+strconv.Itoa(slot.Number))
	if slot.Token() != 0 {
		cmd.Env = append(cmd.Env, tokenVariable+"="+strconv.FormatUint(slot.Token(), 10))
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd, nil
}

// exitCode returns the exit code of the command as shells do: 128 + N if signal N has
// ended it.
func exitCode(status syscall.WaitStatus) int {
	if status.Signaled() {
		return 128 + int(status.Signal())
	}
	return status.ExitStatus()
}
