package ledger

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

const (
	// clockPause is the time between two measurements of the database's clock.
	clockPause = 10 * time.Second
	// maxClockAge is how long a measurement is used.
	maxClockAge = time.Minute
	// maxClockError bounds the error of a measurement.
	maxClockError = time.Second
	// maxClockJump bounds how far this machine's clock may move away from the time
	// that has passed since a measurement.
	maxClockJump = time.Second
	// clockSamples is the number of readings that a measurement takes. It uses the one with the
	// shortest round trip.
	clockSamples = 3
)

// clock returns the time of the database without a request for each time. It adds the time that has
// passed since a measurement, by the monotonic clock, so a wrong time of day on this machine does
// not matter. It is behind the database's clock by at most one unit of that clock: 1 µs, for SQLite
// 1 ms. It is ahead of it by at most the round trip of the measurement. It is safe for concurrent
// use.
type clock struct {
	wall func() time.Time // the time of day on this machine
	last atomic.Pointer[reading]
}

// reading is one simultaneous reading of the local clock and of the database's.
type reading struct {
	at       time.Time // by the monotonic clock
	wall     time.Time // has no monotonic clock, so that Sub compares the time of day
	database time.Time // the database's time at "at", or up to a round trip later
}

var errClockUnknown = errors.New("the database's clock has not been measured")

// now returns the time by the database's clock, in UTC and whole microseconds.
func (c *clock) now() (time.Time, error) {
	last := c.last.Load()
	if last == nil {
		return time.Time{}, errClockUnknown
	}
	age := time.Since(last.at)
	switch {
	case age > maxClockAge:
		return time.Time{}, fmt.Errorf("%w for %v", errClockUnknown, age.Truncate(time.Second))
	case c.jumped(last, age):
		return time.Time{}, fmt.Errorf("%w since this machine slept or its clock was set", errClockUnknown)
	}
	return last.database.Add(age).Truncate(time.Microsecond), nil
}

// jumped reports whether the time of day has moved differently from the monotonic
// clock since the reading. The monotonic clock stands still while a machine sleeps.
func (c *clock) jumped(last *reading, age time.Duration) bool {
	return (c.wall().Sub(last.wall) - age).Abs() > maxClockJump
}

// due reports whether the clock must be measured again.
func (c *clock) due() bool {
	last := c.last.Load()
	if last == nil {
		return true
	}
	age := time.Since(last.at)
	return age >= clockPause || c.jumped(last, age)
}

// measure reads the database's clock several times, and keeps the reading with the shortest round
// trip. It returns an error only if no reading was fast enough.
func (c *clock) measure(read func() (time.Time, error)) error {
	var (
		best     reading
		failed   error
		shortest = maxClockError
	)
	for range clockSamples {
		r := reading{at: time.Now(), wall: c.wall().Round(0)}
		var err error
		if r.database, err = read(); err != nil {
			failed = err
			continue
		}
		if trip := time.Since(r.at); trip < shortest {
			best, shortest = r, trip
		}
	}
	if best.at.IsZero() {
		return cmp.Or(failed, fmt.Errorf("reading the database's clock took longer than %v", maxClockError))
	}
	c.last.Store(&best)
	return nil
}

// MeasureClock measures the database's clock, if the last measurement is not recent. Call it before
// the first order, and every second.
func (l *Ledger) MeasureClock(ctx context.Context) error {
	if !l.clock.due() {
		return nil
	}
	return l.clock.measure(func() (time.Time, error) {
		ctx, cancel := context.WithTimeout(ctx, maxClockError)
		defer cancel()
		return l.db.Now(ctx)
	})
}

// ClockKnown returns an error if expiry times of orders cannot be set. It returns nil if orders do
// not expire.
func (l *Ledger) ClockKnown() error {
	if l.paymentWindow == 0 {
		return nil
	}
	_, err := l.clock.now()
	return err
}

// times returns the creation and expiry times of an order that is recorded now, by the database's
// clock. A zero expiry time means that the order does not expire. Such orders can be created while
// the database's clock is unknown.
func (l *Ledger) times() (created, expires time.Time, err error) {
	if l.paymentWindow == 0 {
		return l.Now(), expires, nil
	}
	created, err = l.clock.now()
	return created, created.Add(l.paymentWindow), err
}

// Now returns the time in UTC and whole microseconds: by the database's clock, or while
// that is unknown, by this machine's. It asks no database.
func (l *Ledger) Now() time.Time {
	now, err := l.clock.now()
	if err != nil {
		return l.clock.wall().UTC().Truncate(time.Microsecond)
	}
	return now
}

// Now returns the time as the ledger stores it: UTC, whole microseconds.
func Now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
