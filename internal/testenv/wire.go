package testenv

import (
	"net"
	"sync"
)

// Wire is a proxy that simulates network faults.
type Wire struct {
	Proxy

	mu      sync.Mutex
	changed *sync.Cond // signals a change of frozen, muted or over
	frozen  bool
	muted   bool
	holding bool // data is waiting for Thaw
	over    bool // data is not held back any more
}

// NewWire starts a Wire to the server for this test: a host:port, or a URL that has one.
func NewWire(t T, server string) *Wire {
	t.Helper()
	w := &Wire{}
	w.changed = sync.NewCond(&w.mu)
	w.Start(t, server, w.forwardBoth)
	t.Cleanup(w.Close)
	return w
}

// Close is [Proxy.Close], also of a frozen wire.
func (w *Wire) Close() {
	w.mu.Lock()
	w.over = true
	w.changed.Broadcast()
	w.mu.Unlock()
	w.Proxy.Close()
}

// Freeze stops forwarding data in both directions until Thaw. Connections stay
// open, and new ones are accepted. Freeze returns the number of connections.
func (w *Wire) Freeze() (connections int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.frozen = true
	return w.Connections()
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

// forwardBoth forwards both directions of a connection.
func (w *Wire) forwardBoth(client, server net.Conn) {
	var both sync.WaitGroup
	both.Go(func() { w.forward(client, server, false) })
	both.Go(func() { w.forward(server, client, true) })
	both.Wait()
}

// forward copies one direction of a connection until either end closes it, and then closes both
// ends. answers is true for the direction from server to client.
func (w *Wire) forward(from, to net.Conn, answers bool) {
	defer to.Close()
	defer w.HangUp(from)
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			w.holdBack(answers)
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// holdBack waits until data in this direction may be forwarded.
func (w *Wire) holdBack(answers bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for (w.frozen || w.muted && answers) && !w.over {
		w.holding = true
		w.changed.Wait()
	}
}
