package locktest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// Process is another instance in its own process. It ends with this process.
type Process struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	done  chan struct{}
}

// StartProcess starts the command. Its program must call Child.
func StartProcess(cmd *exec.Cmd) (*Process, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, in: in, lines: make(chan string, 100), done: make(chan struct{})}
	go func() {
		defer close(p.done)
		defer close(p.lines)
		for scanner := bufio.NewScanner(out); scanner.Scan(); {
			p.lines <- scanner.Text()
		}
		_ = cmd.Wait() // End kills the process, so an error says nothing
	}()
	return p, nil
}

// End kills the process, if it still runs, and waits for its end.
func (p *Process) End() {
	_ = p.cmd.Process.Kill()
	p.in.Close()
	for range p.lines {
	}
	<-p.done
}

// ask sends a command and returns the next answer.
func (p *Process) ask(ctx context.Context, command string) (string, error) {
	if _, err := io.WriteString(p.in, command+"\n"); err != nil {
		return "", err
	}
	return p.answer(ctx)
}

// answer returns the next answer.
func (p *Process) answer(ctx context.Context) (string, error) {
	select {
	case line, ok := <-p.lines:
		if !ok {
			return "", errors.New("the process has ended")
		}
		if message, failed := strings.CutPrefix(line, "error "); failed {
			return "", errors.New(message)
		}
		return line, nil
	case <-ctx.Done():
		return "", fmt.Errorf("waiting for an answer of the process: %w", ctx.Err())
	}
}

func (p *Process) signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// Child executes the commands that a Process sends to its standard input, until
// that ends:
//
//	hold NAME                     locks; answers `held TOKEN`, and later `lost`
//	                              if the lease is lost
//	unlock                        unlocks; answers `unlocked`, or an error
//	contend NAME FOLDER N GRANTS  N goroutines lock until each was granted the
//	                              lock GRANTS times; answers `done`
//	try NAME N MILLIS             N goroutines lock for MILLIS and ignore errors;
//	                              answers `granted` after the first grant, and
//	                              `done GRANTS` in the end
//
// A command that fails is answered with `error MESSAGE`.
func Child(l lock.Locker) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var (
		lease lock.Lease
		out   sync.Mutex
	)
	answer := func(format string, args ...any) {
		out.Lock()
		defer out.Unlock()
		fmt.Printf(format+"\n", args...)
	}
	for scanner := bufio.NewScanner(os.Stdin); scanner.Scan(); {
		fields := strings.Fields(scanner.Text())
		var err error
		switch fields[0] {
		case "hold":
			if lease, err = l.Lock(ctx, fields[1]); err != nil {
				break
			}
			answer("held %d", lease.Token())
			held := lease.Context()
			context.AfterFunc(held, func() {
				if errors.Is(context.Cause(held), lock.ErrLost) {
					answer("lost")
				}
			})
		case "unlock":
			if err = lease.Unlock(ctx); err == nil {
				answer("unlocked")
			}
		case "contend":
			goroutines, _ := strconv.Atoi(fields[3])
			grants, _ := strconv.Atoi(fields[4])
			if err = contend(ctx, l, fields[1], fields[2], goroutines, grants); err == nil {
				answer("done")
			}
		case "try":
			goroutines, _ := strconv.Atoi(fields[2])
			millis, _ := strconv.Atoi(fields[3])
			granted := sync.OnceFunc(func() { answer("granted") })
			answer("done %d", try(ctx, l, fields[1], goroutines, time.Duration(millis)*time.Millisecond, granted))
		}
		if err != nil {
			answer("error %v", err)
		}
	}
}

// contend takes the lock again and again. At each grant it checks that no other
// process or goroutine holds the lock.
func contend(ctx context.Context, l lock.Locker, name, folder string, goroutines, grants int) error {
	var all sync.WaitGroup
	errs := make(chan error, goroutines)
	for range goroutines {
		all.Go(func() {
			for range grants {
				lease, err := l.Lock(ctx, name)
				if err == nil {
					err = errors.Join(recordGrant(folder, lease), lease.Unlock(ctx))
				}
				if err != nil {
					errs <- err
					return
				}
			}
		})
	}
	all.Wait()
	close(errs)
	return <-errs
}

// try takes the lock again and again for a time, and holds it for a moment while
// the other goroutines wait. It ignores errors and does not check for overlaps,
// because leases can be lost. It calls granted after each grant.
func try(ctx context.Context, l lock.Locker, name string, goroutines int, during time.Duration, granted func()) (grants int64) {
	ctx, cancel := context.WithTimeout(ctx, during)
	defer cancel()
	var (
		all   sync.WaitGroup
		mu    sync.Mutex
		until = time.Now().Add(during)
	)
	for range goroutines {
		all.Go(func() {
			for time.Now().Before(until) {
				lease, err := l.Lock(ctx, name)
				if err != nil {
					time.Sleep(20 * time.Millisecond) // before the next attempt
					continue
				}
				granted()
				time.Sleep(300 * time.Millisecond) // the work: more grants would show no more and keep the processors busy
				if lease.Unlock(ctx) == nil {
					mu.Lock()
					grants++
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	return grants
}

var errOverlap = errors.New("two holders have the lock at once")

// recordGrant appends the lease's token to a file in the folder. It returns an
// error if another holder is in recordGrant at the same time.
func recordGrant(folder string, lease lock.Lease) error {
	inside := filepath.Join(folder, "inside")
	file, err := os.OpenFile(inside, os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("%w: %w", errOverlap, err)
	}
	file.Close()
	log, err := os.OpenFile(filepath.Join(folder, "tokens"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	if _, err := fmt.Fprintln(log, lease.Token()); err != nil {
		return err
	}
	return os.Remove(inside)
}

// recordedTokens returns the tokens in the order of their grants.
func recordedTokens(folder string) (tokens []uint64, err error) {
	text, err := os.ReadFile(filepath.Join(folder, "tokens"))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		token, err := strconv.ParseUint(strings.TrimSpace(line), 10, 64)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, token)
	}
	return tokens, nil
}
