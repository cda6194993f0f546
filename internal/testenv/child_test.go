package testenv_test

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestChild exchanges lines and bytes with a shell. A line must not be lost if the wait for it was
// given up after half of it had arrived.
func TestChild(t *testing.T) {
	t.Parallel()
	c, err := testenv.StartChild([]string{"/bin/sh", "-c", `
		read name; echo "$GREETING $name"
		printf hal; read more; echo f; printf bytes
		while read line; do echo "$line"; done`}, "GREETING=hello")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.End)
	send := func(line string) {
		t.Helper()
		if err := c.Send(line); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string) {
		t.Helper()
		if line, err := c.Line(t.Context()); err != nil || line != want {
			t.Fatalf("the child printed %q, %v, want %q", line, err, want)
		}
	}
	send("you")
	expect("hello you")
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if line, err := c.Line(soon); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("half a line: %q, %v", line, err)
	}
	send("")
	expect("half")
	bytes := make([]byte, len("bytes"))
	if _, err := io.ReadFull(c, bytes); err != nil || string(bytes) != "bytes" {
		t.Fatalf("read %q, %v", bytes, err)
	}
	if err := errors.Join(c.Stop(), c.Send("after"), c.Cont()); err != nil {
		t.Fatal(err)
	}
	expect("after")
	send("unread")
	if err := c.Close(); err != nil { // the loop of the child ends when its input ends
		t.Error(err)
	}
	if _, err := c.Line(t.Context()); err == nil {
		t.Error("a closed child still prints lines")
	}
}

// TestChildKilled checks that the whole output of a killed child can be read.
func TestChildKilled(t *testing.T) {
	t.Parallel()
	c, err := testenv.StartChild([]string{"/bin/sh", "-c", "echo first; echo last; read line"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.End)
	if _, err := c.Line(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Kill(); err != nil {
		t.Fatal(err)
	}
	for err == nil { // the child may have been killed before it printed the last line
		_, err = c.Line(t.Context())
	}
	if !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}
