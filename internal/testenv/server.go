package testenv

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
)

// Server is a server of one test, which may kill, stop and restart it. The methods
// panic with a [Failure] if they fail, because the test would prove nothing.
type Server struct {
	process *process
	folder  string                          // contains the server's files
	ports   []*port                         // those that the server has claimed; clients use the first
	answers func(ctx context.Context) error // reports whether the server answers; nil once it is ready
}

func newServer(name, folder string, args []string, ports ...*port) Server {
	return Server{folder: folder, ports: ports, process: &process{
		name: name, args: args, dir: "/", endSignal: syscall.SIGKILL, log: filepath.Join(folder, "log"),
	}}
}

// own starts a server of one test, and ends it with the test.
func own[S interface{ end() }](t T, kind string, start func() (S, error)) S {
	t.Helper()
	s, err := start()
	check(t, kind, err)
	t.Cleanup(s.end)
	return s
}

// start starts the server and waits for its first answer.
func (s *Server) start() error {
	if err := s.process.start(); err != nil {
		return err
	}
	return s.awaitAnswer()
}

// awaitAnswer waits until the server answers.
func (s *Server) awaitAnswer() error {
	return await(maxStart, func(ctx context.Context) error {
		if err := s.process.running(); err != nil {
			return finalError{err}
		}
		return s.answers(ctx)
	})
}

// end ends the server, releases its ports, and removes its folder at once, because its data may be
// large.
func (s *Server) end() {
	s.process.end()
	for _, p := range s.ports {
		p.release()
	}
	os.RemoveAll(s.folder)
}

// Addr returns the host:port for clients. A program of this module has none: see [APIServer.URL].
func (s *Server) Addr() string { return s.ports[0].addr() }

// PID returns the server's process ID.
func (s *Server) PID() int { return s.process.pid() }

// PIDs returns the process IDs of the server and its children.
func (s *Server) PIDs() []int { return WithDescendants(s.PID()) }

// Kill kills the server with SIGKILL. When Kill returns, all its processes have
// ended.
func (s *Server) Kill() { must(s.process.kill()) }

// Stop stops the server with SIGSTOP. When Stop returns, none of its threads
// runs.
func (s *Server) Stop() { must(s.process.stop()) }

// Cont continues a stopped server.
func (s *Server) Cont() { must(s.process.cont()) }

// Restart kills the server if it runs and starts it again at the same address,
// with the data that it has on disk. A Redis has none.
func (s *Server) Restart() {
	must(s.process.kill())
	must(s.start())
}

// Output returns the output of the server, at most its last 16 MiB.
func (s *Server) Output() string { return s.process.output() }

// Failure is the value with which a method of a server panics.
type Failure struct{ Err error }

// Error says what failed.
func (f Failure) Error() string { return f.Err.Error() }

// Unwrap returns the error of the method.
func (f Failure) Unwrap() error { return f.Err }

// must panics if there is an error.
func must(err error) {
	if err != nil {
		panic(Failure{err})
	}
}
