package faults

import (
	"net"
	"net/url"
	"sync"
)

// proxy accepts the connections of clients in front of a server.
type proxy struct {
	server string // host:port

	listener net.Listener
	done     sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]bool
}

// listen calls serve for each client of the server at the URL, on a goroutine of its own,
// and returns the URL for clients.
func (p *proxy) listen(serverURL string, serve func(client net.Conn)) (proxyURL string, err error) {
	u, err := url.Parse(serverURL)
	if err != nil {
		return "", err
	}
	p.server, p.conns = u.Host, make(map[net.Conn]bool)
	if p.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return "", err
	}
	p.done.Go(func() {
		for {
			client, err := p.listener.Accept()
			if err != nil {
				return
			}
			p.done.Go(func() {
				p.register(client)
				defer p.hangUp(client)
				serve(client)
			})
		}
	})
	u.Host = p.listener.Addr().String()
	return u.String(), nil
}

// dial connects to the server. The caller calls hangUp.
func (p *proxy) dial() (net.Conn, error) {
	server, err := net.Dial("tcp", p.server)
	if err == nil {
		p.register(server)
	}
	return server, err
}

// register makes Close close the connection.
func (p *proxy) register(c net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		c.Close()
	}
	p.conns[c] = true
}

func (p *proxy) hangUp(c net.Conn) {
	c.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, c)
}

// Close closes all connections and waits until their goroutines have ended.
func (p *proxy) Close() {
	p.listener.Close()
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		c.Close()
	}
	p.mu.Unlock()
	p.done.Wait()
}
