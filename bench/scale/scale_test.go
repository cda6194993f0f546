package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lab/command"
)

// near reports whether a rate is within a share of another.
func near(got, want, share float64) bool { return math.Abs(got/want-1) <= share }

// TestPredicted checks the predictions of the simulation for points that it was not calibrated
// with: one instance on loopback, a strategy that waits for the network, and slow commits.
func TestPredicted(t *testing.T) {
	t.Parallel()
	for _, m := range points {
		if m.network > 0 && (m.strategy.name != conditional.name || m.instances == 4) {
			continue // not checked, because docs/scale.md shows these errors
		}
		share := 0.06
		if m.strategy.rows > 1 {
			share = 0.12
		}
		if o := simulate(m.strategy, m.setup, 3*time.Second, 1); !near(o.perSecond, m.perSecond, share) {
			t.Errorf("%s, %s: %.0f, measured %.0f", m.what, m.strategy.name, o.perSecond, m.perSecond)
		}
	}
}

// TestLimits checks the simulation against computed limits.
func TestLimits(t *testing.T) {
	t.Parallel()
	held := merged.each + 128*merged.database + 10*ms
	one := simulate(merged, far(4, 10*ms), time.Second, 1).perSecond
	if want := 128 / held.Seconds(); !near(one, want, 0.05) {
		t.Errorf("one row: %.0f, want %.0f", one, want)
	}
	if four := simulate(inSlots(4), far(8, 10*ms), time.Second, 1).perSecond; !near(four, 4*one, 0.05) {
		t.Errorf("four rows: %.0f, one row: %.0f", four, one)
	}
	alone := simulate(merged, setup{clients: 1, instances: 1, cores: 1, commit: ms}, time.Second, 1)
	if want := 1 / (merged.service + merged.each + merged.database + ms).Seconds(); !near(alone.perSecond, want, 0.05) || alone.group != 1 {
		t.Errorf("one client: %.0f in groups of %.1f, want %.0f", alone.perSecond, alone.group, want)
	}
	idle := simulate(merged, setup{clients: 4, instances: 4, cores: 64, network: 10 * ms}, time.Second, 1).perSecond
	if idle > 400 { // one round trip for each order
		t.Errorf("over 10 ms, four clients order %.0f a second", idle)
	}
}

// TestSeed checks that the same seed gives the same figures, and another seed gives others.
func TestSeed(t *testing.T) {
	t.Parallel()
	get := func(seed uint64) outcome { return simulate(lua, here(8, 2, ms), 200*ms, seed) }
	if get(1) != get(1) || get(1) == get(2) {
		t.Errorf("%v, %v, %v", get(1), get(1), get(2))
	}
}

// TestRun checks the tables and the drawing.
func TestRun(t *testing.T) {
	t.Parallel()
	var out, image bytes.Buffer
	if err := run(t.Context(), []string{"--during", "100ms"}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "\n|---|"); n != 4 {
		t.Errorf("%d tables\n%s", n, &out)
	}
	settings{Seed: 1, During: 100 * ms}.draw(&image)
	for reader := xml.NewDecoder(&image); ; {
		_, err := reader.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var errs bytes.Buffer
	err := run(t.Context(), []string{"--during", "1ms"}, &out, io.Discard)
	if code := command.ExitCode(t.Context(), "scale", err, &errs); code != command.ExitUsage || !strings.Contains(errs.String(), "--during") {
		t.Errorf("exit code %d, %s", code, &errs)
	}
}
