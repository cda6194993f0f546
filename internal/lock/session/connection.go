package session

import (
	"context"
	"errors"
	"net"
	"syscall"
)

// dialingKey is the context key by which Dialed finds the session.
type dialingKey struct{}

// Dialed reports a new connection of the pool to the Locker. ctx is the context of the call that
// has opened it. If there are several for one session, because a driver tries several addresses,
// the last one counts.
func Dialed(ctx context.Context, conn net.Conn) {
	if s, ok := ctx.Value(dialingKey{}).(*session); ok {
		s.socket = conn
	}
}

// Connection implements lock.Connected.
func (g *grant) Connection() (syscall.RawConn, error) {
	conn, ok := g.session.socket.(syscall.Conn)
	if !ok {
		return nil, errors.New("the connection of the lock is unknown")
	}
	g.mu.Lock()
	g.keeps = true
	g.mu.Unlock()
	return conn.SyscallConn()
}

func (g *grant) keepsConnection() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.keeps
}
