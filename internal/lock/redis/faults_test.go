package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	goredis "github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/locktest"
	"github.com/holdfast-stock/holdfast/internal/store/storetest"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// faulty is a Locker whose requests to Redis a hook can make fail. other is a second Locker that
// sees the leftovers of the first. name is the name of a lock.
type faulty struct {
	t     *testing.T
	hook  faults.Hook
	ours  *Locker
	other *Locker
	name  string
}

func newFaulty(t *testing.T, options Options) faulty {
	t.Helper()
	client := storetest.Redis(t, testenv.Redis(t))
	f := faulty{
		t: t, hook: faults.NewHook(), ours: newLocker(t, client, options),
		other: newLocker(t, storetest.Redis(t, testenv.Redis(t)), Options{}), name: "faulty-" + uuid.NewString(),
	}
	locktest.MustUnlock(t, locktest.MustLock(t, f.other, f.name)) // the server has the scripts after this
	client.AddHook(f.hook)
	return f
}

// hang makes the next command of ours hang until its context ends. hung is closed when it hangs.
// ended receives why its context has ended.
func (f faulty) hang() (hung <-chan struct{}, ended <-chan error) {
	var next sync.Once
	hangs, end := make(chan struct{}), make(chan error, 1)
	f.ours.backend.client.AddHook(faults.Around(func(ctx context.Context, _ []goredis.Cmder, run func(context.Context) error) (err error) {
		next.Do(func() {
			close(hangs)
			<-ctx.Done()
			err = ctx.Err()
			end <- err
		})
		if err != nil {
			return err
		}
		return run(ctx)
	}))
	return hangs, end
}

// acquire returns a grant whose watchdog is stopped.
func (f faulty) acquire() *grant {
	f.t.Helper()
	return acquired(f.t, f.ours, f.name)
}

// mustBeFree checks that the lock becomes free long before a lease of 30 s ends, and that its queue
// is empty.
func (f faulty) mustBeFree() {
	f.t.Helper()
	testenv.Await(f.t, "nothing is left in Redis", func() bool {
		n, err := f.other.backend.client.Exists(f.t.Context(), f.name, queueKey(f.name)).Result()
		return err == nil && n == 0
	})
}

// mustBeFault checks that the error is that of a request whose answer was lost.
func mustBeFault(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, io.EOF) || errors.Is(err, lock.ErrLost) || errors.Is(err, lock.ErrHeld) {
		t.Errorf("%s: %v, want %v", what, err, io.EOF)
	}
}

// unanswered makes the answers to the first requests get lost: that of one request, or also that of
// its clean-up.
var unanswered = map[string][]faults.Fault{
	"request":              {{Kind: faults.Lost, Nth: 1}},
	"request and clean-up": {{Kind: faults.Lost, Nth: 1}, {Kind: faults.Refused, Nth: 2}},
}

// TestUnansweredRequest loses the answers to the requests for a lock and for its release, or makes
// them fail in another way.
func TestUnansweredRequest(t *testing.T) {
	t.Parallel()
	for lost, kinds := range unanswered {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			for name, request := range map[string]func(*Locker, context.Context, string) (lock.Lease, error){
				"Lock": (*Locker).Lock, "TryLock": (*Locker).TryLock,
			} {
				f := newFaulty(t, Options{})
				f.hook.Arm(kinds...)
				_, err := request(f.ours, t.Context(), f.name)
				mustBeFault(t, name, err)
				f.mustBeFree()
			}

			f := newFaulty(t, Options{})
			held := locktest.MustLock(t, f.other, f.name)
			waiting := startWaiter(t.Context(), t, f.ours, f.name)
			f.hook.Arm(kinds...)
			locktest.MustUnlock(t, held)
			mustBeFault(t, "a waiter", (<-waiting).Err)
			f.mustBeFree()
		})
	}
	for _, kind := range []faults.Kind{faults.Lost, faults.Refused, faults.Garbled} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t, Options{})
			f.hook.Arm(faults.Fault{Kind: kind, Nth: 1})
			if _, err := f.ours.TryLock(t.Context(), f.name); err == nil || errors.Is(err, lock.ErrHeld) {
				t.Errorf("TryLock: %v", err)
			}
			f.mustBeFree()
			lease := locktest.MustLock(t, f.ours, f.name)
			f.hook.Arm(faults.Fault{Kind: kind, Nth: 1})
			err := lease.Unlock(t.Context())
			if err == nil || errors.Is(err, lock.ErrLost) {
				t.Errorf("Unlock: %v", err)
			}
			if kind == faults.Lost {
				mustBeFault(t, "Unlock", err)
			}
			f.mustBeFree()
		})
	}
}

// TestCallsAreBounded checks that requests, handovers and clean-ups have a deadline even if their
// caller has none.
func TestCallsAreBounded(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, Options{})
	f.ours.backend.client.AddHook(faults.Around(func(ctx context.Context, cmds []goredis.Cmder, run func(context.Context) error) error {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Errorf("%s has no deadline", cmds[0].Name())
		}
		return run(ctx)
	}))
	g := f.acquire()
	next, err := g.HandOver(t.Context(), func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	next.(*grant).stopWatchdog()
	next.(*grant).cleanUp(t.Context())
	f.mustBeFree()
}

// TestUnansweredHandover loses the answer to the request that hands a lock over to the
// next waiter of the process.
func TestUnansweredHandover(t *testing.T) {
	t.Parallel()
	for lost, kinds := range map[string][]faults.Fault{
		"request":               {{Kind: faults.Lost, Nth: 1}},
		"request and clean-ups": {{Kind: faults.Lost, Nth: 1}, {Kind: faults.Refused, Nth: 2, Times: 2}},
		"refused":               {{Kind: faults.Refused, Nth: 1}},
		"refused and clean-ups": {{Kind: faults.Refused, Nth: 1, Times: 3}},
	} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t, Options{})
			g, err := f.ours.backend.Acquire(t.Context(), f.name, false, func(error) {})
			if err != nil {
				t.Fatal(err)
			}
			f.hook.Arm(kinds...)
			if _, err := g.(lock.HandoverGrant).HandOver(t.Context(), func(error) {}); err == nil || errors.Is(err, lock.ErrLost) {
				t.Errorf("the handover: %v", err)
			}
			f.mustBeFree()
		})
	}
}

// TestHandoverOfLostLock hands over a lock that was deleted.
func TestHandoverOfLostLock(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, Options{})
	g := f.acquire()
	if err := f.ours.backend.client.Del(t.Context(), f.name).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := g.HandOver(t.Context(), func(error) {}); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("the handover: %v, want %v", err, lock.ErrDeleted)
	}
	if err := g.Release(t.Context()); !errors.Is(err, lock.ErrDeleted) {
		t.Errorf("the release: %v, want %v", err, lock.ErrDeleted)
	}
}

// TestTextIsRenewed checks that a text is listed until its holder hides it, although the context of
// Show has ended. A context that has ended also hides it.
func TestTextIsRenewed(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, Options{Lease: time.Second})
	ctx, cancel := context.WithCancel(t.Context())
	hide, err := f.ours.Show(ctx, f.name, "a text")
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	client := f.ours.backend.client
	stored := func() string {
		entries, err := client.HVals(t.Context(), shownKey(f.name)).Result()
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(entries, "\n")
	}
	first := stored()
	if err := client.HSet(t.Context(), shownKey(f.name), "dead", "1 long ago").Err(); err != nil {
		t.Fatal(err)
	}
	testenv.Await(t, "the text is renewed, and the one that has expired is removed", func() bool {
		text := stored()
		return text != first && strings.HasSuffix(text, " a text") && !strings.Contains(text, "long ago")
	})
	hide(ctx)
	if text := stored(); text != "" {
		t.Errorf("%q is listed after the end", text)
	}
}

// TestHideDuringRenewal hides a text whose renewal has no answer yet. The text must not be removed
// before, because the renewal could list it again.
func TestHideDuringRenewal(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, Options{Lease: time.Second})
	hide, err := f.ours.Show(t.Context(), f.name, "a text")
	if err != nil {
		t.Fatal(err)
	}
	renewing, removing, proceed := make(chan struct{}), make(chan struct{}, 1), make(chan struct{})
	var renewed sync.Once
	f.ours.backend.client.AddHook(faults.Around(func(ctx context.Context, cmds []goredis.Cmder, run func(context.Context) error) error {
		if cmds[0].Name() == "hdel" {
			removing <- struct{}{}
		} else {
			renewed.Do(func() {
				close(renewing)
				<-proceed
			})
		}
		return run(ctx)
	}))
	testenv.Receive(t, "the text is being renewed", renewing)
	hidden := make(chan struct{})
	go func() {
		defer close(hidden)
		hide(t.Context())
	}()
	testenv.Quiet(t, "the text is removed during its renewal", removing)
	close(proceed)
	<-hidden
	if texts, err := f.other.Shown(t.Context(), f.name); err != nil || len(texts) != 0 {
		t.Errorf("the texts are %q, %v", texts, err)
	}
}

// TestUnansweredRenewal makes renewals fail: some of a lease, or all of them.
func TestUnansweredRenewal(t *testing.T) {
	t.Parallel()
	const short = 600 * time.Millisecond
	t.Run("some", func(t *testing.T) {
		t.Parallel()
		f := newFaulty(t, Options{Lease: 15 * time.Second}) // a renewal pauses for a thirtieth of the lease after a failure
		g := f.acquire()
		until := g.Until()
		f.hook.Arm(faults.Fault{Kind: faults.Refused, Nth: 1}, faults.Fault{Kind: faults.Lost, Nth: 2})
		if err := g.renew(t.Context()); err != nil || !g.Until().After(until) {
			t.Errorf("renewed by %v: %v", g.Until().Sub(until), err)
		}
	})
	t.Run("one hangs", func(t *testing.T) {
		t.Parallel()
		f := newFaulty(t, Options{Lease: 15 * time.Second}) // several times callTimeout
		g := f.acquire()
		f.hang()
		if err := g.renew(t.Context()); err != nil {
			t.Errorf("renew: %v", err)
		}
	})
	for _, kind := range []faults.Kind{faults.Refused, faults.Hung} {
		t.Run(fmt.Sprint("all ", kind), func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t, Options{Lease: short})
			lost := make(chan error, 10)
			g, err := f.ours.backend.Acquire(t.Context(), f.name, false, func(reason error) { lost <- reason })
			if err != nil {
				t.Fatal(err)
			}
			f.hook.Arm(faults.Fault{Kind: kind, Nth: 1, Times: faults.Always})
			if reason := <-lost; !errors.Is(reason, lock.ErrExpired) || time.Now().Before(g.(lock.ExpiringGrant).Until()) {
				t.Errorf("lost: %v, want %v at the end of the lease", reason, lock.ErrExpired)
			}
			if _, failed := f.hook.Disarm(); len(failed) > 2*10*renewalsPerLease {
				t.Errorf("%d renewals have failed within a lease", len(failed))
			}
			if err := g.Release(t.Context()); err != nil && !errors.Is(err, lock.ErrDeleted) {
				t.Error(err)
			}
		})
	}
	for what, end := range map[string]func(context.Context, *grant) error{
		"release": func(ctx context.Context, g *grant) error { return g.Release(ctx) },
		"handover": func(ctx context.Context, g *grant) error {
			next, err := g.HandOver(ctx, func(error) {})
			if err != nil {
				return err
			}
			if next.(*grant).watchdog == nil {
				return errors.New("the next grant is not renewed")
			}
			return next.Release(ctx)
		},
	} {
		t.Run("until the "+what, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t, Options{})
			g, err := f.ours.backend.Acquire(t.Context(), f.name, false, func(reason error) { t.Errorf("lost: %v", reason) })
			if err != nil {
				t.Fatal(err)
			}
			hung, ended := f.hang()
			go g.(*grant).runWatchdog() // long before the renewal is due
			testenv.Receive(t, "a renewal is under way", hung)
			if err := end(t.Context(), g.(*grant)); err != nil {
				t.Error(err)
			}
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("the renewal ended with %v, want %v", err, context.Canceled)
			}
			f.mustBeFree()
		})
	}
}

// TestLeaseCountsFromTheRequest checks that a lease ends before the server may grant the lock to
// another holder, however late the answer comes.
func TestLeaseCountsFromTheRequest(t *testing.T) {
	t.Parallel()
	const lease = time.Hour // long enough that no renewal is sent meanwhile
	client := storetest.Redis(t, testenv.Redis(t))
	var answered time.Time // when the last command was answered
	client.AddHook(faults.Around(func(ctx context.Context, _ []goredis.Cmder, run func(context.Context) error) error {
		err := run(ctx)
		answered = time.Now()
		return err
	}))
	g, err := newLocker(t, client, Options{Lease: lease}).backend.Acquire(t.Context(), "late-"+uuid.NewString(), false, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	held := g.(*grant)
	if !held.Until().Before(answered.Add(lease)) {
		t.Error("the grant counts from the answer")
	}
	if err := held.renew(t.Context()); err != nil || !held.Until().Before(answered.Add(lease)) {
		t.Errorf("the renewal counts from the answer, %v", err)
	}
	if err := g.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestStoppedWatchdog lets the timer of a grant fire just after its watchdog was stopped. It must
// not renew the lease, because the lock is then being released.
func TestStoppedWatchdog(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, Options{})
	g := f.acquire()
	commands := 0
	f.ours.backend.client.AddHook(faults.Around(func(ctx context.Context, _ []goredis.Cmder, run func(context.Context) error) error {
		commands++
		return run(ctx)
	}))
	g.runWatchdog()
	if commands != 0 {
		t.Errorf("%d commands after the watchdog was stopped", commands)
	}
	if err := g.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestLateRenewal ends the lease, by the holder's clock, before the server's answer to a renewal
// arrives. The holder has learned of the end, so the lease must not continue.
func TestLateRenewal(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, Options{})
	g := f.acquire()
	end := time.Now().Add(100 * time.Millisecond)
	g.until = end
	var late atomic.Bool
	late.Store(true)
	f.ours.backend.client.AddHook(faults.Around(func(ctx context.Context, _ []goredis.Cmder, run func(context.Context) error) error {
		if late.Load() {
			<-ctx.Done() // at the end of the lease
		}
		return run(context.WithoutCancel(ctx))
	}))
	if err := g.renew(t.Context()); !errors.Is(err, lock.ErrExpired) {
		t.Errorf("renew returned %v, want %v", err, lock.ErrExpired)
	}
	late.Store(false)
	if !g.Until().Equal(end) {
		t.Errorf("the lease ends %v later than the holder was told", g.Until().Sub(end))
	}
	if err := g.Release(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestUnansweredQuestion loses the answers to all calls of a holder or a job. The error must name
// the call.
func TestUnansweredQuestion(t *testing.T) {
	t.Parallel()
	const lease = time.Hour // long enough that no renewal is sent meanwhile
	f := newFaulty(t, Options{Lease: lease})
	fixed := newLocker(t, f.ours.backend.client, Options{Lease: lease, Fixed: true})
	held, heldFixed := locktest.MustLock(t, f.ours, f.name), locktest.MustLock(t, fixed, f.name+"-fixed")
	hide, err := f.ours.Show(t.Context(), f.name, "a text")
	if err != nil {
		t.Fatal(err)
	}
	for what, ask := range map[string]func() error{
		"Confirm":        func() error { _, err := held.(lock.Confirmer).Confirm(t.Context()); return err },
		"Confirm, fixed": func() error { _, err := heldFixed.(lock.Confirmer).Confirm(t.Context()); return err },
		"Show":           func() error { _, err := f.ours.Show(t.Context(), f.name, "lost"); return err },
		"Shown":          func() error { _, err := f.ours.Shown(t.Context(), f.name); return err },
		"LastTick":       func() error { _, err := f.ours.LastTick(t.Context(), f.name); return err },
		"RecordTick":     func() error { _, err := f.ours.RecordTick(t.Context(), f.name, 1); return err },
	} {
		asked := 1
		for ; ; asked++ {
			f.hook.Arm(faults.Fault{Kind: faults.Lost, Nth: asked})
			err := ask()
			if _, injected := f.hook.Disarm(); len(injected) == 0 {
				break
			}
			mustBeFault(t, what, err)
		}
		if asked == 1 {
			t.Errorf("%s asks nothing", what)
		}
	}
	if err := f.ours.backend.client.Set(t.Context(), tickKey(f.name), "no number", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if _, err := f.ours.LastTick(t.Context(), f.name); err == nil {
		t.Error("LastTick reads a tick that is no number")
	}
	if tick, err := f.ours.LastTick(t.Context(), f.name+"-none"); err != nil || tick != 0 {
		t.Errorf("the tick of a job without one: %d, %v", tick, err)
	}
	if err := f.ours.backend.client.HSet(t.Context(), shownKey(f.name), "dead", fmt.Sprint(time.Now().UnixMilli(), " just now"), "broken", "x y", "endless", "99999999999999999999 forever").Err(); err != nil {
		t.Fatal(err)
	}
	for _, text := range mustShow(t, f.other, f.name) {
		if text != "a text" && text != "lost" { // the second text was listed, but the answer was lost
			t.Errorf("the text %q is listed", text)
		}
	}
	hide(t.Context())
	locktest.MustUnlock(t, held)
	locktest.MustUnlock(t, heldFixed)
}

func mustShow(t *testing.T, l *Locker, name string) []string {
	t.Helper()
	texts, err := l.Shown(t.Context(), name)
	if err != nil || len(texts) == 0 {
		t.Errorf("the texts are %q, %v", texts, err)
	}
	return texts
}
