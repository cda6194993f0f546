package store

import (
	"os"
	"testing"
)

// TestOpenEmbedded_RemovesAbandoned: what a killed process left is gone with the
// next start, and what is in use stays.
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
	killed, living := open(), open()
	if _, err := os.Stat(killed.folder); err != nil {
		t.Errorf("a folder in use: %v", err)
	}
	killed.claim.Close() // as the kernel does
	open()
	if _, err := os.Stat(killed.folder); !os.IsNotExist(err) {
		t.Errorf("an abandoned folder: %v", err)
	}
	if _, err := os.Stat(living.folder); err != nil {
		t.Errorf("a folder in use: %v", err)
	}
	checkRoundTrip(t, living.SQL())
}
