package lock

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestLeftovers checks when free is no longer called for a leftover, and the pauses between calls.
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
				pauses := time.Duration(len(answers)-1) * leftoverPause
				for _, a := range answers {
					if a.hangs {
						pauses += releaseTimeout
					}
				}
				var l Leftovers
				for range 2 { // the second leftover is added when none is left
					calls, asked := 0, time.Now()
					l.Add(time.Now().Add(time.Minute), func(ctx context.Context) (bool, error) {
						calls++
						if answers[calls-1].hangs { // panics if free is called too often
							<-ctx.Done()
						}
						return answers[calls-1].found, answers[calls-1].err
					})
					l.running.Wait()
					if took := time.Since(asked); calls != len(answers) || took != pauses {
						t.Errorf("%d calls in %v, want %d in %v", calls, took, len(answers), pauses)
					}
				}
			})
		})
	}
}

// TestLeftoversEnd checks that free is not called for a leftover that has ended, or that is added
// after Close. The number of leftovers is bounded. Close must end the call under way, and wait for
// it.
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
			time.Sleep(time.Second) // in the bubble's time
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
		if took := time.Since(asked); took != time.Second {
			t.Errorf("Close took %v, want until the end of the call", took)
		}
		l.Add(time.Now().Add(time.Minute), never)
		l.running.Wait()

		// A leftover that cannot be freed waits again. It must not make room for any number of
		// others.
		var full Leftovers
		begun, fail := make(chan struct{}), make(chan struct{})
		full.Add(time.Now().Add(time.Minute), func(context.Context) (bool, error) {
			close(begun)
			<-fail
			return false, errors.New("no answer")
		})
		<-begun
		for range maxLeftovers {
			full.Add(time.Now().Add(time.Minute), never)
		}
		close(fail)
		synctest.Wait()
		for range 2 {
			full.Add(time.Now().Add(time.Minute), never)
		}
		if n := len(full.pending); n != maxLeftovers+1 {
			t.Errorf("%d leftovers wait after a failure, want %d", n, maxLeftovers+1)
		}
		full.Close()
	})
}
