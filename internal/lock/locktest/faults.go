package locktest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// Some promises say how soon a holder learns that it lost the lock. No event marks that moment.
const (
	// maxOverlap bounds how long after another's grant a holder learns that it lost the lock. The
	// backend learns of the loss by asking its servers.
	maxOverlap = 1500 * time.Millisecond
	// maxLate bounds how long after the end of its lease a holder learns that it lost the
	// lock.
	maxLate = time.Second
	// maxNotice bounds how long after the deletion of its lock a holder notices it, on a busy
	// machine. A lease must be much longer.
	maxNotice = 5 * time.Second
)

// endsWithin reports whether ctx ends within d. It measures in short steps. While the machine is
// too busy to run this process, a step takes longer, so the limit is longer too.
func endsWithin(ctx context.Context, d time.Duration) bool {
	for range d / endStep {
		select {
		case <-ctx.Done():
			return true
		case <-time.After(endStep):
		}
	}
	return ctx.Err() != nil
}

// endStep is the length of a step of endsWithin.
const endStep = 10 * time.Millisecond

// startProcesses starts n instances with the lease. end ends them.
func (s Subject) startProcesses(n int, lease time.Duration) (ps []Process, end func(), err error) {
	end = func() {
		for _, p := range ps {
			p.End()
		}
	}
	for range n {
		p, err := s.Servers.Process(lease)
		if err != nil {
			end()
			return nil, nil, err
		}
		ps = append(ps, p)
	}
	return ps, end, nil
}

func processesExclude(ctx context.Context, s Subject) error {
	const processes, goroutines, grants = 4, 8, 5
	folder, err := os.MkdirTemp("", "holdfast-locktest-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	ps, end, err := s.startProcesses(processes, s.LongLease)
	if err != nil {
		return err
	}
	defer end()
	var (
		name = newName()
		all  sync.WaitGroup
		errs = make([]error, processes)
	)
	for i, p := range ps {
		all.Go(func() {
			_, errs[i] = p.ask(ctx, fmt.Sprintf("contend %s %s %d %d", name, folder, goroutines, grants))
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	tokens, err := recordedTokens(folder)
	if err != nil {
		return err
	}
	if len(tokens) != processes*goroutines*grants {
		return fmt.Errorf("%d grants, want %d", len(tokens), processes*goroutines*grants)
	}
	for i := 1; s.Tokens && i < len(tokens); i++ {
		if tokens[i] <= tokens[i-1] {
			return fmt.Errorf("token %d was followed by token %d", tokens[i-1], tokens[i])
		}
	}
	return s.leavesNoTrace(ctx, name)
}

// leavesNoTrace waits until the servers store nothing for the lock.
func (s Subject) leavesNoTrace(ctx context.Context, name string) error {
	return s.waitForTraces(ctx, name, func(traces int) bool { return traces == 0 })
}

// waitForTraces waits until enough is true for the number of keys or nodes that
// the servers store for the lock.
func (s Subject) waitForTraces(ctx context.Context, name string, enough func(traces int) bool) error {
	return testenv.Poll(s.bound(), func() error {
		traces, err := s.Servers.Traces(ctx, name)
		if err == nil && !enough(traces) {
			err = fmt.Errorf("after %v the servers store %d keys or nodes for the lock", s.bound(), traces)
		}
		return err
	})
}

// startHolder starts a process that holds the lock.
func (s Subject) startHolder(ctx context.Context, name string) (p Process, token uint64, err error) {
	ps, _, err := s.startProcesses(1, s.Lease)
	if err != nil {
		return p, 0, err
	}
	answer, err := ps[0].ask(ctx, "hold "+name)
	if err == nil {
		_, err = fmt.Sscanf(answer, "held %d", &token)
	}
	if err != nil {
		ps[0].End()
		return p, 0, err
	}
	return ps[0], token, nil
}

// lockAfterLease takes the lock of a holder that was lost at the given time. It
// fails if that takes much longer than the holder's lease.
func (s Subject) lockAfterLease(ctx context.Context, l lock.Locker, name string, lost time.Time) (lock.Lease, error) {
	ctx, cancel := context.WithDeadline(ctx, lost.Add(s.Lease+s.bound()))
	defer cancel()
	lease, err := l.Lock(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%v after the holder was lost, with a lease of %v: %w", time.Since(lost), s.Lease, err)
	}
	return lease, nil
}

func killedHolder(ctx context.Context, s Subject) error {
	name := newName()
	holder, token, err := s.startHolder(ctx, name)
	if err != nil {
		return err
	}
	defer holder.End()
	if _, err := s.other().TryLock(ctx, name); !errors.Is(err, lock.ErrHeld) {
		return fmt.Errorf("TryLock while another process holds the lock returned %v", err)
	}
	killed := time.Now()
	holder.End()
	lease, err := s.lockAfterLease(ctx, s.other(), name, killed)
	if err != nil {
		return err
	}
	return errors.Join(s.rising(token, lease), lease.Unlock(ctx))
}

func stoppedHolder(ctx context.Context, s Subject) error {
	name := newName()
	holder, token, err := s.startHolder(ctx, name)
	if err != nil {
		return err
	}
	defer holder.End()
	stopped := time.Now()
	if err := holder.Stop(); err != nil {
		return err
	}
	lease, err := s.lockAfterLease(ctx, s.other(), name, stopped) // a running holder would renew its lease
	if err != nil {
		return err
	}
	if err := s.rising(token, lease); err != nil {
		return err
	}
	if err := holder.Cont(); err != nil {
		return err
	}
	// The waiter should fail at once, but a busy machine may delay it: see HolderCutOff for the
	// time.
	waiting, cancel := context.WithTimeout(ctx, s.bound())
	defer cancel()
	answer, err := holder.answer(waiting)
	if err != nil || answer != "lost" {
		return fmt.Errorf("when the stopped holder continued, it answered %q, %v; want lost", answer, err)
	}
	if _, err := holder.ask(ctx, "unlock"); err == nil || !strings.Contains(err.Error(), lock.ErrLost.Error()) {
		return fmt.Errorf("unlocking as the stopped holder returned %v", err)
	}
	if err := s.mustWait(ctx, s.first(), name); err != nil {
		return fmt.Errorf("after Unlock of the stopped holder: %w", err)
	}
	return lease.Unlock(ctx)
}

// cancelledAtAnyMoment cancels requests for a held lock and for a free one after 0 to 15 ms. These
// times are both shorter and longer than a request takes.
func cancelledAtAnyMoment(ctx context.Context, s Subject) error {
	instance, _, err := s.Servers.OverWire(ctx, s.Lease)
	if err != nil {
		return err
	}
	for _, held := range []bool{true, false} {
		name := newName()
		var lease lock.Lease
		if held {
			if lease, err = s.first().Lock(ctx, name); err != nil {
				return err
			}
		}
		cancelled, err := cancelRequests(ctx, instance, name, held)
		if err != nil {
			return err
		}
		if cancelled == 0 {
			return errors.New("every request was answered before it was cancelled")
		}
		if held {
			if err := lease.Unlock(ctx); err != nil {
				return err
			}
		}
		if err := s.leavesNoTrace(ctx, name); err != nil {
			return fmt.Errorf("after %d cancelled requests: %w", cancelled, err)
		}
	}
	return nil
}

// cancelRequests requests the lock 40 times, each time with a later deadline, and
// returns how many requests were cancelled before they were answered.
func cancelRequests(ctx context.Context, instance lock.Locker, name string, held bool) (cancelled int, err error) {
	for step := range 40 {
		short, cancel := context.WithTimeout(ctx, time.Duration(step*step)*10*time.Microsecond)
		granted, err := instance.Lock(short, name)
		cancel()
		switch {
		case err == nil && held:
			return 0, errors.New("a held lock was granted again")
		case err == nil:
			if err := granted.Unlock(ctx); err != nil {
				return 0, err
			}
		case !errors.Is(err, context.DeadlineExceeded):
			return 0, fmt.Errorf("a cancelled request returned %w", err)
		default:
			cancelled++
		}
	}
	return cancelled, nil
}

var errNoConnection = errors.New("the wire has no connection")

func holderCutOff(ctx context.Context, s Subject) error {
	name := newName()
	instance, wire, err := s.Servers.OverWire(ctx, s.Lease)
	if err != nil {
		return err
	}
	lease, err := instance.Lock(ctx, name)
	if err != nil {
		return err
	}
	if wire.Freeze() == 0 {
		return errNoConnection
	}
	frozen := time.Now()
	inTime := make(chan bool, 1)
	go func() { inTime <- endsWithin(lease.Context(), s.Lease+maxLate) }()
	next, err := s.lockAfterLease(ctx, s.first(), name, frozen)
	if err != nil {
		wire.Thaw()
		return err
	}
	granted := time.Now()
	learned := endsWithin(lease.Context(), maxOverlap)
	overlap := time.Since(granted)
	wire.Thaw()
	if !learned || !errors.Is(context.Cause(lease.Context()), lock.ErrLost) {
		return fmt.Errorf("%v after another was granted the lock, the cause of the old lease's end is %v", overlap, context.Cause(lease.Context()))
	}
	if !<-inTime {
		return fmt.Errorf("a lease of %v had not ended %v after the network froze", s.Lease, s.Lease+maxLate)
	}
	if err := s.rising(lease.Token(), next); err != nil {
		return err
	}
	if err := lease.Unlock(ctx); !errors.Is(err, lock.ErrLost) {
		return fmt.Errorf("unlocking a lost lease returned %v", err)
	}
	if err := s.mustWait(ctx, s.other(), name); err != nil {
		return fmt.Errorf("after Unlock of the lost lease: %w", err)
	}
	if err := next.Unlock(ctx); err != nil {
		return err
	}
	return s.leavesNoTrace(ctx, name)
}

// deletedHolder deletes a lock just after its grant, one that has been held for a while, and one
// whose holder then asks for a confirmation.
func deletedHolder(ctx context.Context, s Subject) error {
	for _, test := range []struct {
		heldFor time.Duration
		asks    bool
	}{{0, false}, {time.Second, false}, {0, true}} {
		name := newName()
		lease, err := s.first().Lock(ctx, name)
		if err != nil {
			return err
		}
		if endsWithin(lease.Context(), test.heldFor) { // only the time for which the lock is held differs
			return fmt.Errorf("the lease ended before its key was deleted: %w", context.Cause(lease.Context()))
		}
		reason, err := s.Servers.Delete(ctx, name)
		if err != nil {
			return err
		}
		if confirmer, ok := lease.(lock.Confirmer); test.asks && ok {
			if _, err := confirmer.Confirm(ctx); !errors.Is(err, reason) {
				return fmt.Errorf("a confirmation of a deleted lock returned %w, want %w", err, reason)
			}
		} else if !endsWithin(lease.Context(), maxNotice) {
			return fmt.Errorf("held for %v: the holder has not learned that its lock was deleted", test.heldFor)
		} else if cause := context.Cause(lease.Context()); !errors.Is(cause, reason) {
			return fmt.Errorf("the lease ended with the cause %w, want %w", cause, reason)
		}
		if err := lockAndUnlock(ctx, s.other(), name); err != nil {
			return fmt.Errorf("after the deletion: %w", err)
		}
		if err := lease.Unlock(ctx); !errors.Is(err, reason) {
			return fmt.Errorf("unlocking a deleted lock returned %w", err)
		}
	}
	return nil
}

// waiterCutOff cuts off a waiter of an instance. The instance has a long lease, because a busy
// machine must renew it in time, and some backends want an answer within a part of it.
func waiterCutOff(ctx context.Context, s Subject) error {
	name := newName()
	instance, wire, err := s.Servers.OverWire(ctx, s.LongLease)
	if err != nil {
		return err
	}
	held, err := s.first().Lock(ctx, name)
	if err != nil {
		return err
	}
	if err := lockAndUnlock(ctx, instance, newName()); err != nil { // so that the wire has a connection
		return err
	}
	for _, frozenWhileWaiting := range []bool{true, false} {
		if !frozenWhileWaiting { // the previous request may have closed its connection
			_ = lockAndUnlock(ctx, instance, newName()) // if this lock fails, the request opens another connection
		}
		err := s.freezeRequest(ctx, instance, wire, name, frozenWhileWaiting)
		wire.Thaw()
		if !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("a request on a frozen network returned %v, want its context's error", err)
		}
	}
	if err := held.Unlock(ctx); err != nil {
		return err
	}
	lease, err := s.lockAfterLease(ctx, s.other(), name, time.Now())
	if err != nil {
		return err
	}
	if err := lease.Unlock(ctx); err != nil {
		return err
	}
	return s.leavesNoTrace(ctx, name)
}

// freezeRequest makes a request for a held lock, and freezes the wire before the request or while
// it waits. It returns the request's error.
func (s Subject) freezeRequest(ctx context.Context, l lock.Locker, wire Wire, name string, whileWaiting bool) error {
	timeout := 20 * s.patience()
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	answer := make(chan error, 1)
	request := func() {
		_, err := l.Lock(limited, name)
		answer <- err
	}
	if whileWaiting {
		go request()
		// A Locker does not show who waits. On a busy machine, this wait may take longer, but the
		// request's timeout must not end meanwhile.
		_ = endsWithin(ctx, timeout/8)
	}
	if wire.Freeze() == 0 && whileWaiting {
		return errNoConnection
	}
	if !whileWaiting { // without a connection, the request must open one, which gets no answer
		go request()
	}
	bounded, cancelBounded := context.WithTimeout(ctx, timeout+s.bound())
	defer cancelBounded()
	select {
	case err := <-answer:
		return err
	case <-bounded.Done():
		return fmt.Errorf("it has not returned %v after its context's end", s.bound())
	}
}

func connectionCut(ctx context.Context, s Subject) error {
	name := newName()
	instance, wire, err := s.Servers.OverWire(ctx, s.Lease)
	if err != nil {
		return err
	}
	lease, err := instance.Lock(ctx, name)
	if err != nil {
		return err
	}
	if wire.Cut() == 0 {
		return errNoConnection
	}
	cut := time.Now()
	limited, cancel := context.WithTimeout(ctx, 2*s.Lease)
	defer cancel()
	next, err := s.other().Lock(limited, name)
	if err == nil && time.Since(cut) > s.Lease { // the machine was too busy to renew the lease
		_ = endsWithin(lease.Context(), maxOverlap)
	}
	lost := errors.Is(context.Cause(lease.Context()), lock.ErrLost)
	switch {
	case err == nil && !lost:
		return errGrantedTwice
	case err != nil && !errors.Is(err, context.DeadlineExceeded):
		return err
	case err == nil:
		if err := next.Unlock(ctx); err != nil {
			return err
		}
	}
	if err := lease.Unlock(ctx); lost != errors.Is(err, lock.ErrLost) {
		return fmt.Errorf("the lease was lost: %t; Unlock returned %v", lost, err)
	}
	again, err := s.lockAfterLease(ctx, instance, name, time.Now())
	if err != nil {
		return fmt.Errorf("the same instance later: %w", err)
	}
	return again.Unlock(ctx)
}

var errGrantedTwice = errors.New("another was granted the lock before the holder learned that it lost it")

func resumesAfterRestart(ctx context.Context, s Subject) error {
	ps, end, err := s.startProcesses(2, s.Lease)
	if err != nil {
		return err
	}
	defer end()
	name := newName()
	for _, p := range ps {
		if err := p.expect(ctx, fmt.Sprintf("try %s %d", name, 4), "granted"); err != nil {
			return fmt.Errorf("before the restart: %w", err)
		}
	}
	if err := s.Servers.Restart(); err != nil {
		return err
	}
	lease, err := s.lockAfterRestart(ctx, name)
	if err != nil {
		return err
	}
	if err := lease.Unlock(ctx); err != nil {
		return fmt.Errorf("after the restart: %w", err)
	}
	for _, p := range ps {
		if err := p.expect(ctx, "again", "granted"); err != nil {
			return fmt.Errorf("after the restart: %w", err)
		}
	}
	for _, p := range ps {
		if err := p.expect(ctx, "stop", "done"); err != nil {
			return fmt.Errorf("stopping the contenders: %w", err)
		}
	}
	return nil
}

// lockAfterRestart takes the lock after the servers have been restarted. Before that it waits,
// without a bound, until the instance is connected again. Slow reconnection says nothing about the
// lock: a client may try once a second, and fail while a busy disk delays its pings.
func (s Subject) lockAfterRestart(ctx context.Context, name string) (lock.Lease, error) {
	for {
		free, err := s.first().Lock(ctx, newName())
		if err == nil {
			_ = free.Unlock(ctx)
			break
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("the instance has not connected again: %w", err)
		}
		testenv.Dither() // pause before the next attempt
	}
	connected := time.Now()
	limited, cancel := context.WithDeadline(ctx, connected.Add(s.Lease+s.bound()))
	defer cancel()
	for {
		lease, err := s.lockAfterLease(ctx, s.first(), name, connected)
		if err == nil || limited.Err() != nil {
			return lease, err
		}
		testenv.Dither() // pause before the next attempt
	}
}

func heldThroughRestart(ctx context.Context, s Subject) error {
	name := newName()
	lease, err := s.first().Lock(ctx, name)
	if err != nil {
		return err
	}
	if err := s.Servers.Restart(); err != nil {
		return err
	}
	if next, err := s.retryForLease(ctx, name); err == nil {
		if !errors.Is(context.Cause(lease.Context()), lock.ErrLost) {
			return errGrantedTwice
		}
		if err := s.rising(lease.Token(), next); err != nil {
			return err
		}
		_ = next.Unlock(ctx)
	}
	_ = lease.Unlock(ctx)
	last, err := s.lockAfterRestart(ctx, name)
	if err != nil {
		return err
	}
	return last.Unlock(ctx)
}

// retryForLease asks for the lock, despite errors, until a lease would have ended.
func (s Subject) retryForLease(ctx context.Context, name string) (lock.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Lease)
	defer cancel()
	for {
		lease, err := s.other().Lock(ctx, name)
		if err == nil || ctx.Err() != nil {
			return lease, err
		}
		testenv.Dither() // pause before the next attempt
	}
}
