package testenv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
)

// Ports come from [firstPort, lastPort): below the ports that the kernel gives to
// outgoing connections, and above the usual ports of servers.
const firstPort, lastPort = 20000, 32000

// port is a port of 127.0.0.1. Until it is released, no other process that uses
// this package gets it, even while nothing listens on it.
type port struct {
	number int
	claim  net.Listener // nil on systems without abstract sockets
}

// newPort claims a port that is not in use.
func newPort() (*port, error) {
	for range 1000 {
		number := firstPort + rand.IntN(lastPort-firstPort)
		claim, err := claimPort(number)
		if err != nil {
			continue
		}
		p := &port{number, claim}
		listener, err := net.Listen("tcp", p.addr())
		if err == nil {
			listener.Close()
			return p, nil
		}
		p.release()
	}
	return nil, errors.New("no port is free")
}

// claimPort creates an abstract socket named after the port. Like the port, the
// socket belongs to the network namespace. It is removed when the process ends.
func claimPort(number int) (net.Listener, error) {
	if runtime.GOOS != "linux" {
		return nil, nil
	}
	return net.Listen("unix", fmt.Sprintf("@holdfast-test-port-%d", number))
}

func (p *port) addr() string { return fmt.Sprintf("127.0.0.1:%d", p.number) }

func (p *port) release() {
	if p.claim != nil {
		p.claim.Close()
	}
}

// Port returns a free port of 127.0.0.1. While the test runs, no other caller of
// this package gets it, in any process.
func Port(t T) int {
	t.Helper()
	p, err := newPort()
	check(t, "a port", err)
	t.Cleanup(p.release)
	return p.number
}
