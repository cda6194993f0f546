package testenv

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"syscall"
	"time"
)

// Child is a process that exchanges lines with this one, over the standard input and output of the
// child. When this process ends, the child and its own children end too.
//
// One goroutine at a time may call Line, Read and Close. The other methods are safe for concurrent
// use with them.
type Child struct {
	process *process
	out     *os.File // the child's standard output
	reader  *bufio.Reader
	line    string // part of a line that Line had read when its context ended
}

// StartSelf starts this program once more, with these additions to the environment. They
// tell the program that it is a child.
func StartSelf(environment ...string) (*Child, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return StartChild([]string{program}, environment...)
}

// StartChild starts a command, the program first, with these additions to the environment. The
// child has the working directory and the standard error of this process.
func StartChild(command []string, environment ...string) (*Child, error) {
	out, childOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer childOut.Close()
	p := &process{
		name: path.Base(command[0]), args: command, env: append(os.Environ(), environment...),
		endSignal: syscall.SIGKILL, piped: true, stdout: childOut,
	}
	if err := p.start(); err != nil {
		out.Close()
		return nil, err
	}
	const buffer = 1 << 20 // children may print a lot at once
	return &Child{process: p, out: out, reader: bufio.NewReaderSize(out, buffer)}, nil
}

// Send writes a line to the child.
func (c *Child) Send(line string) error {
	if _, err := io.WriteString(c.process.stdin, line+"\n"); err != nil {
		return fmt.Errorf("writing to %s: %w", c.process.name, err)
	}
	return nil
}

// Line returns the next line that the child prints, without its end. After the last line, the error
// is io.EOF. If ctx ends before the line is complete, a later call returns it.
func (c *Child) Line(ctx context.Context) (string, error) {
	expired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(expired)
		_ = c.out.SetReadDeadline(time.Unix(0, 1)) // fails only if the pipe is closed
	})
	text, err := c.reader.ReadString('\n')
	if !stop() {
		<-expired
		_ = c.out.SetReadDeadline(time.Time{})
	}
	c.line += text
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = ctx.Err()
		}
		return "", fmt.Errorf("waiting for a line of %s: %w", c.process.name, err)
	}
	line := c.line[:len(c.line)-1]
	c.line = ""
	return line, nil
}

// Read reads the child's output after the last line that Line returned.
func (c *Child) Read(p []byte) (int, error) { return c.reader.Read(p) }

// Stop stops the child with SIGSTOP. When Stop returns, none of its threads runs.
func (c *Child) Stop() error { return c.process.stop() }

// Cont continues a stopped child.
func (c *Child) Cont() error { return c.process.cont() }

// Kill kills the child with SIGKILL and waits until it has ended. Its output can still be read.
func (c *Child) Kill() error { return c.process.kill() }

// Close closes the child's standard input, discards the rest of its output, and waits until it has
// ended. It kills a child that is still alive a minute after its output has ended.
func (c *Child) Close() error {
	_ = c.process.stdin.Close() // stdin is closed already if the child has ended
	_, _ = io.Copy(io.Discard, c.reader)
	defer c.out.Close()
	if _, err := c.process.wait(); err != nil {
		return errors.Join(err, c.process.kill())
	}
	return nil
}

// End kills the child, if it still runs, and closes it.
func (c *Child) End() {
	_ = c.Kill()
	_ = c.Close()
}
