//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// fakeLease is a lease, and the Locker that grants it. Its servers answer as the test says.
type fakeLease struct {
	confirm  func(ctx context.Context) (until time.Time, err error)
	unlocked error
}

func (l fakeLease) Lock(context.Context, string) (lock.Lease, error)         { return l, nil }
func (l fakeLease) TryLock(context.Context, string) (lock.Lease, error)      { return l, nil }
func (fakeLease) Context() context.Context                                   { return context.Background() }
func (fakeLease) Token() uint64                                              { return 1 }
func (l fakeLease) Unlock(context.Context) error                             { return l.unlocked }
func (l fakeLease) Confirm(ctx context.Context) (until time.Time, err error) { return l.confirm(ctx) }
func (fakeLease) Connection() (syscall.RawConn, error)                       { return nil, nil }
func (l fakeLease) confirmedFor(d time.Duration) fakeLease {
	l.confirm = func(context.Context) (time.Time, error) { return time.Now().Add(d), nil }
	return l
}

// slot returns a slot with the lease.
func (l fakeLease) slot(t *testing.T) *recipe.Slot {
	t.Helper()
	s, err := recipe.NewSemaphore(l, "a", 1)
	if err != nil {
		t.Fatal(err)
	}
	slot, err := s.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

// TestFailedConfirmation checks that a command continues after a confirmation has failed, and ends
// when the servers say that the lock is lost.
func TestFailedConfirmation(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		answers := make(chan error)
		l := &lease{length: time.Minute, slot: fakeLease{confirm: func(ctx context.Context) (time.Time, error) {
			if _, bounded := ctx.Deadline(); !bounded {
				t.Error("a confirmation has no bound")
			}
			return time.Now(), <-answers
		}}.slot(t)}
		confirmed, lost := make(chan time.Time), make(chan error, 1)
		go l.keepConfirming(ctx, time.Second, confirmed, lost)
		answers <- errors.New("no answer")
		answers <- nil
		<-confirmed
		answers <- lock.ErrDeleted
		if err := <-lost; !errors.Is(err, lock.ErrDeleted) {
			t.Error(err)
		}
	})
}

// TestOverdue checks that a deadline that has passed is not moved, and that a command is killed
// before its lease ends, even if the grace is long.
func TestOverdue(t *testing.T) {
	t.Parallel()
	_, orders := pipe(t)
	l := &lease{grace: time.Hour, term: time.Now(), kill: time.Now().Add(time.Minute)}
	if err := l.prolong(1<<30, &guard{orders: orders}, time.Now().Add(24*time.Hour)); !errors.Is(err, errOverdue) {
		t.Errorf("the deadline is moved: %v", err)
	}
	if at := l.killAt(); !at.Equal(l.kill) {
		t.Errorf("the command is killed at %v, want %v", at, l.kill)
	}
}

// parsed returns the configuration of the arguments.
func parsed(t *testing.T, args []string) config {
	t.Helper()
	c, err := parse(args, nil, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// asksNoServer are flags for a lock that the test grants.
var asksNoServer = []string{"--redis", "redis://127.0.0.1:1", "--name", "a", "--lease", "1h"}

// TestShortLease checks that a grace that does not fit into the lease that the servers grant is a
// mistake of the user.
func TestShortLease(t *testing.T) {
	t.Parallel()
	c := parsed(t, with(asksNoServer, "--grace", "30m", "--", "true"))
	mustFail(t, runAndUnlock(c, fakeLease{}.confirmedFor(time.Minute).slot(t), nil), exitUsage)
}

// TestLateConfirmation checks that the command does not begin if withlock was stopped while it
// confirmed the lock, until the lease had ended. That is not a usage error.
func TestLateConfirmation(t *testing.T) {
	t.Parallel()
	l := &lease{slot: fakeLease{}.confirmedFor(0).slot(t)} // the lease ends after withlock has asked, and before it has the answer
	var begin bytes.Buffer
	if err := l.letBegin(noGroup, readyGuard(t), &begin); !errors.Is(err, errOverdue) || begin.Len() > 0 {
		t.Errorf("%v, and withlock sends %q to the command", err, begin.Bytes())
	}
}

// TestLostAtUnlock checks the exit code if withlock learns only from Unlock that the lock was lost.
func TestLostAtUnlock(t *testing.T) {
	t.Parallel()
	c := parsed(t, with(asksNoServer, "--", "true"))
	mustFail(t, runAndUnlock(c, fakeLease{unlocked: lock.ErrDeleted}.confirmedFor(time.Hour).slot(t), nil), exitLost)
}

// TestGuardKillsInTime checks that the guard of a withlock that has died kills the command before
// the lease ends, even if the grace is long.
func TestGuardKillsInTime(t *testing.T) {
	t.Parallel()
	g, err := startGuard(time.Hour, fakeLease{}.slot(t))
	if err != nil {
		t.Fatal(err)
	}
	defer g.stop()
	command := exec.CommandContext(t.Context(), "sh", "-c", `trap "" TERM; echo; sleep 300`)
	command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	trapped, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = command.Wait() }()
	defer func() { _ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) }()
	if _, err := trapped.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if err := g.extend(command.Process.Pid, time.Now().Add(time.Hour), time.Now()); err != nil {
		t.Fatal(err)
	}
	g.orders.Close() // as when withlock dies
	testenv.Receive(t, "the guard ends", g.exited)
}

// TestSilentGuard checks that withlock does not wait forever for a guard that does not start.
func TestSilentGuard(t *testing.T) {
	t.Parallel()
	ready, _ := pipe(t)
	failed := make(chan error, 1)
	go func() { failed <- (&guard{ready: ready}).awaitReady() }()
	if err := testenv.Receive(t, "the wait for the guard ends", failed); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
}
