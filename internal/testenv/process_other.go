//go:build !linux

package testenv

import "syscall"

// dieWithParent does nothing on this system: only Main and the end of a test stop
// servers.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// descendants returns nil on this system. The children of a killed PostgreSQL end
// when they notice its end.
func descendants(int) []int { return nil }

func ended(id int) bool { return syscall.Kill(id, 0) != nil }

func isStopped(int) bool { return true }
