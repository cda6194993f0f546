//go:build !linux

package store

import "syscall"

// boundUnacknowledged does nothing, because this kernel has no bound on unacknowledged data. Only
// the deadlines of statements apply.
func boundUnacknowledged(_, _ string, _ syscall.RawConn) error { return nil }
