package session

import (
	"cmp"
	"context"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
)

// Confirm makes the session check the lock at once. The check does not end with ctx, because
// cancelling a statement would close the connection and so free the lock.
func (g *grant) Confirm(ctx context.Context) (until time.Time, err error) {
	confirmed := make(chan time.Time, 1)
	requests := g.confirms
	if g.checks.Stop() { // the first check runs for this call
		requests = nil
		go g.begin(confirmed)
	}
	for {
		select {
		case requests <- confirmed:
			requests = nil // the check is under way
		case until := <-confirmed:
			return until, nil
		case <-g.stopped:
			return time.Time{}, cmp.Or(g.lost, lock.ErrLost) // nil: the lock is being released
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}
