package main

import (
	"context"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// service is an instance that runs in the process of the test, because starting a process costs
// more than most tests of an instance. It has the methods of a [testenv.APIServer], except those
// that need a separate process: killing, stopping and signals.
type service struct {
	t     *testing.T
	url   string
	out   testenv.Buffer
	stop  context.CancelFunc
	ended chan struct{}
	code  int // valid once ended is closed
}

// instance is a service, or a process that serves.
type instance interface {
	URL() string
	Output() string
	Interrupt()
	Wait() int
}

// serving matches the line of the log with the address of a service.
var serving = regexp.MustCompile(`"msg":"serving",.*"url":"(https?://[^\s"]+)"`)

// serveHere starts a service in this process on a free port, and waits until it is ready. It
// stops with the test.
func serveHere(t *testing.T, args ...string) *service {
	t.Helper()
	s := startHere(t, args...)
	waitReady(t, s.url)
	return s
}

// startHere is serveHere without the wait until the service is ready.
func startHere(t *testing.T, args ...string) *service {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &service{t: t, stop: stop, ended: make(chan struct{})}
	args = append([]string{"--listen", "127.0.0.1:0"}, args...)
	go func() {
		defer close(s.ended)
		s.code = exitCode(run(ctx, args, os.Environ(), &s.out, &s.out), &s.out)
	}()
	t.Cleanup(func() {
		s.Interrupt()
		s.Wait()
	})
	testenv.Await(t, "the service says where it serves", func() bool {
		select {
		case <-s.ended:
			t.Fatalf("exit code %d: %s", s.code, s.Output())
		default:
		}
		if found := serving.FindStringSubmatch(s.Output()); found != nil {
			s.url = found[1]
		}
		return s.url != ""
	})
	return s
}

// thisProgram returns the file of the test program, which runs as cmd/api if asAPI is set.
func thisProgram(t *testing.T) string {
	t.Helper()
	file, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// startProcess is serveHere in a separate process, until the test ends.
func startProcess(t *testing.T, args ...string) *testenv.APIServer {
	t.Helper()
	return testenv.ServeFile(t, thisProgram(t), args...)
}

// launchProcess is startProcess without the wait, for a service that does not serve or cannot
// start.
func launchProcess(t *testing.T, args ...string) *testenv.APIServer {
	t.Helper()
	return testenv.StartFile(t, thisProgram(t), args...)
}

// URL returns http://host:port, or https.
func (s *service) URL() string { return s.url }

// Output returns the output of the service.
func (s *service) Output() string { return s.out.String() }

// Interrupt does what SIGTERM does to a process.
func (s *service) Interrupt() { s.stop() }

// Wait waits until the service has ended, and returns the exit code that its process
// would have.
func (s *service) Wait() int {
	s.t.Helper()
	testenv.Receive(s.t, "the service ends", s.ended)
	return s.code
}

// ran runs a command in this process, and returns its whole output. The command must exit with the
// code and print the words.
func ran(t *testing.T, code int, args []string, says ...string) (output string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience) // bounded, because the command may serve by mistake
	defer cancel()
	var out testenv.Buffer
	err := run(ctx, args, os.Environ(), &out, &out)
	if got := exitCode(err, &out); got != code {
		t.Fatalf("%q: exit code %d, want %d: %s", args, got, code, out.String())
	}
	for _, word := range says {
		if !strings.Contains(out.String(), word) {
			t.Errorf("%q does not say %q: %s", args, word, out.String())
		}
	}
	return out.String()
}
