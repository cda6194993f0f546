// Package testenv starts real servers for tests, and for the benchmarks: Redis,
// Redis Cluster, Redis behind Sentinels, MariaDB, Galera, PostgreSQL with and
// without a standby, PgBouncer, ZooKeeper, etcd and the service itself, on free ports of 127.0.0.1 below 32768 and in temporary folders.
//
// [Redis], [MariaDB] and their like give the URL of a server that all tests of
// the process share, started when the first of them asks; databases are fresh
// for every call. [OwnRedis], [OwnMariaDB] and their like start a server for one
// test, which may kill, stop and restart it; it is gone when the test ends.
//
// A package whose tests use testenv ends with
//
//	func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
//
// On Linux no server and no folder outlives the process that asked for it, even
// if that process is killed or has no such TestMain. (Elsewhere only Main and
// the end of a test stop servers.)
//
// These environment variables name running servers to share instead; each call
// for a database creates one there and drops it when the test ends:
//
//	HOLDFAST_TEST_REDIS           redis://host:port/0
//	HOLDFAST_TEST_REDIS_CLUSTER   redis+cluster://h1:p1,h2:p2,h3:p3
//	HOLDFAST_TEST_REDIS_SENTINEL  redis+sentinel://h1:p1,h2:p2,h3:p3/mymaster
//	HOLDFAST_TEST_MYSQL           mysql://root:password@host:port
//	HOLDFAST_TEST_POSTGRES        postgres://postgres:password@host:port
//	HOLDFAST_TEST_ZOOKEEPER       host:port
//	HOLDFAST_TEST_ETCD            host:port
//
// A test that needs a server's program and does not find it is skipped, saying
// what to install; with CI=true or HOLDFAST_NO_SKIP=1 it fails.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// startLimit bounds how long a server may take from its start to its first
// answer.
const startLimit = 60 * time.Second

// T is what testenv asks of a test: *testing.T, *testing.B and *testing.F are
// one, and [Run] makes one for a program that is no test.
type T interface {
	Helper()
	Cleanup(func())
	Logf(format string, args ...any)
	Skipf(format string, args ...any)  // does not return
	Fatalf(format string, args ...any) // does not return
}

// Main runs the tests of m (a *testing.M), stops every server that is still
// there, and returns the exit code. When it has returned, testenv has no
// goroutine left either.
func Main(m interface{ Run() int }) int {
	code := m.Run()
	if err := here.close(); err != nil {
		fmt.Fprintf(os.Stderr, "testenv: %v\n", err)
		return max(code, 1)
	}
	return code
}

// Run calls do for a program that is no test, on a goroutine of its own, stops
// what do started and returns do's error, or what a failing call of this package
// said. When it has returned, nothing of testenv is left. Only one Run may be
// under way in a process.
func Run(do func(t T) error) error {
	p := &program{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer p.cleanUp()
		p.fail(do(p))
	}()
	<-done
	p.fail(here.close())
	return p.err
}

// program is the T of Run.
type program struct {
	mu       sync.Mutex
	cleanups []func()
	err      error
}

func (p *program) Helper() {}

func (p *program) Cleanup(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cleanups = append(p.cleanups, f)
}

func (p *program) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (p *program) Skipf(format string, args ...any) { p.Fatalf(format, args...) }

func (p *program) Fatalf(format string, args ...any) {
	p.fail(fmt.Errorf(format, args...))
	runtime.Goexit()
}

// fail keeps the first error.
func (p *program) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
}

func (p *program) cleanUp() {
	for {
		p.mu.Lock()
		last := len(p.cleanups) - 1
		if last < 0 {
			p.mu.Unlock()
			return
		}
		f := p.cleanups[last]
		p.cleanups = p.cleanups[:last]
		p.mu.Unlock()
		f()
	}
}

// here is this process's part of the machine.
var here host

// host has all that the process started. Its zero value is ready; what it needs
// is made when the first server starts, and gone after close, after which it is
// ready again.
type host struct {
	shared sharedServers

	mu      sync.Mutex
	folder  string             // holds all other folders
	starter chan func()        // runs what it is sent on one locked thread
	heir    *heir              // cleans up if the process dies
	running map[*process]bool  // in no order
	stopped map[*process][]int // process IDs under SIGSTOP
	made    int                // folders so far, for their names
}

// open makes sure that there are folder, starter and heir. The caller holds mu.
func (h *host) open() error {
	if h.folder != "" {
		return nil
	}
	folder, err := os.MkdirTemp("", "holdfast-test-")
	if err != nil {
		return err
	}
	if err := os.Chmod(folder, 0o755); err != nil { // some servers run as users of their own
		return err
	}
	heir, err := newHeir(folder)
	if err != nil {
		os.RemoveAll(folder)
		return err
	}
	h.folder, h.heir, h.starter = folder, heir, make(chan func())
	h.running, h.stopped = make(map[*process]bool), make(map[*process][]int)
	go func(starts <-chan func()) {
		// The kernel signals a process when the thread that started it ends, not
		// only when all of its parent does: this one stays.
		runtime.LockOSThread()
		for start := range starts {
			start()
		}
		runtime.UnlockOSThread()
	}(h.starter)
	return nil
}

// newFolder makes a folder that goes with the process at the latest.
func (h *host) newFolder(name string) (string, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.open(); err != nil {
		return "", err
	}
	h.made++
	folder := filepath.Join(h.folder, fmt.Sprintf("%s-%d", name, h.made))
	return folder, os.Mkdir(folder, 0o755)
}

// Folder makes a folder for what the caller keeps on disk. Unlike t.TempDir's it
// is gone soon after this process even if that is killed.
func Folder(t T, name string) string {
	t.Helper()
	folder, err := here.newFolder(name)
	check(t, "a folder", err)
	return folder
}

// start starts the command so that it ends when this process ends.
func (h *host) start(p *process) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.open(); err != nil {
		return err
	}
	if err := h.launch(p.cmd); err != nil {
		return err
	}
	h.running[p] = true
	return nil
}

// launch starts a command on the thread that stays. The caller holds mu.
func (h *host) launch(cmd *exec.Cmd) error {
	started := make(chan error)
	h.starter <- func() { started <- cmd.Start() }
	return <-started
}

// ended forgets a process that is gone.
func (h *host) ended(p *process) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.running, p)
	h.setStopped(p, nil)
}

// setStopped notes which processes of p's are under SIGSTOP: a stopped process
// does not see the signal that should end it with its parent. The caller holds
// mu.
func (h *host) setStopped(p *process, ids []int) {
	if len(h.stopped[p]) == 0 && len(ids) == 0 {
		return
	}
	h.stopped[p] = ids
	var all []int
	for _, ids := range h.stopped {
		all = append(all, ids...)
	}
	h.heir.tell(all)
}

// close ends every process and removes every folder.
func (h *host) close() error {
	h.shared.forget()
	h.mu.Lock()
	running := make([]*process, 0, len(h.running))
	for p := range h.running {
		running = append(running, p)
	}
	h.mu.Unlock()
	for _, p := range running {
		p.end()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.folder == "" {
		return nil
	}
	close(h.starter)
	err := h.heir.close()
	h.folder, h.heir, h.starter = "", nil, nil
	return err
}

// heir is a shell that outlives this process by a moment, wakes the stopped
// servers, so that they see the signal that ends them, and removes the folder.
type heir struct {
	cmd   *exec.Cmd
	lines *os.File
}

const heirScript = `
trap '' HUP INT TERM
stopped=
while read -r line; do stopped=$line; done
for id in $stopped; do kill -CONT "$id" 2>/dev/null; done
tries=0
while ! rm -rf "$1" 2>/dev/null && [ $tries -lt 100 ]; do tries=$((tries + 1)); sleep 0.1; done
[ ! -e "$1" ]
`

func newHeir(folder string) (*heir, error) {
	lines, end, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer lines.Close()
	cmd := exec.Command("/bin/sh", "-c", heirScript, "sh", folder)
	cmd.Dir, cmd.Stdin = "/", lines
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal is not for it
	if err := cmd.Start(); err != nil {
		end.Close()
		return nil, err
	}
	return &heir{cmd, end}, nil
}

// tell replaces the list of stopped processes.
func (h *heir) tell(stopped []int) {
	fmt.Fprintln(h.lines, strings.Trim(fmt.Sprint(stopped), "[]"))
}

// close has the heir do its work now.
func (h *heir) close() error {
	h.lines.Close()
	if err := h.cmd.Wait(); err != nil {
		return fmt.Errorf("removing the servers' folder: %w", err)
	}
	return nil
}

// sharedServers are the servers that every test of the process may use.
type sharedServers struct {
	mu    sync.Mutex
	kinds map[string]*sharedServer
}

type sharedServer struct {
	once   sync.Once
	server any
	err    error
}

// get returns the server of that kind, started by the first call. A server that
// could not be started is not tried again.
func shared[S any](h *host, kind string, start func() (S, error)) (S, error) {
	h.shared.mu.Lock()
	if h.shared.kinds == nil {
		h.shared.kinds = make(map[string]*sharedServer)
	}
	s := h.shared.kinds[kind]
	if s == nil {
		s = &sharedServer{err: errors.New("another test ended while it started the server")}
		h.shared.kinds[kind] = s
	}
	h.shared.mu.Unlock()
	s.once.Do(func() { s.server, s.err = start() })
	server, _ := s.server.(S)
	return server, s.err
}

func (s *sharedServers) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds = nil
}

// await asks ready again and again until it returns nil, for limit at most.
func await(limit time.Duration, ready func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := ready(ctx)
		if err == nil {
			return nil
		}
		var final finalError
		if errors.As(err, &final) {
			return final.error
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("not within %v: %w", limit, err)
		}
	}
}

// finalError tells await that asking again is in vain.
type finalError struct{ error }

// missing is the error of a server whose program is not installed.
type missing struct {
	program, install, variable string
}

func (m *missing) Error() string {
	s := fmt.Sprintf("%s is not installed: apt-get install --no-install-recommends %s (make test does it when root)", m.program, m.install)
	if m.variable != "" {
		s += ", or name a running server in " + m.variable
	}
	return s
}

// check ends the test if there is an error.
func check(t T, what string, err error) {
	t.Helper()
	var m *missing
	switch {
	case err == nil:
	case errors.As(err, &m) && os.Getenv("CI") != "true" && os.Getenv("HOLDFAST_NO_SKIP") != "1":
		t.Skipf("%s: %v", what, m)
	default:
		t.Fatalf("%s: %v", what, err)
	}
}

// program finds an installed program: some folders of servers are in the path
// of administrators only, or in nobody's.
func lookPath(m missing, folders ...string) (string, error) {
	for _, pattern := range append(folders, "/usr/sbin", "/usr/local/sbin") {
		found, _ := filepath.Glob(filepath.Join(pattern, m.program))
		slices.Sort(found)
		for _, path := range slices.Backward(found) { // the newest version
			if path, err := exec.LookPath(path); err == nil {
				return path, nil
			}
		}
	}
	path, err := exec.LookPath(m.program)
	if err != nil {
		return "", &m
	}
	return path, nil
}
