package store

import (
	"context"
	"net"
	"sync"
	"time"
)

// boundAnswers bounds each wait for an answer of the server, as the parameter readTimeout of the
// MySQL driver does. pgx has no such bound: it waits until the context of the statement ends. A
// bound of 0 means no bound.
func boundAnswers(dial dialFunc, bound time.Duration) dialFunc {
	if bound == 0 {
		return dial
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &answeringConn{Conn: conn, bound: bound}, nil
	}
}

// answeringConn is a connection whose reads end after the bound, or at the deadline that
// the driver has set, whichever is earlier.
type answeringConn struct {
	net.Conn
	bound time.Duration

	mu       sync.Mutex // the driver sets deadlines while it reads
	deadline time.Time  // set by the driver; zero means none
}

// Read reads an answer, or a part of one.
func (c *answeringConn) Read(p []byte) (int, error) {
	if err := c.boundRead(); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *answeringConn) boundRead() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	until := time.Now().Add(c.bound)
	if !c.deadline.IsZero() && c.deadline.Before(until) {
		until = c.deadline
	}
	return c.Conn.SetReadDeadline(until)
}

// SetDeadline sets the driver's deadline, which also ends a read under way.
func (c *answeringConn) SetDeadline(deadline time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = deadline
	return c.Conn.SetDeadline(deadline)
}

// SetReadDeadline is SetDeadline for reads only.
func (c *answeringConn) SetReadDeadline(deadline time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = deadline
	return c.Conn.SetReadDeadline(deadline)
}
