package testenv_test

import (
	"io"
	"net"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestProxy_Ends checks that a proxy ends the connection to the server when the client's ends, and
// all connections when it is cut or closed. That must also hold for a frozen proxy, and for a
// second Close.
func TestProxy_Ends(t *testing.T) {
	t.Parallel()
	server := testenv.Listen(t)
	accepted := make(chan net.Conn, 3)
	go func() {
		for {
			conn, err := server.Accept()
			if err != nil {
				return
			}
			accepted <- conn
		}
	}()
	wire := testenv.NewWire(t, "tcp://user@"+server.Addr().String()+"/path")
	if through := wire.Through("tcp://user@" + server.Addr().String() + "/path"); through != "tcp://user@"+wire.Addr()+"/path" {
		t.Fatalf("the URL through the wire is %s", through)
	}
	mustEnd := func(conn net.Conn) {
		t.Helper()
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_, _ = io.Copy(io.Discard, conn)
		}()
		testenv.Receive(t, "the connection ends", ended)
	}
	connect := func() (client, served net.Conn) {
		t.Helper()
		client, err := net.Dial("tcp", wire.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		served = testenv.Receive(t, "the server accepts the connection", accepted)
		t.Cleanup(func() { served.Close() })
		return client, served
	}

	client, served := connect()
	client.Close()
	mustEnd(served)
	served.Close()
	testenv.Await(t, "the wire has no connection", func() bool { return wire.Connections() == 0 })

	client, served = connect()
	testenv.Await(t, "the wire has a connection", func() bool { return wire.Connections() == 1 })
	if n := wire.Cut(); n != 1 {
		t.Errorf("cut %d connections", n)
	}
	mustEnd(client)
	mustEnd(served)

	client, served = connect()
	wire.Freeze()
	if _, err := io.WriteString(client, "held back"); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, "the wire holds data back", wire.Holding)
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		wire.Close()
		wire.Close()
	}()
	testenv.Receive(t, "the wire is closed", closed)
	mustEnd(client)
	mustEnd(served)
	if _, err := net.Dial("tcp", wire.Addr()); err == nil {
		t.Error("a closed wire accepts a connection")
	}
}
