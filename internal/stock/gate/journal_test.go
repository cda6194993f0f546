package gate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// queueingKinds has the kinds of Redis that can queue, which a cluster cannot.
var queueingKinds = []string{"Redis", "Sentinel", "InProcess"}

// eachJournal runs the test on each kind of Redis, with the journal of a new ledger.
func eachJournal(t *testing.T, test func(t *testing.T, g countedScript, j *Journal)) {
	t.Helper()
	for _, kind := range queueingKinds {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			g := scriptOn(t, shared.client(t, kind))
			test(t, g, openJournal(t, g))
		})
	}
}

func openJournal(t *testing.T, g countedScript) *Journal {
	t.Helper()
	j := g.Journal()
	if err := errors.Join(j.Open(t.Context(), "opener"), g.SetMark(t.Context(), stock.Mark{Generation: g.scripts.Load().generation})); err != nil {
		t.Fatal(err)
	}
	return j
}

// queuedAt is when the orders of the tests are queued.
var queuedAt = time.Date(2026, 11, 11, 20, 0, 0, 123456000, time.UTC)

// journaled queues an order. It must be accepted.
func journaled(t *testing.T, j *Journal, d stock.Deduction) stock.Take {
	t.Helper()
	taken, err := j.Queue(t.Context(), d, queuedAt)
	if err != nil {
		t.Fatal(err)
	}
	return taken
}

// mustFinish removes the orders from the journal.
func mustFinish(t *testing.T, j *Journal, takes ...stock.Take) {
	t.Helper()
	if err := j.Finish(t.Context(), takes...); err != nil {
		t.Fatal(err)
	}
}

// wantQueued checks the journal's entry of the order.
func wantQueued(t *testing.T, j *Journal, want stock.Take) {
	t.Helper()
	got, ok, err := j.Queued(t.Context(), want.OrderID)
	if err != nil || !ok || !sameTake(got, want) {
		t.Errorf("the journal has %+v (%v), want %+v", got, err, want)
	}
}

func sameTake(a, b stock.Take) bool {
	return a.OrderID == b.OrderID && a.TakeID == b.TakeID && a.Buyer == b.Buyer && slices.Equal(a.Lines, b.Lines) &&
		a.QueuedAt.Equal(b.QueuedAt) && slices.EqualFunc(a.Receipt, b.Receipt, func(a, b stock.Cut) bool { return a.Epoch == b.Epoch })
}

// read delivers the new orders to the consumer, without waiting.
func read(t *testing.T, j *Journal, consumer string) []stock.Take {
	t.Helper()
	takes, err := j.Read(t.Context(), consumer, 100, -1)
	if err != nil {
		t.Fatal(err)
	}
	return takes
}

// claim delivers orders that any consumer has left to the consumer.
func claim(t *testing.T, j *Journal, consumer string) []stock.Take {
	t.Helper()
	takes, err := j.Claim(t.Context(), consumer, 100, 0)
	if err != nil {
		t.Fatal(err)
	}
	return takes
}

// wantLength checks the number of orders in the journal, and that the hash and the
// stream agree on it.
func wantLength(t *testing.T, j *Journal, want int64) {
	t.Helper()
	length, oldest, err := j.Backlog(t.Context())
	named, hashErr := j.client.HLen(t.Context(), j.queued).Result()
	if err := errors.Join(err, hashErr); err != nil {
		t.Fatal(err)
	}
	if length != want || named != want || oldest < 0 || oldest > time.Minute {
		t.Errorf("%d orders in the stream, %d in the hash, the oldest for %v; want %d", length, named, oldest, want)
	}
}

// linesOf returns an order of these SKUs, one unit each.
func linesOf(skus ...stock.SKU) stock.Deduction {
	d := orderOf("", 0)
	d.Lines = nil
	for _, sku := range skus {
		d.Lines = append(d.Lines, stock.Line{SKU: sku, Quantity: 1})
	}
	return d
}

// TestQueuedOrderLeavesWhole follows orders from their takes until they are finished.
func TestQueuedOrderLeavesWhole(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		fill(t, g, "a", 3, 10)
		fill(t, g, "b", 7, 10)
		one, two := journaled(t, j, linesOf("a", "b")), journaled(t, j, linesOf("b"))
		if !one.QueuedAt.Equal(queuedAt) || one.Receipt[0].Epoch != 3 || one.Receipt[1].Epoch != 7 {
			t.Errorf("queued %+v", one)
		}
		wantQueued(t, j, one)
		wantQueued(t, j, two)
		wantLength(t, j, 2)
		wantLevel(t, g, stock.Level{SKU: "b", Epoch: 7, Available: 8, InFlight: 2})

		got := read(t, j, "x")
		if len(got) != 2 || !sameTake(got[0], one) || !sameTake(got[1], two) {
			t.Fatalf("read %+v", got)
		}
		if again := read(t, j, "y"); len(again) != 0 {
			t.Errorf("delivered twice: %+v", again)
		}
		if claimed := claim(t, j, "y"); len(claimed) != 2 || !sameTake(claimed[0], one) {
			t.Errorf("claimed %+v", claimed)
		}
		for range 2 { // the second time has no effect
			mustFinish(t, j, one)
			wantLength(t, j, 1)
			wantLevel(t, g, stock.Level{SKU: "a", Epoch: 3, Available: 9})
			wantLevel(t, g, stock.Level{SKU: "b", Epoch: 7, Available: 8, InFlight: 1})
		}
		if _, ok, err := j.Queued(t.Context(), one.OrderID); ok || err != nil {
			t.Errorf("a finished order: %v", err)
		}
		if err := g.Give(t.Context(), two); err != nil {
			t.Fatal(err)
		}
		mustFinish(t, j, two)
		wantLength(t, j, 0)
		wantLevel(t, g, stock.Level{SKU: "b", Epoch: 7, Available: 9})
		if left := claim(t, j, "z"); len(left) != 0 {
			t.Errorf("finished orders are delivered: %+v", left)
		}
	})
}

// TestRefusedOrdersAreNotQueued checks that an order is queued only if its units are cut.
func TestRefusedOrdersAreNotQueued(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		fill(t, g, "a", 1, 1)
		burned := linesOf("a")
		if err := g.Give(t.Context(), stock.Take{Deduction: burned}); err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			d    stock.Deduction
			want error
		}{
			{orderOf("a", 2), stock.ErrSoldOut},
			{orderOf("c", 1), stock.ErrNotFilled},
			{burned, stock.ErrBurned},
		} {
			if _, err := j.Queue(t.Context(), test.d, queuedAt); !errors.Is(err, test.want) {
				t.Errorf("got %v, want %v", err, test.want)
			}
		}
		wantLength(t, j, 0)
		wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 1})
	})
}

// TestTwinsOfAQueuedOrder checks that no other take of a queued order is cut, even after a refill,
// when the order's records are void.
func TestTwinsOfAQueuedOrder(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		fill(t, g, "a", 1, 5)
		fill(t, g, "b", 1, 5)
		first := journaled(t, j, linesOf("a"))
		if again := journaled(t, j, first.Deduction); !sameTake(again, first) {
			t.Errorf("the same take again: %+v, want %+v", again, first)
		}
		twin := linesOf("b") // another set of lines under the same key
		twin.OrderID = first.OrderID
		refused := func() {
			t.Helper()
			for _, d := range []stock.Deduction{twin, {OrderID: first.OrderID, TakeID: uuid.New(), Buyer: first.Buyer, Lines: first.Lines}} {
				if _, err := j.Queue(t.Context(), d, queuedAt); !errors.Is(err, stock.ErrInFlight) {
					t.Errorf("a twin: %v", err)
				}
			}
		}
		refused()
		fill(t, g, "a", 2, 4)
		refused()
		wantQueued(t, j, first)
		wantLength(t, j, 1)
		wantLevel(t, g, stock.Level{SKU: "a", Epoch: 2, Available: 4})
		wantLevel(t, g, stock.Level{SKU: "b", Epoch: 1, Available: 5})
		journaled(t, j, linesOf("b")) // another order
		mustFinish(t, j, first)
		journaled(t, j, twin)
		wantLevel(t, g, stock.Level{SKU: "a", Epoch: 2, Available: 4})
		wantLevel(t, g, stock.Level{SKU: "b", Epoch: 1, Available: 3, InFlight: 2})
	})
}

// TestTwinsInOneCall checks that one call queues only one of two takes of an order.
func TestTwinsInOneCall(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		fill(t, g, "a", 1, 5)
		fill(t, g, "b", 1, 5)
		one, other := linesOf("a"), linesOf("b")
		other.OrderID = one.OrderID
		var cuts []*cut
		for _, d := range []stock.Deduction{one, other, orderOf("a", 1)} {
			cuts = append(cuts, &cut{d: d, lines: d.Lines, receipt: make(stock.Receipt, 1), journal: &journalEntry{at: queuedAt, limit: 10}})
		}
		plain := orderOf("b", 1)
		cuts = append(cuts, &cut{d: plain, lines: plain.Lines, receipt: make(stock.Receipt, 1)}) // not queued
		g.runCuts(cuts)
		if cuts[0].err != nil || !errors.Is(cuts[1].err, stock.ErrInFlight) || cuts[2].err != nil || cuts[3].err != nil {
			t.Errorf("%v, %v, %v, %v", cuts[0].err, cuts[1].err, cuts[2].err, cuts[3].err)
		}
		wantLength(t, j, 2)
		wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 3, InFlight: 2})
		wantLevel(t, g, stock.Level{SKU: "b", Epoch: 1, Available: 4, InFlight: 1})
	})
}

// TestFullJournal checks that a full journal refuses orders as busy, and cuts nothing.
func TestFullJournal(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		j.limit = 3
		fill(t, g, "a", 1, 10)
		var (
			mu     sync.Mutex
			queued []stock.Take
			busy   int
			all    sync.WaitGroup
		)
		for range 8 {
			all.Go(func() {
				taken, err := j.Queue(t.Context(), linesOf("a"), queuedAt)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					queued = append(queued, taken)
				case errors.Is(err, stock.ErrBusy):
					busy++
				default:
					t.Error(err)
				}
			})
		}
		all.Wait()
		if len(queued) != 3 || busy != 5 {
			t.Fatalf("%d queued, %d busy", len(queued), busy)
		}
		wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 7, InFlight: 3})
		if _, err := j.Queue(t.Context(), orderOf("a", 8), queuedAt); !errors.Is(err, stock.ErrSoldOut) {
			t.Errorf("more than there is: %v", err)
		}
		// A take of an order that is in the journal needs no room.
		if _, err := j.Requeue(t.Context(), queued[0], uuid.New()); !errors.Is(err, stock.ErrInFlight) {
			t.Errorf("a take whose record holds: %v", err)
		}
		fill(t, g, "a", 2, 10)
		if _, err := j.Requeue(t.Context(), queued[0], uuid.New()); err != nil {
			t.Error(err)
		}
		mustFinish(t, j, queued[1])
		journaled(t, j, linesOf("a"))
		wantLength(t, j, 3)
	})
}

// TestRequeue checks that a queued order keeps its place when its units are taken again, and that
// only the take in the journal is replaced or finished.
func TestRequeue(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		fill(t, g, "a", 1, 5)
		first := journaled(t, j, linesOf("a"))
		if got := read(t, j, "x"); len(got) != 1 {
			t.Fatalf("read %v", got)
		}
		fill(t, g, "a", 2, 5)
		again, err := j.Requeue(t.Context(), first, uuid.New())
		if err != nil || again.TakeID == first.TakeID || again.Receipt[0].Epoch != 2 || !again.QueuedAt.Equal(queuedAt) {
			t.Fatalf("%+v, %v", again, err)
		}
		wantQueued(t, j, again)
		wantLength(t, j, 1)
		wantLevel(t, g, stock.Level{SKU: "a", Epoch: 2, Available: 4, InFlight: 1})
		if claimed := claim(t, j, "y"); len(claimed) != 1 || !sameTake(claimed[0], again) {
			t.Errorf("claimed %+v, want %+v", claimed, again)
		}
		if _, err := j.Requeue(t.Context(), first, uuid.New()); !errors.Is(err, stock.ErrInFlight) {
			t.Errorf("replacing a take that is replaced already: %v", err)
		}
		mustFinish(t, j, first)
		wantQueued(t, j, again)
		mustFinish(t, j, again)
		wantLength(t, j, 0)
		if _, err := j.Requeue(t.Context(), again, uuid.New()); !errors.Is(err, stock.ErrInFlight) {
			t.Errorf("a finished order: %v", err)
		}
		wantLength(t, j, 0)
		wantLevel(t, g, stock.Level{SKU: "a", Epoch: 2, Available: 4})
	})
}

// TestQueuedTakesAreLeft checks that recovery does not list takes of queued orders, unless the hash
// has lost the order, but that counting units in flight does.
func TestQueuedTakesAreLeft(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		fill(t, g, "a", 1, 5)
		waiting, lost := journaled(t, j, linesOf("a")), journaled(t, j, linesOf("a"))
		plain := mustTake(t, g, linesOf("a"))
		if err := g.client.HDel(t.Context(), g.queuedKey(), lost.OrderID.String()).Err(); err != nil {
			t.Fatal(err)
		}
		all, err := g.InFlight(t.Context(), 10, "a")
		if err != nil || len(all) != 3 {
			t.Fatalf("in flight: %+v, %v", all, err)
		}
		for _, found := range all {
			if found.TakeID == waiting.TakeID && !found.QueuedAt.Equal(queuedAt) || found.TakeID == plain.TakeID && !found.QueuedAt.IsZero() {
				t.Errorf("in flight: %+v", found)
			}
		}
		found, _, err := g.ScanInFlight(t.Context(), 0, "")
		left := slices.ContainsFunc(found, func(t stock.Take) bool { return t.TakeID == waiting.TakeID })
		if err != nil || len(found) != 2 || left {
			t.Errorf("recovery sees %+v, %v; want takes %s and %s", found, err, plain.TakeID, lost.TakeID)
		}
	})
}

// TestLostGroup checks that all orders are delivered again if the consumer group is
// lost, and that messages of finished orders are dropped.
func TestLostGroup(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		fill(t, g, "a", 1, 5)
		one := journaled(t, j, linesOf("a"))
		if got := read(t, j, "x"); len(got) != 1 {
			t.Fatalf("read %v", got)
		}
		if err := g.client.XGroupDestroy(t.Context(), g.journalKey(), consumers).Err(); err != nil {
			t.Fatal(err)
		}
		if err := g.client.XAdd(t.Context(), &redis.XAddArgs{Stream: g.journalKey(), Values: []string{orderField, uuid.NewString()}}).Err(); err != nil {
			t.Fatal(err)
		}
		read(t, j, "y") // creates the group
		if got := read(t, j, "y"); len(got) != 1 || !sameTake(got[0], one) {
			t.Errorf("read %+v", got)
		}
		wantLength(t, j, 1)
		if err := g.client.XGroupDestroy(t.Context(), g.journalKey(), consumers).Err(); err != nil {
			t.Fatal(err)
		}
		claim(t, j, "y") // creates the group too
		if got := read(t, j, "y"); len(got) != 1 || !sameTake(got[0], one) {
			t.Errorf("read %+v", got)
		}
	})
}

// TestLeave checks that a consumer with pending orders stays in the group, so that
// another consumer can claim them.
func TestLeave(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		fill(t, g, "a", 1, 5)
		names := func() (names []string) {
			t.Helper()
			found, err := g.client.XInfoConsumers(t.Context(), g.journalKey(), consumers).Result()
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range found {
				names = append(names, c.Name)
			}
			slices.Sort(names)
			return names
		}
		one := journaled(t, j, linesOf("a"))
		if got := read(t, j, "busy"); len(got) != 1 {
			t.Fatalf("read %v", got)
		}
		read(t, j, "idle")
		for _, name := range []string{"busy", "idle"} {
			if err := j.Leave(t.Context(), name); err != nil {
				t.Fatal(err)
			}
		}
		if got := names(); !slices.Contains(got, "busy") || slices.Contains(got, "idle") {
			t.Errorf("consumers %v", got)
		}
		mustFinish(t, j, one)
		if err := j.Leave(t.Context(), "busy"); err != nil {
			t.Fatal(err)
		}
		if got := names(); slices.Contains(got, "busy") {
			t.Errorf("consumers %v", got)
		}
		if err := g.client.XGroupCreateConsumer(t.Context(), j.journal, consumers, "gone").Err(); err != nil {
			t.Fatal(err)
		}
		if err := g.client.Eval(t.Context(), leaveLua, []string{j.journal}, "", -2 /* less than any idle time */).Err(); err != nil || slices.Contains(names(), "gone") {
			t.Errorf("after a long time: consumers %v, %v", names(), err)
		}
	})
}

// TestClaimPages checks that the orders of a dead consumer are claimed although a live one has many
// orders before them. They are more than one scan of the server covers: ten times as many as it may
// return.
func TestClaimPages(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		const limit, busy, left = 2, 65, 3
		fill(t, g, "a", 1, busy+left)
		var takes []stock.Take
		for range busy + left {
			takes = append(takes, journaled(t, j, linesOf("a")))
		}
		if got := read(t, j, "live"); len(got) != busy+left {
			t.Fatalf("read %d orders", len(got))
		}
		pending, err := g.client.XRange(t.Context(), g.journalKey(), "-", "+").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pending[busy:] {
			if err := g.client.Do(t.Context(), "XCLAIM", g.journalKey(), consumers, "dead", 0, m.ID, "IDLE", time.Hour.Milliseconds()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		var claimed []stock.Take
		for range 2 {
			got, err := j.Claim(t.Context(), "next", limit, time.Minute)
			if err != nil || len(got) > limit {
				t.Fatalf("claimed %d orders, %v", len(got), err)
			}
			claimed = append(claimed, got...)
		}
		if !slices.EqualFunc(claimed, takes[busy:], sameTake) {
			t.Errorf("claimed %+v, want %+v", claimed, takes[busy:])
		}
	})
}

// TestReadWaits checks that Read returns as soon as an order is queued.
func TestReadWaits(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		fill(t, g, "a", 1, 5)
		ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
		defer cancel()
		type answer struct {
			takes []stock.Take
			err   error
		}
		answered := make(chan answer, 1)
		go func() {
			takes, err := j.Read(ctx, "x", 10, time.Minute)
			answered <- answer{takes, err}
		}()
		one := journaled(t, j, linesOf("a"))
		if a := <-answered; a.err != nil || len(a.takes) != 1 || !sameTake(a.takes[0], one) {
			t.Errorf("%+v, %v", a.takes, a.err)
		}
	})
}

// TestUnreadableEntry checks that one unreadable order does not hide the others.
func TestUnreadableEntry(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		fill(t, g, "a", 1, 5)
		bad, good := journaled(t, j, linesOf("a")), journaled(t, j, linesOf("a"))
		if err := g.client.HSet(t.Context(), g.queuedKey(), bad.OrderID.String(), "?").Err(); err != nil {
			t.Fatal(err)
		}
		takes, err := j.Read(t.Context(), "x", 10, -1)
		if len(takes) != 1 || !sameTake(takes[0], good) || !errors.Is(err, errRecord) {
			t.Errorf("%+v, %v", takes, err)
		}
	})
}

// TestClusterHasNoJournal checks that a gate on a cluster offers no journal.
func TestClusterHasNoJournal(t *testing.T) {
	t.Parallel()
	g := scriptOn(t, shared.client(t, "Cluster"))
	if j := g.Journal(); j != nil {
		t.Errorf("%v", fmt.Sprint(j))
	}
}

// TestRedeliver checks that orders get a new place if the journal has lost their place, and keep it
// otherwise.
func TestRedeliver(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		j.limit = 3
		fill(t, g, "a", 1, 5)
		var queued []stock.Take
		for range 3 {
			queued = append(queued, journaled(t, j, linesOf("a")))
		}
		redeliver := func(want int) {
			t.Helper()
			if n, err := j.Redeliver(t.Context()); n != want || err != nil {
				t.Errorf("%d orders got a new place (%v), want %d", n, err, want)
			}
			wantLength(t, j, 3)
		}
		if got := read(t, j, "x"); len(got) != 3 {
			t.Fatalf("read %v", got)
		}
		redeliver(0)
		entry := func(of stock.Take) (message, rest string) {
			message, rest, _ = strings.Cut(g.client.HGet(t.Context(), g.queuedKey(), of.OrderID.String()).Val(), " ")
			return message, rest
		}
		message, rest := entry(queued[1])
		another, _ := entry(queued[2]) // a new stream may use an ID again
		if err := errors.Join(g.client.XDel(t.Context(), g.journalKey(), message).Err(),
			g.client.HSet(t.Context(), g.queuedKey(), queued[1].OrderID.String(), another+" "+rest).Err()); err != nil {
			t.Fatal(err)
		}
		redeliver(1)
		if got := read(t, j, "x"); len(got) != 1 || !sameTake(got[0], queued[1]) {
			t.Errorf("read %+v, want %+v", got, queued[1])
		}
		if err := g.client.Del(t.Context(), g.journalKey()).Err(); err != nil {
			t.Fatal(err)
		}
		if length, _, err := j.Backlog(t.Context()); length != 3 || err != nil {
			t.Errorf("%d orders are queued (%v), want 3", length, err)
		}
		if _, err := j.Queue(t.Context(), linesOf("a"), queuedAt); !errors.Is(err, stock.ErrBusy) {
			t.Errorf("one order more than the limit: %v", err)
		}
		redeliver(3)
		read(t, j, "y") // creates the group
		if got := read(t, j, "y"); len(got) != 3 {
			t.Errorf("read %+v", got)
		}
		mustFinish(t, j, queued...)
		wantLength(t, j, 0)
		wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 2})
	})
}

// TestClosedJournal checks that an order is queued only under the generation whose mark is in
// Redis. An earlier generation must not write its mark over a later one.
func TestClosedJournal(t *testing.T) {
	t.Parallel()
	eachJournal(t, func(t *testing.T, g countedScript, j *Journal) {
		fill(t, g, "a", 1, 5)
		before := journaled(t, j, linesOf("a"))
		mark := func(generation stock.Generation) {
			t.Helper()
			if err := g.SetMark(t.Context(), stock.Mark{Generation: generation}); err != nil {
				t.Fatal(err)
			}
		}
		closed := func() {
			t.Helper()
			if _, err := j.Queue(t.Context(), linesOf("a"), queuedAt); !errors.Is(err, stock.ErrBusy) || !errors.Is(err, errQueueClosed) {
				t.Errorf("queued in a closed journal: %v", err)
			}
			wantLength(t, j, 1)
			wantLevel(t, g, stock.Level{SKU: "a", Epoch: 1, Available: 4, InFlight: 1})
		}
		later := g.scripts.Load().generation + 1
		mark(later)
		closed()
		mark(later - 1)
		closed()
		if again := journaled(t, j, before.Deduction); !sameTake(again, before) { // the answer to the first call was lost
			t.Errorf("the same take again: %+v, want %+v", again, before)
		}
		if err := g.client.Del(t.Context(), g.markKey()).Err(); err != nil {
			t.Fatal(err)
		}
		closed()
		mark(later - 1)
		journaled(t, j, linesOf("a"))
		for _, unreadable := range []string{"not a mark", "99999999999999999999999 0 5"} {
			if err := g.client.Set(t.Context(), g.markKey(), unreadable, 0).Err(); err != nil {
				t.Fatal(err)
			}
			mark(later - 1)
			journaled(t, j, linesOf("a"))
		}
	})
}
