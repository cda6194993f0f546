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

// goneLimit bounds how long a killed process may take to be gone.
const goneLimit = 20 * time.Second

// outputLimit bounds how much of a program's output is read back, in bytes.
const outputLimit = 16 << 20

// process is a program that was started here, with the processes it started in
// turn. Its methods may be called from several goroutines, one at a time being
// served.
type process struct {
	name  string
	args  []string // the program first
	dir   string
	env   []string       // nil: this process's
	owner *owner         // nil: this process's
	death syscall.Signal // what the kernel sends it when this process ends
	log   string         // file of its output
	piped bool           // its standard input lasts as long as this process

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
	tree   []int // under SIGSTOP
}

// owner is the user that a program runs as.
type owner struct{ uid, gid uint32 }

// ownerFor returns the named user where this process must hand its rights over
// (servers refuse root), otherwise nil.
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
	a := &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal is for this process alone
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

// start starts the program. Its output is added to the log.
func (p *process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Dir, p.cmd.Env = p.dir, p.env
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if p.piped {
		if _, err := p.cmd.StdinPipe(); err != nil { // closed by Wait, or by this process's end
			return err
		}
	}
	p.cmd.SysProcAttr = p.owner.attributes()
	dieWithParent(p.cmd.SysProcAttr, p.death)
	if err := here.start(p); err != nil {
		return err
	}
	p.exited, p.tree = make(chan struct{}), nil
	go func(cmd *exec.Cmd, exited chan<- struct{}) {
		_ = cmd.Wait() // the state is in cmd.ProcessState
		close(exited)
	}(p.cmd, p.exited)
	return nil
}

// running reports that the program has not ended, or how it ended.
func (p *process) running() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.exited:
		return fmt.Errorf("%s ended: %v: %s", p.name, p.cmd.ProcessState, p.tail())
	default:
		return nil
	}
}

// exitCode is the exit code of a program that has ended, -1 if a signal ended
// it.
func (p *process) exitCode() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	<-p.exited
	return p.cmd.ProcessState.ExitCode()
}

// pid returns the program's process ID.
func (p *process) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// kill ends the program and all it started with SIGKILL, and waits until they
// are gone. Killing what has ended does nothing.
func (p *process) kill() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone() {
		return nil
	}
	// The parent first, so that it does not see its children die and act on it.
	ids := append([]int{p.cmd.Process.Pid}, descendants(p.cmd.Process.Pid)...)
	_ = p.cmd.Process.Kill()
	for _, id := range ids[1:] {
		_ = syscall.Kill(id, syscall.SIGKILL)
	}
	if err := p.waitGone(goneLimit); err != nil {
		return err
	}
	deadline := time.Now().Add(goneLimit)
	for _, id := range ids[1:] {
		for !ended(id) {
			if time.Now().After(deadline) {
				return fmt.Errorf("process %d of %s is still there %v after SIGKILL", id, p.name, goneLimit)
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// end ends the program in the quickest way that leaves nothing behind.
func (p *process) end() {
	p.mu.Lock()
	if !p.gone() && p.death != syscall.SIGKILL {
		_ = p.cmd.Process.Signal(p.death)
		for _, id := range p.tree {
			_ = syscall.Kill(id, syscall.SIGCONT)
		}
		_ = p.waitGone(5 * time.Second)
	}
	p.mu.Unlock()
	_ = p.kill()
}

// gone reports whether the program has ended. The caller holds mu.
func (p *process) gone() bool {
	if p.cmd == nil || p.cmd.Process == nil {
		return true
	}
	select {
	case <-p.exited:
		here.ended(p)
		return true
	default:
		return false
	}
}

// waitGone waits until the program has ended. The caller holds mu.
func (p *process) waitGone(limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.exited:
		here.ended(p)
		return nil
	case <-timer.C:
		return fmt.Errorf("%s has not ended after %v", p.name, limit)
	}
}

// stop stops the program and all it started with SIGSTOP, and waits until none
// of their threads runs.
func (p *process) stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone() {
		return fmt.Errorf("%s has ended: it cannot be stopped", p.name)
	}
	// The parent first: it starts no more children then.
	if err := stopOne(p.cmd.Process.Pid); err != nil {
		return err
	}
	p.tree = []int{p.cmd.Process.Pid}
	for _, id := range descendants(p.cmd.Process.Pid) {
		if err := stopOne(id); err == nil {
			p.tree = append(p.tree, id)
		}
	}
	here.mu.Lock()
	defer here.mu.Unlock()
	here.setStopped(p, p.tree)
	return nil
}

func stopOne(id int) error {
	if err := syscall.Kill(id, syscall.SIGSTOP); err != nil {
		return err
	}
	deadline := time.Now().Add(goneLimit)
	for !halted(id) {
		if time.Now().After(deadline) {
			return fmt.Errorf("process %d still runs %v after SIGSTOP", id, goneLimit)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// cont lets everything run on that stop stopped.
func (p *process) cont() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gone() || p.tree == nil {
		return fmt.Errorf("%s is not stopped", p.name)
	}
	for _, id := range slices.Backward(p.tree) {
		if err := syscall.Kill(id, syscall.SIGCONT); err != nil {
			return err
		}
	}
	p.tree = nil
	here.mu.Lock()
	defer here.mu.Unlock()
	here.setStopped(p, nil)
	return nil
}

// signal sends the program a signal.
func (p *process) signal(s os.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Signal(s)
}

// output returns what the program has printed so far: the last outputLimit
// bytes of it.
func (p *process) output() string {
	log, err := os.Open(p.log)
	if err != nil {
		return ""
	}
	defer log.Close()
	if info, err := log.Stat(); err == nil && info.Size() > outputLimit {
		_, _ = log.Seek(-outputLimit, io.SeekEnd)
	}
	text, _ := io.ReadAll(io.LimitReader(log, outputLimit))
	return string(text)
}

// tail returns the end of the output, for errors.
func (p *process) tail() string {
	out := strings.TrimSpace(p.output())
	if len(out) > 4000 {
		out = "… " + out[len(out)-4000:]
	}
	return out
}
