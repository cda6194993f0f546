package lock

import (
	"fmt"
	"syscall"
)

// Connected is a Lease or a Grant whose lock may depend on a connection: the server frees the lock as
// soon as the connection is closed. The leases of the Locker that New returns implement it.
type Connected interface {
	// Connection returns that connection, or nil if there is none. While another process
	// has a duplicate of it, the lock outlives this process, for at most its lease. Once
	// Connection was called, this process does not close it before Unlock, even if the
	// lease ends.
	Connection() (syscall.RawConn, error)
}

// Connection implements Connected.
func (l *lease) Connection() (syscall.RawConn, error) {
	g, ok := l.hold.grant.(Connected)
	if !ok {
		return nil, nil
	}
	conn, err := g.Connection()
	if err != nil {
		return nil, fmt.Errorf("the connection that holds %s: %w", l.hold.key.name, err)
	}
	return conn, nil
}
