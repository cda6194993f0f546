package zookeeper

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// The kinds of requests, as they are on the wire.
const (
	opCreate          = 1
	opDelete          = 2
	opExists          = 3
	opGetData         = 4
	opSetData         = 5
	opSync            = 9
	opPing            = 11
	opCreateContainer = 19
	opSetWatches      = 101
	opClose           = -11
)

// Answers of servers that execute no request.
const (
	codeAPIError       = -100
	codeSessionExpired = -112
)

// way is a way in which a request fails.
type way func(c *relayed, request []byte)

// passOn lets the request succeed.
func passOn(c *relayed, request []byte) { _, _ = c.server.Write(request) }

// refuse answers the request with an error, without asking the server.
func refuse(code int32) way {
	return func(c *relayed, request []byte) {
		answer := binary.BigEndian.AppendUint32(nil, 16)
		answer = binary.BigEndian.AppendUint32(answer, number(request))
		answer = binary.BigEndian.AppendUint64(answer, 0)
		_, _ = c.client.Write(binary.BigEndian.AppendUint32(answer, uint32(code)))
	}
}

// hold forwards the request when before has returned. Other requests overtake it.
func hold(before func()) way {
	return func(c *relayed, request []byte) {
		go func() {
			before()
			passOn(c, request)
		}()
	}
}

// cut cuts the connection instead of forwarding the request.
func cut(c *relayed, _ []byte) { c.close() }

// loseAnswer forwards the request and cuts the connection instead of forwarding the answer.
func loseAnswer(c *relayed, request []byte) {
	c.lost.Store(number(request))
	passOn(c, request)
}

// relay forwards the requests of clients to a server, and makes some of them fail.
type relay struct {
	testenv.Proxy

	mu      sync.Mutex
	way     way
	kind    int32          // kind of the requests that fail; 0: any
	nth     int            // number of the first request that fails; 0: all succeed
	again   bool           // after the failure, one request of each kind is refused
	seen    int            // number of requests since fail was called
	failed  map[int32]bool // kinds of the requests that have failed
	watched func()         // runs when a node's data are read for the first time; nil: nothing
}

func newRelay(t *testing.T, server string) *relay {
	t.Helper()
	r := &relay{}
	r.Start(t, server, func(client, server net.Conn) {
		c := &relayed{client: client, server: server}
		go c.passAnswers()
		c.passRequests(r)
	})
	return r
}

// fail makes the nth request of the kind from now on fail. If again is true, one request of each
// kind fails afterwards.
func (r *relay) fail(way way, kind int32, nth int, again bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.way, r.kind, r.nth, r.again, r.seen, r.failed = way, kind, nth, again, 0, make(map[int32]bool)
}

// heal ends the failures. It returns the number of requests up to the one that failed, and the
// kinds of those that failed.
func (r *relay) heal() (seen int, failed map[int32]bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nth = 0
	return r.seen, r.failed
}

// next returns the way in which the request fails, or passOn.
func (r *relay) next(request []byte) way {
	kind := int32(binary.BigEndian.Uint32(request[8:]))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched != nil && kind == opGetData {
		go r.watched()
		r.watched = nil
	}
	way := r.way
	switch {
	case r.nth == 0 || kind == opPing || kind == opSetWatches || kind == opClose || r.kind != 0 && r.kind != kind:
		return passOn
	case len(r.failed) == 0:
		if r.seen++; r.seen < r.nth {
			return passOn
		}
	case !r.again || r.failed[kind]:
		return passOn
	default:
		way = refuse(codeAPIError)
	}
	r.failed[kind] = true
	return way
}

// relayed is a client's connection with the connection to the server for it.
type relayed struct {
	client, server net.Conn
	lost           atomic.Uint32 // number of the request whose answer is lost; 0: no answer is lost
}

func (c *relayed) close() {
	c.client.Close()
	c.server.Close()
}

func (c *relayed) passRequests(r *relay) {
	for first := true; ; first = false { // the first packet opens the session
		request, err := readPacket(c.client)
		switch {
		case err != nil:
			return
		case first:
			passOn(c, request)
		default:
			r.next(request)(c, request)
		}
	}
}

func (c *relayed) passAnswers() {
	defer c.close()
	for {
		answer, err := readPacket(c.server)
		if lost := c.lost.Load(); err != nil || lost != 0 && lost == number(answer) {
			return
		}
		_, _ = c.client.Write(answer)
	}
}

// readPacket returns the next packet, which begins with its length.
func readPacket(from io.Reader) ([]byte, error) {
	length := make([]byte, 4)
	if _, err := io.ReadFull(from, length); err != nil {
		return nil, err
	}
	packet := append(length, make([]byte, binary.BigEndian.Uint32(length))...)
	_, err := io.ReadFull(from, packet[4:])
	return packet, err
}

// number returns the number of a request, which its answer has too.
func number(packet []byte) uint32 { return binary.BigEndian.Uint32(packet[4:]) }
