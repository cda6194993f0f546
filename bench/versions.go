package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// versions compares this service with the service at another commit. The other one has its own
// servers, because its schema may differ.
func (l *lab) versions(ctx context.Context) error {
	program, err := buildAt(ctx, testenv.Folder(l.t, "versions"), l.Against)
	if err != nil {
		return err
	}
	other, err := newLab(ctx, l.t, l.settings, l.database, program, l.report, l.progress)
	if err != nil {
		return err
	}
	defer other.close()
	return l.compare(ctx, side{other, situation{name: l.Against, skus: 1}}, side{l, situation{name: "this code", skus: 1}})
}

// buildAt builds the service of a commit of this repository into the folder, and returns the
// program's file.
func buildAt(ctx context.Context, folder, commit string) (file string, err error) {
	source := filepath.Join(folder, "source")
	file = filepath.Join(folder, "api")
	for _, args := range [][]string{
		{"git", "clone", "--quiet", "--no-checkout", "--shared", ".", source},
		{"git", "-C", source, "checkout", "--quiet", "--detach", commit, "--"},
		{"go", "build", "-C", source, "-o", file, "./cmd/api"},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("building the service at %s: %w: %s", commit, err, out)
		}
	}
	return file, nil
}
