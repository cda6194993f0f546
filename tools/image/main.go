// Command image builds the container image of the service with ko's packages, without
// a container engine and without a base image from a registry. The result is an OCI
// image layout on disk, and an SBOM in SPDX for each platform.
//
//	go -C tools/image run . [--source DIR] [--layout DIR] [--sbom DIR] [--platforms LIST]
//
// With --push NAME:TAG, it also pushes the image to a registry. The credentials are
// those of docker login.
package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/ko/pkg/build"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

const (
	// service is the import path of the service.
	service = "github.com/holdfast-stock/holdfast/cmd/api"
	// baseName is the name of the base image in annotations. No registry has it.
	baseName = "holdfast.invalid/base:scratch"
	// user runs the service.
	user = "65532:65532"
)

// options are the flags, and the import path of the program.
type options struct {
	program, source, layout, sbom, push string
	platforms                           []string
	trimPath                            bool
}

func main() {
	o := options{program: service}
	flag.StringVar(&o.source, "source", "../..", "`folder` of the service's module")
	flag.StringVar(&o.layout, "layout", "../../dist/image", "`folder` for the image; it must not exist")
	flag.StringVar(&o.sbom, "sbom", "../../dist/sbom", "`folder` for the SBOMs")
	flag.StringVar(&o.push, "push", "", "`name:tag` in a registry to push the image to")
	flag.BoolVar(&o.trimPath, "trimpath", true, "leave paths of this machine out of the program, which compiles every package again")
	platforms := flag.String("platforms", "linux/amd64,linux/arm64", "comma-separated `platforms`")
	flag.Parse()
	o.platforms = strings.Split(*platforms, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if _, err := os.Stat(o.layout); err == nil {
		return fmt.Errorf("--layout: %s exists", o.layout)
	}
	var target name.Reference
	if o.push != "" {
		var err error
		if target, err = name.ParseReference(o.push, name.StrictValidation); err != nil {
			return fmt.Errorf("--push: %w", err)
		}
	}
	index, err := buildImage(ctx, o)
	if err != nil {
		return err
	}
	if _, err := layout.Write(o.layout, index); err != nil {
		return fmt.Errorf("writing the image: %w", err)
	}
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	fmt.Println(digest)
	if target == nil {
		return nil
	}
	if err := remote.WriteIndex(target, index, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)); err != nil {
		return fmt.Errorf("--push: %w", err)
	}
	return nil
}

// buildImage builds the service for every platform.
func buildImage(ctx context.Context, o options) (v1.ImageIndex, error) {
	base, err := baseIndex(o.platforms)
	if err != nil {
		return nil, fmt.Errorf("the base image: %w", err)
	}
	reference, err := name.ParseReference(baseName)
	if err != nil {
		return nil, err
	}
	builder, err := build.NewGo(ctx, o.source,
		build.WithBaseImages(func(context.Context, string) (name.Reference, build.Result, error) { return reference, base, nil }),
		build.WithPlatforms(o.platforms...),
		build.WithDefaultEnv([]string{"CGO_ENABLED=0"}), // static, regardless of the environment
		build.WithTrimpath(o.trimPath),
		build.WithDefaultLdflags([]string{"-s", "-w"}),
		build.WithUser(user),
		build.WithLabel("org.opencontainers.image.source", "https://github.com/holdfast-stock/holdfast"),
		build.WithLabel("org.opencontainers.image.licenses", "Apache-2.0"),
		build.WithSBOMDir(o.sbom),
	)
	if err != nil {
		return nil, err
	}
	result, err := builder.Build(ctx, build.StrictScheme+o.program)
	if err != nil {
		return nil, err
	}
	switch built := result.(type) {
	case v1.ImageIndex:
		return built, nil
	case v1.Image: // for one platform, ko does not make an index
		platform, err := v1.ParsePlatform(o.platforms[0])
		if err != nil {
			return nil, err
		}
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
		return mutate.AppendManifests(index, mutate.IndexAddendum{Add: built, Descriptor: v1.Descriptor{Platform: platform}}), nil
	default:
		return nil, fmt.Errorf("ko built a %T", result)
	}
}

// baseIndex returns the image that the program is added to, for every platform: the
// certificates of public authorities, and a folder for temporary files. There is no
// shell.
func baseIndex(platforms []string) (v1.ImageIndex, error) {
	files, err := baseFiles()
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, text := range platforms {
		platform, err := v1.ParsePlatform(text)
		if err != nil {
			return nil, err
		}
		image, err := mutate.AppendLayers(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1), layer)
		if err != nil {
			return nil, err
		}
		config, err := image.ConfigFile()
		if err != nil {
			return nil, err
		}
		config = config.DeepCopy()
		config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
		config.Config = v1.Config{
			User: user,
			// HOLDFAST_ADMIN_TOKEN has no default. It is required, because other
			// machines can reach this address.
			Env:          []string{"HOLDFAST_LISTEN=0.0.0.0:8080"},
			ExposedPorts: map[string]struct{}{"8080/tcp": {}},
			StopSignal:   "SIGTERM",
			WorkingDir:   "/",
		}
		if image, err = mutate.ConfigFile(image, config); err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: platform}})
	}
	return index, nil
}

// baseFiles returns the files of the base image as a tar archive.
func baseFiles() ([]byte, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	certificates := authorities()
	for _, header := range []tar.Header{
		{Name: "etc/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/ssl/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/ssl/certs/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "etc/ssl/certs/ca-certificates.crt", Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(certificates))},
		{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777},
	} {
		if err := w.WriteHeader(&header); err != nil {
			return nil, err
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		if _, err := w.Write(certificates); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return archive.Bytes(), nil
}

// authorities returns Mozilla's root certificates in PEM, except those with
// constraints that PEM cannot express.
func authorities() []byte {
	var certificates []byte
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			certificates = append(certificates, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate})...)
		}
	}
	return certificates
}
