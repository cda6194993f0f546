package testenv

import (
	"bytes"
	"net"
	"sync"
	"time"
)

// maxDelayed bounds the delayed pieces of data that one direction of a connection holds.
const maxDelayed = 1024

// Wire forwards TCP connections to a server and simulates network faults and distance.
type Wire struct {
	listener net.Listener
	server   string

	mu      sync.Mutex
	changed *sync.Cond // signals a change of frozen, muted or closed
	conns   map[net.Conn]bool
	frozen  bool
	muted   bool
	holding bool // data is waiting for Thaw
	closed  bool
	delay   time.Duration
	done    sync.WaitGroup
}

// piece is data that is forwarded when it is due.
type piece struct {
	data []byte
	due  time.Time
}

// NewWire starts a Wire to the server at addr for this test.
func NewWire(t T, addr string) *Wire {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, "a wire", err)
	w := &Wire{listener: listener, server: addr, conns: make(map[net.Conn]bool)}
	w.changed = sync.NewCond(&w.mu)
	w.done.Go(w.accept)
	t.Cleanup(func() {
		listener.Close()
		w.mu.Lock()
		w.closed = true
		w.changed.Broadcast()
		w.mu.Unlock()
		w.Cut()
		w.done.Wait()
	})
	return w
}

// Addr returns the address for clients.
func (w *Wire) Addr() string { return w.listener.Addr().String() }

// Cut closes all connections and returns their number. Clients can connect again.
func (w *Wire) Cut() (connections int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	connections = len(w.conns) / 2
	for c := range w.conns {
		c.Close()
	}
	return connections
}

// Freeze stops forwarding data in both directions until Thaw. Connections stay
// open, and new ones are accepted. Freeze returns the number of connections.
func (w *Wire) Freeze() (connections int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frozen = true
	return len(w.conns) / 2
}

// Mute stops forwarding the server's answers until Thaw. Requests still reach the
// server.
func (w *Wire) Mute() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.muted = true
}

// Holding reports whether data is waiting for Thaw.
func (w *Wire) Holding() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.holding
}

// Thaw ends Freeze and Mute. The data that was held back is forwarded on the
// connections that are still open.
func (w *Wire) Thaw() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frozen, w.muted, w.holding = false, false, false
	w.changed.Broadcast()
}

// Delay delays data from now on by d in each direction, so that a round trip takes 2d longer. Many
// requests can be under way at once.
func (w *Wire) Delay(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.delay = d
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
		closed := w.closed
		w.mu.Unlock()
		if closed {
			client.Close()
			server.Close()
		}
		w.done.Go(func() { w.forward(client, server, false) })
		w.done.Go(func() { w.forward(server, client, true) })
	}
}

// forward copies one direction of a connection until either end closes it. answers
// is true for the direction from server to client.
func (w *Wire) forward(from, to net.Conn, answers bool) {
	pieces := make(chan piece, maxDelayed)
	w.done.Go(func() { w.write(to, pieces, answers) })
	defer func() {
		w.mu.Lock()
		delete(w.conns, from)
		w.mu.Unlock()
		from.Close()
		close(pieces)
	}()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		w.mu.Lock()
		due := time.Now().Add(w.delay)
		w.mu.Unlock()
		if n > 0 {
			pieces <- piece{bytes.Clone(buffer[:n]), due}
		}
		if err != nil {
			return
		}
	}
}

// write writes the pieces when they are due, and closes the connection after the last one. It drops
// pieces that it cannot write.
func (w *Wire) write(to net.Conn, pieces <-chan piece, answers bool) {
	defer to.Close()
	var failed error
	for p := range pieces {
		if failed != nil {
			continue
		}
		time.Sleep(time.Until(p.due))
		w.mu.Lock()
		for (w.frozen || w.muted && answers) && !w.closed {
			w.holding = true
			w.changed.Wait()
		}
		w.mu.Unlock()
		if _, failed = to.Write(p.data); failed != nil {
			to.Close() // the other direction ends too
		}
	}
}
