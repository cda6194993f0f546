package faults

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// Wire carries the connections of clients to a MySQL, MariaDB or PostgreSQL
// server, and strikes the statements that its Injector says. A statement is
// what travels in one round trip. It speaks no TLS.
type Wire struct {
	*Injector
	listener net.Listener
	server   string
	begin    func() protocol
	done     sync.WaitGroup

	mu    sync.Mutex
	over  bool
	conns map[net.Conn]bool
}

// protocol is what the wire knows of one connection's language.
type protocol interface {
	// next reads one unit that the client sends: a statement, or something
	// that is none.
	next(client *bufio.Reader) (unit, error)
	// answering is a unit that makes the server answer the statement by an
	// error of this kind. nil: it has no such error.
	answering(kind Kind, statement unit) []byte
	// farewell makes the server hang up when it has done what came before.
	farewell() []byte
}

// unit is what a client sends at once.
type unit struct {
	bytes     []byte
	text      string // what it says
	statement bool
}

// NewWire returns a wire to the database of the URL, and the URL to use.
func NewWire(dbURL string) (w *Wire, wireURL string, err error) {
	u, err := url.Parse(dbURL)
	if err != nil {
		return nil, "", err
	}
	w = &Wire{Injector: &Injector{}, server: u.Host, conns: make(map[net.Conn]bool)}
	w.begin = func() protocol { return postgresSession{make(map[string]string)} }
	if u.Scheme == "mysql" {
		w.begin = func() protocol { return mysqlSession{} }
	}
	if w.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, "", err
	}
	w.done.Go(w.accept)
	u.Host = w.listener.Addr().String()
	return w, u.String(), nil
}

// Close cuts all connections.
func (w *Wire) Close() {
	w.listener.Close()
	w.mu.Lock()
	w.over = true
	for c := range w.conns {
		c.Close()
	}
	w.mu.Unlock()
	w.late.Wait()
	w.done.Wait()
}

func (w *Wire) accept() {
	for {
		client, err := w.listener.Accept()
		if err != nil {
			return
		}
		if w.isGone() {
			client.Close()
			continue
		}
		w.done.Go(func() { w.carry(client) })
	}
}

// keep closes the connection when the wire is closed.
func (w *Wire) keep(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.over {
		c.Close()
	}
	w.conns[c] = true
}

func (w *Wire) hangUp(c net.Conn) {
	c.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.conns, c)
}

func (w *Wire) carry(client net.Conn) {
	w.keep(client)
	defer w.hangUp(client)
	server, err := net.Dial("tcp", w.server)
	if err != nil {
		return
	}
	w.keep(server)
	late := false
	defer func() {
		if !late {
			w.hangUp(server)
		}
	}()
	var deaf atomic.Bool // the client hears nothing more
	hungUp := make(chan struct{})
	w.done.Go(func() {
		defer close(hungUp)
		buffer := make([]byte, 32<<10)
		for {
			n, err := server.Read(buffer)
			if n > 0 && !deaf.Load() {
				if _, err := client.Write(buffer[:n]); err != nil {
					break
				}
			}
			if err != nil {
				break
			}
		}
		if !deaf.Load() {
			client.Close()
		}
	})
	from, protocol := bufio.NewReader(client), w.begin()
	for {
		u, err := protocol.next(from)
		if err != nil {
			return
		}
		kind := None
		if u.statement {
			kind = w.Injector.next(u.text)
		}
		last := slices.Concat(u.bytes, protocol.farewell())
		switch kind {
		case None:
			if _, err := server.Write(u.bytes); err != nil {
				return
			}
		case Refused:
			return
		case Lost:
			deaf.Store(true)
			if _, err := server.Write(last); err == nil {
				<-hungUp
			}
			return
		case Late:
			deaf.Store(true)
			late = true
			w.later(func() {
				defer w.hangUp(server)
				if _, err := server.Write(last); err == nil {
					<-hungUp
				}
			})
			return
		case Hung, HungDone:
			deaf.Store(true)
			if kind == HungDone {
				if _, err := server.Write(u.bytes); err != nil {
					return
				}
			}
			_, _ = io.Copy(io.Discard, from) // until the client gives up
			return
		default:
			answering := protocol.answering(kind, u)
			if answering == nil {
				answering = u.bytes
			}
			if _, err := server.Write(answering); err != nil {
				return
			}
		}
	}
}

// mysqlSession speaks the protocol of MySQL and MariaDB.
type mysqlSession struct{}

const mysqlQuit, mysqlQuery, mysqlPing = 1, 3, 14

func (mysqlSession) next(client *bufio.Reader) (unit, error) {
	head := make([]byte, 4)
	if _, err := io.ReadFull(client, head); err != nil {
		return unit{}, err
	}
	packet := make([]byte, 4+(int(head[0])|int(head[1])<<8|int(head[2])<<16))
	copy(packet, head)
	if _, err := io.ReadFull(client, packet[4:]); err != nil {
		return unit{}, err
	}
	u := unit{bytes: packet}
	if head[3] != 0 || len(packet) < 5 { // part of the handshake
		return u, nil
	}
	u.text = string(packet[5:])
	u.statement = packet[4] != mysqlQuit && packet[4] != mysqlPing && !bytes.HasPrefix(packet[5:], []byte("SET "))
	return u, nil
}

func (mysqlSession) farewell() []byte { return []byte{1, 0, 0, 0, mysqlQuit} }

func (mysqlSession) answering(kind Kind, statement unit) []byte {
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
	// A text that commits is struck at its COMMIT, when all else is done.
	if before, ok := bytes.CutSuffix([]byte(statement.text), []byte("COMMIT")); ok {
		text = string(before) + text
	}
	size := 1 + len(text)
	return slices.Concat([]byte{byte(size), byte(size >> 8), byte(size >> 16), 0, mysqlQuery}, []byte(text))
}

// postgresSession speaks the protocol of PostgreSQL, version 3. It knows the connection's
// prepared statements by their names.
type postgresSession struct{ prepared map[string]string }

func (p postgresSession) next(client *bufio.Reader) (u unit, err error) {
	kind, err := client.Peek(1)
	if err != nil {
		return u, err
	}
	if kind[0] == 0 { // the start of a session has a length and no kind
		u.bytes, err = p.message(client, nil, 0)
		return u, err
	}
	for {
		from := len(u.bytes)
		if u.bytes, err = p.message(client, u.bytes, 1); err != nil {
			return u, err
		}
		message := u.bytes[from:]
		switch message[0] {
		case 'Q':
			u.statement, u.text = true, string(message[5:])
			return u, nil
		case 'S': // the end of a pipeline
			u.statement = true
			if u.text == "" {
				u.text = "PREPARE"
			}
			return u, nil
		case 'P':
			name, rest, _ := bytes.Cut(message[5:], []byte{0})
			query, _, _ := bytes.Cut(rest, []byte{0})
			p.prepared[string(name)] = string(query)
		case 'B':
			_, rest, _ := bytes.Cut(message[5:], []byte{0})
			name, values, _ := bytes.Cut(rest, []byte{0})
			u.text += p.prepared[string(name)] + " " + string(values) + "; "
		case 'D', 'E', 'C':
		default:
			return u, nil
		}
	}
}

// message reads one message, whose length follows so many bytes, behind before.
func (postgresSession) message(client *bufio.Reader, before []byte, length int) ([]byte, error) {
	head, err := client.Peek(length + 4)
	if err != nil {
		return nil, err
	}
	message := make([]byte, length+int(binary.BigEndian.Uint32(head[length:])))
	_, err = io.ReadFull(client, message)
	return append(before, message...), err
}

func (postgresSession) farewell() []byte { return []byte{'X', 0, 0, 0, 4} }

func (postgresSession) answering(kind Kind, statement unit) []byte {
	var code string
	switch kind {
	case Deadlock:
		code = "40P01"
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
