package lock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestObserved checks the events of requests and leases, with their times.
func TestObserved(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := make(grantsInTurn, 3)
		var events []Event
		l := Observed(New(b), func(e Event) { events = append(events, e) })
		b <- slowRelease{watched{localGrant(1), make(chan struct{}), make(chan error)}}
		lease := mustLock(t, l, "a")
		if _, err := l.TryLock(t.Context(), "a"); !errors.Is(err, ErrHeld) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Lock(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		mustUnlock(t, lease)
		mustUnlock(t, lease) // reports nothing
		time.AfterFunc(time.Second, func() { b <- newExpiring(5 * time.Second) })
		lease = mustLock(t, l, "b")
		<-lease.Context().Done()
		synctest.Wait()
		if n := len(events); n != 6 {
			t.Errorf("%d events before Unlock of the lost lease", n)
		}
		_ = lease.Unlock(t.Context()) // reports nothing

		want := []Event{
			{Granted, 0, nil},
			{Refused, 0, ErrHeld},
			{Refused, time.Second, context.DeadlineExceeded},
			{Released, 4 * time.Second, nil}, // with its slow release
			{Granted, time.Second, nil},
			{Lost, 5 * time.Second, ErrExpired},
		}
		if len(events) != len(want) {
			t.Fatalf("the events are %v, want %v", events, want)
		}
		for i, e := range events {
			err := want[i].Err
			want[i].Err = e.Err
			if e != want[i] || !errors.Is(e.Err, err) {
				t.Errorf("event %d is %v, want %v with the error %v", i, e, want[i], err)
			}
		}
	})
}

// brokenRelease is a grant that is lost when it is released.
type brokenRelease struct{ localGrant }

func (brokenRelease) Release(context.Context) error { return ErrDeleted }

// TestObserved_FailedUnlock checks the event if Unlock fails: the holder learns only from Unlock
// that its lock was lost, or the backend fails.
func TestObserved_FailedUnlock(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		grant Grant
		what  What
		err   error
	}{{brokenRelease{}, Lost, ErrDeleted}, {refusesRelease{}, Released, errBackend}} {
		var last Event
		l := Observed(granting(test.grant), func(e Event) { last = e })
		if err := mustLock(t, l, "a").Unlock(t.Context()); !errors.Is(err, test.err) {
			t.Errorf("Unlock: %v, want %v", err, test.err)
		}
		if last.What != test.what || !errors.Is(last.Err, test.err) {
			t.Errorf("the last event is %v, want %s with the error %v", last, test.what, test.err)
		}
	}
}
