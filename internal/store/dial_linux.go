package store

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// boundUnacknowledged makes the kernel close a connection whose sent data stays
// unacknowledged for ioTimeout. Keep-alives do not detect this: the kernel sends
// none while data is unacknowledged.
func boundUnacknowledged(_, _ string, c syscall.RawConn) error {
	var err error
	if control := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(ioTimeout.Milliseconds()))
	}); control != nil {
		return control
	}
	return err
}
