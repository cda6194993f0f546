package lock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestLeftovers checks when free is no longer called for a leftover.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	type answer struct {
		found bool
		err   error
		hangs bool // until the end of the call
	}
	silence := answer{err: errors.New("no answer")}
	for name, answers := range map[string][]answer{
		"found":                 {{found: true}},
		"found after silence":   {silence, silence, {found: true}},
		"found after a hang":    {{hangs: true, err: context.DeadlineExceeded}, {found: true}},
		"absent":                {{}, {}},
		"absent, then silence":  {{}, silence, {}, {}},
		"absent and then found": {{}, {found: true}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var l Leftovers
				for range 2 { // the second leftover is added when none is left
					calls := 0
					l.Add(time.Now().Add(time.Minute), func(ctx context.Context) (bool, error) {
						calls++
						if answers[calls-1].hangs { // panics if free is called too often
							<-ctx.Done()
						}
						return answers[calls-1].found, answers[calls-1].err
					})
					l.running.Wait()
					if calls != len(answers) {
						t.Errorf("%d calls, want %d", calls, len(answers))
					}
				}
			})
		})
	}
}

// TestLeftoversEnd checks that free is not called for a leftover that has ended, or that is added
// after Close. The number of leftovers is bounded. Close must end the call under way.
func TestLeftoversEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var l Leftovers
		never := func(context.Context) (bool, error) {
			t.Error("it was asked for")
			return true, nil
		}
		l.Add(time.Now(), never)
		called := make(chan struct{})
		l.Add(time.Now().Add(time.Minute), func(ctx context.Context) (bool, error) {
			close(called)
			<-ctx.Done()
			return false, ctx.Err()
		})
		<-called
		for range maxLeftovers + 1 {
			l.Add(time.Now().Add(time.Minute), never)
		}
		if n := len(l.pending); n != maxLeftovers {
			t.Errorf("%d leftovers wait, want %d", n, maxLeftovers)
		}
		asked := time.Now()
		l.Close()
		if took := time.Since(asked); took != 0 {
			t.Errorf("Close took %v", took)
		}
		l.Add(time.Now().Add(time.Minute), never)
		l.running.Wait()
	})
}
