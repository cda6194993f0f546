package lock

import (
	"context"
	"errors"
	"testing"
	"time"
)

// confirmed is a grant that the backend confirms.
type confirmed struct {
	*expiring
	err error
}

func (g confirmed) Confirm(context.Context) (time.Time, error) {
	return g.Until().Add(time.Minute), g.err
}

// TestConfirm checks how a lease changes with the backend's answer to a confirmation.
func TestConfirm(t *testing.T) {
	t.Parallel()
	expires := newExpiring(time.Hour)
	for _, test := range []struct {
		name  string
		grant Grant
		until time.Time
		err   error
	}{
		{"the backend asks its servers", confirmed{expires, nil}, expires.Until().Add(time.Minute), nil},
		{"the servers do not have it", confirmed{expires, ErrLost}, time.Time{}, ErrLost},
		{"the backend cannot ask", localGrant(1), time.Time{}, errors.ErrUnsupported},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			lease := mustLock(t, granting(test.grant), "a")
			c := lease.(Confirmer)
			if until, err := c.Confirm(t.Context()); !until.Equal(test.until) || !errors.Is(err, test.err) {
				t.Errorf("confirmed until %v, %v; want %v, %v", until, err, test.until, test.err)
			}
			mustUnlock(t, lease)
			if _, err := c.Confirm(t.Context()); err == nil {
				t.Error("a lease that has ended is confirmed")
			}
		})
	}
}
