package testenv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
)

// Ports are taken from [firstPort, lastPort): below those that the kernel gives
// to outgoing connections, above those that people give to their servers.
const firstPort, lastPort = 20000, 32000

// port is a port of 127.0.0.1 that is this process's until released, even while
// nothing listens on it.
type port struct {
	number int
	claim  net.Listener // nil where the system has no abstract sockets
}

// newPort finds a port that nobody listens on and no other process that uses
// this package has claimed.
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

// claimPort makes an abstract socket named for the port: like the port it
// belongs to the network namespace, and it goes with the process.
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

// Port returns a port of 127.0.0.1 that nobody else of this package is given
// while the test runs.
func Port(t T) int {
	t.Helper()
	p, err := newPort()
	check(t, "a port", err)
	t.Cleanup(p.release)
	return p.number
}
