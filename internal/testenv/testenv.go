// Package testenv starts real servers for tests and benchmarks: Redis, Redis Cluster, Redis with
// Sentinels, MariaDB with and without a replica, Galera, PostgreSQL with and without a standby,
// Patroni, PgBouncer, nginx, ZooKeeper, etcd and the service itself. Servers listen on free ports
// of 127.0.0.1 below 32768 and use temporary folders.
//
// [Redis], [MariaDB] and similar functions return the URL of a server that all tests of the process
// share. The first call starts it. Each call for a database creates an empty one. [OwnRedis],
// [OwnMariaDB] and similar functions start a server for one test, which may kill, stop and restart
// it. The server ends with the test.
//
// A package whose tests use testenv needs
//
//	func TestMain(m *testing.M) { os.Exit(testenv.Main(m)) }
//
// On Linux, servers and folders are removed even if the process is killed or has no such TestMain.
// On other systems only Main and the end of a test stop servers.
//
// These environment variables name running servers to share instead. There, each call for a
// database creates one and drops it when the test ends:
//
//	HOLDFAST_TEST_REDIS           redis://host:port/0
//	HOLDFAST_TEST_REDIS_CLUSTER   redis+cluster://h1:p1,h2:p2,h3:p3
//	HOLDFAST_TEST_REDIS_SENTINEL  redis+sentinel://h1:p1,h2:p2,h3:p3/mymaster
//	HOLDFAST_TEST_MYSQL           mysql://root:password@host:port
//	HOLDFAST_TEST_POSTGRES        postgres://postgres:password@host:port
//	HOLDFAST_TEST_POSTGRES_18     the same, of version 18
//	HOLDFAST_TEST_ZOOKEEPER       host:port
//	HOLDFAST_TEST_ETCD            host:port
//
// HOLDFAST_TEST_FOLDER names the folder for the files of the servers, which is otherwise the one
// for temporary files. make test names a folder in memory if there is room, because servers start
// and write much faster there.
//
// HOLDFAST_TEST_THOROUGH=1 makes tests run completely. Without it, some tests run only a part that
// finds most faults in little time. See [Thorough].
//
// A test whose server is not installed is skipped with a message that says what to install. With
// CI=true or HOLDFAST_NO_SKIP=1 it fails.
package testenv

import (
	"cmp"
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

// Thorough reports whether tests must run everything, as .ci/run requires. A test that otherwise
// runs less says what it leaves out.
func Thorough() bool { return os.Getenv("HOLDFAST_TEST_THOROUGH") == "1" }

// maxStart bounds the time from a server's start to its first answer.
const maxStart = 5 * Patience

// T has the methods of a test that testenv needs. *testing.T, *testing.B and
// *testing.F implement it, and [Run] provides one for a program that is not a
// test.
type T interface {
	Helper()
	Cleanup(func())
	Logf(format string, args ...any)
	Skipf(format string, args ...any)  // does not return
	Fatalf(format string, args ...any) // does not return
}

// Main runs the tests of m (a *testing.M), stops all servers and returns the exit
// code. After Main returns, no goroutine of testenv is left.
func Main(m interface{ Run() int }) int {
	code := m.Run()
	if err := env.close(); err != nil {
		fmt.Fprintf(os.Stderr, "testenv: %v\n", err)
		return max(code, 1)
	}
	return code
}

// Run is Part for a whole program. Before it returns, it also stops the servers that all
// parts share, and removes all folders. A process must not call Run while another Run is in
// progress.
func Run(do func(t T) error) error {
	return cmp.Or(Part(do), env.close())
}

// Part calls do on a new goroutine, in a program that is not a test. It returns do's error, or the
// error of a failed call of this package or of a [Server]. Before it returns, Part stops the
// servers that do started.
func Part(do func(t T) error) error {
	p := &program{}
	done := make(chan struct{})
	go func() { // Fatalf ends this goroutine
		defer close(done)
		defer p.cleanUp()
		defer func() {
			switch failed := recover().(type) {
			case nil:
			case Failure:
				p.fail(failed)
			default:
				panic(failed)
			}
		}()
		p.fail(do(p))
	}()
	<-done
	return p.err
}

// program is the T that Part passes to do.
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

// fail stores the first error.
func (p *program) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
}

// cleanUp calls the cleanups, the last one first. They may add further ones.
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

// env is the environment of this process.
var env environment

// environment has the servers and folders that the process created. The zero
// value is ready to use, and so is an environment after close.
type environment struct {
	shared sharedServers

	mu      sync.Mutex
	folder  string      // contains all other folders except those of programs; "" before open
	builds  string      // contains the folders of programs
	starter chan func() // one locked thread runs the functions sent to it
	cleaner *cleaner
	running map[*process]bool
	folders int // number of folders created so far, for their names
}

// open creates folder, starter and cleaner if they do not exist. The caller holds
// mu.
func (e *environment) open() error {
	if e.folder != "" {
		return nil
	}
	folder, err := os.MkdirTemp(os.Getenv("HOLDFAST_TEST_FOLDER"), "holdfast-test-")
	if err != nil {
		return fmt.Errorf("creating a folder for the servers (HOLDFAST_TEST_FOLDER, TMPDIR): %w", err)
	}
	builds, err := os.MkdirTemp("", "holdfast-test-")
	if err != nil {
		os.RemoveAll(folder)
		return err
	}
	if err := os.Chmod(folder, 0o755); err != nil { // needed because some servers run as another user
		return err
	}
	cleaner, err := newCleaner(folder, builds)
	if err != nil {
		os.RemoveAll(folder)
		os.RemoveAll(builds)
		return err
	}
	e.folder, e.builds, e.cleaner, e.starter = folder, builds, cleaner, make(chan func())
	e.running = make(map[*process]bool)
	go func(starts <-chan func()) {
		// The kernel sends a child its death signal when the thread that started it ends, even if
		// the process continues. So this thread starts all children and ends only at close.
		runtime.LockOSThread()
		for start := range starts {
			start()
		}
		runtime.UnlockOSThread()
	}(e.starter)
	return nil
}

// newFolder creates a folder. It is removed when the process ends, if not earlier.
func (e *environment) newFolder(name string) (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.open(); err != nil {
		return "", err
	}
	e.folders++
	folder := filepath.Join(e.folder, fmt.Sprintf("%s-%d", name, e.folders))
	return folder, os.Mkdir(folder, 0o755)
}

// newPlace creates a folder that belongs to the owner, and claims a port.
func (e *environment) newPlace(name string, owner *owner) (folder string, p *port, err error) {
	if folder, err = e.newFolder(name); err != nil {
		return "", nil, err
	}
	if err := owner.chown(folder); err != nil {
		return "", nil, err
	}
	p, err = newPort()
	return folder, p, err
}

// newBuildFolder is newFolder for a program.
func (e *environment) newBuildFolder() (string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.open(); err != nil {
		return "", err
	}
	return os.MkdirTemp(e.builds, "build-")
}

// Folder creates a folder for the caller's files. Unlike the folder of t.TempDir
// it is removed even if this process is killed.
func Folder(t T, name string) string {
	t.Helper()
	folder, err := env.newFolder(name)
	check(t, "a folder", err)
	return folder
}

// start starts p's command, which ends when this process ends.
func (e *environment) start(p *process) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.open(); err != nil {
		return err
	}
	if err := e.launch(p.cmd); err != nil {
		return err
	}
	e.running[p] = true
	return nil
}

// launch starts a command on the starter's thread. The caller holds mu.
func (e *environment) launch(cmd *exec.Cmd) error {
	started := make(chan error)
	e.starter <- func() { started <- cmd.Start() }
	return <-started
}

// ended removes a process that has ended from the list.
func (e *environment) ended(p *process) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.running, p)
	if len(p.stopped) > 0 {
		e.reportStopped()
	}
}

// setStopped records which processes of p are under SIGSTOP. The caller holds p.mu.
func (e *environment) setStopped(p *process, ids []int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	p.stopped = ids
	e.reportStopped()
}

// reportStopped reports the stopped processes to the cleaner. A stopped process does not react to
// the signal that should end it with its parent. The caller holds mu.
func (e *environment) reportStopped() {
	var all []int
	for p := range e.running {
		all = append(all, p.stopped...)
	}
	fmt.Fprintln(e.cleaner.input, strings.Trim(fmt.Sprint(all), "[]"))
}

// close ends all processes and removes all folders.
func (e *environment) close() error {
	e.shared.clear()
	e.mu.Lock()
	running := make([]*process, 0, len(e.running))
	for p := range e.running {
		running = append(running, p)
	}
	e.mu.Unlock()
	for _, p := range running {
		p.end()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.folder == "" {
		return nil
	}
	close(e.starter)
	err := e.cleaner.close()
	e.folder, e.builds, e.cleaner, e.starter = "", "", nil, nil
	return err
}

// cleaner is a shell that cleans up when this process ends, even if it is killed.
// It continues the stopped servers, which then react to the signal that ends
// them, and removes the folders.
type cleaner struct {
	cmd   *exec.Cmd
	input *os.File // closing input starts the clean-up; each line replaces the list of stopped processes
}

const cleanerScript = `
trap '' HUP INT TERM
stopped=
while read -r line; do stopped=$line; done
for id in $stopped; do kill -CONT "$id" 2>/dev/null; done
tries=0
while ! rm -rf "$@" 2>/dev/null && [ $tries -lt 100 ]; do tries=$((tries + 1)); sleep 0.1; done
[ ! -e "$1" ] && [ ! -e "$2" ]
`

func newCleaner(folder, builds string) (*cleaner, error) {
	stdin, input, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer stdin.Close()
	cmd := exec.Command("/bin/sh", "-c", cleanerScript, "sh", folder, builds)
	cmd.Dir, cmd.Stdin = "/", stdin
	cmd.Env = append(os.Environ(), "PATH=/usr/bin:/bin:"+os.Getenv("PATH")) // the caller's PATH may lack rm and sleep
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}                   // an interrupt at the terminal does not reach the cleaner
	if err := cmd.Start(); err != nil {
		input.Close()
		return nil, err
	}
	return &cleaner{cmd, input}, nil
}

// close makes the cleaner clean up now and waits for it.
func (c *cleaner) close() error {
	c.input.Close()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("removing the temporary folders: %w", err)
	}
	return nil
}

// sharedServers are the servers that all tests of the process use, by kind.
type sharedServers struct {
	mu    sync.Mutex
	kinds map[string]*sharedServer
}

type sharedServer struct {
	once   sync.Once
	server any
	err    error
}

// shared returns the server of this kind. The first call starts it. If that fails,
// all calls return its error.
func shared[S any](e *environment, kind string, start func() (S, error)) (S, error) {
	e.shared.mu.Lock()
	if e.shared.kinds == nil {
		e.shared.kinds = make(map[string]*sharedServer)
	}
	s := e.shared.kinds[kind]
	if s == nil {
		s = &sharedServer{err: errors.New("the test that was starting the server ended")}
		e.shared.kinds[kind] = s
	}
	e.shared.mu.Unlock()
	s.once.Do(func() { s.server, s.err = start() })
	server, _ := s.server.(S)
	return server, s.err
}

func (s *sharedServers) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds = nil
}

// await is [Poll] with a context for ready.
func await(limit time.Duration, ready func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*limit) // the last try begins after limit
	defer cancel()
	err := Poll(limit, func() error { return ready(ctx) })
	if final, ok := errors.AsType[finalError](err); ok {
		return final.error
	}
	if err != nil {
		return fmt.Errorf("not within %v: %w", limit, err)
	}
	return nil
}

// finalError is an error that makes Poll give up at once.
type finalError struct{ error }

// dependency is a file that a server needs.
type dependency struct {
	file     string // the name of a program, or a path
	packages string // the Debian packages to install; "" if only make servers can
	variable string // names a running server to use instead; "" if there is none
}

// missingError is the error of a server whose dependency is not installed.
type missingError struct{ dependency }

func (m *missingError) Error() string {
	s := m.file + " is not installed: HOLDFAST_TEST_THOROUGH=1 make servers"
	if m.packages != "" {
		s = fmt.Sprintf("%s is not installed: apt-get install --no-install-recommends %s (make test does it when root)", m.file, m.packages)
	}
	if m.variable != "" {
		s += ", or give the address of a running server in " + m.variable
	}
	return s
}

// check fails the test if there is an error, and skips it if a dependency is
// missing and skipping is allowed.
func check(t T, what string, err error) {
	t.Helper()
	var m *missingError
	switch {
	case err == nil:
	case errors.As(err, &m) && os.Getenv("CI") != "true" && os.Getenv("HOLDFAST_NO_SKIP") != "1":
		t.Skipf("%s: %v", what, m)
	default:
		t.Fatalf("%s: %v", what, err)
	}
}

// lookPath returns the path of an installed program or file. It also searches these folders, which
// may be patterns, and the administrators' folders, which are often not in a user's PATH.
func lookPath(d dependency, folders ...string) (string, error) {
	if filepath.IsAbs(d.file) {
		if _, err := os.Stat(d.file); err != nil {
			return "", &missingError{d}
		}
		return d.file, nil
	}
	if path, ok := lookIn(d.file, append(folders, "/usr/sbin", "/usr/local/sbin")...); ok {
		return path, nil
	}
	path, err := exec.LookPath(d.file)
	if err != nil {
		return "", &missingError{d}
	}
	return path, nil
}

// lookIn returns the path of a program in the first of these folders that contains it. A folder may
// be a pattern.
func lookIn(program string, folders ...string) (path string, ok bool) {
	for _, pattern := range folders {
		found, _ := filepath.Glob(filepath.Join(pattern, program))
		slices.Sort(found)
		for _, path := range slices.Backward(found) { // the newest version first
			if path, err := exec.LookPath(path); err == nil {
				return path, true
			}
		}
	}
	return "", false
}

// programs lists the dependencies of the servers that are named after their main program.
var programs = map[string][]dependency{
	"redis-server": {redisServer},
	"mariadbd":     {mariadbd, mariadbInstall},
	"zookeeper":    {java, zookeeper},
	"etcd":         {etcd},
}

// Installed reports whether this package can start the server: redis-server,
// mariadbd, zookeeper or etcd.
func Installed(server string) bool {
	needs, known := programs[server]
	for _, d := range needs {
		if _, err := lookPath(d); err != nil {
			return false
		}
	}
	return known
}
