//go:build image

// make image-test runs these tests, because they compile the program once more.

package deploy

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// descriptor refers to a blob of an OCI image layout.
type descriptor struct {
	Digest   string `json:"digest"`
	Platform struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

// imageConfig is the configuration of an image.
type imageConfig struct {
	Architecture string `json:"architecture"`
	Config       struct {
		User       string   `json:"User"`
		Env        []string `json:"Env"`
		Entrypoint []string `json:"Entrypoint"`
		StopSignal string   `json:"StopSignal"`
	} `json:"config"`
}

// blob returns a blob of the layout in a folder, after a check of its digest.
func blob(t *testing.T, folder, digest string) []byte {
	t.Helper()
	hash, ok := strings.CutPrefix(digest, "sha256:")
	text, err := os.ReadFile(filepath.Join(folder, "blobs", "sha256", hash))
	if err != nil || !ok || fmt.Sprintf("%x", sha256.Sum256(text)) != hash {
		t.Fatalf("the blob %s is not what its digest says: %v", digest, err)
	}
	return text
}

func parse(t *testing.T, text []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

// unpack writes the files of the only image in a layout to a folder.
func unpack(t *testing.T, layout, folder string) imageConfig {
	t.Helper()
	var index struct{ Manifests []descriptor }
	text, err := os.ReadFile(filepath.Join(layout, "index.json"))
	if err != nil {
		t.Fatal(err)
	}
	parse(t, text, &index)
	if len(index.Manifests) != 1 || index.Manifests[0].Platform.OS != "linux" || index.Manifests[0].Platform.Architecture != runtime.GOARCH {
		t.Fatalf("the index is %s", text)
	}
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	parse(t, blob(t, layout, index.Manifests[0].Digest), &manifest)
	for _, layer := range manifest.Layers {
		if err := unpackLayer(blob(t, layout, layer.Digest), folder); err != nil {
			t.Fatal(err)
		}
	}
	var config imageConfig
	parse(t, blob(t, layout, manifest.Config.Digest), &config)
	return config
}

func unpackLayer(layer []byte, folder string) error {
	unzipped, err := gzip.NewReader(bytes.NewReader(layer))
	if err != nil {
		return err
	}
	for archive := tar.NewReader(unzipped); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Join(folder, filepath.Clean("/"+header.Name))
		switch header.Typeflag {
		case tar.TypeDir:
			err = os.MkdirAll(name, 0o755)
		case tar.TypeReg:
			var text []byte
			if text, err = io.ReadAll(archive); err == nil {
				err = errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, text, 0o600))
			}
		default:
			err = fmt.Errorf("%s is neither a file nor a folder", header.Name)
		}
		if err := errors.Join(err, os.Chmod(name, header.FileInfo().Mode())); err != nil {
			return err
		}
	}
}

// modules returns the modules of a program by path, as go version -m does.
func modules(t *testing.T, program string) map[string]string {
	t.Helper()
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]string)
	for _, module := range info.Deps {
		found[module.Path] = module.Version
	}
	return found
}

// TestLayout builds the image as make image does, unpacks it, and runs it without root. The SBOM
// must list the modules of the program.
func TestLayout(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	layout, image, sbom := filepath.Join(folder, "layout"), filepath.Join(folder, "image"), filepath.Join(folder, "sbom")
	// without -trimpath, which would recompile every package for this test
	build := exec.Command("go", "run", ".", "--trimpath=false", "--platforms", "linux/"+runtime.GOARCH, "--layout", layout, "--sbom", sbom)
	build.Dir = filepath.Join(root, "tools", "image")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	config := unpack(t, layout, image)
	if c := config.Config; c.User != "65532:65532" || c.StopSignal != "SIGTERM" || len(c.Entrypoint) != 1 ||
		!slices.Contains(c.Env, "HOLDFAST_LISTEN=0.0.0.0:8080") || config.Architecture != runtime.GOARCH {
		t.Fatalf("the configuration is %+v", config)
	}
	program := filepath.Join(image, config.Config.Entrypoint[0])
	checkStatic(t, program)
	if certificates, err := os.ReadFile(filepath.Join(image, "etc/ssl/certs/ca-certificates.crt")); err != nil || bytes.Count(certificates, []byte("BEGIN CERTIFICATE")) < 50 {
		t.Errorf("the image has no root certificates: %v", err)
	}
	for _, shell := range []string{"bin/sh", "bin/bash", "usr/bin/sh", "busybox"} {
		if _, err := os.Stat(filepath.Join(image, shell)); err == nil {
			t.Errorf("the image has %s", shell)
		}
	}

	var bill struct {
		SPDXVersion string
		Packages    []struct{ Name, VersionInfo string }
	}
	text, err := os.ReadFile(filepath.Join(sbom, "api-linux-"+runtime.GOARCH+".spdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	parse(t, text, &bill)
	listed := make(map[string]string)
	for _, p := range bill.Packages {
		listed[p.Name] = p.VersionInfo
	}
	want := modules(t, program)
	// Leave out the entries for the image, the base and the service itself.
	maps.DeleteFunc(listed, func(name, _ string) bool { _, ok := want[name]; return !ok })
	if !strings.HasPrefix(bill.SPDXVersion, "SPDX-2") || len(want) < 20 || !maps.Equal(listed, want) {
		t.Errorf("the SBOM (%s) lists %v, want %v", bill.SPDXVersion, listed, want)
	}

	if os.Getuid() != 0 {
		t.Skip("only root can change the root file system of a program")
	}
	admitAll(t, image)
	runImage(t, image, config.Config.Entrypoint[0])
}
