package testenv

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

// Patience bounds every wait of a test for an event. It is not the time that the event may take: a
// benchmark checks what must be fast.
const Patience = time.Minute

// maxPoll bounds the pause between two checks of a condition.
const maxPoll = 20 * time.Millisecond

var errNotYet = errors.New("the condition is not met")

// Await returns as soon as the condition is true. It ends the test if the condition is not true
// within [Patience].
func Await(t T, what string, holds func() bool) {
	t.Helper()
	AwaitSuccess(t, what, func() error {
		if !holds() {
			return errNotYet
		}
		return nil
	})
}

// AwaitSuccess returns as soon as try returns nil. It ends the test with the last error if that
// does not happen within [Patience]. In a test that has already failed, it waits at most a second,
// because the event may depend on the failed step.
func AwaitSuccess(t T, what string, try func() error) {
	t.Helper()
	patience := Patience
	if test, ok := t.(interface{ Failed() bool }); ok && test.Failed() {
		patience = time.Second
	}
	if err := Poll(patience, try); err != nil {
		t.Fatalf("waited %v: %s: %v", patience, what, err)
	}
}

// Poll calls try until it returns nil. Once the time is over, it returns the last error. It is for
// checks that return errors, so that a test can show that they detect a fault. Pass [Patience], or
// less if the check must fail.
func Poll(patience time.Duration, try func() error) error {
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, maxPoll) {
		last := time.Now().After(deadline)
		err := try()
		if err == nil || last || errors.As(err, new(finalError)) {
			return err
		}
		time.Sleep(pause)
	}
}

// Receive returns the next value of the channel, or its zero value if the channel is closed. It
// ends the test if no value arrives within [Patience].
func Receive[V any](t T, what string, from <-chan V) (v V) {
	t.Helper()
	timeout := time.NewTimer(Patience)
	defer timeout.Stop()
	select {
	case v = <-from:
	case <-timeout.C:
		t.Fatalf("waited %v: %s", Patience, what)
	}
	return v
}

// Background runs do in a goroutine. stop ends the context of do, and waits until do has returned.
// The test calls it at its end at the latest.
func Background(t T, do func(ctx context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { do(ctx) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// Dither sleeps for up to 5 ms. It stands for the work of a client or of the holder of a
// lock, and for the pause before the next attempt: no test may depend on its length.
func Dither() { time.Sleep(rand.N(5 * time.Millisecond)) }

// Quiet ends the test if the channel has a value, or gets one within 50 ms. Use it only where no
// event can prove the absence, for example that a request is not answered at all. Otherwise wait
// for a later event: on a slow machine a fault comes late too, and Quiet misses it.
func Quiet[V any](t T, fault string, from <-chan V) {
	t.Helper()
	window := time.NewTimer(50 * time.Millisecond)
	defer window.Stop()
	select {
	case v := <-from:
		t.Fatalf("%s: %v", fault, v)
	case <-window.C:
	}
}
