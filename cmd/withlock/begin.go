//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// beginArgument makes withlock wait and then become the command. The next argument is the
// number of the file that it waits for, the others are the command.
const beginArgument = "--command-of-withlock"

// running is the program of this process, even if its file has been replaced.
const running = "/proc/self/exe"

// newPart returns a process that runs withlock's own program. A withlock that has waited
// for long must not start another version of itself.
func newPart(args ...string) (*exec.Cmd, error) {
	path := running
	if _, err := os.Stat(running); err != nil {
		if path, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Args[0] = os.Args[0]
	return cmd, nil
}

// testHookWaiting is called while the command waits, before the guard has been told of it. The lock
// has been confirmed.
var testHookWaiting = func() {}

// startWaiting starts cmd, which must call runCommand. A byte written to begin lets the
// command begin. If withlock dies before that, the command never begins: the guard, which
// does not know it yet, could not end it.
func startWaiting(cmd *exec.Cmd) (begin *os.File, err error) {
	wait, begin, err := connected()
	if err != nil {
		return nil, err
	}
	defer wait.Close()
	// It keeps its number, because the command may inherit the files with other numbers.
	file := wait.Fd()
	if _, err := unix.FcntlInt(file, unix.F_SETFD, 0); err != nil {
		begin.Close()
		return nil, err
	}
	cmd.Args = slices.Insert(cmd.Args, 2, strconv.Itoa(int(file)))
	if err := cmd.Start(); err != nil {
		begin.Close()
		return nil, err
	}
	return begin, nil
}

// connected returns the two ends of a connection. A pipe is not enough: on some systems, its writer
// does not learn that the reader is closed.
func connected() (wait, begin *os.File, err error) {
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	for _, end := range ends {
		unix.CloseOnExec(end)
	}
	_ = unix.SetNonblock(ends[1], true) // so that Close ends a Read
	return os.NewFile(uintptr(ends[0]), "wait"), os.NewFile(uintptr(ends[1]), "begin"), nil
}

// closed returns a channel that is closed once the other end of begin is: then the process that
// waited has become the command, or has ended. The channel is also closed after begin is closed.
func closed(begin *os.File) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = begin.Read(make([]byte, 1)) // nothing is ever sent to this end
	}()
	return done
}

// runCommand waits for withlock's byte and replaces the process with the command. It returns
// the exit code if that fails. file is the number of the connection.
func runCommand(file string, command []string) int {
	number, err := strconv.Atoi(file)
	if err != nil {
		fmt.Fprintf(os.Stderr, "withlock: %s is not for users: %v\n", beginArgument, err)
		return exitUsage
	}
	unix.CloseOnExec(number)
	if n, _ := os.NewFile(uintptr(number), "begin").Read(make([]byte, 1)); n < 1 { // the connection ends when withlock does
		fmt.Fprintln(os.Stderr, "withlock: the command was not started")
		return exitFailed
	}
	path, err := exec.LookPath(command[0])
	if err == nil {
		err = unix.Exec(path, command, os.Environ())
	}
	fmt.Fprintf(os.Stderr, "withlock: running the command: %v\n", err)
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return exitNotFound
	}
	return exitCannotRun
}
