package store

import (
	"os"
	"testing"
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
