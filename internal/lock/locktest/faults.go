package locktest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

const (
	// late is how much later than a lease's end its lock may be granted, or its
	// holder hear that it was lost, on a busy machine.
	late = 15 * time.Second
	// overlap is how much later than another's grant a holder may hear that it
	// lost the lock: a backend learns of it by asking.
	overlap = 1500 * time.Millisecond
)

// processes starts several instances; end ends them.
func (b Backend) processes(ctx context.Context, n int) (ps []*Process, end func(), err error) {
	end = func() {
		for _, p := range ps {
			p.End()
		}
	}
	for range n {
		p, err := b.Servers.Process(ctx)
		if err != nil {
			end()
			return nil, nil, err
		}
		ps = append(ps, p)
	}
	return ps, end, nil
}

func processesExclude(ctx context.Context, b Backend) error {
	const processes, goroutines, grants = 4, 8, 5
	folder, err := os.MkdirTemp("", "holdfast-locktest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	ps, end, err := b.processes(ctx, processes)
	if err != nil {
		return err
	}
	defer end()
	var (
		n    = name()
		all  sync.WaitGroup
		errs = make([]error, processes)
	)
	for i, p := range ps {
		all.Go(func() {
			_, errs[i] = p.ask(ctx, fmt.Sprintf("contend %s %s %d %d", n, folder, goroutines, grants))
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	tokens, err := witnessed(folder)
	if err != nil {
		return err
	}
	if len(tokens) != processes*goroutines*grants {
		return fmt.Errorf("%d grants, want %d", len(tokens), processes*goroutines*grants)
	}
	for i := 1; b.Tokens && i < len(tokens); i++ {
		if tokens[i] <= tokens[i-1] {
			return fmt.Errorf("token %d came after %d", tokens[i], tokens[i-1])
		}
	}
	return b.noTrace(ctx, n)
}

// noTrace waits a little until the servers keep nothing under the name.
func (b Backend) noTrace(ctx context.Context, name string) error {
	var traces int
	for deadline := time.Now().Add(late); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		var err error
		if traces, err = b.Servers.Traces(ctx, name); err != nil {
			return err
		}
		if traces == 0 {
			return nil
		}
	}
	return fmt.Errorf("%d keys or nodes are left of the lock", traces)
}

// holder starts a process that holds the lock.
func (b Backend) holder(ctx context.Context, name string) (p *Process, token uint64, err error) {
	ps, _, err := b.processes(ctx, 1)
	if err != nil {
		return nil, 0, err
	}
	answer, err := ps[0].ask(ctx, "hold "+name)
	if err == nil {
		_, err = fmt.Sscanf(answer, "held %d", &token)
	}
	if err != nil {
		ps[0].End()
		return nil, 0, err
	}
	return ps[0], token, nil
}

// within locks once the holder's lease has ended, and not much later.
func (b Backend) within(ctx context.Context, l lock.Locker, name string, since time.Time) (lock.Lease, error) {
	ctx, cancel := context.WithDeadline(ctx, since.Add(b.Lease+late))
	defer cancel()
	lease, err := l.Lock(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%v after its holder was gone, with a lease of %v: %w", time.Since(since), b.Lease, err)
	}
	return lease, nil
}

func killedHolder(ctx context.Context, b Backend) error {
	n := name()
	holder, token, err := b.holder(ctx, n)
	if err != nil {
		return err
	}
	defer holder.End()
	if _, err := b.other().TryLock(ctx, n); !errors.Is(err, lock.ErrHeld) {
		return fmt.Errorf("while its process holds it: %v", err)
	}
	killed := time.Now()
	holder.End()
	lease, err := b.within(ctx, b.other(), n, killed)
	if err != nil {
		return err
	}
	if b.Tokens && lease.Token() <= token {
		return fmt.Errorf("token %d came after the killed holder's %d", lease.Token(), token)
	}
	return lease.Unlock(ctx)
}

func stoppedHolder(ctx context.Context, b Backend) error {
	n := name()
	holder, token, err := b.holder(ctx, n)
	if err != nil {
		return err
	}
	defer holder.End()
	stopped := time.Now()
	if err := holder.signal(syscall.SIGSTOP); err != nil {
		return err
	}
	lease, err := b.within(ctx, b.other(), n, stopped) // proves that it stands: else it would renew
	if err != nil {
		return err
	}
	if b.Tokens && lease.Token() <= token {
		return fmt.Errorf("token %d came after the stopped holder's %d", lease.Token(), token)
	}
	if err := holder.signal(syscall.SIGCONT); err != nil {
		return err
	}
	soon, cancel := context.WithTimeout(ctx, overlap)
	defer cancel()
	answer, err := holder.answer(soon)
	if err != nil || answer != "lost" {
		return fmt.Errorf("the stopped holder said %q when it went on: %v", answer, err)
	}
	if _, err := holder.ask(ctx, "unlock"); err == nil || !strings.Contains(err.Error(), lock.ErrLost.Error()) {
		return fmt.Errorf("the stopped holder's Unlock: %v", err)
	}
	if err := b.waitsInVain(ctx, b.first(), n); err != nil {
		return fmt.Errorf("after the stopped holder's Unlock: %w", err)
	}
	return lease.Unlock(ctx)
}

// waiterCancelledAtEachStep cancels requests for a held lock and for a free one
// after ever longer times, shorter and longer than the request takes.
func waiterCancelledAtEachStep(ctx context.Context, b Backend) error {
	instance, _, err := b.Servers.OverWire(ctx)
	if err != nil {
		return err
	}
	for _, held := range []bool{true, false} {
		n := name()
		var lease lock.Lease
		if held {
			if lease, err = b.first().Lock(ctx, n); err != nil {
				return err
			}
		}
		cancelled := 0
		for step := range 40 {
			asking, cancel := context.WithTimeout(ctx, time.Duration(step*step)*10*time.Microsecond) // to 15 ms
			granted, err := instance.Lock(asking, n)
			cancel()
			switch {
			case err == nil && held:
				return errors.New("a held lock was granted again")
			case err == nil:
				if err := granted.Unlock(ctx); err != nil {
					return err
				}
			case !errors.Is(err, context.DeadlineExceeded):
				return fmt.Errorf("a cancelled request was answered %w", err)
			default:
				cancelled++
			}
		}
		if cancelled == 0 {
			return errors.New("no request was cancelled before its answer")
		}
		if held {
			if err := lease.Unlock(ctx); err != nil {
				return err
			}
		}
		if err := b.noTrace(ctx, n); err != nil {
			return fmt.Errorf("after %d cancelled requests: %w", cancelled, err)
		}
	}
	return nil
}

func holderCutOff(ctx context.Context, b Backend) error {
	n := name()
	instance, wire, err := b.Servers.OverWire(ctx)
	if err != nil {
		return err
	}
	lease, err := instance.Lock(ctx, n)
	if err != nil {
		return err
	}
	if wire.Freeze() == 0 {
		return errors.New("the wire had no connection to freeze")
	}
	frozen := time.Now()
	next, err := b.within(ctx, b.first(), n, frozen)
	if err != nil {
		wire.Thaw()
		return err
	}
	granted := time.Now()
	select {
	case <-lease.Context().Done():
	case <-time.After(overlap):
	}
	heard := time.Since(granted)
	wire.Thaw()
	if heard >= overlap || !errors.Is(context.Cause(lease.Context()), lock.ErrLost) {
		return fmt.Errorf("%v after another was granted the lock, its old holder's context says %v", heard, context.Cause(lease.Context()))
	}
	if b.Tokens && next.Token() <= lease.Token() {
		return fmt.Errorf("token %d came after %d", next.Token(), lease.Token())
	}
	if err := lease.Unlock(ctx); !errors.Is(err, lock.ErrLost) {
		return fmt.Errorf("unlocking what was lost answered %v", err)
	}
	if err := b.waitsInVain(ctx, b.other(), n); err != nil {
		return fmt.Errorf("after the old holder's Unlock: %w", err)
	}
	if err := next.Unlock(ctx); err != nil {
		return err
	}
	return b.noTrace(ctx, n)
}

func waiterCutOff(ctx context.Context, b Backend) error {
	n := name()
	instance, wire, err := b.Servers.OverWire(ctx)
	if err != nil {
		return err
	}
	held, err := b.first().Lock(ctx, n)
	if err != nil {
		return err
	}
	warm, err := instance.Lock(ctx, name()) // so that there is a connection
	if err != nil {
		return err
	}
	if err := warm.Unlock(ctx); err != nil {
		return err
	}
	for _, waiting := range []bool{true, false} { // frozen while it waits, and before it asks
		asking, cancel := context.WithTimeout(ctx, 20*b.waits())
		answer := make(chan error, 1)
		ask := func() {
			_, err := instance.Lock(asking, n)
			answer <- err
		}
		if waiting {
			go ask()
			time.Sleep(10 * b.waits())
		}
		if wire.Freeze() == 0 {
			cancel()
			return errors.New("the wire had no connection to freeze")
		}
		if !waiting {
			go ask()
		}
		select {
		case err = <-answer:
		case <-time.After(20*b.waits() + late):
			err = errors.New("it waits on")
		}
		cancel()
		wire.Thaw()
		if !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("a waiter in a black hole, after its context's end: %v", err)
		}
	}
	if err := held.Unlock(ctx); err != nil {
		return err
	}
	lease, err := b.within(ctx, b.other(), n, time.Now())
	if err != nil {
		return err
	}
	if err := lease.Unlock(ctx); err != nil {
		return err
	}
	return b.noTrace(ctx, n)
}

func connectionCut(ctx context.Context, b Backend) error {
	n := name()
	instance, wire, err := b.Servers.OverWire(ctx)
	if err != nil {
		return err
	}
	lease, err := instance.Lock(ctx, n)
	if err != nil {
		return err
	}
	if wire.Cut() == 0 {
		return errors.New("the wire had no connection to cut")
	}
	asking, cancel := context.WithTimeout(ctx, 2*b.Lease)
	defer cancel()
	next, err := b.other().Lock(asking, n)
	lost := errors.Is(context.Cause(lease.Context()), lock.ErrLost)
	switch {
	case err == nil && !lost:
		return errors.New("another was granted the lock while its holder's context goes on")
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		return err
	case err == nil:
		if err := next.Unlock(ctx); err != nil {
			return err
		}
	}
	if err := lease.Unlock(ctx); lost != errors.Is(err, lock.ErrLost) {
		return fmt.Errorf("unlocking, lost %v: %v", lost, err)
	}
	again, err := b.within(ctx, instance, n, time.Now())
	if err != nil {
		return fmt.Errorf("its own instance, later: %w", err)
	}
	return again.Unlock(ctx)
}

func resumesAfterRestart(ctx context.Context, b Backend) error {
	ps, end, err := b.processes(ctx, 2)
	if err != nil {
		return err
	}
	defer end()
	var (
		n       = name()
		during  = 2*b.Lease + 12*time.Second
		all     sync.WaitGroup
		answers = make([]string, len(ps))
		errs    = make([]error, len(ps))
	)
	for i, p := range ps {
		all.Go(func() {
			answers[i], errs[i] = p.ask(ctx, fmt.Sprintf("try %s %d %d", n, 4, during.Milliseconds()))
		})
	}
	time.Sleep(10 * b.waits())
	if err := b.Servers.Restart(); err != nil {
		return err
	}
	lease, err := b.eventually(ctx, n)
	if err != nil {
		return err
	}
	if err := lease.Unlock(ctx); err != nil {
		return fmt.Errorf("after the restart: %w", err)
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, answer := range answers {
		var grants int
		if _, err := fmt.Sscanf(answer, "done %d", &grants); err != nil || grants == 0 {
			return fmt.Errorf("a contender says %q", answer)
		}
	}
	return nil
}

// eventually locks once the servers are back, whatever errors come before. How
// long that takes is bounded only from when the instance is connected again: a
// client that tries once a second, and breaks off where a busy machine's disk
// holds up its pings, says nothing about the lock.
func (b Backend) eventually(ctx context.Context, n string) (lock.Lease, error) {
	var connected time.Time
	for {
		free, err := b.first().Lock(ctx, name())
		if err == nil {
			connected = time.Now()
			_ = free.Unlock(ctx)
			break
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("the instance does not come back: %w", err)
		}
		time.Sleep(b.waits())
	}
	for {
		lease, err := b.within(ctx, b.first(), n, connected)
		if err == nil || time.Since(connected) > b.Lease+late {
			return lease, err
		}
		time.Sleep(b.waits())
	}
}

func heldThroughRestart(ctx context.Context, b Backend) error {
	n := name()
	lease, err := b.first().Lock(ctx, n)
	if err != nil {
		return err
	}
	if err := b.Servers.Restart(); err != nil {
		return err
	}
	next, err := func() (lock.Lease, error) {
		ctx, cancel := context.WithTimeout(ctx, b.Lease)
		defer cancel()
		for {
			next, err := b.other().Lock(ctx, n)
			if err == nil || ctx.Err() != nil {
				return next, err
			}
			time.Sleep(b.waits())
		}
	}()
	if err == nil {
		if !errors.Is(context.Cause(lease.Context()), lock.ErrLost) {
			return errors.New("another was granted the lock while its holder's context goes on")
		}
		if b.Tokens && next.Token() <= lease.Token() {
			return fmt.Errorf("token %d came after %d", next.Token(), lease.Token())
		}
		_ = next.Unlock(ctx)
	}
	_ = lease.Unlock(ctx)
	last, err := b.eventually(ctx, n)
	if err != nil {
		return err
	}
	return last.Unlock(ctx)
}
