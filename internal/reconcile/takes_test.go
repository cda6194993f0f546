package reconcile

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/order"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// TestOneStuckTake checks that an open take that cannot be ended does not keep others from being
// ended.
func TestOneStuckTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := newGate(newRedis())
		gate.fail = func(taken stock.Take) error {
			if taken.Lines[0].SKU == "stuck" {
				return errUnreachable
			}
			return nil
		}
		r := newReconciler(gate, newLedger(&ownerRow{}))
		defer r.Close()
		other := takeOf("other", 1)
		r.leaveOpen(&openTake{takeOf("stuck", 1), false})
		r.leaveOpen(&openTake{other, false})
		stop := testenv.Background(t, r.endOpenTakes)
		time.Sleep(10 * openTakePause)
		stop()
		if !slices.Equal(gate.given, []uuid.UUID{other.TakeID}) {
			t.Errorf("gave back %v, want %v", gate.given, other.TakeID)
		}
	})
}

// TestOpenTakeIsRetried checks that a take that could not be ended is tried again, with pauses,
// until the stores answer, and not after that.
func TestOpenTakeIsRetried(t *testing.T) {
	t.Parallel()
	const failures = 10
	for _, test := range []struct {
		name    string
		outcome order.Outcome // outcome once the ledger answers
		out     order.Outcome // outcome of the request
		settled bool
	}{
		{name: "refused", out: order.Refused(stock.ErrBusy)},
		{name: "unknown and committed", out: order.Unknown(errUnreachable), outcome: order.Committed(), settled: true},
		{name: "unknown and refused", out: order.Unknown(errUnreachable), outcome: order.Refused(stock.ErrBusy)},
	} {
		for _, store := range []string{"gate", "ledger"} {
			if store == "ledger" && !test.out.Unknown() {
				continue
			}
			t.Run(test.name+", "+store+" unreachable", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					gate, l := newGate(newRedis()), newLedger(&ownerRow{})
					var tries []time.Time
					fails := func() bool {
						tries = append(tries, time.Now())
						return len(tries) <= failures
					}
					l.outcome = func() order.Outcome { return test.outcome }
					if store == "gate" {
						gate.fail = func(stock.Take) error {
							if fails() {
								return errUnreachable
							}
							return nil
						}
					} else {
						l.outcome = func() order.Outcome {
							if fails() {
								return order.Unknown(errUnreachable)
							}
							return test.outcome
						}
					}
					r := newReconciler(gate, l)
					taken := takeOf("a", 1)
					if store == "gate" && test.out.Unknown() {
						r.leaveOpen(&openTake{taken, true}) // the ledger could not be reached before
					} else {
						r.FinishTake(t.Context(), taken, test.out)
						if len(tries) != 1 {
							t.Fatalf("the request tried %d times, want 1", len(tries))
						}
					}
					stop := testenv.Background(t, r.endOpenTakes)
					time.Sleep(time.Minute)
					stop()
					r.Close()

					if len(tries) != failures+1 {
						t.Fatalf("tried %d times, want %d", len(tries), failures+1)
					}
					first := 1 // the request's own try is not followed by a pause
					if store == "gate" && test.out.Unknown() {
						first = 0
					}
					for n := first + 1; n < len(tries); n++ {
						failed := n - first // failures in a row
						pause := tries[n].Sub(tries[n-1])
						if longest := openTakePause + openTakePause<<min(failed-1, 5); pause < openTakePause || pause > longest {
							t.Errorf("paused for %v after failure %d, want %v to %v", pause, failed, openTakePause, longest)
						}
					}
					if test.settled != (len(gate.settled) == 1) || test.settled == (len(gate.given) == 1) {
						t.Errorf("settled %v, gave back %v", gate.settled, gate.given)
					}
				})
			})
		}
	}
}

// TestPauseStartsAgain checks that the pauses after failures are short again once a take was ended.
func TestPauseStartsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := newGate(newRedis())
		fails := 0
		gate.fail = func(stock.Take) error {
			if fails == 0 {
				return nil
			}
			fails--
			return errUnreachable
		}
		r := newReconciler(gate, newLedger(&ownerRow{}))
		defer r.Close()
		defer testenv.Background(t, r.endOpenTakes)()
		end := func(failures int) (took time.Duration) {
			gate.mu.Lock()
			fails, gate.tries = failures, nil
			gate.mu.Unlock()
			r.leaveOpen(&openTake{takeOf("a", 1), false})
			time.Sleep(time.Minute)
			gate.mu.Lock()
			defer gate.mu.Unlock()
			if len(gate.tries) != failures+1 {
				t.Fatalf("tried %d times, want %d", len(gate.tries), failures+1)
			}
			return gate.tries[failures].Sub(gate.tries[0])
		}
		for range 10 {
			end(10)
			if took := end(1); took >= 2*openTakePause {
				t.Errorf("paused for %v after the first failure, want less than %v", took, 2*openTakePause)
			}
		}
	})
}

// TestFullQueueOfOpenTakes checks that leaving a take open never blocks.
func TestFullQueueOfOpenTakes(t *testing.T) {
	t.Parallel()
	gate := newGate(newRedis())
	gate.fail = func(stock.Take) error { return errUnreachable }
	r := newReconciler(gate, newLedger(&ownerRow{}))
	defer r.Close()
	taken := takeOf("a", 1)
	for range maxOpenTakes + 1 {
		r.leaveOpen(&openTake{taken, false})
	}
	if r.GiveBack(t.Context(), taken) {
		t.Error("a give that failed was reported as done")
	}
}

// TestEnd checks what is done with a take at the gate for each outcome.
func TestEnd(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name           string
		out, resolved  order.Outcome
		want           order.Outcome
		settled, given bool
	}{
		{name: "committed", out: order.Committed(), want: order.Committed(), settled: true},
		{name: "refused", out: order.Refused(stock.ErrBusy), want: order.Refused(stock.ErrBusy), given: true},
		{name: "duplicate", out: order.Duplicate(&order.Order{}), want: order.Duplicate(&order.Order{}), given: true},
		{name: "unknown and committed", out: order.Unknown(errUnreachable), resolved: order.Committed(), want: order.Committed(), settled: true},
		{
			name: "unknown and refused", out: order.Unknown(errUnreachable), resolved: order.Refused(errors.New("void")),
			want: order.Refused(stock.ErrBusy), given: true,
		},
		{name: "unknown", out: order.Unknown(errUnreachable), resolved: order.Unknown(stock.ErrUnavailable), want: order.Unknown(errUnreachable)},
	} {
		t.Run(test.name, func(t *testing.T) {
			gate, l := newGate(newRedis()), newLedger(&ownerRow{})
			l.outcome = func() order.Outcome { return test.resolved }
			r := newReconciler(gate, l)
			taken := takeOf("a", 1)
			ctx, cancel := context.WithCancel(t.Context())
			cancel() // compensation continues
			got := r.FinishTake(ctx, taken, test.out)
			r.Close()
			_, duplicate := got.Duplicate()
			_, wantDuplicate := test.want.Duplicate()
			if got.Committed() != test.want.Committed() || got.Refused() != test.want.Refused() || got.Unknown() != test.want.Unknown() ||
				duplicate != wantDuplicate || !errors.Is(got.Reason(), test.want.Reason()) {
				t.Errorf("the outcome is %+v, want %+v", got, test.want)
			}
			if test.settled != (len(gate.settled) == 1) || test.given != slices.Contains(gate.given, taken.TakeID) {
				t.Errorf("settled %v, gave back %v", gate.settled, gate.given)
			}
			if open := len(r.open); (open == 1) != got.Unknown() {
				t.Errorf("%d takes are open", open)
			}
		})
	}
}

// TestWithoutAGate checks that without a gate, no take stays open and no epoch is raised. A row of
// an earlier generation must be adopted without a count to refill.
func TestWithoutAGate(t *testing.T) {
	t.Parallel()
	l := newLedger(&ownerRow{})
	l.outcome = func() order.Outcome { return order.Unknown(errUnreachable) }
	l.rows["a"] = ledger.StockRow{SKU: "a"}
	r := newReconciler(nil, l)
	defer r.Close()
	for _, out := range []order.Outcome{
		order.Committed(), order.Refused(stock.Refuse("a", stock.ErrSoldOut)), order.Duplicate(&order.Order{}), order.Unknown(errUnreachable),
	} {
		if got := r.FinishTake(t.Context(), takeOf("a", 0), out); got.Committed() != out.Committed() || got.Unknown() != out.Unknown() {
			t.Errorf("the outcome is %+v, want %+v", got, out)
		}
	}
	if len(r.open) != 0 || len(l.raises) != 0 {
		t.Errorf("%d takes are open, epochs were raised of %v", len(r.open), l.raises)
	}
	l.Use(1)
	if err := r.PrepareRetry(t.Context(), stock.ErrNotAdopted, "a"); err != nil || stock.GenerationOf(l.rows["a"].Epoch) != l.Generation() {
		t.Errorf("the row is %+v, %v", l.rows["a"], err)
	}
}

// TestSettles checks that settles are sent in groups, that no caller waits for them,
// and that Close sends all that are queued.
func TestSettles(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate := newGate(newRedis())
		r := newReconciler(gate, newLedger(&ownerRow{}))
		var want []uuid.UUID
		settle := func(n int) {
			for range n {
				taken := takeOf("a", 1)
				want = append(want, taken.TakeID)
				r.FinishTake(t.Context(), taken, order.Committed())
			}
		}
		start := time.Now()
		settle(1)
		synctest.Wait() // the first was sent alone; the others gather in the pause
		settle(3*maxSettles + 1)
		if calls := gate.settleCalls(); calls != 1 || time.Since(start) != 0 {
			t.Errorf("%d calls in %v, want 1 at once", calls, time.Since(start))
		}
		r.Close()
		settle(1) // after Close the settle is sent directly
		var got []uuid.UUID
		for _, call := range gate.settled {
			if len(call) > maxSettles {
				t.Errorf("%d takes in one call", len(call))
			}
			for _, taken := range call {
				got = append(got, taken.TakeID)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("settled %d takes, want %d", len(got), len(want))
		}
		if calls := len(gate.settled); calls != 1+4+1 {
			t.Errorf("%d calls", calls)
		}
		for n := 1; n < 5; n++ {
			if pause := gate.tries[n].Sub(gate.tries[n-1]); pause != settlePause {
				t.Errorf("paused for %v after call %d, want %v", pause, n, settlePause)
			}
		}
	})
}
