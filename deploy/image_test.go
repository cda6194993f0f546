package deploy

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

var (
	from  = regexp.MustCompile(`(?m)^FROM (\S+)`)
	user  = regexp.MustCompile(`(?m)^USER (\S+)$`)
	probe = regexp.MustCompile(`(?m)^HEALTHCHECK (?:.|\\\n)*CMD (\[.*\])$`)
)

// TestDockerfiles checks that every image has a pinned base, runs without root, and
// has a health check.
func TestDockerfiles(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"deploy/Dockerfile", "deploy/gateway/Dockerfile"} {
		text := read(t, name)
		for _, found := range from.FindAllStringSubmatch(text, -1) {
			if found[1] != "scratch" && !pinned.MatchString(found[1]) {
				t.Errorf("%s: %s is not pinned", name, found[1])
			}
		}
		if u := user.FindStringSubmatch(text); u == nil || strings.HasPrefix(u[1], "root") || strings.HasPrefix(u[1], "0") {
			t.Errorf("%s: USER is %v", name, u)
		}
		if probe.FindString(text) == "" {
			t.Errorf("%s: no health check", name)
		}
	}
	version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "go.mod"))[1]
	if want := "FROM golang:" + version + "."; !strings.Contains(read(t, "deploy/Dockerfile"), want) {
		t.Errorf("the image is not built with the Go version of go.mod: no %q", want)
	}
}

// buildContext returns a folder with the files that .dockerignore allows, without tests.
func buildContext(t *testing.T) string {
	t.Helper()
	build := t.TempDir()
	for _, line := range strings.Fields(read(t, ".dockerignore")) {
		name, ok := strings.CutPrefix(line, "!")
		if !ok {
			continue
		}
		err := filepath.WalkDir(filepath.Join(root, name), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			relative, err := filepath.Rel(root, path)
			switch {
			case err != nil:
				return err
			case entry.IsDir() && entry.Name() == "testdata":
				return filepath.SkipDir
			case entry.IsDir() || strings.HasSuffix(path, "_test.go"):
				return nil
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			if err := os.MkdirAll(filepath.Dir(filepath.Join(build, relative)), 0o755); err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(build, relative), text, 0o644)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return build
}

// buildPrograms builds the programs of the image as its Dockerfile does, and returns
// their folder.
func buildPrograms(t *testing.T) string {
	t.Helper()
	image := t.TempDir()
	// without -trimpath, which would recompile every package for this test
	command := exec.Command("go", "build", "-buildvcs=false", "-ldflags", "-s -w", "-o", image+"/", "./cmd/api", "./deploy/healthcheck")
	if !strings.Contains(read(t, "deploy/Dockerfile"), `CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w' -o /out/ ./cmd/api ./deploy/healthcheck`) {
		t.Error("the Dockerfile and this test build with different commands")
	}
	command.Dir, command.Env = buildContext(t), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return image
}

// checkStatic checks that a program needs no dynamic linker.
func checkStatic(t *testing.T, name string) {
	t.Helper()
	program, err := elf.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Errorf("%s is not static", name)
		}
	}
}

// makeRoot turns the folder with the programs into a root file system that any user can use. Only
// /tmp can be written there.
func makeRoot(t *testing.T, image string) {
	t.Helper()
	admitAll(t, image)
	if err := os.Mkdir(filepath.Join(image, "tmp"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(image, "tmp"), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
}

// admitAll makes a folder accessible for any user.
func admitAll(t *testing.T, image string) {
	t.Helper()
	for folder := image; folder != "/"; folder = filepath.Dir(folder) {
		if info, err := os.Stat(folder); err != nil || info.Mode().Perm()&0o001 == 0 {
			if err := os.Chmod(folder, info.Mode().Perm()|0o055); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestImage builds the service as its Dockerfile does, and runs it as the image does: without root,
// in a separate root file system where only /tmp is writable.
func TestImage(t *testing.T) {
	t.Parallel()
	if !testenv.Thorough() {
		t.Log("only in a thorough run: it builds the image's programs")
		return
	}
	image := buildPrograms(t)
	checkStatic(t, filepath.Join(image, "api"))
	checkStatic(t, filepath.Join(image, "healthcheck"))
	if os.Getuid() != 0 {
		t.Skip("only root can change the root file system of a program")
	}
	makeRoot(t, image)
	address := runImage(t, image, "/api")
	if out, err := inside(t.Context(), image, "/healthcheck", "http://"+address+"/readyz").CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	if err := inside(t.Context(), image, "/healthcheck", "http://"+address+"/nothing").Run(); err == nil {
		t.Error("the health check accepts 404")
	}
}

// inside returns a command that runs as the image does.
func inside(ctx context.Context, image string, args ...string) *exec.Cmd {
	command := exec.CommandContext(ctx, args[0], args[1:]...)
	command.Dir, command.Env = "/", []string{}
	command.SysProcAttr = &syscall.SysProcAttr{Chroot: image, Credential: &syscall.Credential{Uid: 65532, Gid: 65532}}
	return command
}

// runImage starts the service in the folder of an image, places an order, and returns
// the service's address. At the end of the test, the service must stop cleanly.
func runImage(t *testing.T, image, program string) string {
	t.Helper()
	address := fmt.Sprintf("127.0.0.1:%d", testenv.Port(t))
	var output bytes.Buffer
	api := inside(context.WithoutCancel(t.Context()), image, program) // stopped by a signal
	api.Env = []string{"HOLDFAST_LISTEN=" + address}
	api.Stdout, api.Stderr = &output, &output
	if err := api.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = api.Process.Signal(syscall.SIGTERM)
		if err := api.Wait(); err != nil {
			t.Errorf("%v: %s", err, output.String())
		}
		if left, err := os.ReadDir(filepath.Join(image, "tmp")); err != nil || len(left) > 0 {
			t.Errorf("the service left files in /tmp: %v, %v", left, err)
		}
	})
	testenv.AwaitSuccess(t, "the service is ready", func() error {
		response, err := http.Get("http://" + address + "/readyz")
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
	response, err := http.Post("http://"+address+"/orders", "application/json", strings.NewReader(`{"buyer_id":"u-1","lines":[{"sku":"10001","quantity":1}]}`))
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	if response.StatusCode != http.StatusCreated {
		t.Errorf("an order: %s", response.Status)
	}
	return address
}

// gatewayFiles returns the files of the gateway's image by name.
func gatewayFiles(t *testing.T) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for _, name := range []string{"nginx.conf", "gateway.lua", "http/resolver.conf", "site/modules.conf", "listen.conf"} {
		files[name] = read(t, "deploy/gateway/"+name)
	}
	// Only a container engine can resolve the names of the instances.
	files["instances.conf"] = regexp.MustCompile(`api-\d`).ReplaceAllString(read(t, "deploy/gateway/instances.conf"), "127.0.0.1")
	return files
}

// TestGatewayImage checks that nginx accepts the unchanged files of the image, and
// that the health checks of Dockerfile and Compose file work.
func TestGatewayImage(t *testing.T) {
	t.Parallel()
	nginx := testenv.OwnNginx(t, gatewayFiles(t))
	if !strings.Contains(nginx.Output(), "HOLDFAST_LEDGER_ID") {
		t.Errorf("the gateway does not warn that it has no ledger ID: %s", nginx.Output())
	}
	for name, text := range gatewayFiles(t) { // testenv replaces some of the files
		if err := os.WriteFile(filepath.Join(nginx.Folder(), name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	program, err := exec.LookPath("nginx")
	if err != nil {
		program = "/usr/sbin/nginx"
	}
	out, err := exec.Command(program, "-t", "-p", nginx.Folder(), "-c", filepath.Join(nginx.Folder(), "nginx.conf"), "-e", "stderr").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "test is successful") {
		t.Errorf("%v: %s", err, out)
	}

	var words []string
	if err := json.Unmarshal([]byte(probe.FindStringSubmatch(read(t, "deploy/gateway/Dockerfile"))[1]), &words); err != nil {
		t.Fatal(err)
	}
	p, err := load(t, read(t, "docker-compose.yml"), environment(t))
	if err != nil {
		t.Fatal(err)
	}
	composed := p.Services["gateway"].HealthCheck.Test[1:]
	check := func(words []string, port string) error {
		args := make([]string, len(words))
		for i, word := range words {
			args[i] = strings.ReplaceAll(word, ":8080", ":"+port)
		}
		return exec.CommandContext(t.Context(), args[0], args[1:]...).Run()
	}
	for _, words := range [][]string{words, composed} {
		if err := check(words, nginx.URL()[strings.LastIndex(nginx.URL(), ":")+1:]); err != nil {
			t.Errorf("%q: %v", words, err)
		}
		if err := check(words, fmt.Sprint(testenv.Port(t))); err == nil {
			t.Errorf("%q succeeds without a gateway", words)
		}
	}
}
