package testenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// APIServer is one running cmd/api, or another program of this module that
// serves HTTP.
type APIServer struct {
	Server
	url string
}

// listening is what the service prints when it serves.
var listening = regexp.MustCompile(`listening on (http://[^\s"]+)`)

// API builds cmd/api, once a process, starts it with these arguments on a free
// port, and waits until it is ready.
func API(t T, args ...string) *APIServer {
	t.Helper()
	return Serve(t, "./cmd/api", args...)
}

// Serve is API for any program of this module that takes --listen, prints
// "listening on http://host:port" and answers GET /readyz.
func Serve(t T, pkg string, args ...string) *APIServer {
	t.Helper()
	return ServeFile(t, Build(t, pkg), args...)
}

// ServeFile is Serve for a program that is built already.
func ServeFile(t T, file string, args ...string) *APIServer {
	t.Helper()
	s := StartFile(t, file, args...)
	err := await(startLimit, func(ctx context.Context) error {
		if err := s.process.running(); err != nil {
			return finalError{err}
		}
		found := listening.FindStringSubmatch(s.Output())
		if found == nil {
			return errors.New("it does not say where it listens")
		}
		s.url = found[1]
		return s.ready(ctx)
	})
	check(t, path.Base(file), err)
	return s
}

// StartAPI is API without waiting: the program may have other things to do than
// to serve, or not be able to.
func StartAPI(t T, args ...string) *APIServer {
	t.Helper()
	return StartFile(t, Build(t, "./cmd/api"), args...)
}

// StartFile is StartAPI for a program that is built already.
func StartFile(t T, file string, args ...string) *APIServer {
	t.Helper()
	name := path.Base(file)
	folder, err := here.newFolder(name)
	check(t, name, err)
	s := &APIServer{Server: newServer(name, folder, append([]string{file, "--listen", "127.0.0.1:0"}, args...))}
	s.process.piped = true
	check(t, name, s.process.start())
	t.Cleanup(s.process.end)
	return s
}

// Build builds a program of this module, once a process, and returns its file,
// which goes with the process. The arguments are for go build.
func Build(t T, pkg string, args ...string) (file string) {
	t.Helper()
	what := strings.Join(append([]string{pkg}, args...), " ")
	file, err := shared(&here, what, func() (string, error) { return build(pkg, args) })
	check(t, "building "+what, err)
	return file
}

// URL is http://host:port.
func (s *APIServer) URL() string { return s.url }

func (s *APIServer) ready(ctx context.Context) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("/readyz answers %s", response.Status)
	}
	return nil
}

// Interrupt asks the program to end, with SIGTERM.
func (s *APIServer) Interrupt() { must(s.process.signal(syscall.SIGTERM)) }

// Wait waits until the program has ended, for a minute at the most, and returns
// its exit code: -1 if a signal ended it.
func (s *APIServer) Wait() int {
	deadline := time.Now().Add(time.Minute)
	for s.process.running() == nil {
		if time.Now().After(deadline) {
			panic(fmt.Sprintf("%s has not ended: %s", s.process.name, s.process.tail()))
		}
		time.Sleep(5 * time.Millisecond)
	}
	return s.process.exitCode()
}

// build builds a program of this module, with the race detector if this one has
// it, and returns its path.
func build(pkg string, more []string) (string, error) {
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	folder, err := here.newFolder("build")
	if err != nil {
		return "", err
	}
	program := filepath.Join(folder, path.Base(pkg))
	args := []string{"build", "-o", program}
	if raceDetector {
		args = append(args, "-race")
	}
	command := exec.Command("go", append(append(args, more...), pkg)...)
	command.Dir = root
	// If this process is killed, go ends before it can write the program into a
	// folder that the heir has removed, and what it has begun goes with that.
	command.Env = append(os.Environ(), "GOTMPDIR="+folder)
	command.SysProcAttr = &syscall.SysProcAttr{}
	dieWithParent(command.SysProcAttr, syscall.SIGKILL)
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	here.mu.Lock()
	err = here.launch(command)
	here.mu.Unlock()
	if err == nil {
		err = command.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, &out)
	}
	return program, nil
}

// moduleRoot is the folder with go.mod above the working directory.
func moduleRoot() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(folder, "go.mod")); err == nil {
			return folder, nil
		}
		up := filepath.Dir(folder)
		if up == folder {
			return "", errors.New("no go.mod above the working directory")
		}
		folder = up
	}
}
