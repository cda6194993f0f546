package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// newRegistry starts a registry that requires a user and a password, and returns its host and port.
func newRegistry(t *testing.T, user, password string) string {
	t.Helper()
	images := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if u, p, _ := r.BasicAuth(); u != user || p != password {
			w.Header().Set("WWW-Authenticate", `Basic realm="images"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		images.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

// logIn does the same as docker login: it writes the credentials to the file in DOCKER_CONFIG.
func logIn(t *testing.T, host, user, password string) {
	t.Helper()
	folder := t.TempDir()
	text := fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte(user+":"+password)))
	if err := os.WriteFile(filepath.Join(folder, "config.json"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DOCKER_CONFIG", folder)
}

// small returns the options for a short program, for two platforms.
func small(t *testing.T, push string) options {
	t.Helper()
	folder := t.TempDir()
	source := filepath.Join(folder, "source")
	if err := os.Mkdir(source, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string]string{
		"go.mod":  "module example.test/small\n\ngo 1.25\n",
		"main.go": "package main\n\nfunc main() { println(\"small\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(source, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return options{
		program: "example.test/small", source: source, push: push,
		layout: filepath.Join(folder, "image"), sbom: filepath.Join(folder, "sbom"),
		platforms: []string{"linux/amd64", "linux/arm64"},
	}
}

// machineOf returns the processor for which the program of an image was built.
func machineOf(t *testing.T, image v1.Image, program string) elf.Machine {
	t.Helper()
	files := mutate.Extract(image)
	defer files.Close()
	for archive := tar.NewReader(files); ; {
		header, err := archive.Next()
		if err != nil {
			t.Fatalf("the image has no %s: %v", program, err)
		}
		if "/"+strings.TrimPrefix(header.Name, "/") != program {
			continue
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		file, err := elf.NewFile(bytes.NewReader(text))
		if err != nil {
			t.Fatal(err)
		}
		return file.Machine
	}
}

// TestPush builds an image for two platforms and pushes it to a registry. The registry must have
// the complete image from disk, with the right program for each platform.
func TestPush(t *testing.T) {
	const user, password = "shop", "a password"
	host := newRegistry(t, user, password)
	logIn(t, host, user, password)
	o := small(t, host+"/shop/small:0.1.0")
	if err := run(t.Context(), o); err != nil {
		t.Fatal(err)
	}

	reference, err := name.ParseReference(o.push)
	if err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Index(reference, remote.WithAuth(&authn.Basic{Username: user, Password: password}))
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(pushed); err != nil {
		t.Error(err)
	}
	written, err := layout.ImageIndexFromPath(o.layout)
	if err != nil {
		t.Fatal(err)
	}
	want, err := written.Digest()
	if got, gotErr := pushed.Digest(); got != want || errors.Join(err, gotErr) != nil {
		t.Errorf("the registry has %v, the folder %v: %v", got, want, errors.Join(err, gotErr))
	}
	manifest, err := pushed.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	machines := make(map[string]elf.Machine)
	for _, m := range manifest.Manifests {
		image, err := pushed.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != m.Platform.Architecture || config.Config.User != "65532:65532" {
			t.Errorf("%v: the configuration is %+v", m.Platform, config)
		}
		machines[m.Platform.String()] = machineOf(t, image, config.Config.Entrypoint[0])
		bill := "small-" + strings.ReplaceAll(m.Platform.String(), "/", "-") + ".spdx.json"
		if _, err := os.Stat(filepath.Join(o.sbom, bill)); err != nil {
			t.Errorf("%v: %v", m.Platform, err)
		}
	}
	if want := map[string]elf.Machine{"linux/amd64": elf.EM_X86_64, "linux/arm64": elf.EM_AARCH64}; !maps.Equal(machines, want) {
		t.Errorf("the image has programs for %v, want %v", machines, want)
	}
}

// TestPush_Refused checks that a refusal of the registry is an error. A name that no registry
// accepts must be an error before the build.
func TestPush_Refused(t *testing.T) {
	host := newRegistry(t, "shop", "a password")
	logIn(t, host, "shop", "another password")
	if err := run(t.Context(), small(t, host+"/shop/small:0.1.0")); err == nil || !strings.Contains(err.Error(), "--push") {
		t.Errorf("with a wrong password: %v", err)
	}
	for _, push := range []string{"small", "registry.example/shop/small", "registry.example/SHOP/small:1"} {
		o := small(t, push)
		if err := run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "--push") {
			t.Errorf("--push %s: %v", push, err)
		}
		if _, err := os.Stat(o.layout); err == nil {
			t.Errorf("--push %s: the image is built first", push)
		}
	}
}
