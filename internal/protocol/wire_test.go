package protocol

import (
	"bytes"
	"net"
	"net/url"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"
)

// wire is a TCP proxy before a database server. It can delay or drop a COMMIT with the statements
// in the same packet, and it can drop the answer.
type wire struct {
	listener net.Listener
	server   string
	quit     []byte // the message that makes the server close the connection after earlier statements
	all      sync.WaitGroup
	closed   chan struct{} // closed when the test ends

	mu    sync.Mutex
	fault *commitFault // fault of the next COMMIT; may be nil
	named []byte       // name of a prepared COMMIT; nil: no COMMIT was prepared
	conns map[net.Conn]bool
}

// commitFault is the fault of one COMMIT.
type commitFault struct {
	answerLost  bool          // the server gets the COMMIT at once, and its answer is dropped
	cut         chan struct{} // closed: the connection of the client breaks; nil: it breaks when the COMMIT arrives
	arrived     chan struct{} // closed when the COMMIT has arrived at the wire
	withInserts bool          // the INSERTs came in the same packet; read it after arrived is closed
	deliver     chan bool     // true sends the COMMIT to the server, false closes the connection
	done        chan struct{} // closed when the server has answered and closed the connection
}

// newWire starts a wire to the database of dbURL, and returns the URL of the wire.
func newWire(t *testing.T, dbURL string) (*wire, string) {
	t.Helper()
	u, err := url.Parse(dbURL)
	if err != nil {
		t.Fatal(err)
	}
	quit := []byte{'X', 0, 0, 0, 4} // PostgreSQL: Terminate
	if u.Scheme == "mysql" {
		quit = []byte{1, 0, 0, 0, 1} // COM_QUIT
	}
	w := &wire{server: u.Host, quit: quit, closed: make(chan struct{}), conns: make(map[net.Conn]bool)}
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	w.all.Go(func() {
		for {
			client, err := w.listener.Accept()
			if err != nil {
				return
			}
			w.all.Go(func() { w.forward(client) })
		}
	})
	t.Cleanup(func() {
		close(w.closed)
		w.listener.Close()
		w.mu.Lock()
		for c := range w.conns {
			c.Close()
		}
		w.mu.Unlock()
		w.all.Wait()
	})
	u.Host = w.listener.Addr().String()
	return w, u.String()
}

// holdCommit delays the next COMMIT and closes the connection of its client, which does not learn
// the outcome.
func (w *wire) holdCommit() *commitFault { return w.arm(&commitFault{}) }

// loseAnswer drops the answer to the next COMMIT and closes the connection.
func (w *wire) loseAnswer() *commitFault { return w.arm(&commitFault{answerLost: true}) }

// cutLater sends the next COMMIT to the server at once, and closes the connection of its client
// when cut is closed. The client does not learn the outcome.
func (w *wire) cutLater(cut chan struct{}) *commitFault {
	fault := w.arm(&commitFault{cut: cut})
	fault.deliver <- true
	return fault
}

func (w *wire) arm(fault *commitFault) *commitFault {
	w.mu.Lock()
	defer w.mu.Unlock()
	fault.arrived, fault.deliver, fault.done = make(chan struct{}), make(chan bool, 1), make(chan struct{})
	w.fault = fault
	return fault
}

// match returns the fault, and disarms it, if the bytes contain a COMMIT.
func (w *wire) match(sent []byte) *commitFault {
	w.mu.Lock()
	defer w.mu.Unlock()
	if prepared := preparedCommit.FindSubmatch(sent); prepared != nil { // PostgreSQL; not executed yet
		w.named = bytes.Clone(prepared[1])
		return nil
	}
	executed := w.named != nil && bytes.Contains(sent, w.named)
	if w.fault == nil || !executed && !bytes.Contains(bytes.ToUpper(sent), []byte("COMMIT")) {
		return nil
	}
	fault := w.fault
	fault.withInserts = executed || bytes.Contains(sent, []byte("INSERT"))
	w.fault = nil
	return fault
}

// preparedCommit matches the name and the text with which pgx prepares a COMMIT.
var preparedCommit = regexp.MustCompile(`(stmtcache_[0-9a-f]+)\x00COMMIT\x00`)

func (w *wire) track(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conns[c] = true
}

// forward forwards one connection in both directions.
func (w *wire) forward(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", w.server)
	if err != nil {
		return
	}
	defer server.Close()
	w.track(client)
	w.track(server)
	var (
		back      = make(chan struct{})
		answering atomic.Bool // answers are forwarded to the client
	)
	answering.Store(true)
	w.all.Go(func() {
		defer close(back)
		buffer := make([]byte, 64<<10)
		for {
			n, err := server.Read(buffer)
			if err != nil {
				return
			}
			if answering.Load() {
				if _, err := client.Write(buffer[:n]); err != nil {
					return
				}
			}
		}
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := client.Read(buffer)
		if err != nil {
			return
		}
		if fault := w.match(buffer[:n]); fault != nil {
			answering.Store(false)
			switch {
			case fault.answerLost:
				fault.deliver <- true
			case fault.cut == nil:
				client.Close()
			}
			close(fault.arrived)
			select {
			case deliver := <-fault.deliver:
				if !deliver {
					return
				}
				if _, err := server.Write(append(buffer[:n], w.quit...)); err == nil {
					if fault.cut != nil {
						select {
						case <-fault.cut:
							client.Close()
						case <-w.closed:
						}
					}
					<-back
					close(fault.done)
				}
			case <-w.closed:
			}
			return
		}
		if _, err := server.Write(buffer[:n]); err != nil {
			return
		}
	}
}
