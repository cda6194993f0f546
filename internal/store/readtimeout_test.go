package store

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestAnswerBound checks how long sessions with a statement_timeout wait.
func TestAnswerBound(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]time.Duration{
		"10000": 11 * time.Second, "1.5": time.Second + 1500*time.Microsecond, "2s": 3 * time.Second, "5 min": 5*time.Minute + time.Second,
		"1d": 24*time.Hour + time.Second, "0": 0, "0s": 0, "-1": 0, "soon": ioTimeout, "xd": ioTimeout, "": ioTimeout,
	} {
		if got := answerBound(value); got != want {
			t.Errorf("statement_timeout=%s: %s, want %s", value, got, want)
		}
	}
}

// TestBoundAnswers checks that a read ends after the bound, or at the driver's deadline if
// that is earlier, and that the connection can be read again.
func TestBoundAnswers(t *testing.T) {
	t.Parallel()
	here, server := net.Pipe()
	defer here.Close()
	defer server.Close()
	dial := func(bound time.Duration) net.Conn {
		conn, err := boundAnswers(func(context.Context, string, string) (net.Conn, error) { return here, nil }, bound)(t.Context(), "tcp", "server")
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	read := func(conn net.Conn) error {
		_, err := conn.Read(make([]byte, 1))
		return err
	}
	answer := func(conn net.Conn) error { // answer of a server that may take longer than the bound
		return testenv.Poll(testenv.Patience, func() error { return read(conn) })
	}
	silent := func(when string, conn net.Conn) {
		if err := read(conn); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: %v", when, err)
		}
	}
	conn := dial(20 * time.Millisecond)
	silent("a silent server", conn)
	go func() { _, _ = server.Write([]byte("ab")) }()
	if err := answer(conn); err != nil {
		t.Errorf("an answer after that: %v", err)
	}
	if err := conn.SetDeadline(time.Now().Add(testenv.Patience)); err != nil {
		t.Fatal(err)
	}
	if err := answer(conn); err != nil {
		t.Errorf("the rest of the answer: %v", err)
	}
	silent("a deadline after the bound", conn)

	conn = dial(time.Hour)
	defer time.AfterFunc(testenv.Patience, func() { here.Close() }).Stop() // ends a read that ignores its deadline
	past := time.Now().Add(-time.Second)
	for name, set := range map[string]func(time.Time) error{"SetDeadline": conn.SetDeadline, "SetReadDeadline": conn.SetReadDeadline} {
		if err := set(past); err != nil {
			t.Fatal(err)
		}
		silent(name+" before the read", conn)
		if err := set(time.Time{}); err != nil {
			t.Fatal(err)
		}
		timer := time.AfterFunc(20*time.Millisecond, func() { _ = set(past) })
		silent(name+" during the read", conn)
		timer.Stop()
		if err := set(time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
}
