package recipe_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/holdfast-stock/holdfast/internal/lock"
	"github.com/holdfast-stock/holdfast/internal/lock/recipe"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

func semaphore(t *testing.T, l lock.Locker, name string, holders int) *recipe.Semaphore {
	t.Helper()
	s, err := recipe.NewSemaphore(l, name, holders)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// acquire waits for a slot. Busy servers may answer too late for the timeouts of a backend.
func acquire(t *testing.T, s *recipe.Semaphore) (slot *recipe.Slot) {
	t.Helper()
	testenv.AwaitSuccess(t, "a slot is acquired", func() (err error) {
		slot, err = s.Acquire(bounded(t))
		return err
	})
	return slot
}

// atMostN lets two instances hold a slot each. All their contenders must get a slot, and never more
// than two may hold one.
func atMostN(t *testing.T, r *rig) {
	const holders, contenders, grants = 2, 6, 4
	name := newName()
	sems := []*recipe.Semaphore{semaphore(t, r.open(t), name, holders), semaphore(t, r.open(t), name, holders)}
	first, second := acquire(t, sems[0]), acquire(t, sems[1])
	mustUnlock(t, first)
	mustUnlock(t, second)
	var (
		all       sync.WaitGroup
		held      [holders + 1]atomic.Int64
		now, most atomic.Int64
		ctx       = bounded(t)
	)
	for i := range contenders {
		all.Go(func() {
			for range grants {
				slot, err := sems[i%2].Acquire(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				if held[slot.Number].Add(1) != 1 {
					t.Errorf("slot %d has two holders", slot.Number)
				}
				n := now.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				testenv.Dither() // stands for the work
				now.Add(-1)
				held[slot.Number].Add(-1)
				mustUnlock(t, slot)
			}
		})
	}
	all.Wait()
	if most.Load() > holders {
		t.Errorf("%d held slots at once, want at most %d", most.Load(), holders)
	}
}

// slotsAreNotReentrant checks that an owner that requests a slot again gets another one, or must
// wait.
func slotsAreNotReentrant(t *testing.T, r *rig) {
	for _, holders := range []int{1, 2} {
		s := semaphore(t, r.open(t), newName(), holders)
		owner := lock.WithOwner(bounded(t), "owner")
		taken := make(map[int]bool)
		for _, take := range []func(context.Context) (*recipe.Slot, error){s.Acquire, s.TryAcquire}[:holders] {
			slot, err := take(owner)
			if err != nil {
				t.Fatal(err)
			}
			defer mustUnlock(t, slot)
			taken[slot.Number] = true
		}
		if len(taken) != holders {
			t.Errorf("of %d holders the slots are %v", holders, taken)
		}
		if _, err := s.TryAcquire(owner); !errors.Is(err, lock.ErrHeld) {
			t.Errorf("with %d holders, TryAcquire returned %v", holders, err)
		}
		mustTimeOut(t, func(ctx context.Context) error {
			_, err := s.Acquire(lock.WithOwner(ctx, "owner"))
			return err
		})
	}
}

// abandonedWait checks that a waiter that gives up leaves no lock behind.
func abandonedWait(t *testing.T, r *rig) {
	name := newName()
	one, two := semaphore(t, r.open(t), name, 2), semaphore(t, r.open(t), name, 2)
	first, second := acquire(t, one), acquire(t, two)
	mustTimeOut(t, func(ctx context.Context) error {
		_, err := two.Acquire(ctx)
		return err
	})
	mustUnlock(t, first)
	mustUnlock(t, second)
	mustUnlock(t, acquire(t, one))
	first, second = acquire(t, two), acquire(t, one)
	mustUnlock(t, first)
	mustUnlock(t, second)
}

// standbyTakesOver checks what happens when the network of a holder drops all packets. A waiter
// must get the slot after the lease, and the holder must learn of the loss.
func standbyTakesOver(t *testing.T, r *rig) {
	name := newName()
	broken, wires := r.openOverWires(t)
	lost := acquire(t, semaphore(t, broken, name, 2))
	l := r.open(t)
	kept := acquire(t, semaphore(t, l, name, 2))
	defer mustUnlock(t, kept)
	for _, w := range wires {
		w.Freeze()
		defer w.Thaw()
	}
	standby := acquire(t, semaphore(t, l, name, 2))
	defer mustUnlock(t, standby)
	if standby.Number != lost.Number {
		t.Errorf("the standby has slot %d, want %d", standby.Number, lost.Number)
	}
	if r.backend.Fences && standby.Token() <= lost.Token() {
		t.Errorf("token %d was followed by token %d", lost.Token(), standby.Token())
	}
	testenv.Receive(t, "the holder learns that it lost its slot", lost.Context().Done())
	if err := kept.Context().Err(); err != nil {
		t.Errorf("the other holder: %v", context.Cause(kept.Context()))
	}
}

// holdersAreListed checks that each holder is listed with its process while it holds its slot.
func holdersAreListed(t *testing.T, r *rig) {
	name := newName()
	one, two := semaphore(t, r.open(t), name, 2), semaphore(t, r.open(t), name, 2)
	began := time.Now()
	first, second := acquire(t, one), acquire(t, two)
	defer mustUnlock(t, acquire(t, semaphore(t, r.open(t), name+"/nested", 2))) // is listed under its own name
	list := func() []recipe.Holder {
		t.Helper()
		holders, err := one.Holders(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		return holders
	}
	host, _ := os.Hostname()
	holders := list()
	if len(holders) != 2 {
		t.Fatalf("listed %+v, want two holders", holders)
	}
	for i, slot := range []*recipe.Slot{first, second} {
		h := holders[i]
		if h.Slot != slot.Number || h.Token != slot.Token() || h.Host != host || h.PID != os.Getpid() ||
			h.Since.Before(began) || h.Since.After(time.Now()) {
			t.Errorf("listed %+v for slot %d with token %d", h, slot.Number, slot.Token())
		}
	}
	mustUnlock(t, first)
	if holders := list(); len(holders) != 1 || holders[0].Slot != second.Number {
		t.Errorf("listed %+v, want slot %d", holders, second.Number)
	}
	mustUnlock(t, second)
	if holders := list(); len(holders) != 0 {
		t.Errorf("listed %+v, want none", holders)
	}
}

// TestNoList checks that Holders returns ErrNoBoard if the backend cannot list holders.
func TestNoList(t *testing.T) {
	t.Parallel()
	s := semaphore(t, lock.NewLocal(), "a", 2)
	mustUnlock(t, acquire(t, s))
	if _, err := s.Holders(t.Context()); !errors.Is(err, recipe.ErrNoBoard) {
		t.Errorf("got %v, want %v", err, recipe.ErrNoBoard)
	}
}

func TestNumberOfHolders(t *testing.T) {
	t.Parallel()
	for _, holders := range []int{-1, 0, recipe.MaxHolders + 1} {
		if _, err := recipe.NewSemaphore(lock.NewLocal(), "a", holders); err == nil {
			t.Errorf("%d holders are accepted", holders)
		}
		if _, err := recipe.NewReadWrite(lock.NewLocal(), "a", holders); err == nil {
			t.Errorf("%d readers are accepted", holders)
		}
	}
}

// TestNameOfSlots checks that a name that is too long for the names of the slots and of the queue
// is refused at once.
func TestNameOfSlots(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		bytes, holders int
		valid          bool
	}{{255, 1, true}, {256, 1, false}, {249, 2, true}, {250, 2, false}, {249, recipe.MaxHolders, true}} {
		s, err := recipe.NewSemaphore(lock.NewLocal(), strings.Repeat("a", test.bytes), test.holders)
		if test.valid {
			if err != nil {
				t.Errorf("%d bytes, %d holders: %v", test.bytes, test.holders, err)
				continue
			}
			mustUnlock(t, wlock(t, readWrite(t, lock.NewLocal(), strings.Repeat("a", test.bytes), test.holders)))
			for range test.holders {
				acquire(t, s)
			}
		} else if !errors.Is(err, lock.ErrName) {
			t.Errorf("%d bytes, %d holders: error %v, want ErrName", test.bytes, test.holders, err)
		}
	}
}

// confirmExtends checks that a held slot is confirmed for about a lease, and longer each time. A
// slot that is unlocked or taken away must not be confirmed.
func confirmExtends(t *testing.T, r *rig) {
	const lease = 10 * time.Second // a lease that all servers accept
	slot := acquire(t, semaphore(t, r.openOn(t, r.servers.Addrs(), lease), newName(), 1))
	asked := time.Now()
	var last time.Time
	for range 2 {
		until, err := slot.Confirm(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		if until.Before(asked.Add(lease/2)) || until.After(time.Now().Add(lease+time.Second)) {
			t.Errorf("confirmed for %v, want about %v", until.Sub(asked), lease)
		}
		if !until.After(last) {
			t.Errorf("confirmed until %v again", until)
		}
		last = until
	}
	mustUnlock(t, slot)
	if _, err := slot.Confirm(bounded(t)); err == nil {
		t.Error("an unlocked slot is confirmed")
	}
}

// allAtOnce is a Locker that grants the slots of a semaphore together. TryLock finds them held, and
// Lock returns when all of them are requested.
type allAtOnce struct {
	lock.Locker
	asked *sync.WaitGroup
}

func (l allAtOnce) TryLock(context.Context, string) (lock.Lease, error) { return nil, lock.ErrHeld }

func (l allAtOnce) Lock(ctx context.Context, name string) (lock.Lease, error) {
	if !strings.HasSuffix(name, "#queue") {
		l.asked.Done()
		l.asked.Wait()
		ctx = context.WithoutCancel(ctx)
	}
	return l.Locker.Lock(ctx, name)
}

// TestTwoSlotsAtOnce checks that a waiter that is granted several slots keeps one.
func TestTwoSlotsAtOnce(t *testing.T) {
	t.Parallel()
	const holders = 3
	local := lock.NewLocal()
	l := allAtOnce{local, new(sync.WaitGroup)}
	l.asked.Add(holders)
	slot := acquire(t, semaphore(t, l, "a", holders))
	defer mustUnlock(t, slot)
	all := semaphore(t, local, "a", holders)
	for range holders - 1 {
		other, err := all.TryAcquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer mustUnlock(t, other)
	}
	if _, err := all.TryAcquire(t.Context()); !errors.Is(err, lock.ErrHeld) {
		t.Errorf("got %v, want %v", err, lock.ErrHeld)
	}
}

// failingOnce is a Locker whose first wait for the name fails.
type failingOnce struct {
	lock.Locker
	name   string
	failed chan struct{} // closed by the failure
}

func (l failingOnce) Lock(ctx context.Context, name string) (lock.Lease, error) {
	if name == l.name {
		select {
		case <-l.failed:
		default:
			close(l.failed)
			return nil, errors.New("the server does not answer")
		}
	}
	return l.Locker.Lock(ctx, name)
}

// TestSlotIsAskedForAgain checks that a waiter whose request for a slot has failed gets that slot
// when its holder unlocks it.
func TestSlotIsAskedForAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		local := lock.NewLocal()
		l := failingOnce{local, "a#1", make(chan struct{})}
		all := semaphore(t, local, "a", 2)
		first, second := acquire(t, all), acquire(t, all)
		defer mustUnlock(t, second)
		go func() {
			<-l.failed
			mustUnlock(t, first)
		}()
		standby, err := semaphore(t, l, "a", 2).Acquire(t.Context()) // without a deadline: the other slot stays held
		if err != nil {
			t.Fatal(err)
		}
		defer mustUnlock(t, standby)
		if standby.Number != first.Number {
			t.Errorf("the standby has slot %d, want %d", standby.Number, first.Number)
		}
	})
}
