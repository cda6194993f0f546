package session_test

import (
	"io"
	"net"
	"testing"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// startPooler starts a proxy to the MariaDB of the URL, whose user must have no password, and
// returns the URL through it. For each client it has two sessions of the server, and sends
// them the client's statements in turn.
func startPooler(t *testing.T, dbURL string) (pooled string) {
	t.Helper()
	var p testenv.Proxy
	p.Start(t, dbURL, func(client, first net.Conn) {
		second, err := net.Dial("tcp", first.RemoteAddr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer second.Close()
		_ = serve(client, [2]net.Conn{first, second}) // it ends with the client's connection
	})
	return p.Through(dbURL)
}

// serve serves one client.
func serve(client net.Conn, sessions [2]net.Conn) error {
	// The client logs in to the first session. Without a password, its packet is also valid for the
	// second session.
	greeting, err := readPacket(sessions[0])
	if err != nil {
		return err
	}
	if _, err := client.Write(greeting); err != nil {
		return err
	}
	login, err := readPacket(client)
	if err != nil {
		return err
	}
	if _, err := readPacket(sessions[1]); err != nil {
		return err
	}
	for _, session := range sessions {
		if _, err := session.Write(login); err != nil {
			return err
		}
	}
	if _, err := readPacket(sessions[1]); err != nil {
		return err
	}
	go func() { _, _ = io.Copy(client, sessions[0]) }()
	go func() { _, _ = io.Copy(client, sessions[1]) }()
	for n := 0; ; n++ { // the client sends a statement when it has the previous answer
		statement, err := readPacket(client)
		if err != nil {
			return err
		}
		if _, err := sessions[n%len(sessions)].Write(statement); err != nil {
			return err
		}
	}
}

// readPacket returns a packet with its header: three bytes of length, one of sequence.
func readPacket(from io.Reader) ([]byte, error) {
	header := make([]byte, 4)
	if _, err := io.ReadFull(from, header); err != nil {
		return nil, err
	}
	packet := make([]byte, 4+int(header[0])+int(header[1])<<8+int(header[2])<<16)
	copy(packet, header)
	_, err := io.ReadFull(from, packet[4:])
	return packet, err
}
