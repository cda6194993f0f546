//go:build unix

package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
)

// guardArgument makes withlock a guard.
const guardArgument = "--guard-of-withlock"

const (
	// pollInterval is the pause between two checks of a process group that must end.
	pollInterval = 10 * time.Millisecond
	// killTimeout bounds the wait for the end of a process group after SIGKILL.
	killTimeout = time.Second
)

// order is an instruction to the guard. Each order replaces the one before. Times are nanoseconds
// of the monotonic clock, which all processes of a machine share. An order has a fixed size and is
// smaller than unix.PIPE_BUF, so a pipe never holds a part of one.
type order struct {
	Group int64 // the process group of the command
	Term  int64 // when to send SIGTERM to the group
	Kill  int64 // when to send SIGKILL to the group
	Grace int64 // the nanoseconds between the two if withlock dies
}

// monotonic returns the time of the monotonic clock in nanoseconds.
func monotonic() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err) // the clock exists on every system that withlock is built for
	}
	return now.Nano()
}

// monotonicAt returns the time of the monotonic clock at t.
func monotonicAt(t time.Time) int64 { return monotonic() + int64(time.Until(t)) }

// runGuard ends the command's process group if withlock cannot do that itself: it was killed, or it
// was stopped and has not renewed the order in time. So the guard must be a separate process.
func runGuard(stdin, stdout *os.File) {
	signal.Ignore(os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	_, _ = stdout.Write([]byte{0}) // see awaitReady
	var current order
	for awaitOrder(stdin, current) {
		var next order
		if binary.Read(stdin, binary.NativeEndian, &next) != nil { // the pipe ends when withlock does
			if current.Group == 0 { // withlock has died before it started the command
				return
			}
			current.Kill = min(current.Kill, monotonic()+current.Grace)
			break
		}
		current = next
	}
	endGroup(int(current.Group), current.Kill)
}

// awaitOrder waits until the next order or the end of the pipe can be read, or until the current
// order is due. It reports whether there is something to read, even if the current order is due:
// newer orders may have arrived while the guard was stopped.
func awaitOrder(stdin *os.File, current order) bool {
	for {
		timeout := time.Hour
		if current.Group != 0 {
			timeout = max(0, min(timeout, time.Duration(current.Term-monotonic())))
		}
		wanted := []unix.PollFd{{Fd: int32(stdin.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(wanted, int((timeout+time.Millisecond-1)/time.Millisecond))
		switch {
		case n > 0:
			return true
		case err == nil && timeout == 0:
			return false
		}
	}
}

// endGroup sends SIGTERM to the process group, and SIGKILL at the given time of the
// monotonic clock. It returns as soon as the group has ended.
func endGroup(group int, kill int64) {
	signalGroup(group, syscall.SIGTERM)
	signalGroup(group, syscall.SIGCONT) // a stopped process cannot handle SIGTERM
	if awaitGroup(group, kill) {
		return
	}
	signalGroup(group, syscall.SIGKILL)
	awaitGroup(group, monotonic()+int64(killTimeout))
}

// awaitGroup waits until all processes of the group have ended, or until the given time of the
// monotonic clock. It reports whether the group has ended.
func awaitGroup(group int, until int64) bool {
	for isAlive(group) {
		if monotonic() >= until {
			return false
		}
		time.Sleep(pollInterval)
	}
	return true
}

// reportForeign reports once that withlock may not signal the command.
var reportForeign = sync.OnceFunc(func() {
	fmt.Fprintln(os.Stderr, "withlock: the command runs as another user, so withlock cannot signal or end it")
})

// signalGroup sends the signal to all processes of the group that withlock may signal.
func signalGroup(group int, s syscall.Signal) {
	err := syscall.Kill(-group, s) // ESRCH means that the group has ended
	if errors.Is(err, syscall.EPERM) {
		reportForeign()
	}
}

// isAlive reports whether a process of the group has not ended.
func isAlive(group int) bool {
	return !errors.Is(syscall.Kill(-group, 0), syscall.ESRCH) && !onlyZombies(group)
}

// guard is the guard process, as withlock sees it.
type guard struct {
	cmd    *exec.Cmd
	orders *os.File // the pipe to the guard
	ready  *os.File // the pipe from the guard
	exited chan struct{}
	order  order
}

// startGuard starts the guard, which has no command to guard yet. The guard keeps the
// slot's connection open until the guard ends.
func startGuard(grace time.Duration, slot *recipe.Slot) (*guard, error) {
	connection, err := connectionOf(slot)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	cmd, err := newPart(guardArgument)
	if err != nil {
		return nil, fmt.Errorf("starting the guard process: %w", err)
	}
	stdin, orders, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("starting the guard process: %w", err)
	}
	defer stdin.Close()
	ready, stdout, err := os.Pipe()
	if err != nil {
		orders.Close()
		return nil, fmt.Errorf("starting the guard process: %w", err)
	}
	defer stdout.Close()
	g := &guard{cmd: cmd, orders: orders, ready: ready, exited: make(chan struct{}), order: order{Grace: int64(grace)}}
	g.cmd.Stdin, g.cmd.Stdout = stdin, stdout
	if connection != nil {
		g.cmd.ExtraFiles = []*os.File{connection}
	}
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // signals from the terminal do not reach it
	if err := g.cmd.Start(); err != nil {
		orders.Close()
		ready.Close()
		return nil, fmt.Errorf("starting the guard process: %w", err)
	}
	go func() {
		defer close(g.exited)
		_ = g.cmd.Wait()
	}()
	return g, nil
}

// connectionOf returns a duplicate of the connection that holds the slot, or nil if no
// connection does. It is in non-blocking mode and must stay so, because the two share it.
func connectionOf(slot *recipe.Slot) (*os.File, error) {
	conn, err := slot.Connection()
	if conn == nil || err != nil {
		return nil, err
	}
	var file *os.File
	var failed error
	err = conn.Control(func(original uintptr) {
		number, err := unix.FcntlInt(original, unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			failed = err
			return
		}
		file = os.NewFile(uintptr(number), "connection")
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, fmt.Errorf("duplicating the connection that holds the lock: %w", err)
	}
	return file, nil
}

// awaitReady waits, for at most callTimeout, until the guard ignores the signals that would
// end it. Before that, a Ctrl-C can end the guard; withlock gets the same signal.
func (g *guard) awaitReady() error {
	if err := g.ready.SetReadDeadline(time.Now().Add(callTimeout)); err != nil {
		return err
	}
	_, err := g.ready.Read(make([]byte, 1))
	return err
}

// interrupted returns an error if a signal, such as a Ctrl-C, has ended the guard before
// the guard ignored signals. withlock got the same signal.
func (g *guard) interrupted() error {
	select {
	case <-g.exited:
	case <-time.After(killTimeout):
		return nil
	}
	status, ok := g.cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() && slices.Contains(endingSignals, os.Signal(status.Signal())) {
		return fmt.Errorf("interrupted by the signal %q", status.Signal())
	}
	return nil
}

// extend tells the guard when the group must end. It fails if the guard has ended, or is
// stopped and its pipe is full. It sets no deadline for writing: the deadline could pass
// before the write begins, if this process is stopped or the machine is busy.
func (g *guard) extend(group int, term, kill time.Time) error {
	g.order.Group, g.order.Term, g.order.Kill = int64(group), monotonicAt(term), monotonicAt(kill)
	text, err := binary.Append(nil, binary.NativeEndian, g.order)
	if err != nil {
		return err
	}
	pipe, err := g.orders.SyscallConn() // in non-blocking mode
	if err != nil {
		return err
	}
	var written error
	err = pipe.Write(func(fd uintptr) bool {
		for written = unix.EINTR; errors.Is(written, unix.EINTR); {
			_, written = unix.Write(int(fd), text)
		}
		return true // do not wait until the pipe has room
	})
	return errors.Join(err, written)
}

// stop ends the guard when there is no group to guard any more.
func (g *guard) stop() {
	_ = g.cmd.Process.Kill() // an error means that the guard has ended
	<-g.exited
	g.orders.Close()
	g.ready.Close()
}
