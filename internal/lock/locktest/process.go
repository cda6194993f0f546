package locktest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// Process is another instance in its own process.
type Process struct{ *testenv.Child }

// ask sends a command and returns the next answer.
func (p Process) ask(ctx context.Context, command string) (string, error) {
	if err := p.Send(command); err != nil {
		return "", err
	}
	return p.answer(ctx)
}

// expect sends a command and returns an error unless the next answer is want.
func (p Process) expect(ctx context.Context, command, want string) error {
	answer, err := p.ask(ctx, command)
	if err == nil && answer != want {
		err = fmt.Errorf("%s: the process answered %q, want %q", command, answer, want)
	}
	return err
}

// answer returns the next answer.
func (p Process) answer(ctx context.Context) (string, error) {
	line, err := p.Line(ctx)
	if message, failed := strings.CutPrefix(line, "error "); failed {
		return "", errors.New(message)
	}
	return line, err
}

// Child executes the commands that a Process sends to its standard input, until
// that ends:
//
//	hold NAME                     locks; answers `held TOKEN`, and later `lost`
//	                              if the lease is lost
//	unlock                        unlocks; answers `unlocked`, or an error
//	contend NAME FOLDER N GRANTS  N goroutines lock until each was granted the
//	                              lock GRANTS times; answers `done`
//	try NAME N                    N goroutines lock until `stop` and ignore errors;
//	                              answers `granted` after the first grant
//	again                         answers `granted` after their next grant
//	stop                          ends them; answers `done`
//
// A command that fails is answered with `error MESSAGE`.
func Child(l lock.Locker) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var (
		lease  lock.Lease
		out    sync.Mutex
		grants <-chan struct{}
		stop   func()
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
			grants, stop = try(ctx, l, fields[1], goroutines)
			<-grants
			answer("granted")
		case "again":
			<-grants
			answer("granted")
		case "stop":
			stop()
			answer("done")
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

// try starts goroutines that take the lock again and again, until stop is called. They ignore
// errors and do not check for overlaps, because leases can be lost. grants receives a value when a
// holder has unlocked, if a receiver is ready.
func try(ctx context.Context, l lock.Locker, name string, goroutines int) (grants <-chan struct{}, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	granted := make(chan struct{})
	var all sync.WaitGroup
	for range goroutines {
		all.Go(func() {
			for ctx.Err() == nil {
				lease, err := l.Lock(ctx, name)
				if err == nil {
					testenv.Dither() // stands for the work
					err = lease.Unlock(ctx)
				}
				if err != nil {
					testenv.Dither() // pause before the next attempt
					continue
				}
				select {
				case granted <- struct{}{}:
				default:
				}
			}
		})
	}
	return granted, func() {
		cancel()
		all.Wait()
	}
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
