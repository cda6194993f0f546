//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/holdfast-stock/holdfast/internal/assembly/backends"
	"github.com/holdfast-stock/holdfast/internal/assembly/backendtest"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// programVariable makes the test program withlock.
const programVariable = "HOLDFAST_TEST_IS_WITHLOCK"

// pauseVariable makes withlock pause after it has started the command's process, before
// the guard knows it. It names a file that exists during the pause.
const pauseVariable = "HOLDFAST_TEST_PAUSES_WITHLOCK"

// guardDiesVariable makes SIGINT end the guard before it ignores the signal.
const guardDiesVariable = "HOLDFAST_TEST_INTERRUPTS_GUARD"

func TestMain(m *testing.M) {
	// withlock in the test's process starts these processes, too.
	isPart := len(os.Args) > 1 && (os.Args[1] == guardArgument || os.Args[1] == beginArgument)
	if os.Getenv(guardDiesVariable) != "" && isPart && os.Args[1] == guardArgument {
		time.Sleep(500 * time.Millisecond) // without waiting for the guard, withlock would begin the command
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
		for { // another thread may receive the signal a moment later
			testenv.Dither()
		}
	}
	if os.Getenv(programVariable) != "" || isPart {
		if file := os.Getenv(pauseVariable); file != "" {
			testHookWaiting = func() {
				for err := os.WriteFile(file, []byte("\n"), 0o600); err == nil; _, err = os.Stat(file) {
					testenv.Dither()
				}
			}
		}
		main()
		return
	}
	flag.Parse()
	_ = flag.Set("test.parallel", "8") // many in parallel, because the tests mostly wait for leases to end
	os.Exit(testenv.Main(m))
}

// withlock is a running withlock.
type withlock struct {
	t      *testing.T
	cmd    *exec.Cmd
	out    bytes.Buffer
	errors bytes.Buffer
	exited chan struct{}
}

// start starts withlock with a command in the folder.
func start(t *testing.T, folder string, args ...string) *withlock {
	t.Helper()
	return startProgram(t, folder, os.Args[0], args...)
}

// startProgram starts withlock, or a program that becomes withlock.
func startProgram(t *testing.T, folder, program string, args ...string) *withlock {
	t.Helper()
	w := &withlock{t: t, cmd: exec.Command(program, args...), exited: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), programVariable+"=1")
	w.cmd.Dir, w.cmd.Stdout, w.cmd.Stderr = folder, &w.out, &w.errors
	w.cmd.WaitDelay = 3 * time.Second // a command that outlives withlock keeps the output open
	if err := w.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(w.exited)
		_ = w.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = w.cmd.Process.Kill() // the guard then ends the command
		<-w.exited
	})
	return w
}

func (w *withlock) signal(s syscall.Signal) {
	w.t.Helper()
	if err := w.cmd.Process.Signal(s); err != nil {
		w.t.Fatal(err)
	}
}

// wait returns the exit code.
func (w *withlock) wait() int {
	w.t.Helper()
	testenv.Receive(w.t, "withlock exits", w.exited)
	return w.cmd.ProcessState.ExitCode()
}

// mustExit checks the exit code.
func (w *withlock) mustExit(code int) {
	w.t.Helper()
	if got := w.wait(); got != code {
		w.t.Errorf("exit code %d, want %d; it wrote %q", got, code, w.errors.String())
	}
}

// awaitFile waits until the file exists and has a whole line, and returns its text.
func awaitFile(t *testing.T, path string) (text string) {
	t.Helper()
	testenv.Await(t, path+" is written", func() bool {
		content, _ := os.ReadFile(path)
		text = string(content)
		return strings.HasSuffix(text, "\n")
	})
	return strings.TrimSpace(text)
}

// longLease outlasts every wait of a test, so that no busy machine renews a lease too late. A later
// --lease replaces it.
const longLease = "1h"

// onRedis returns the flags for a lock on a Redis of all tests, and the lock's name.
func onRedis(t *testing.T) (flags []string, name string) {
	t.Helper()
	name = "withlock/" + uuid.NewString()
	return []string{"--redis", testenv.Redis(t), "--name", name, "--lease", longLease}, name
}

// with returns the flags with more arguments.
func with(flags []string, more ...string) []string {
	return append(append([]string{}, flags...), more...)
}

// shell returns the arguments that run the script.
func shell(script string) []string { return []string{"--", "sh", "-c", script} }

// forAll runs the test on every backend in a thorough run, and otherwise on some. Together, the
// tests that call forAll use each backend once. withlock's behaviour depends on the backend in two
// ways: whether it has tokens, and whether a connection holds the lock.
func forAll(t *testing.T, some []string, test func(t *testing.T, flags []string)) {
	for _, name := range backends.Names() {
		if name == "local" || !testenv.Thorough() && !slices.Contains(some, name) { // local locks within one process
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, with(backendtest.Flags(t, name), "--lock", name, "--name", "withlock/"+uuid.NewString()))
		})
	}
}

// awaitGo is a command of the shell that waits until the test calls the function of makeGo.
const awaitGo = "read go < go"

// makeGo creates the pipe of awaitGo in the folder. letGo ends the waits of some commands,
// including those that have not begun to wait.
func makeGo(t *testing.T, folder string) (letGo func()) {
	t.Helper()
	path := filepath.Join(folder, "go")
	if err := unix.Mkfifo(path, 0o644); err != nil {
		t.Fatal(err)
	}
	pipe, err := os.OpenFile(path, os.O_RDWR, 0) // opened for reading and writing, so that no open waits for the other end
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pipe.Close() })
	return func() {
		t.Helper()
		if _, err := pipe.WriteString("\n\n\n\n"); err != nil { // a line for each command
			t.Fatal(err)
		}
	}
}

// TestOneAtATime checks that only one of several processes runs its command at a time, with rising
// tokens. A command whose lock has no token must not inherit that of another withlock.
func TestOneAtATime(t *testing.T) {
	t.Parallel()
	forAll(t, []string{"redlock", "zookeeper"}, func(t *testing.T, flags []string) {
		folder := t.TempDir()
		var all []*withlock
		for range 3 {
			all = append(all, startProgram(t, folder, "env", with([]string{tokenVariable + "=7", os.Args[0]}, with(flags, shell(`mkdir inside && echo "$HOLDFAST_FENCING_TOKEN" >> tokens && sleep 0.05 && rmdir inside`)...)...)...))
		}
		for _, w := range all {
			w.mustExit(0)
		}
		content, err := os.ReadFile(filepath.Join(folder, "tokens"))
		if err != nil {
			t.Fatal(err)
		}
		tokens := strings.Split(strings.TrimSuffix(string(content), "\n"), "\n")
		if len(tokens) != 3 {
			t.Fatalf("tokens %q, want three", tokens)
		}
		for i, token := range tokens {
			if slices.Contains(flags, "redlock") {
				if token != "" {
					t.Errorf("token %q from redlock", token)
				}
			} else if i > 0 && number(t, token) <= number(t, tokens[i-1]) {
				t.Errorf("tokens %q do not rise", tokens)
			}
		}
	})
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// stubborn is a script that ignores SIGTERM, like its child. The file gets the IDs of both; the
// first is also that of their process group. They end by themselves after five minutes, in case
// withlock does not end them.
func stubborn(file string) string {
	return fmt.Sprintf(`trap "" TERM; sleep 300 & echo "$$ $!" > %s; sleep 300`, file)
}

// look is a script that writes a line to the file: the name of each stubborn script with a process
// that is still alive. It starts no further process, so it is done at once.
func look(file string, scripts ...string) string {
	return fmt.Sprintf(`seen=
look() { if read stat < /proc/$1/stat; then case $stat in *") Z "*) ;; *) seen="$seen$2 " ;; esac; fi; }
for script in %s; do read shell child < $script; look $shell $script; look $child $script; done 2> /dev/null
echo "$seen" > %s
`, strings.Join(scripts, " "), file)
}

// TestStandbysTakeOver checks that two standbys run their commands after one of two holders was
// killed and the other was stopped for longer than its lease. By then, no process of the first two
// commands may be alive. The stopped holder exits with 76.
func TestStandbysTakeOver(t *testing.T) {
	t.Parallel()
	forAll(t, []string{"redis", "postgres"}, func(t *testing.T, flags []string) {
		folder := t.TempDir()
		lease := "8s" // long enough for a busy machine to renew the lease
		switch {
		case slices.Contains(flags, "redlock"):
			lease = "16s" // each server has a twentieth of the lease to answer
		case slices.Contains(flags, "--db"):
			lease = "12s" // only two thirds of the lease count
		}
		flags = with(flags, "--holders", "2", "--lease", lease, "--grace", "300ms")
		killed := start(t, folder, with(flags, shell(stubborn("killed"))...)...)
		stopped := start(t, folder, with(flags, shell(stubborn("stopped"))...)...)
		awaitFile(t, filepath.Join(folder, "killed"))
		awaitFile(t, filepath.Join(folder, "stopped"))
		letGo := makeGo(t, folder)
		var standbys []*withlock
		for i := range 2 {
			standbys = append(standbys, start(t, folder, with(flags, shell(look(fmt.Sprint("standby", i), "killed", "stopped")+awaitGo)...)...))
		}
		killed.signal(syscall.SIGKILL)
		stopped.signal(syscall.SIGSTOP)
		var seen [2]int // number of commands that each standby has seen
		for i := range standbys {
			text := awaitFile(t, filepath.Join(folder, fmt.Sprint("standby", i)))
			for _, script := range []string{"killed", "stopped"} {
				if strings.Contains(text, script) {
					seen[i]++
				}
			}
		}
		if min(seen[0], seen[1]) > 0 || max(seen[0], seen[1]) > 1 {
			t.Errorf("the standbys ran together with %v commands before them, want none and at most one", seen)
		}
		letGo()
		for _, w := range standbys {
			w.mustExit(0)
		}
		stopped.signal(syscall.SIGCONT)
		stopped.mustExit(exitLost)
	})
}

// TestCutOff checks that a command whose lock cannot be renewed has ended before another
// process is granted the lock.
func TestCutOff(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	server := testenv.OwnRedis(t)
	wire := testenv.NewWire(t, server.Addr())
	flags := []string{"--name", "cut-off", "--lease", "8s", "--grace", "300ms"}
	holder := start(t, folder, with(flags, with([]string{"--redis", "redis://" + wire.Addr()}, shell(stubborn("holder"))...)...)...)
	awaitFile(t, filepath.Join(folder, "holder"))
	standby := start(t, folder, with(flags, with([]string{"--redis", server.URL()}, shell(look("standby", "holder"))...)...)...)
	wire.Freeze()
	standby.mustExit(0)
	if seen := awaitFile(t, filepath.Join(folder, "standby")); seen != "" {
		t.Error("the standby ran together with the command before it")
	}
	holder.mustExit(exitLost)
}

// takeAway deletes the lock in the Redis of all tests.
func takeAway(t *testing.T, name string) {
	t.Helper()
	if err := storetest.Redis(t, testenv.Redis(t)).Del(t.Context(), name).Err(); err != nil {
		t.Fatal(err)
	}
}

// startStubborn starts withlock with a stubborn command, for a lock in the Redis of all tests, and
// waits until the command runs. The file group in the folder has its processes.
func startStubborn(t *testing.T, grace string) (w *withlock, folder, name string) {
	t.Helper()
	folder = t.TempDir()
	flags, name := onRedis(t)
	w = start(t, folder, with(flags, with([]string{"--grace", grace}, shell(stubborn("group"))...)...)...)
	awaitFile(t, filepath.Join(folder, "group"))
	return w, folder, name
}

// startHolder starts withlock with a command that runs until letGo is called, and waits until the
// command runs.
func startHolder(t *testing.T, folder string, flags []string) (w *withlock, letGo func()) {
	t.Helper()
	letGo = makeGo(t, folder)
	w = start(t, folder, with(flags, shell("echo > ready; "+awaitGo)...)...)
	awaitFile(t, filepath.Join(folder, "ready"))
	return w, letGo
}

// mustFail checks the exit code of an error.
func mustFail(t *testing.T, err error, code int) {
	t.Helper()
	var exit exitError
	if !errors.As(err, &exit) || exit.code != code {
		t.Errorf("exit code %d, %v, want %d", exit.code, err, code)
	}
}

// TestLockTakenAway checks that a command is ended after its lock was deleted, and killed if it
// ignores SIGTERM.
func TestLockTakenAway(t *testing.T) {
	t.Parallel()
	w, folder, name := startStubborn(t, "300ms") // the lock's own check runs only after a third of the lease
	takeAway(t, name)
	w.mustExit(exitLost)
	if said := w.errors.String(); !strings.Contains(said, "confirming "+name) { // the loss must be noticed before Unlock
		t.Errorf("withlock wrote %q", said)
	}
	mustHaveEnded(t, folder)
}

// mustHaveEnded checks that no process of the command is alive. The folder's file group has their
// IDs. A zombie does not count.
func mustHaveEnded(t *testing.T, folder string) {
	t.Helper()
	for _, id := range strings.Fields(awaitFile(t, filepath.Join(folder, "group"))) {
		if !hasEnded(int(number(t, id))) {
			t.Errorf("the process %s of the command runs on", id)
		}
	}
}

// hasEnded reports whether the process has ended.
func hasEnded(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(stat), ") ")
	return err != nil || strings.HasPrefix(state, "Z") || strings.HasPrefix(state, "X")
}

// TestSignals checks that a signal reaches the command and its children, that the exit
// code is that of the command, and that the lock is free afterwards.
func TestSignals(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		script string // script must write the file ready after it has set its traps
		signal syscall.Signal
		code   int
	}{
		{"ends the command", "echo > ready; exec sleep 60", syscall.SIGTERM, 128 + 15},
		{"ends a stopped command", "(echo > ready) & kill -STOP $$; sleep 60", syscall.SIGTERM, 128 + 15},
		{"Ctrl-C", "sh -c 'echo > ready; exec sleep 60'; echo", syscall.SIGINT, 128 + 2},
		{"is handled", "trap 'echo > child; exit 7' USR1; echo > ready; while :; do sleep 0.05; done", syscall.SIGUSR1, 7},
		{"is handled by a child", `trap 'exit 3' TERM; sh -c 'trap "echo > child; exit" TERM; echo > ready; while :; do sleep 0.05; done' & wait`, syscall.SIGTERM, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			folder := t.TempDir()
			flags, name := onRedis(t)
			w := start(t, folder, with(flags, shell(test.script)...)...)
			awaitFile(t, filepath.Join(folder, "ready"))
			w.signal(test.signal)
			w.mustExit(test.code)
			if strings.Contains(test.script, "child") {
				awaitFile(t, filepath.Join(folder, "child"))
			}
			mustBeFree(t, name)
		})
	}
}

// mustBeFree checks that Redis stores nothing for the lock but its last token.
func mustBeFree(t *testing.T, name string) {
	t.Helper()
	n, err := storetest.Redis(t, testenv.Redis(t)).Exists(t.Context(), name, "holdfast_holders:{"+name+"}").Result()
	if err != nil || n != 0 {
		t.Errorf("Redis stores %d keys of the lock, %v", n, err)
	}
}

// TestIgnoredSignal checks that a command that ignores SIGTERM keeps running, and keeps
// its lock for longer than a lease.
func TestIgnoredSignal(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	letGo := makeGo(t, folder)
	flags, _ := onRedis(t)
	flags = with(flags, "--lease", "12s", "--grace", "0s") // long enough for a busy machine to renew the lease
	w := start(t, folder, with(flags, shell(`trap "" TERM; echo > ready; `+awaitGo+`; exit 5`)...)...)
	awaitFile(t, filepath.Join(folder, "ready"))
	w.signal(syscall.SIGTERM)
	start(t, folder, with(flags, "--wait", "13s", "--", "true")...).mustExit(exitNotAcquired)
	letGo()
	w.mustExit(5)
}

// TestSignalWhileWaiting checks that a signal ends the wait, and that the lock can be taken
// afterwards. TestConformance of package locktest checks that such a waiter leaves no trace.
func TestSignalWhileWaiting(t *testing.T) {
	t.Parallel()
	forAll(t, []string{"etcd", "mysql"}, func(t *testing.T, flags []string) {
		folder := t.TempDir()
		holder, letGo := startHolder(t, folder, flags)
		for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
			waiter := start(t, folder, with(flags, shell("echo > ran")...)...)
			waiter.awaitConnection()
			waiter.signal(s)
			waiter.mustExit(exitNotAcquired) // the holder continues
		}
		letGo()
		holder.mustExit(0)
		start(t, folder, with(flags, "--", "true")...).mustExit(0)
		mustNotExist(t, filepath.Join(folder, "ran"))
	})
}

// TestSignalWithTheLock checks that a signal that comes as the lock is granted keeps the command
// from beginning.
func TestSignalWithTheLock(t *testing.T) {
	t.Parallel()
	flags, name := onRedis(t)
	signals := make(chan os.Signal)
	var (
		proxy     testenv.Proxy
		interrupt sync.Once
	)
	proxy.Start(t, testenv.Redis(t), func(client, server net.Conn) {
		go func() { _, _ = io.Copy(client, server) }()
		buffer := make([]byte, 4096)
		for {
			n, err := client.Read(buffer)
			if bytes.Contains(buffer[:n], []byte("holdfast_holders")) { // withlock has the lock, and lists itself
				interrupt.Do(func() { signals <- os.Interrupt })
			}
			if _, lost := server.Write(buffer[:n]); err != nil || lost != nil {
				return
			}
		}
	})
	err := holdAndRun(parsed(t, with(flags, "--redis", proxy.Through(testenv.Redis(t)), "--", "false")), signals)
	mustFail(t, err, exitNotAcquired)
	if err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("the error is %v", err)
	}
	mustBeFree(t, name)
}

// awaitConnection waits until withlock connects to its servers. A process that has just begun can
// still have the sockets of the test, but then it does not have its own arguments yet.
func (w *withlock) awaitConnection() {
	w.t.Helper()
	pid := w.cmd.Process.Pid
	testenv.Await(w.t, "withlock connects to its servers", func() bool {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return bytes.Contains(args, []byte(w.cmd.Args[len(w.cmd.Args)-1])) && hasSocket(pid)
	})
}

// hasSocket reports whether the process has a socket.
func hasSocket(pid int) bool {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	return slices.ContainsFunc(files, func(file string) bool {
		target, _ := os.Readlink(file)
		return strings.HasPrefix(target, "socket:")
	})
}

// TestIgnoredHangup checks that a SIGHUP that nohup ignores is ignored by withlock and by
// the command.
func TestIgnoredHangup(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	letGo := makeGo(t, folder)
	flags, _ := onRedis(t)
	script := `trap "" HUP; exec "$0" "$@"`
	args := with([]string{"-c", script, os.Args[0]}, with(flags, shell("echo > ready; kill -HUP $$; "+awaitGo)...)...)
	w := startProgram(t, folder, "sh", args...)
	awaitFile(t, filepath.Join(folder, "ready"))
	w.signal(syscall.SIGHUP)
	letGo()
	w.mustExit(0)
}

// TestChildrenEndWithTheLock checks that the lock is not free before the children that the command
// left behind have ended.
func TestChildrenEndWithTheLock(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	flags, _ := onRedis(t)
	w := start(t, folder, with(flags, with([]string{"--grace", "300ms"}, shell(
		`trap "" TERM; sleep 300 & echo "$$ $!" > group; exit 4`)...)...)...)
	w.mustExit(4)
	mustHaveEnded(t, folder)
}

// TestKilled checks that the command ends when withlock is killed.
func TestKilled(t *testing.T) {
	t.Parallel()
	w, folder, _ := startStubborn(t, "100ms")
	guard := guardOf(t, w.cmd.Process.Pid)
	w.signal(syscall.SIGKILL)
	testenv.Await(t, "the guard ends", func() bool { return !isAlive(guard) }) // the guard leads its own process group
	mustHaveEnded(t, folder)
}

// startPaused starts withlock and waits until it pauses before the guard knows the
// command. The pause ends when the returned file is removed.
func startPaused(t *testing.T, folder string, args ...string) (w *withlock, pause string) {
	t.Helper()
	pause = filepath.Join(folder, "pause")
	w = startProgram(t, folder, "env", with([]string{pauseVariable + "=" + pause, os.Args[0]}, args...)...)
	awaitFile(t, pause)
	return w, pause
}

// mustNotExist checks that the file does not exist.
func mustNotExist(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s exists: %v", path, err)
	}
}

// TestKilledBeforeTheCommand checks that the command never begins if withlock is killed
// before the guard knows the command.
func TestKilledBeforeTheCommand(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	flags, _ := onRedis(t)
	w, _ := startPaused(t, folder, with(flags, shell("echo > ran")...)...)
	guard, command := guardOf(t, w.cmd.Process.Pid), commandOf(t, w.cmd.Process.Pid)
	w.signal(syscall.SIGKILL)
	testenv.Await(t, "the guard and the command's process end", func() bool { return !isAlive(guard) && !isAlive(command) })
	mustNotExist(t, filepath.Join(folder, "ran"))
}

// TestStoppedBeforeTheCommand stops withlock before its command begins, until another process has
// the lock. The command must never begin.
func TestStoppedBeforeTheCommand(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	flags, _ := onRedis(t)
	flags = with(flags, "--lease", "6s")
	w, pause := startPaused(t, folder, with(flags, shell("echo > ran")...)...)
	w.signal(syscall.SIGSTOP)
	start(t, folder, with(flags, "--", "true")...).mustExit(0)
	if err := os.Remove(pause); err != nil {
		t.Fatal(err)
	}
	w.signal(syscall.SIGCONT)
	w.mustExit(exitNotAcquired)
	mustNotExist(t, filepath.Join(folder, "ran"))
}

// TestSignalBeforeTheCommand checks that a signal that comes before the command has begun reaches
// the command, and not the process that waits to become it. A Go program, such as that process,
// exits with 2 on SIGQUIT.
func TestSignalBeforeTheCommand(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	flags, _ := onRedis(t)
	w, pause := startPaused(t, folder, with(flags, "--", "sleep", "60")...)
	w.signal(syscall.SIGQUIT)
	if err := os.Remove(pause); err != nil {
		t.Fatal(err)
	}
	w.mustExit(128 + int(syscall.SIGQUIT))
}

// pipe returns the two ends of a pipe, which are closed at the end of the test.
func pipe(t *testing.T) (reader, writer *os.File) {
	t.Helper()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close(); writer.Close() })
	return reader, writer
}

// noGroup is the number of no process group.
const noGroup = 1 << 30

// readyGuard returns a guard that is ready, and does nothing.
func readyGuard(t *testing.T) *guard {
	t.Helper()
	_, orders := pipe(t)
	ready, stdout := pipe(t)
	if _, err := stdout.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	return &guard{orders: orders, ready: ready}
}

// TestSlowStart checks that the lock is confirmed once the guard and the command's process have
// started. Before that, the deadlines of a short lease may pass on a busy machine.
func TestSlowStart(t *testing.T) {
	t.Parallel()
	var begin bytes.Buffer
	flags, _ := onRedis(t)
	c, slot := acquireHere(t, flags)
	l := &lease{slot: slot, length: c.Locks.Lease, grace: c.Grace, term: time.Now()}
	if err := l.letBegin(noGroup, readyGuard(t), &begin); err != nil || begin.Len() != 1 || l.overdue() {
		t.Errorf("withlock sends %q to the command, %v, and its deadline is in %v; want one byte, and a later deadline", begin.Bytes(), err, time.Until(l.term))
	}
}

// TestOpenFiles checks that the command inherits the open files of withlock, and no other.
func TestOpenFiles(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	flags, _ := onRedis(t)
	const files = `for file in $(seq 3 99); do if [ -e /dev/fd/$file ]; then echo $file; fi; done`
	if err := os.WriteFile(filepath.Join(folder, "input"), []byte("end\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	args := with([]string{"-c", "exec 3< input 7< input; " + files + `; exec "$0" "$@"`, os.Args[0]}, with(flags, shell(files+"; cat <&3")...)...)
	w := startProgram(t, folder, "sh", args...)
	w.mustExit(0)
	lines := strings.Fields(w.out.String())
	if n := len(lines) / 2; !slices.Equal(lines[:n], lines[n:2*n]) || lines[len(lines)-1] != "end" {
		t.Errorf("before and in the command, these files are open: %q", lines)
	}
}

// TestReplacedProgram checks that withlock runs its command although its program was
// replaced while it waited.
func TestReplacedProgram(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	flags, _ := onRedis(t)
	holder, letGo := startHolder(t, folder, flags)
	program := filepath.Join(folder, "withlock")
	if err := os.Link(os.Args[0], program); err != nil {
		t.Fatal(err)
	}
	waiter := startProgram(t, folder, program, with(flags, shell("echo > ran")...)...)
	waiter.awaitConnection()
	if err := os.Remove(program); err != nil {
		t.Fatal(err)
	}
	letGo()
	holder.mustExit(0)
	waiter.mustExit(0)
	awaitFile(t, filepath.Join(folder, "ran"))
}

// TestConnectionOfTheGuard checks that the guard of a SQL lock has the lock's connection, and that
// withlock's own stays in non-blocking mode. In blocking mode, withlock would wait for a silent
// server without a timeout.
func TestConnectionOfTheGuard(t *testing.T) {
	t.Parallel()
	dbURL := storetest.MigratedURL(t, testenv.Postgres(t))
	_, slot := acquireHere(t, []string{"--lock", "postgres", "--db", dbURL, "--name", "guarded"})
	g, err := startGuard(time.Second, slot)
	if err != nil {
		t.Fatal(err)
	}
	defer g.stop()
	if err := g.awaitReady(); err != nil { // before, it can still have the sockets of the test
		t.Fatal(err)
	}
	if !hasSocket(g.cmd.Process.Pid) {
		t.Error("the guard has no connection")
	}
	connection, err := slot.Connection()
	if err != nil {
		t.Fatal(err)
	}
	if err := connection.Control(func(fd uintptr) {
		if flags, err := unix.FcntlInt(fd, unix.F_GETFL, 0); err != nil || flags&unix.O_NONBLOCK == 0 {
			t.Errorf("the connection has the flags %o, %v", flags, err)
		}
	}); err != nil {
		t.Error(err)
	}
	if err := slot.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestGuardKilled checks that the command ends if the guard does.
func TestGuardKilled(t *testing.T) {
	t.Parallel()
	w, folder, _ := startStubborn(t, "300ms")
	guard := guardOf(t, w.cmd.Process.Pid)
	if err := syscall.Kill(guard, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	w.mustExit(exitLost)
	mustHaveEnded(t, folder)
}

// TestGuardStopped checks that withlock itself ends the command at once if the lock is lost while
// the guard is stopped. The command is stopped too, and must go on to handle SIGTERM.
func TestGuardStopped(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	flags, name := onRedis(t)
	// withlock would kill the command only after the grace.
	w := start(t, folder, with(flags, with([]string{"--grace", (10 * testenv.Patience).String()}, shell(`trap 'echo > terminated; exit' TERM; (echo > ready) & kill -STOP $$; while :; do sleep 0.05; done`)...)...)...)
	awaitFile(t, filepath.Join(folder, "ready"))
	guard := guardOf(t, w.cmd.Process.Pid)
	if err := syscall.Kill(guard, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(guard, syscall.SIGCONT) }) // if withlock has not ended it
	takeAway(t, name)
	w.mustExit(exitLost)
	awaitFile(t, filepath.Join(folder, "terminated"))
}

// TestLostBeforeTheCommand checks that a lock that is lost before the command starts
// counts as not acquired.
func TestLostBeforeTheCommand(t *testing.T) {
	t.Parallel()
	flags, name := onRedis(t)
	c, slot := acquireHere(t, flags)
	takeAway(t, name)
	mustFail(t, runAndUnlock(c, slot, nil), exitNotAcquired)
}

// TestLostConnectionBeforeTheCommand checks the same for a SQL lock whose connection is lost,
// because the guard cannot keep that connection.
func TestLostConnectionBeforeTheCommand(t *testing.T) {
	t.Parallel()
	dbURL := storetest.MigratedURL(t, testenv.Postgres(t))
	c, slot := acquireHere(t, []string{"--lock", "postgres", "--db", dbURL, "--name", "lost"})
	admin := storetest.Sessions(t, dbURL)
	if _, err := admin.ExecContext(t.Context(), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"); err != nil {
		t.Fatal(err)
	}
	<-slot.Context().Done()
	mustFail(t, runAndUnlock(c, slot, nil), exitNotAcquired)
}

// TestOutlast checks that withlock keeps the lock while a process that it could not end is alive,
// unless the lock is lost.
func TestOutlast(t *testing.T) {
	t.Parallel()
	flags, name := onRedis(t)
	flags = with(flags, "--lease", "15s") // outlast notices the loss within a third of it
	c, slot := acquireHere(t, flags)
	l := &lease{slot: slot, length: c.Locks.Lease}
	process := exec.CommandContext(t.Context(), "sleep", "60")
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = process.Wait() }()
	defer func() { _ = process.Process.Kill() }()
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		l.outlast(process.Process.Pid)
	}()
	start(t, t.TempDir(), with(flags, "--wait", "2s", "--", "true")...).mustExit(exitNotAcquired)
	select {
	case <-returned:
		t.Fatal("outlast returned while the process runs")
	default:
	}
	takeAway(t, name)
	testenv.Receive(t, "outlast notices that the lock is lost", returned)
	if err := slot.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Error(err)
	}
}

// acquireHere takes the lock in the test's process.
func acquireHere(t *testing.T, flags []string) (config, *recipe.Slot) {
	t.Helper()
	c := parsed(t, with(flags, "--", "true"))
	slot, closeSemaphore, err := acquire(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(closeSemaphore)
	return c, slot
}

// TestFullPipe checks that an order to a guard that does not read fails when the pipe is full.
func TestFullPipe(t *testing.T) {
	t.Parallel()
	_, orders := pipe(t)
	failed := make(chan error, 1)
	go func() {
		g := &guard{orders: orders}
		for {
			if err := g.extend(1, time.Now(), time.Now()); err != nil {
				failed <- err
				return
			}
		}
	}()
	if err := testenv.Receive(t, "the order fails", failed); !errors.Is(err, unix.EAGAIN) {
		t.Error(err)
	}
}

// TestNewerOrder checks that the guard reads newer orders before it acts on an order that is due.
// They may have arrived while the guard was stopped.
func TestNewerOrder(t *testing.T) {
	t.Parallel()
	stdin, orders := pipe(t)
	g := &guard{orders: orders}
	if err := g.extend(1, time.Now(), time.Now()); err != nil {
		t.Fatal(err)
	}
	past := order{Group: 1, Term: monotonic() - int64(time.Second)}
	if !awaitOrder(stdin, past) {
		t.Error("the guard acts on the older order")
	}
	var next order
	if err := binary.Read(stdin, binary.NativeEndian, &next); err != nil || next != g.order {
		t.Errorf("the guard reads %v, %v, want %v", next, err, g.order)
	}
	if awaitOrder(stdin, past) {
		t.Error("the guard waits although the order is due")
	}
}

// guardOf and commandOf return the process IDs of withlock's guard and of its command.
func guardOf(t *testing.T, withlock int) int {
	t.Helper()
	return childOf(t, withlock, func(args string) bool { return strings.Contains(args, guardArgument) })
}

func commandOf(t *testing.T, withlock int) int {
	t.Helper()
	return childOf(t, withlock, func(args string) bool { return !strings.Contains(args, guardArgument) })
}

func childOf(t *testing.T, withlock int, wanted func(args string) bool) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ps", "-o", "pid=,args=", "--ppid", strconv.Itoa(withlock)).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if fields := strings.Fields(line); len(fields) > 1 && wanted(line) {
			return int(number(t, fields[0]))
		}
	}
	t.Fatalf("withlock has no such child: %q", out)
	return 0
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	flags, _ := onRedis(t)
	folder := t.TempDir()
	holder := start(t, folder, with(flags, shell("echo > ready; exec sleep 600")...)...)
	awaitFile(t, filepath.Join(folder, "ready"))
	defer func() {
		holder.signal(syscall.SIGTERM)
		holder.mustExit(128 + 15)
	}()
	free, _ := onRedis(t)
	messages := map[string]string{ // a part of withlock's message, by backend
		"held, asked once": "is held",
		"held, waited":     "not within 2s",
	}
	for _, test := range []struct {
		name string
		args []string
		code int
	}{
		{"the command's code", with(free, shell("exit 75")...), 75},
		{"the command's signal", with(free, shell("kill -KILL $$")...), 128 + 9},
		{"no such command", with(free, "--", "/does/not/exist"), exitNotFound},
		{"no such command on PATH", with(free, "--", "no-such-command"), exitNotFound},
		{"not a program", with(free, "--", folder), exitCannotRun},
		{"held, asked once", with(flags, "--wait", "0s", "--", "true"), exitNotAcquired},
		{"held, waited", with(flags, "--wait", "2s", "--", "true"), exitNotAcquired},
		{"held by one, asked for one of two", with(flags, "--holders", "2", "--wait", "0s", "--", "true"), 0}, // with several holders, the slots are other locks
		{"no server", []string{"--lock", "etcd", "--etcd", "127.0.0.1:1", "--name", "a", "--wait", "200ms", "--", "true"}, exitNotAcquired},
		{"invalid database", []string{"--name", "a", "--lock", "mysql", "--db", "mysql://h", "--", "true"}, exitUsage},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := start(t, folder, test.args...)
			w.mustExit(test.code)
			if strings.HasPrefix(test.name, "the command's ") && w.errors.Len() != 0 || !strings.Contains(w.errors.String(), messages[test.name]) {
				t.Errorf("withlock wrote %q", w.errors.String())
			}
		})
	}
}

// TestUsage checks the exit code of invalid flags. They are refused before withlock opens a
// connection.
func TestUsage(t *testing.T) {
	t.Parallel()
	free, _ := onRedis(t)
	for _, test := range []struct {
		name string
		args []string
	}{
		{"no name", []string{"--redis", testenv.Redis(t), "--", "true"}},
		{"invalid name", []string{"--redis", testenv.Redis(t), "--name", "a//b", "--", "true"}},
		{"no command", free},
		{"no Redis", []string{"--name", "a", "--", "true"}},
		{"no ZooKeeper", []string{"--name", "a", "--lock", "zookeeper", "--", "true"}},
		{"local", []string{"--name", "a", "--lock", "local", "--", "true"}},
		{"no database", []string{"--name", "a", "--lock", "mysql", "--", "true"}},
		{"another database", []string{"--name", "a", "--lock", "mysql", "--db", "postgres://h/d", "--", "true"}},
		{"list on a backend that cannot", []string{"--name", "a", "--lock", "postgres", "--db", "postgres://h/d", "--list"}},
		{"long grace", with(free, "--lease", "30s", "--grace", "16s", "--", "true")},
		{"no holders", with(free, "--holders", "0", "--", "true")},
		{"negative wait", with(free, "--wait", "-1s", "--", "true")},
		{"unknown flag", with(free, "--no-such-flag", "--", "true")},
		{"list with a command", with(free, "--list", "--", "true")},
	} {
		t.Run(test.name, func(t *testing.T) {
			var said bytes.Buffer
			if code := run(test.args, nil, io.Discard, &said); code != exitUsage || !strings.Contains(said.String(), "--help") {
				t.Errorf("exit code %d, want %d; withlock wrote %q", code, exitUsage, said.String())
			}
		})
	}
	var said bytes.Buffer
	if run(nil, nil, io.Discard, &said); !strings.Contains(said.String(), "withlock --name NAME") {
		t.Errorf("without arguments, withlock wrote %q, want its usage", said.String())
	}
	if code := run([]string{"--help"}, nil, io.Discard, io.Discard); code != 0 {
		t.Errorf("exit code %d for --help, want 0", code)
	}
}

// TestNotMigrated checks that a database without the schema is a failure whose message says what
// to do, and not a held lock.
func TestNotMigrated(t *testing.T) {
	t.Parallel()
	for _, database := range testenv.NetworkDatabases() {
		t.Run(database.Name, func(t *testing.T) {
			t.Parallel()
			dbURL := database.URL(t)
			backend, _, _ := strings.Cut(dbURL, ":")
			for _, wait := range [][]string{nil, {"--wait", "0s"}, {"--wait", "30s"}} {
				c := parsed(t, append([]string{"--lock", backend, "--db", dbURL, "--name", "a"}, append(wait, "--", "true")...))
				var code exitError // an error without a code exits with exitFailed
				if err := holdAndRun(c, nil); err == nil || errors.As(err, &code) || !strings.Contains(err.Error(), "fencing_tokens") || !strings.Contains(err.Error(), "api migrate up") {
					t.Errorf("with %v: %v", wait, err)
				}
			}
		})
	}
}

// TestList checks that --list shows the holders, and that the command gets its slot and
// token.
func TestList(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	letGo := makeGo(t, folder)
	flags, _ := onRedis(t)
	flags = with(flags, "--holders", "2")
	script := `echo "$HOLDFAST_SLOT $HOLDFAST_FENCING_TOKEN" > $0; ` + awaitGo
	var holders []*withlock
	want := make(map[string]bool)
	for _, name := range []string{"one", "two"} {
		w := start(t, folder, with(flags, append(shell(script), name)...)...)
		fields := strings.Fields(awaitFile(t, filepath.Join(folder, name)))
		holders = append(holders, w)
		want[fmt.Sprintf("%s %d %s", fields[0], w.cmd.Process.Pid, fields[1])] = true
	}
	list := func() string {
		w := start(t, folder, with(flags, "--list")...)
		w.mustExit(0)
		return w.out.String()
	}
	lines := strings.Split(strings.TrimSpace(list()), "\n")
	if len(lines) != 3 {
		t.Fatalf("the list is %q", lines)
	}
	for _, line := range lines[1:] {
		if f := strings.Fields(line); len(f) != 5 || !want[f[0]+" "+f[2]+" "+f[4]] {
			t.Errorf("the list has %q, want slot, process and token of %v", line, want)
		}
	}
	letGo()
	for _, w := range holders {
		w.mustExit(0)
	}
	if text := list(); strings.Count(text, "\n") != 1 {
		t.Errorf("afterwards the list is %q", text)
	}
}
