package testenv

import (
	"net"
	"net/url"
	"strings"
	"sync"
)

// Proxy accepts the connections of clients in front of a server. Start starts it.
type Proxy struct {
	server   string // host:port
	listener net.Listener
	serving  sync.WaitGroup

	connsMu sync.Mutex
	closed  bool
	conns   map[net.Conn]bool
}

// Start starts the proxy for this test. The server is a host:port, or a URL that has one. For
// each client, the proxy connects to the server and calls serve on a goroutine of its own. It
// closes both connections when serve returns, and when the test ends.
func (p *Proxy) Start(t T, server string, serve func(client, server net.Conn)) {
	t.Helper()
	p.server, p.conns = server, make(map[net.Conn]bool)
	if u, err := url.Parse(server); err == nil && u.Host != "" {
		p.server = u.Host
	}
	p.listener = Listen(t)
	p.serving.Go(func() {
		for {
			client, err := p.listener.Accept()
			if err != nil {
				return
			}
			p.serving.Go(func() { p.connect(client, serve) })
		}
	})
	t.Cleanup(p.Close)
}

// Listen returns a listener for this test on a free port of this host. While nothing calls Accept,
// it is a server that accepts connections and never answers.
func Listen(t T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, "listening", err)
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func (p *Proxy) connect(client net.Conn, serve func(client, server net.Conn)) {
	p.register(client)
	defer p.HangUp(client)
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		return
	}
	p.register(server)
	defer p.HangUp(server)
	serve(client, server)
}

// register makes Close close the connection.
func (p *Proxy) register(c net.Conn) {
	p.connsMu.Lock()
	defer p.connsMu.Unlock()
	if p.closed {
		c.Close()
	}
	p.conns[c] = true
}

// HangUp closes a connection.
func (p *Proxy) HangUp(c net.Conn) {
	c.Close()
	p.connsMu.Lock()
	defer p.connsMu.Unlock()
	delete(p.conns, c)
}

// Addr returns the address for clients.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Through returns the address or the URL of the server with the proxy's address in it.
func (p *Proxy) Through(server string) string {
	return strings.Replace(server, p.server, p.Addr(), 1)
}

// Connections returns the number of connections of clients to the server.
func (p *Proxy) Connections() int {
	p.connsMu.Lock()
	defer p.connsMu.Unlock()
	return len(p.conns) / 2
}

// Cut closes all connections and returns their number. Clients can connect again.
func (p *Proxy) Cut() (connections int) {
	p.connsMu.Lock()
	defer p.connsMu.Unlock()
	for c := range p.conns {
		c.Close()
	}
	return len(p.conns) / 2
}

// Close closes all connections and waits until nothing serves them any more. Clients cannot
// connect again. Close may be called again.
func (p *Proxy) Close() {
	p.listener.Close()
	p.connsMu.Lock()
	p.closed = true
	p.connsMu.Unlock()
	p.Cut()
	p.serving.Wait()
}
