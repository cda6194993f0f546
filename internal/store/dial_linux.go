package store

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// boundUnacknowledged makes the kernel give a connection up when what was sent
// stays unacknowledged: keep-alives say nothing while data is under way.
func boundUnacknowledged(_, _ string, c syscall.RawConn) error {
	var err error
	if control := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	}); control != nil {
		return control
	}
	return err
}
