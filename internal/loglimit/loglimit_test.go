package loglimit

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newLog returns a logger over a Handler. lines returns the lines that it has
// written.
func newLog(t *testing.T) (log *slog.Logger, h *Handler, lines func() []string) {
	t.Helper()
	var b bytes.Buffer
	h = NewHandler(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	return slog.New(h), h, func() []string { return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n") }
}

// expect checks that each line matches its pattern.
func expect(t *testing.T, lines []string, patterns ...string) {
	t.Helper()
	if len(lines) != len(patterns) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(patterns), strings.Join(lines, "\n"))
	}
	for n, pattern := range patterns {
		if !regexp.MustCompile(pattern).MatchString(lines[n]) {
			t.Errorf("line %d is %q, want a match of %s", n, lines[n], pattern)
		}
	}
}

// TestOutage checks that the first warning is written at once, that the following
// ones are counted, and that the end is written.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, h, lines := newLog(t)
		defer h.Close()
		for n := range 4290 { // for 3 s
			log.Warn("refusing", "error", errors.New("cause"), "n", n)
			time.Sleep(700 * time.Microsecond)
		}
		time.Sleep(summaryInterval - 3003*time.Millisecond) // until the first summary
		synctest.Wait()
		log.Warn("refusing", "error", errors.New("another cause"))
		time.Sleep(2 * summaryInterval)
		synctest.Wait()
		log.Warn("refusing", "error", errors.New("again"))
		expect(t, lines(),
			`level=WARN msg=refusing error=cause n=0$`,
			`level=WARN msg=refusing error=cause n=4289 count=4289 since=`,
			`level=WARN msg=refusing error="another cause" count=1 since=`,
			`level=INFO msg="over: refusing" count=4291 since=\S+ seconds=10$`,
			`level=WARN msg=refusing error=again$`)
	})
}

// TestKinds checks that each kind is counted separately, and that other records than warnings with
// an error are not counted.
func TestKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, h, lines := newLog(t)
		defer h.Close()
		for range 2 {
			log.Warn("one", "error", "x")
			log.With("part", "p").WithGroup("g").Warn("two", "error", "x")
			log.Warn("drift", "sku", "a")
			log.Error("bug", "error", "x")
			log.Info("news", "error", "x")
		}
		time.Sleep(3 * summaryInterval)
		synctest.Wait()
		log.Warn("alone", "error", "x") // a single record gets no "over" line
		time.Sleep(3 * summaryInterval)
		synctest.Wait()
		written := lines()
		expect(t, written[:8], `WARN msg=one error=x$`, `WARN msg=two part=p g.error=x$`, `WARN msg=drift sku=a$`, `ERROR msg=bug`, `INFO msg=news`,
			`WARN msg=drift sku=a$`, `ERROR msg=bug`, `INFO msg=news`)
		rest := strings.Join(written[8:], "\n")
		for _, want := range []string{"msg=one error=x count=1", "msg=two part=p g.error=x g.count=1", `msg="over: one"`, `msg="over: two" part=p`, "msg=alone error=x"} {
			if strings.Count(rest, want) != 1 {
				t.Errorf("%q is written %d times, want 1:\n%s", want, strings.Count(rest, want), rest)
			}
		}
		if len(written) != 13 {
			t.Errorf("%d lines, want 13:\n%s", len(written), strings.Join(written, "\n"))
		}
	})
}

// TestLevel checks that the end of an outage is not written to a log of warnings only.
func TestLevel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b bytes.Buffer
		h := NewHandler(slog.NewTextHandler(&b, &slog.HandlerOptions{Level: slog.LevelWarn}))
		defer h.Close()
		for range 2 {
			slog.New(h).Warn("refusing", "error", "x")
		}
		time.Sleep(3 * summaryInterval)
		synctest.Wait()
		if n := strings.Count(b.String(), "\n"); n != 2 {
			t.Errorf("%d lines, want the first warning and a summary:\n%s", n, b.String())
		}
	})
}

// TestClose checks that Close writes the summaries, and that every later record is written. No
// outage ends afterwards.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, h, lines := newLog(t)
		for range 3 {
			log.Warn("refusing", "error", "x")
			time.Sleep(time.Second)
		}
		log.Warn("alone", "error", "x") // needs no summary
		h.Close()
		log.Warn("refusing", "error", "late")
		log.Warn("refusing", "error", "later")
		time.Sleep(2 * summaryInterval)
		synctest.Wait()
		expect(t, lines(), `error=x$`, `msg=alone error=x$`, `WARN msg=refusing error=x count=2 since=\S+$`, `error=late$`, `error=later$`)
	})
}

// TestConcurrent logs from several goroutines while summaries are written, for the
// race detector.
func TestConcurrent(t *testing.T) {
	h := NewHandler(slog.NewTextHandler(io.Discard, nil))
	h.tracker.interval = time.Millisecond
	log := slog.New(h)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 2000 {
				log.WarnContext(context.Background(), "refusing", "error", "x")
			}
		})
	}
	all.Wait()
	h.Close()
}
