package testenv

import (
	"net"
	"sync"
)

// Wire stands between a client and a server, and breaks as networks do.
type Wire struct {
	listener net.Listener
	server   string

	mu     sync.Mutex
	change *sync.Cond // frozen, muted or over
	conns  map[net.Conn]bool
	frozen bool
	muted  bool
	over   bool
	done   sync.WaitGroup
}

// NewWire lays a wire to the server at addr, for this test.
func NewWire(t T, addr string) *Wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, "a wire", err)
	w := &Wire{listener: listener, server: addr, conns: make(map[net.Conn]bool)}
	w.change = sync.NewCond(&w.mu)
	w.done.Go(w.accept)
	t.Cleanup(func() {
		listener.Close()
		w.mu.Lock()
		w.over = true
		w.change.Broadcast()
		w.mu.Unlock()
		w.Cut()
		w.done.Wait()
	})
	return w
}

// Addr is where clients connect.
func (w *Wire) Addr() string { return w.listener.Addr().String() }

// Cut cuts every connection there is, and returns how many there were. New ones
// may be made.
func (w *Wire) Cut() (connections int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	connections = len(w.conns) / 2
	for c := range w.conns {
		c.Close()
	}
	return connections
}

// Freeze makes the wire a black hole: connections stay, new ones are accepted,
// and nothing arrives at either end. It returns how many connections it holds.
func (w *Wire) Freeze() (connections int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frozen = true
	return len(w.conns) / 2
}

// Mute loses the server's answers: what clients send arrives, and nothing comes
// back.
func (w *Wire) Mute() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.muted = true
}

// Thaw ends Freeze and Mute. What was sent into it arrives, as far as its
// connection is still there.
func (w *Wire) Thaw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frozen, w.muted = false, false
	w.change.Broadcast()
}

func (w *Wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", w.server)
		if err != nil {
			client.Close()
			continue
		}
		w.mu.Lock()
		w.conns[client], w.conns[server] = true, true
		over := w.over
		w.mu.Unlock()
		if over {
			client.Close()
			server.Close()
		}
		w.done.Go(func() { w.carry(client, server, false) })
		w.done.Go(func() { w.carry(server, client, true) })
	}
}

func (w *Wire) carry(from, to net.Conn, answers bool) {
	defer func() {
		w.mu.Lock()
		delete(w.conns, from)
		w.mu.Unlock()
		from.Close()
		to.Close()
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		w.mu.Lock()
		for (w.frozen || w.muted && answers) && !w.over {
			w.change.Wait()
		}
		w.mu.Unlock()
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
