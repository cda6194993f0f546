//go:build !linux

package testenv

import "syscall"

// dieWithParent does nothing on this system: only Main and the end of a test stop
// servers.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// WithDescendants finds no descendants on this system. The children of a killed PostgreSQL end when
// they notice its end.
func WithDescendants(ids ...int) []int { return ids }

func ended(id int) bool { return syscall.Kill(id, 0) != nil }

func isStopped(int) bool { return true }
