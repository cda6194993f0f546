package faults

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// Wire forwards the connections of clients to a MySQL, MariaDB or PostgreSQL
// server and injects the faults of its Injector into statements. Everything that
// a client sends in one round trip counts as one statement. A Wire does not
// support TLS.
type Wire struct {
	*Injector
	testenv.Proxy
	newProtocol func() protocol

	mu   sync.Mutex
	hold *Hold // of the next statement that contains its text; may be nil
}

// protocol parses the requests of one connection's client.
type protocol interface {
	// next reads the client's next request.
	next(client *bufio.Reader) (request, error)
	// errorRequest returns a request to send instead of the statement, to which
	// the server answers with an error of this kind. It returns nil if the server
	// has no such error.
	errorRequest(kind Kind, statement request) []byte
	// quit returns a request after which the server closes the connection.
	quit() []byte
}

// request is what a client sends in one round trip.
type request struct {
	bytes     []byte
	text      string
	statement bool // false for the handshake, settings and similar requests, which get no faults
}

// NewWire starts a wire to the database of the URL for this test, and returns the URL of the
// database through it.
func NewWire(t testenv.T, dbURL string) (w *Wire, wireURL string) {
	t.Helper()
	w = &Wire{Injector: &Injector{}, newProtocol: func() protocol { return postgresProtocol{make(map[string]string)} }}
	if strings.HasPrefix(dbURL, "mysql:") {
		w.newProtocol = func() protocol { return mysqlProtocol{} }
	}
	w.Start(t, dbURL, w.forward)
	return w, w.Through(dbURL)
}

// Hold is a statement that a wire holds back, until the test says what becomes of it. Its
// client gets no answer.
type Hold struct {
	Arrived chan struct{} // closed when the statement has arrived at the wire
	Text    string        // of the statement; read it after that
	Done    chan struct{} // closed when the server has run the statement and closed the connection

	only   string
	client net.Conn
	send   chan bool
}

// Hold holds back the next statement that contains the text.
func (w *Wire) Hold(only string) *Hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hold = &Hold{Arrived: make(chan struct{}), Done: make(chan struct{}), only: only, send: make(chan bool, 1)}
	return w.hold
}

// Cut closes the connection of the client. The statement must have arrived.
func (h *Hold) Cut() { h.client.Close() }

// Deliver sends the statement to the server, as the last one of its connection.
func (h *Hold) Deliver() { h.send <- true }

// Drop closes the connection to the server without the statement.
func (h *Hold) Drop() { h.send <- false }

// held returns the hold for the statement, or nil.
func (w *Wire) held(r request) *Hold {
	w.mu.Lock()
	defer w.mu.Unlock()
	h := w.hold
	if h == nil || !r.statement || !strings.Contains(r.text, h.only) {
		return nil
	}
	w.hold = nil
	return h
}

// forward connects the client to the server until one of them closes the
// connection or a fault breaks it.
func (w *Wire) forward(client, server net.Conn) {
	if w.isGone() {
		return
	}
	c := &connection{
		wire: w, protocol: w.newProtocol(), client: client, server: server,
		requests: bufio.NewReader(client), ended: make(chan struct{}),
	}
	go c.forwardAnswers()
	defer func() {
		server.Close()
		<-c.ended
	}()
	late := c.forwardRequests()
	ran := make(chan struct{})
	if late == nil {
		close(ran)
	} else {
		w.later(func() {
			defer close(ran)
			c.sendLast(late)
		})
	}
	// Close the client only now: a client that sees the end may call Disarm, which waits for the
	// late statement. Close it before the wait for ran: the answers could wait for a client that
	// does not read.
	client.Close()
	<-ran
}

// connection is one client's connection to the server, through the wire.
type connection struct {
	wire           *Wire
	protocol       protocol
	client, server net.Conn
	requests       *bufio.Reader // from the client
	unanswered     atomic.Bool   // the client gets no more answers
	ended          chan struct{} // closed when the server has closed the connection
}

func (c *connection) forwardAnswers() {
	defer close(c.ended)
	buffer := make([]byte, 32<<10)
	for {
		n, err := c.server.Read(buffer)
		if n > 0 && !c.unanswered.Load() {
			if _, err := c.client.Write(buffer[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	if !c.unanswered.Load() {
		c.client.Close()
	}
}

// forwardRequests forwards the client's requests until the connection ends or a
// fault breaks it. It returns the statement that must still run late, or nil.
func (c *connection) forwardRequests() (late []byte) {
	for {
		r, err := c.protocol.next(c.requests)
		if err != nil {
			return nil
		}
		if h := c.wire.held(r); h != nil {
			c.hold(h, r)
			return nil
		}
		kind := None
		if r.statement {
			kind = c.wire.Next(r.text)
		}
		send := r.bytes
		switch kind {
		case None:
		case Refused:
			return nil
		case Lost:
			c.unanswered.Store(true)
			c.sendLast(r.bytes)
			return nil
		case Late:
			c.unanswered.Store(true)
			return r.bytes
		case Hung, HungDone:
			c.hang(r.bytes, kind == HungDone)
			return nil
		default:
			if instead := c.protocol.errorRequest(kind, r); instead != nil {
				send = instead
			}
		}
		if _, err := c.server.Write(send); err != nil {
			return nil
		}
	}
}

// sendLast sends the statement as the last one of the connection and waits until the server has
// run it and closed the connection.
func (c *connection) sendLast(statement []byte) {
	if _, err := c.server.Write(slices.Concat(statement, c.protocol.quit())); err == nil {
		<-c.ended
	}
}

// hold holds the statement back until the test decides, or the connection to the server ends.
func (c *connection) hold(h *Hold, r request) {
	c.unanswered.Store(true)
	h.Text, h.client = r.text, c.client
	close(h.Arrived)
	select {
	case send := <-h.send:
		if send {
			c.sendLast(r.bytes)
			close(h.Done)
		}
	case <-c.ended:
	}
}

// hang answers nothing until the client closes the connection. It sends the
// statement to the server only if run is set.
func (c *connection) hang(statement []byte, run bool) {
	c.unanswered.Store(true)
	if run {
		if _, err := c.server.Write(statement); err != nil {
			return
		}
	}
	_, _ = io.Copy(io.Discard, c.requests)
}

// mysqlProtocol is the protocol of MySQL and MariaDB.
type mysqlProtocol struct{}

const mysqlQuit, mysqlQuery, mysqlPing = 1, 3, 14

func (mysqlProtocol) next(client *bufio.Reader) (request, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(client, head); err != nil {
		return request{}, err
	}
	packet := make([]byte, 4+(int(head[0])|int(head[1])<<8|int(head[2])<<16))
	copy(packet, head)
	if _, err := io.ReadFull(client, packet[4:]); err != nil {
		return request{}, err
	}
	r := request{bytes: packet}
	if head[3] != 0 || len(packet) < 5 { // this packet is part of the handshake
		return r, nil
	}
	r.text = string(packet[5:])
	r.statement = packet[4] != mysqlQuit && packet[4] != mysqlPing && !bytes.HasPrefix(packet[5:], []byte("SET "))
	return r, nil
}

func (mysqlProtocol) quit() []byte { return []byte{1, 0, 0, 0, mysqlQuit} }

func (mysqlProtocol) errorRequest(kind Kind, statement request) []byte {
	const signal = "SIGNAL SQLSTATE "
	var text string
	switch kind {
	case Deadlock:
		text = "ROLLBACK; " + signal + "'40001' SET MYSQL_ERRNO = 1213"
	case LockTimeout:
		text = signal + "'HY000' SET MYSQL_ERRNO = 1205"
	case ReadOnly:
		text = signal + "'HY000' SET MYSQL_ERRNO = 1290"
	case Duplicate:
		text = signal + "'23000' SET MYSQL_ERRNO = 1062"
	case BadValue:
		text = signal + "'22001' SET MYSQL_ERRNO = 1406"
	case DiskFull:
		text = signal + "'HY000' SET MYSQL_ERRNO = 1021"
	case Killed:
		text = "KILL CONNECTION_ID()"
	default:
		return nil
	}
	// In a text that ends with COMMIT, the error replaces the COMMIT: the other
	// statements run.
	if before, ok := bytes.CutSuffix([]byte(statement.text), []byte("COMMIT")); ok {
		text = string(before) + text
	}
	size := 1 + len(text)
	return slices.Concat([]byte{byte(size), byte(size >> 8), byte(size >> 16), 0, mysqlQuery}, []byte(text))
}

// postgresProtocol is the protocol of PostgreSQL, version 3. prepared has the
// connection's prepared statements by name.
type postgresProtocol struct{ prepared map[string]string }

func (p postgresProtocol) next(client *bufio.Reader) (r request, err error) {
	kind, err := client.Peek(1)
	if err != nil {
		return r, err
	}
	if kind[0] == 0 { // the startup message has a length and no type
		r.bytes, err = p.message(client, nil, 0)
		return r, err
	}
	for {
		from := len(r.bytes)
		if r.bytes, err = p.message(client, r.bytes, 1); err != nil {
			return r, err
		}
		message := r.bytes[from:]
		switch message[0] {
		case 'Q': // a simple query
			r.statement, r.text = true, string(message[5:])
			return r, nil
		case 'S': // Sync, the end of a pipeline
			r.statement = true
			if r.text == "" {
				r.text = "PREPARE"
			}
			return r, nil
		case 'P': // Parse
			name, rest, _ := bytes.Cut(message[5:], []byte{0})
			query, _, _ := bytes.Cut(rest, []byte{0})
			p.prepared[string(name)] = string(query)
		case 'B': // Bind
			_, rest, _ := bytes.Cut(message[5:], []byte{0})
			name, values, _ := bytes.Cut(rest, []byte{0})
			r.text += p.prepared[string(name)] + " " + string(values) + "; "
		case 'D', 'E', 'C': // Describe, Execute, Close
		default:
			return r, nil
		}
	}
}

// message reads one message and appends it to before. offset is the position of
// the length field in the message, in bytes.
func (postgresProtocol) message(client *bufio.Reader, before []byte, offset int) ([]byte, error) {
	head, err := client.Peek(offset + 4)
	if err != nil {
		return nil, err
	}
	message := make([]byte, offset+int(binary.BigEndian.Uint32(head[offset:])))
	_, err = io.ReadFull(client, message)
	return append(before, message...), err
}

func (postgresProtocol) quit() []byte { return []byte{'X', 0, 0, 0, 4} }

func (postgresProtocol) errorRequest(kind Kind, statement request) []byte {
	var code string
	switch kind {
	case Deadlock:
		code = "40P01"
	case Serialization:
		code = "40001"
	case LockTimeout:
		code = "55P03"
	case ReadOnly:
		code = "25006"
	case Duplicate:
		code = "23505"
	case BadValue:
		code = "22001"
	case DiskFull:
		code = "53100"
	}
	var text string
	switch {
	case code != "":
		text = "DO $$BEGIN RAISE EXCEPTION 'a fault' USING ERRCODE = '" + code + "'; END$$"
	case kind == Killed:
		text = "SELECT pg_terminate_backend(pg_backend_pid())"
	case kind == RolledBack && bytes.HasPrefix(statement.bytes, []byte("Q")) && strings.Contains(statement.text, "COMMIT"):
		text = "ROLLBACK"
	default:
		return nil
	}
	query := binary.BigEndian.AppendUint32([]byte{'Q'}, uint32(4+len(text)+1))
	return append(append(query, text...), 0)
}
