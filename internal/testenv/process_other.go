//go:build !linux

package testenv

import "syscall"

// dieWithParent does nothing here: Main and the end of the test stop servers.
func dieWithParent(*syscall.SysProcAttr, syscall.Signal) {}

// descendants are unknown here: a killed PostgreSQL leaves them to notice.
func descendants(int) []int { return nil }

func ended(id int) bool { return syscall.Kill(id, 0) != nil }

func halted(int) bool { return true }
