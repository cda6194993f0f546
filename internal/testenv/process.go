package testenv

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// maxOutput bounds the bytes that are read back of a program's output.
const maxOutput = 16 << 20

// process is a program started by this package, with the child processes that it
// starts. Its methods are safe for concurrent use; they run one at a time.
type process struct {
	name      string
	args      []string // the program, then its arguments
	dir       string
	env       []string       // nil: the environment of this process
	owner     *owner         // nil: the user of this process
	endSignal syscall.Signal // signal that the kernel sends to the program when this process ends
	log       string         // file of the program's output; "": the standard error of this process
	piped     bool           // the program's standard input stays open until this process ends
	stdout    *os.File       // receives the program's standard output instead of the log; nil: the log

	mu      sync.Mutex
	cmd     *exec.Cmd
	stdin   io.WriteCloser // nil unless piped
	exited  chan struct{}  // closed when the program has ended
	stopped []int          // IDs of the processes under SIGSTOP; changed under env.mu too
}

// owner is the user that a program runs as.
type owner struct{ uid, gid uint32 }

// ownerFor returns the named user if this process is root, because servers refuse
// to run as root. Otherwise it returns nil.
func ownerFor(name string) (*owner, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
	gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
	return &owner{uint32(uid), uint32(gid)}, errors.Join(err1, err2)
}

func (o *owner) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal reaches only this process
	if o != nil {
		a.Credential = &syscall.Credential{Uid: o.uid, Gid: o.gid}
	}
	return a
}

func (o *owner) chown(path string) error {
	if o == nil {
		return nil
	}
	return os.Lchown(path, int(o.uid), int(o.gid))
}

// start starts the program. It appends the program's output to the log.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log := os.Stderr
	if p.log != "" {
		var err error
		if log, err = os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644); err != nil {
			return err
		}
		defer log.Close()
	}
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Dir, p.cmd.Env = p.dir, p.env
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if p.stdout != nil {
		p.cmd.Stdout = p.stdout
	}
	if p.piped {
		var err error
		if p.stdin, err = p.cmd.StdinPipe(); err != nil { // Wait closes stdin, or the end of this process does
			return err
		}
	}
	p.cmd.SysProcAttr = p.owner.attributes()
	dieWithParent(p.cmd.SysProcAttr, p.endSignal)
	p.stopped = nil
	if err := env.start(p); err != nil {
		return err
	}
	p.exited = make(chan struct{})
	go func(cmd *exec.Cmd, exited chan<- struct{}) {
		_ = cmd.Wait() // cmd.ProcessState has the result
		env.ended(p)
		close(exited)
	}(p.cmd, p.exited)
	return nil
}

// running returns nil while the program runs, and afterwards an error that says how it ended.
func (p *process) running() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.hasEnded() {
		return nil
	}
	return fmt.Errorf("%s ended: %v: %s", p.name, p.cmd.ProcessState, p.tail())
}

// wait waits until the program has ended, for Patience at most, and returns its exit code, or -1 if
// a signal ended it. Other methods can run meanwhile.
func (p *process) wait() (exitCode int, err error) {
	p.mu.Lock()
	cmd, exited := p.cmd, p.exited
	p.mu.Unlock()
	if err := p.waitEnded(exited, Patience); err != nil {
		return 0, err
	}
	return cmd.ProcessState.ExitCode(), nil
}

// pid returns the program's process ID.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// kill ends the program and its children with SIGKILL and waits until they have
// ended. If the program has ended already, kill does nothing.
func (p *process) kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hasEnded() {
		return nil
	}
	// Kill the parent first, because it must not react to the end of its children.
	ids := WithDescendants(p.cmd.Process.Pid)
	_ = p.cmd.Process.Kill()
	if err := p.waitEnded(p.exited, Patience); err != nil {
		return err
	}
	return killAll(p.name, ids[1:])
}

// killAll ends processes with SIGKILL and waits until they have ended.
func killAll(name string, ids []int) error {
	for _, id := range ids {
		_ = syscall.Kill(id, syscall.SIGKILL)
	}
	return Poll(Patience, func() error { // they are not children of this process, so no event signals their end
		for _, id := range ids {
			if !ended(id) {
				return fmt.Errorf("process %d of %s has not ended %v after SIGKILL", id, name, Patience)
			}
		}
		return nil
	})
}

// end ends the program with its end signal, which lets it end its children, and
// then with SIGKILL if it has not ended after 5 s.
func (p *process) end() {
	p.mu.Lock()
	if !p.hasEnded() && p.endSignal != syscall.SIGKILL {
		_ = p.cmd.Process.Signal(p.endSignal)
		for _, id := range p.stopped {
			_ = syscall.Kill(id, syscall.SIGCONT)
		}
		_ = p.waitEnded(p.exited, 5*time.Second)
	}
	p.mu.Unlock()
	_ = p.kill()
}

// hasEnded reports whether the program has ended. The caller holds mu.
func (p *process) hasEnded() bool {
	if p.cmd == nil || p.cmd.Process == nil {
		return true
	}
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// waitEnded waits until exited is closed, for limit at most.
func (p *process) waitEnded(exited <-chan struct{}, limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-exited:
		return nil
	case <-timer.C:
		return fmt.Errorf("%s has not ended after %v: %s", p.name, limit, p.tail())
	}
}

// stop stops the program and its children with SIGSTOP and waits until none of
// their threads runs.
func (p *process) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hasEnded() {
		return fmt.Errorf("stopping %s: it has ended", p.name)
	}
	// Stop the parent first, so that it starts no more children.
	if err := stopOne(p.cmd.Process.Pid); err != nil {
		return err
	}
	stopped := []int{p.cmd.Process.Pid}
	for _, id := range WithDescendants(p.cmd.Process.Pid)[1:] {
		if err := stopOne(id); err == nil {
			stopped = append(stopped, id)
		}
	}
	env.setStopped(p, stopped)
	return nil
}

// stopOne stops a single process.
func stopOne(id int) error {
	if err := syscall.Kill(id, syscall.SIGSTOP); err != nil {
		return err
	}
	return Poll(Patience, func() error { // no event signals that a thread has stopped
		if !isStopped(id) {
			return fmt.Errorf("process %d has not stopped %v after SIGSTOP", id, Patience)
		}
		return nil
	})
}

// cont continues all processes that stop stopped.
func (p *process) cont() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hasEnded() || p.stopped == nil {
		return fmt.Errorf("continuing %s: it is not stopped", p.name)
	}
	for _, id := range slices.Backward(p.stopped) {
		if err := syscall.Kill(id, syscall.SIGCONT); err != nil {
			return err
		}
	}
	env.setStopped(p, nil)
	return nil
}

// signal sends the program a signal.
func (p *process) signal(s os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Signal(s)
}

// output returns the last maxOutput bytes that the program has printed.
func (p *process) output() string {
	log, err := os.Open(p.log)
	if err != nil {
		return ""
	}
	defer log.Close()
	if info, err := log.Stat(); err == nil && info.Size() > maxOutput {
		_, _ = log.Seek(-maxOutput, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(log, maxOutput))
	return string(text)
}

// tail returns the end of the output, for error messages.
func (p *process) tail() string {
	out := strings.TrimSpace(p.output())
	if len(out) > 4000 {
		out = "… " + out[len(out)-4000:]
	}
	return out
}
