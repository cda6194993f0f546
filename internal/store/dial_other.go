//go:build !linux

package store

import "syscall"

// boundUnacknowledged does nothing where the kernel has no such bound; there
// the statements' deadlines are all.
func boundUnacknowledged(_, _ string, _ syscall.RawConn) error { return nil }
