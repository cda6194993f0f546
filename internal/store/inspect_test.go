package store

import (
	"testing"
	"time"
)

// TestOffset checks that the time of a request counts for neither clock.
func TestOffset(t *testing.T) {
	t.Parallel()
	start := time.Now().Add(-2 * time.Second) // the answer took two seconds
	for _, test := range []struct {
		read        time.Duration // since the start
		least, most time.Duration
	}{
		{time.Second, 0, 0},
		{7 * time.Second, 4 * time.Second, 5 * time.Second},
		{-3 * time.Second, -3 * time.Second, -3 * time.Second},
	} {
		if got := offset(start, start.Add(test.read)); got < test.least || got > test.most {
			t.Errorf("read %v after the start: %v", test.read, got)
		}
	}
}

// TestOlderThan checks the comparison of versions.
func TestOlderThan(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"6.0.16": true, "5.0": true, "6.2.0": false, "7.0.15": false, "10.1": false, "": false, "unknown": false} {
		if got := olderThan(version, 6, 2); got != want {
			t.Errorf("%q: %v, want %v", version, got, want)
		}
	}
}
