package store

import (
	"bytes"
	"context"
	"errors"
	"os"
	"runtime/pprof"
	"strings"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestOpenEmbedded_RemovesAbandoned checks that OpenEmbedded removes the folder
// of a killed process and keeps a folder that is in use.
func TestOpenEmbedded_RemovesAbandoned(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	open := func() *Embedded {
		t.Helper()
		e, err := OpenEmbedded(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = e.Close() })
		return e
	}
	killed, running := open(), open()
	if _, err := os.Stat(killed.folder); err != nil {
		t.Errorf("the folder in use of the first: %v", err)
	}
	killed.claim.Close() // the kernel does the same when a process is killed
	open()
	if _, err := os.Stat(killed.folder); !os.IsNotExist(err) {
		t.Errorf("the abandoned folder still exists, or: %v", err)
	}
	if _, err := os.Stat(running.folder); err != nil {
		t.Errorf("the folder in use of the second: %v", err)
	}
	checkRoundTrip(t, running.SQL())
}

// TestOpenEmbedded_Interrupted checks that a start that is interrupted leaves no folder and no
// in-process Redis behind. The test is not parallel, so no other test has one meanwhile.
func TestOpenEmbedded_Interrupted(t *testing.T) {
	folder := t.TempDir()
	t.Setenv("TMPDIR", folder)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := OpenEmbedded(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("embedded stores: %v", err)
	}
	if _, err := OpenInProcessRedis(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("an in-process Redis: %v", err)
	}
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	testenv.Await(t, "no goroutine of an in-process Redis runs", func() bool {
		var running bytes.Buffer // with the calls that have started the goroutines
		err := pprof.Lookup("goroutine").WriteTo(&running, 2)
		return err == nil && !strings.Contains(running.String(), "miniredis")
	})
}
