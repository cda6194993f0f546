//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
)

// lostError returns the error of a lost lock.
func lostError(c config, err error) error {
	return exitError{fmt.Errorf("the lock %s was lost and the command was ended: %w", c.Name, err), exitLost}
}

// notAcquiredError returns the error of a lock that was lost before the command began.
func notAcquiredError(c config, err error) error {
	return exitError{fmt.Errorf("the lock %s was not acquired: %w", c.Name, err), exitNotAcquired}
}

// lease follows the end of the lock's lease. Its deadlines belong to one goroutine.
type lease struct {
	slot   *recipe.Slot
	length time.Duration
	grace  time.Duration
	term   time.Time // when the command must get SIGTERM
	kill   time.Time // when the command must get SIGKILL
}

// tenth is the time between SIGKILL and the end of the lease, and the pause between two
// confirmations: a tenth of the lease, but at most a second. A lease is at least twice as
// long as the grace, so several confirmations fit into the time before SIGTERM.
func (l *lease) tenth() time.Duration { return min(l.length/10, time.Second) }

// confirm asks the backend for the time until which it grants the lock to nobody else.
func (l *lease) confirm(ctx context.Context) (until time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, min(l.length/4, callTimeout))
	defer cancel()
	return l.slot.Confirm(ctx)
}

// extend sets the deadlines by the end of the lease.
func (l *lease) extend(until time.Time) {
	l.kill = until.Add(-l.tenth())
	l.term = l.kill.Add(-l.grace)
}

// overdue reports whether the command must have got SIGTERM.
func (l *lease) overdue() bool { return !time.Now().Before(l.term) }

// killAt returns when a command that gets SIGTERM now must get SIGKILL.
func (l *lease) killAt() time.Time {
	if soon := time.Now().Add(l.grace); soon.Before(l.kill) {
		return soon
	}
	return l.kill
}

// keepConfirming confirms the lock, with pauses, until ctx ends. It sends the end of the
// lease to confirmed, or an error to lost when the backend says that the lock is lost.
func (l *lease) keepConfirming(ctx context.Context, pause time.Duration, confirmed chan<- time.Time, lost chan<- error) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		until, err := l.confirm(ctx)
		switch {
		case err == nil:
			select {
			case confirmed <- until:
			case <-ctx.Done():
				return
			}
		case errors.Is(err, lock.ErrLost):
			lost <- err // the channel has room for one error
			return
		}
	}
}

// prolong sets the deadlines by the end of the lease, and tells the guard, unless the
// guard has ended the group already.
func (l *lease) prolong(group int, g *guard, until time.Time) error {
	if l.overdue() {
		return errOverdue
	}
	l.extend(until)
	if g.extend(group, l.term, l.kill) != nil {
		return errNoGuard
	}
	return nil
}

// outlast waits until the group has ended or the lock is lost. Processes of another user, or
// in a system call that cannot be interrupted, outlive SIGKILL. The lock is renewed meanwhile.
// Unlock reports a loss.
func (l *lease) outlast(group int) {
	for l.slot.Context().Err() == nil {
		if awaitGroup(group, monotonic()+int64(l.tenth())) {
			return
		}
	}
}
