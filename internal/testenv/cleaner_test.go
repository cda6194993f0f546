package testenv

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// TestCleanerWithoutPATH removes the folders of a process whose PATH has no programs.
func TestCleanerWithoutPATH(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	folder, builds := filepath.Join(t.TempDir(), "folder"), filepath.Join(t.TempDir(), "builds")
	for _, path := range []string{folder, builds} {
		if err := os.MkdirAll(filepath.Join(path, "data"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	c, err := newCleaner(folder, builds)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{folder, builds} {
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s is left: %v", filepath.Base(path), err)
		}
	}
}
