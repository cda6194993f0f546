package zookeeper

import (
	"context"
	"net"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"
)

// dialer returns a function that opens connections to servers. It bounds the wait for the
// first answer of a server. The library would wait for many times the session's timeout
// before it tries another server.
func dialer(within time.Duration) zk.Dialer {
	return func(network, address string, timeout time.Duration) (net.Conn, error) {
		conn, err := (&net.Dialer{Timeout: timeout}).DialContext(context.Background(), network, address)
		if err != nil {
			return nil, err
		}
		return &connection{Conn: conn, within: within}, nil
	}
}

type connection struct {
	net.Conn
	within   time.Duration
	answered atomic.Bool // the server has sent something
}

func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.answered.Store(true)
	}
	return n, err
}

func (c *connection) SetReadDeadline(deadline time.Time) error {
	if first := time.Now().Add(c.within); !c.answered.Load() && deadline.After(first) {
		deadline = first
	}
	return c.Conn.SetReadDeadline(deadline)
}
