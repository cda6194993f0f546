package machine

import (
	"net"
	"os"
	"slices"
	"testing"
)

func TestParseStat(t *testing.T) {
	stat := "42 (a b) c) S 1 42 42 0 -1 4194560 1 2 3 4 100 20 5 7 20 0 1 0 999"
	if got := parseStat([]byte(stat)); got != 132*tick {
		t.Errorf("%v", got)
	}
}

func TestListening(t *testing.T) {
	if _, err := os.Stat("/proc/net/tcp"); err != nil {
		return // there is nothing to tell by
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if got := Listening(listener.Addr().(*net.TCPAddr).Port); !slices.Contains(got, os.Getpid()) {
		t.Errorf("%v, and this is %d", got, os.Getpid())
	}
	if got := Listening(1); len(got) != 0 {
		t.Errorf("on port 1: %v", got)
	}
}
