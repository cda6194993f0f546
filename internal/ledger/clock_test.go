package ledger

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger/cutter"
	"github.com/holdfast-stock/holdfast/internal/stock"
)

// TestTimes checks that an order's times are by the database's clock, even if the clock of the
// instance is wrong. If its take is recorded again, the answer must have the first times.
func TestTimes(t *testing.T) {
	t.Parallel()
	eachDatabase(t, databases, func(t *testing.T, d *database) {
		sku := fresh("sku")
		lay(t, d.open(t, cutter.Merged()), sku, 10)
		for _, wrong := range []time.Duration{0, time.Hour, -time.Hour} {
			l := openWith(t, d.sql.Ledger(), Options{
				Cutter: cutter.Merged(), PaymentWindow: 15 * time.Minute,
				Clock: func() time.Time { return time.Now().Add(wrong) },
			})
			if _, out := l.Record(t.Context(), takeOf(sku)); !out.Refused() || !errors.Is(out.Reason(), stock.ErrBusy) || l.ClockKnown() == nil {
				t.Errorf("before the clock is known: %+v", out)
			}
			r := recordingOf(sku)
			if l.recordGroup([]*recording{r}, new(slowGroup)); !r.outcome.Refused() || !errors.Is(r.outcome.Reason(), stock.ErrBusy) {
				t.Errorf("a group before the clock is known: %+v", r.outcome)
			}
			measureClock(t, l)
			if err := l.ClockKnown(); err != nil {
				t.Fatal(err)
			}
			before, err := d.sql.Ledger().Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			take := takeOf(sku)
			o := mustRecord(t, l, take)
			after, err := d.sql.Ledger().Now(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			const unit = time.Millisecond // unit of SQLite's clock
			if o.CreatedAt.Before(before.Add(-unit)) || o.CreatedAt.After(after.Add(maxClockError)) || o.ExpiresAt.Sub(o.CreatedAt) != 15*time.Minute {
				t.Errorf("with a clock that is wrong by %v, an order of %v to %v was created at %v and expires at %v", wrong, before, after, o.CreatedAt, o.ExpiresAt)
			}
			if found, err := l.Order(t.Context(), o.ID); err != nil || !sameOrder(*found, o) {
				t.Errorf("found %+v, %v, want %+v", found, err, o)
			}
			if again := mustRecord(t, l, take); !sameOrder(again, o) {
				t.Errorf("recorded again as %+v, want %+v", again, o)
			}
		}
	})
}

// TestClock checks when the database's clock counts as known, and which time it returns then.
func TestClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var (
			wrong, trip time.Duration // wrong is the error of the time of day; trip is the duration of a round trip to the database
			reads       int           // the second one has the shortest round trip
			c           = &clock{wall: func() time.Time { return time.Now().Add(wrong) }}
			unreachable error
			read        = func() (time.Time, error) {
				reads++
				if reads != 2 {
					time.Sleep(trip)
				}
				time.Sleep(trip)
				return time.Now(), unreachable
			}
		)
		known := func(what string, want bool, ahead time.Duration) {
			t.Helper()
			switch now, err := c.now(); {
			case (err == nil) != want:
				t.Errorf("%s: %v, %v", what, now, err)
			case want && (now.Before(time.Now().Truncate(time.Microsecond)) || now.After(time.Now().Add(ahead))):
				t.Errorf("%s: %v ahead", what, time.Until(now))
			}
		}
		measure := func(want error) {
			t.Helper()
			reads = 0
			if err := c.measure(read); !errors.Is(err, want) || want == nil && err != nil {
				t.Errorf("measured: %v, want %v", err, want)
			}
		}
		known("never measured", false, 0)
		trip = 20 * time.Millisecond
		wrong = -time.Hour
		measure(nil)
		known("measured", true, trip)
		if c.due() {
			t.Error("due at once")
		}
		time.Sleep(clockPause)
		known("some time later", true, trip)
		if !c.due() {
			t.Error("not due after a while")
		}
		unreachable = errVanished
		measure(errVanished)
		known("after a measurement that failed", true, trip)
		time.Sleep(maxClockAge)
		known("long after a measurement", false, 0)
		unreachable, trip = nil, maxClockError
		if err := c.measure(read); err == nil {
			t.Error("a slow answer counts as a measurement")
		}
		known("after slow answers", false, 0)
		trip = 0
		measure(nil)
		known("measured again", true, 0)
	})
}

// TestMeasureClock checks that the clock is measured although single readings fail, that an error
// is returned if all fail, and that a recent measurement is kept.
func TestMeasureClock(t *testing.T) {
	t.Parallel()
	s := openTemplate(t).copy(t)
	for failing, known := range []bool{true, true, true, false} {
		s.l.clock.last.Store(nil)
		if failing > 0 {
			s.faults.Arm(faults.Fault{Kind: faults.Refused, Nth: 1, Times: failing})
		}
		err := s.l.MeasureClock(t.Context())
		if _, injected := s.faults.Disarm(); len(injected) != failing {
			t.Errorf("faults: %q", injected)
		}
		if (err == nil) != known || (s.l.ClockKnown() == nil) != known {
			t.Errorf("%d readings failed: %v, %v", failing, err, s.l.ClockKnown())
		}
	}
	if err := s.l.MeasureClock(t.Context()); err != nil {
		t.Fatal(err)
	}
	last := s.l.clock.last.Load()
	if err := s.l.MeasureClock(t.Context()); err != nil || s.l.clock.last.Load() != last {
		t.Errorf("measured again at once: %v", err)
	}
}

// TestClockJumps checks that the database's clock counts as unknown once the time of
// day of this machine has jumped.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	for _, jump := range []time.Duration{-time.Hour, -2 * maxClockJump, maxClockJump / 2, 2 * maxClockJump, time.Hour} {
		var wrong time.Duration
		c := &clock{wall: func() time.Time { return time.Now().Add(wrong) }}
		if err := c.measure(func() (time.Time, error) { return time.Now(), nil }); err != nil {
			t.Fatal(err)
		}
		wrong = jump
		_, err := c.now()
		if small := jump.Abs() < maxClockJump; (err == nil) != small || c.due() == small {
			t.Errorf("after a jump of %v: %v, due %v", jump, err, c.due())
		}
		if wall := c.last.Load().wall; wall != wall.Round(0) { // Sub would not notice that a machine slept
			t.Errorf("the time of day has a monotonic clock: %v", wall)
		}
	}
}
