package testenv

import (
	"bytes"
	"context"
	"crypto/tls"
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
)

// APIServer is a running cmd/api, or another program of this module that serves
// HTTP.
type APIServer struct {
	Server
	url string
}

// listening matches what a program prints when it listens: cmd/api logs it as JSON.
var listening = regexp.MustCompile(`(?:listening on |"msg":"serving",.*"url":")(https?://[^\s"]+)`)

// anyCertificate is a client that checks whether a program is ready, and accepts any certificate.
var anyCertificate = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}

// API builds cmd/api, starts it with these arguments on a free port, and waits
// until it is ready. A process builds it only once.
func API(t T, args ...string) *APIServer {
	t.Helper()
	return ServeFile(t, Build(t, "./cmd/api"), args...)
}

// ServeFile is API for any program that is built. The program must have the flag --listen, print
// "listening on http://host:port" (or https), or log it as cmd/api does, and answer GET /readyz.
func ServeFile(t T, file string, args ...string) *APIServer {
	t.Helper()
	s := StartFile(t, file, args...)
	s.answers = func(ctx context.Context) error {
		found := listening.FindStringSubmatch(s.Output())
		if found == nil {
			return errors.New("it has not printed its address")
		}
		s.url = found[1]
		return healthy(ctx, anyCertificate, s.url+"/readyz")
	}
	check(t, path.Base(file), s.awaitAnswer())
	return s
}

// StartFile is ServeFile without the wait, for a program that does not serve or cannot start.
func StartFile(t T, file string, args ...string) *APIServer {
	t.Helper()
	name := path.Base(file)
	folder, err := env.newFolder(name)
	check(t, name, err)
	s := &APIServer{Server: newServer(name, folder, append([]string{file, "--listen", "127.0.0.1:0"}, args...))}
	s.process.piped = true
	check(t, name, s.process.start())
	t.Cleanup(s.end)
	return s
}

// Build builds a program of this module and returns its file, which is removed
// when the process ends. A process builds it only once. The arguments are those
// of go build.
func Build(t T, pkg string, args ...string) (file string) {
	t.Helper()
	what := strings.Join(append([]string{pkg}, args...), " ")
	file, err := shared(&env, what, func() (string, error) { return build(pkg, args) })
	check(t, "building "+what, err)
	return file
}

// URL returns http://host:port, or https.
func (s *APIServer) URL() string { return s.url }

// healthy returns nil if a GET of the URL is answered with 200.
func healthy(ctx context.Context, visitor *http.Client, url string) error {
	a, err := Call(ctx, visitor, http.MethodGet, url, "")
	if err == nil && a.Status != http.StatusOK {
		err = fmt.Errorf("%s: %d: %s", url, a.Status, a.Text)
	}
	return err
}

// Interrupt sends the program SIGTERM.
func (s *APIServer) Interrupt() { must(s.process.signal(syscall.SIGTERM)) }

// End sends the programs SIGTERM at the same time, and returns when they have ended.
func End(programs ...*APIServer) {
	for _, s := range programs {
		s.Interrupt()
	}
	for _, s := range programs {
		s.Wait()
	}
}

// Signal sends the program a signal.
func (s *APIServer) Signal(signal syscall.Signal) { must(s.process.signal(signal)) }

// Wait waits until the program has ended, for at most [Patience], and returns its exit code: -1 if a
// signal ended it.
func (s *APIServer) Wait() int {
	code, err := s.process.wait()
	must(err)
	return code
}

// raceFlags are the flags of go build for the race detector, as in the Makefile, which explains
// them.
var raceFlags = []string{
	"-race", "-gcflags=modernc.org/...=-race=false", "-gcflags=github.com/yuin/gopher-lua/...=-race=false",
	"-gcflags=github.com/go-zookeeper/...=-race=false",
}

// module is the path of this module, by which the go command finds its programs in each of its
// folders.
const module = "github.com/holdfast-stock/holdfast"

// build builds a program of this module and returns its path. It uses the race
// detector if this program does.
//
// It keeps the last build in the user's cache folder. go build does not link a
// program that is up to date.
func build(pkg string, more []string) (string, error) {
	folder, err := env.newBuildFolder()
	if err != nil {
		return "", err
	}
	program := filepath.Join(folder, path.Base(pkg))
	args := []string{"build", "-o", program}
	kept := path.Base(pkg)
	if raceDetector {
		args = append(args, raceFlags...)
		kept += "-race"
	}
	if len(more) == 0 {
		restoreBuild(kept, program)
		defer keepBuild(kept, program)
	}
	command := exec.Command("go", append(append(args, more...), path.Join(module, pkg))...)
	// If this process is killed, the go command ends with it. Its temporary files stay in the
	// folder, and the cleaner removes them.
	command.Env = append(os.Environ(), "GOTMPDIR="+folder)
	command.SysProcAttr = &syscall.SysProcAttr{}
	dieWithParent(command.SysProcAttr, syscall.SIGKILL)
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	env.mu.Lock()
	err = env.launch(command)
	env.mu.Unlock()
	if err == nil {
		err = command.Wait()
	}
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, &out)
	}
	return program, nil
}

// restoreBuild links program to the build that keepBuild kept under the name, if
// there is one. Another build then replaces the link, not the kept file.
func restoreBuild(name, program string) {
	if cache, err := os.UserCacheDir(); err == nil {
		_ = os.Link(filepath.Join(cache, "holdfast-test", name), program)
	}
}

// keepBuild keeps the program under the name, and replaces an earlier one. If there is no cache, or
// the cache is on another file system, the next build links again.
func keepBuild(name, program string) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return
	}
	folder := filepath.Join(cache, "holdfast-test")
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return
	}
	link := filepath.Join(folder, fmt.Sprintf("%s-%d", name, os.Getpid()))
	if os.Link(program, link) == nil {
		_ = os.Rename(link, filepath.Join(folder, name))
		_ = os.Remove(link) // link still exists if both names were the same file
	}
}
