package testenv

import (
	"context"
	"path/filepath"
	"syscall"
)

// Server is a server of one test, which may treat it as faults do. A call that
// cannot do what it says panics: the test would prove nothing.
type Server struct {
	process *process
	answers func(ctx context.Context) error
}

func newServer(name, folder string, args []string) Server {
	return Server{process: &process{
		name: name, args: args, dir: "/", death: syscall.SIGKILL, log: filepath.Join(folder, "log"),
	}}
}

// start starts the server and waits for its first answer.
func (s *Server) start() error {
	if err := s.process.start(); err != nil {
		return err
	}
	return await(startLimit, func(ctx context.Context) error {
		if err := s.process.running(); err != nil {
			return finalError{err}
		}
		return s.answers(ctx)
	})
}

// PID is the process ID of the server, and PIDs are those of all processes that
// it consists of.
func (s *Server) PID() int { return s.process.pid() }

// PIDs are the process IDs of the server and of what it has started.
func (s *Server) PIDs() []int { return append([]int{s.PID()}, descendants(s.PID())...) }

// Kill kills the server with SIGKILL. When it returns the server is gone.
func (s *Server) Kill() { must(s.process.kill()) }

// Stop stops the server with SIGSTOP. When it returns nothing of it runs.
func (s *Server) Stop() { must(s.process.stop()) }

// Cont lets a stopped server go on.
func (s *Server) Cont() { must(s.process.cont()) }

// Restart kills the server if it runs, and starts it again at the same address:
// with what it kept on disk, which for a Redis is nothing.
func (s *Server) Restart() {
	must(s.process.kill())
	must(s.start())
}

// Output is what the server has printed.
func (s *Server) Output() string { return s.process.output() }

func must(err error) {
	if err != nil {
		panic(err)
	}
}
