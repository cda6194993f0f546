package reconcile

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/holdfast-stock/holdfast/internal/faults"
	"github.com/holdfast-stock/holdfast/internal/ledger"
	"github.com/holdfast-stock/holdfast/internal/stock"
	"github.com/holdfast-stock/holdfast/internal/testenv"
)

// ways returns how a test breaks call n. A call can be refused, lose its answer, or
// hang. A thorough run tests all three ways, other runs one of them, in turn.
func ways(n int) []faults.Kind {
	all := []faults.Kind{faults.Refused, faults.Lost, faults.Hung}
	if testenv.Thorough() {
		return all
	}
	n %= len(all)
	return all[n : n+1]
}

// TestBrokenCalls breaks each call of reconciling to a store, in one of the ways or in all. The
// error must be reported, and a repeat and a sweep must repair the rest. Without a broken call,
// nothing may be left to repair.
func TestBrokenCalls(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		damaged []stock.SKU // damaged SKUs, by the names of their damages
		waits   bool        // whether the call waits as long as its context lasts
		do      func(ctx context.Context, s *shop) error
	}{
		"Deliver": {
			[]stock.SKU{"added", "gap"}, true,
			func(ctx context.Context, s *shop) error { return s.Deliver(ctx, "") },
		},
		"deliverAll": {
			[]stock.SKU{"added"}, true,
			func(ctx context.Context, s *shop) error {
				_, err := s.deliverAll(ctx)
				return err
			},
		},
		"CatchUp": {
			[]stock.SKU{"added", "lost"}, true,
			func(ctx context.Context, s *shop) error { return caughtUp(ctx, s, "added", "lost") },
		},
		"PrepareRetry": {
			[]stock.SKU{"lost"}, false,
			func(ctx context.Context, s *shop) error { return s.PrepareRetry(ctx, stock.ErrNotFilled, "lost") },
		},
		"Refill": {
			[]stock.SKU{"lost"}, false,
			func(ctx context.Context, s *shop) error { return s.Refill(ctx, "lost") },
		},
		"Sweep": {
			[]stock.SKU{"added", "gap", "high", "lost", "low", "sold", "taken", "unrecorded"}, false,
			func(ctx context.Context, s *shop) error {
				return errors.Join(s.Sweep(ctx), s.Sweep(ctx))
			},
		},
		"AuditAll": {
			[]stock.SKU{"claimed", "high", "lost", "unrecorded", "wrong"}, true,
			func(ctx context.Context, s *shop) error {
				var errs []error
				summary, err := s.AuditAll(ctx, AuditOptions{
					Repair: true, Progress: func(int) {},
					Report: func(f Finding) error {
						if len(f.Segments) != 2 || f.Repaired == (f.Err != nil) {
							errs = append(errs, fmt.Errorf("found %+v", f))
						}
						errs = append(errs, f.Err)
						return s.calls.do(ctx, "Report", func() error { return nil })
					},
				})
				if err = errors.Join(append(errs, err)...); err == nil && summary.Repaired != summary.Different {
					err = fmt.Errorf("counted %+v", summary)
				}
				return err
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inShop(t, func(t *testing.T, s *shop) {
				for _, sku := range test.damaged {
					s.add(t, sku, 20)
				}
				for n, more := 1, true; more; n++ {
					more = false
					for _, kind := range ways(n) {
						for _, sku := range test.damaged {
							damages[sku](t, s, sku)
						}
						broken, err := s.breaking(t, n, kind, test.waits, test.do)
						more = more || broken != ""
						// A repair is complete even if its last answer is lost.
						repaired := name == "AuditAll" && broken == "fill" && kind == faults.Lost
						reported := errors.Is(err, errLost) || kind == faults.Hung && errors.Is(err, context.DeadlineExceeded)
						if !reported && (broken != "" && !repaired || err != nil) {
							t.Errorf("error %v", err)
						}
						if broken != "" {
							if err := errors.Join(test.do(t.Context(), s), s.Sweep(t.Context())); err != nil {
								t.Errorf("again: %v", err)
							}
						}
						s.check(t, test.damaged...)
						if t.Failed() {
							t.Fatalf("call %d was broken: %s %s", n, broken, kind)
						}
					}
				}
			})
		})
	}
}

// flush makes Redis lose its scripts.
func flush(t *testing.T, s *shop) {
	t.Helper()
	if err := s.redis.ScriptFlush(t.Context()).Err(); err != nil {
		t.Error(err)
	}
}

// breaking breaks a call that do makes, and returns its name, or "" if there are fewer calls. If
// waits is false, do must return before its context ends.
func (s *shop) breaking(t *testing.T, n int, kind faults.Kind, waits bool, do func(ctx context.Context, s *shop) error) (broken string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*sweepTimeout)
	defer cancel()
	s.calls.start(n, kind)
	err = do(ctx, s)
	if ctx.Err() != nil && !waits {
		t.Errorf("it had no end: %v", err)
	}
	synctest.Wait() // settles may be under way
	return s.calls.stop(), err
}

// TestBrokenTakeover breaks each call of an instance to a store while it takes over the stock, or
// keeps itself under the ledger's generation. It does so in one of the ways or in all. The error
// must be reported, and the instance must be able to serve after another try.
func TestBrokenTakeover(t *testing.T) {
	t.Parallel()
	restore := func(t *testing.T, s *shop) { s.exec(t, "UPDATE ledger SET beat = 0") }
	changed := func(_ *testing.T, s *shop) { s.StoreChanged() }
	raised := func(t *testing.T, s *shop) { s.exec(t, "UPDATE ledger SET generation = generation + 1") }
	later := func(t *testing.T, s *shop) {
		first, _ := (s.ledger.Generation() + 1).Epochs()
		s.exec(t, "UPDATE stock SET epoch = ?", first+1)
	}
	raisedLater := func(t *testing.T, s *shop) {
		later(t, s)
		raised(t, s)
		if err := s.counter.Load(t.Context(), s.ledger.Generation()+1); err != nil {
			t.Fatal(err)
		}
	}
	start := func(layout string) func(ctx context.Context, s *shop) error {
		return func(ctx context.Context, s *shop) error {
			r := s.open(layout)
			defer r.Close()
			return r.Start(ctx)
		}
	}
	ready := func(ctx context.Context, s *shop) error { return s.Ready(ctx) }
	refill := func(ctx context.Context, s *shop) error { return s.Refill(ctx, "a") }
	sweep := func(ctx context.Context, s *shop) error { return s.Sweep(ctx) }
	for first, test := range []struct {
		name   string
		before func(t *testing.T, s *shop)
		do     func(ctx context.Context, s *shop) error
		waits  bool // whether the call waits as long as its context lasts
		raises bool // whether the call raises the generation
	}{
		{"Start", nil, start("test"), true, false},
		{"Start of another layout", nil, start("other"), true, true},
		{"Start after a loss", flush, start("test"), true, true},
		{"Start after a restore", restore, start("test"), true, true},
		{"Ready", nil, ready, false, false},
		{"Ready after a loss", flush, ready, false, true},
		{"Ready after a restore", restore, ready, false, true},
		{"Ready of a changed store", changed, ready, false, true},
		{"Usable of a changed store", changed, func(ctx context.Context, s *shop) error { return s.Usable(ctx) }, false, true},
		{"PrepareRetry after a loss", flush, func(ctx context.Context, s *shop) error {
			return s.PrepareRetry(ctx, stock.ErrNoGeneration, "a")
		}, false, true},
		{"Refill of a row of a later generation", raisedLater, refill, false, false},
		{"Refill of a row of a lost generation", later, refill, false, true},
		{"Sweep of a row of a later generation", raisedLater, sweep, false, false},
		{"Sweep of a row of a lost generation", later, sweep, false, true},
		{"Sweep of a changed store", changed, sweep, false, true},
		{"Attach", nil, func(ctx context.Context, s *shop) error {
			r := s.open("test")
			defer r.Close()
			return r.Attach(ctx)
		}, true, false},
		{"AuditAll of a generation that another raised", func(t *testing.T, s *shop) {
			raised(t, s)
			if err := s.counter.Load(t.Context(), s.ledger.Generation()+1); err != nil {
				t.Fatal(err)
			}
		}, func(ctx context.Context, s *shop) error {
			summary, err := s.AuditAll(ctx, AuditOptions{Progress: func(int) {}})
			if err == nil && summary != (AuditSummary{Compared: 1, NotAdopted: 1}) {
				err = fmt.Errorf("counted %+v", summary)
			}
			return err
		}, true, true},
		{"Ownership", nil, func(ctx context.Context, s *shop) error {
			_, err := s.Ownership(ctx)
			return err
		}, true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			inShop(t, func(t *testing.T, s *shop) {
				s.add(t, "a", 20)
				for n, more := 1, true; more; n++ {
					more = false
					for _, kind := range ways(n + first) {
						before, err := s.ledger.Owner(t.Context())
						if err != nil {
							t.Fatal(err)
						}
						if test.before != nil {
							test.before(t, s)
						}
						broken, err := s.breaking(t, n, kind, test.waits, test.do)
						more = more || broken != ""
						known := err == nil && broken == "MeasureClock" && !test.waits // by an earlier measurement, which Start does not have
						if !errors.Is(err, errLost) && !known && (broken != "" || err != nil) {
							t.Errorf("error %v", err)
						}
						after, err := s.ledger.Owner(t.Context())
						if err != nil || broken == "" && test.raises && after.Generation <= before.Generation {
							t.Errorf("generation %d, before %d; %v", after.Generation, before.Generation, err)
						}
						if mark, err := s.counter.Mark(t.Context()); err != nil || broken == "" && mark.Beat != after.Beat {
							t.Errorf("the mark is %+v, the owner %+v, %v", mark, after, err)
						}
						// An instance of the first layout serves again.
						if err := errors.Join(start("test")(t.Context(), s), s.Ready(t.Context()), s.Sweep(t.Context()), s.Sweep(t.Context())); err != nil {
							t.Errorf("again: %v", err)
						}
						s.check(t, "a")
						owner, err := s.ledger.Owner(t.Context())
						mark, markErr := s.counter.Mark(t.Context())
						if err := errors.Join(err, markErr); err != nil || mark.Generation != owner.Generation || mark.Beat != owner.Beat || s.ledger.Generation() != owner.Generation {
							t.Errorf("the mark is %+v, the owner %+v, %v; generation %d is in use", mark, owner, err, s.ledger.Generation())
						}
						if t.Failed() {
							t.Fatalf("call %d was broken: %s %s", n, broken, kind)
						}
					}
				}
			})
		})
	}
}

// caughtUp calls CatchUp until no count is being refilled.
func caughtUp(ctx context.Context, s *shop, skus ...stock.SKU) (err error) {
	for range len(skus) + 2 {
		if err = s.CatchUp(ctx, skus...); !stock.Reconcilable(err) {
			return err
		}
	}
	return err
}

// TestCatchUpMeetsARefill lets another instance refill a SKU with an undelivered addition, just
// before each call of CatchUp in turn. The other instance raises the epoch, which removes the
// addition from the outbox, and is killed before it fills the gate. Or it raised the epoch before
// the addition, and fills the gate without it. The gate must have the addition in the end.
func TestCatchUpMeetsARefill(t *testing.T) {
	t.Parallel()
	inShop(t, func(t *testing.T, s *shop) {
		s.add(t, "added", 20)
		raise := func() ledger.StockRow {
			row, err := s.ledger.RaiseEpoch(t.Context(), "added", s.row(t, "added").Epoch, 0)
			if err != nil {
				t.Error(err)
			}
			return row
		}
		for n, more := 1, true; more; n++ {
			more = false
			for _, filling := range []bool{false, true} {
				other := func() { raise() }
				if filling {
					raised := raise()
					other = func() {
						err := s.counter.Fill(t.Context(), "added", raised.Epoch, raised.Available)
						if err != nil && !errors.Is(err, stock.ErrStaleEpoch) { // CatchUp was faster
							t.Error(err)
						}
					}
				}
				s.add(t, "added", 1)
				calls := 0
				s.calls.before = func(string) {
					if calls++; calls == n {
						s.calls.before, more = nil, true
						other()
					}
				}
				err := caughtUp(t.Context(), s, "added")
				s.calls.before = nil
				row := s.row(t, "added")
				if levels, readErr := s.counter.Level(t.Context(), "added"); err != nil || readErr != nil || levels[0].Available != row.Available {
					t.Fatalf("before call %d, filling %v: the gate has %+v, the ledger %+v; %v, %v", n, filling, levels, row, err, readErr)
				}
				if err := s.Sweep(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.check(t, "added")
			}
		}
	})
}

// TestRefillMeetsAnother checks a refill if an event happens just before one of its calls.
func TestRefillMeetsAnother(t *testing.T) {
	t.Parallel()
	raise := func(t *testing.T, s *shop) ledger.StockRow {
		row, err := s.ledger.RaiseEpoch(t.Context(), "lost", s.row(t, "lost").Epoch, 0)
		if err != nil {
			t.Error(err)
		}
		return row
	}
	raised := func(t *testing.T, s *shop) { raise(t, s) }
	refilled := func(t *testing.T, s *shop) {
		row := raise(t, s)
		if err := s.counter.Fill(t.Context(), row.SKU, row.Epoch, row.Available); err != nil {
			t.Error(err)
		}
	}
	for _, test := range []struct {
		name, one, many string // calls of a refill of one SKU and of many
		before          func(t *testing.T, s *shop)
		raises          stock.Generation
		epochs          int64 // by how much the row's epoch rises within the generation
	}{
		{"another raises the epoch", "RaiseEpoch", "", raised, 0, 1},
		{"another refills later", "fill", "fill", refilled, 0, 2},
		{"the scripts are lost", "fill", "fill", flush, 1, 1},
	} {
		inShop(t, func(t *testing.T, s *shop) {
			s.add(t, "lost", 20)
			ended, end := context.WithCancel(t.Context())
			end()
			for _, step := range []struct {
				call   string
				refill func() error
			}{
				{test.one, func() error { return s.Refill(ended, "lost") }}, // others may wait for the refill
				{test.many, func() error { return s.Sweep(t.Context()) }},
			} {
				call := step.call
				if call == "" {
					continue
				}
				damages["lost"](t, s, "lost")
				generation, epoch := s.ledger.Generation(), s.row(t, "lost").Epoch
				s.calls.before = func(name string) {
					if name == call {
						s.calls.before = nil
						test.before(t, s)
					}
				}
				if err := step.refill(); err != nil || s.calls.before != nil {
					t.Errorf("%s: %s: %v", test.name, call, err)
				}
				if raised, risen := s.ledger.Generation()-generation, s.row(t, "lost").Epoch-epoch; raised != test.raises || risen != test.epochs {
					t.Errorf("%s: %s: the generation rose by %d, the epoch by %d", test.name, call, raised, risen)
				}
				if err := errors.Join(s.Sweep(t.Context()), s.Sweep(t.Context())); err != nil {
					t.Error(err)
				}
				s.check(t, "lost")
			}
		})
	}
}
