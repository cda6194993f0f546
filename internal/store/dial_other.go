//go:build !linux

package store

import "syscall"

// boundUnacknowledged does nothing: this kernel has no such bound. Only the
// deadlines of statements apply.
func boundUnacknowledged(_, _ string, _ syscall.RawConn) error { return nil }
